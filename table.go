package waitlist

// table maps the hash of a key to the slot of its entry: open addressing with
// linear probing over (hash, slot) pairs of eight bytes. Whoever looks up
// compares the keys in the entries. The table holds no pointers, so the garbage
// collector never reads it, and a removal closes the gap it leaves (Knuth, The
// Art of Computer Programming vol. 3, 6.4, algorithm R), so there are no
// tombstones to clean up.
//
// Go's own map was refused: it would hash once more per call, hold the key twice,
// and never give memory back.
type table struct {
	pairs []uint64 // hash<<32 | slot+1; 0 is free. Length: zero or a power of two
	used  int
}

const minTable = 16 // two cache lines

// put adds a pair. Invariant: at most three quarters of the pairs are in use, so
// that a probe for an absent key ends after a few steps.
func (t *table) put(hash, slot uint32) {
	if 4*(t.used+1) > 3*len(t.pairs) {
		t.resize(max(minTable, 2*len(t.pairs)))
	}
	t.used++
	t.place(uint64(hash)<<32 | uint64(slot+1))
}

// place stores a pair in the first free position from its home on.
func (t *table) place(pair uint64) {
	mask := uint64(len(t.pairs) - 1)
	i := pair >> 32 & mask
	for t.pairs[i] != 0 {
		i = (i + 1) & mask
	}
	t.pairs[i] = pair
}

// candidates yields the slots of the pairs with this hash. The table may change in
// the loop's body only if the loop is then left.
func (t *table) candidates(hash uint32) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		if len(t.pairs) == 0 {
			return
		}
		mask := uint64(len(t.pairs) - 1)
		for i := uint64(hash) & mask; t.pairs[i] != 0; i = (i + 1) & mask {
			if pair := t.pairs[i]; uint32(pair>>32) == hash && !yield(uint32(pair)-1) {
				return
			}
		}
	}
}

// position returns where the pair of this hash and slot is, which must be there.
func (t *table) position(hash, slot uint32) uint64 {
	pair, mask := uint64(hash)<<32|uint64(slot+1), uint64(len(t.pairs)-1)
	i := uint64(hash) & mask
	for t.pairs[i] != pair {
		i = (i + 1) & mask
	}
	return i
}

// move tells that what was in slot from is now in slot to.
func (t *table) move(hash, from, to uint32) {
	t.pairs[t.position(hash, from)] = uint64(hash)<<32 | uint64(to+1)
}

// remove takes a pair out, which must be there.
func (t *table) remove(hash, slot uint32) {
	mask := uint64(len(t.pairs) - 1)
	gap := t.position(hash, slot)
	for i := (gap + 1) & mask; t.pairs[i] != 0; i = (i + 1) & mask {
		// A pair may move back into the gap unless its home lies behind it.
		if home := t.pairs[i] >> 32 & mask; (i-home)&mask >= (i-gap)&mask {
			t.pairs[gap] = t.pairs[i]
			gap = i
		}
	}
	t.pairs[gap] = 0
	t.used--
	if len(t.pairs) > minTable && 8*t.used < len(t.pairs) {
		t.resize(len(t.pairs) / 2)
	}
}

func (t *table) resize(n int) {
	old := t.pairs
	t.pairs = make([]uint64, n)
	for _, pair := range old {
		if pair != 0 {
			t.place(pair)
		}
	}
}
