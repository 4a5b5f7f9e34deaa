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
//
// The table does not count its pairs: its owner knows the number, and so the table
// itself is written only when it grows or shrinks.
type table struct {
	pairs []uint64 // hash<<32 | slot+1; 0 is free. Length: zero or a power of two
}

const minTable = 16 // two cache lines

// put adds a pair; used is how many there will be at most, with it. Invariant: at most three
// quarters of the pairs are in use, so that a probe for an absent key ends after a
// few steps.
func (t *table) put(hash, slot, used uint32) {
	if 4*int(used) > 3*len(t.pairs) {
		t.resize(max(minTable, 2*len(t.pairs)))
	}
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

// probe searches from a position on, the first time from the hash, for a pair with this
// hash, and returns its slot, or gone if there is none, and its position. The table must
// not be empty.
func (t *table) probe(hash uint32, i uint64) (slot uint32, at uint64) {
	for mask := uint64(len(t.pairs) - 1); ; i++ {
		pair := t.pairs[i&mask]
		if pair == 0 {
			return gone, 0
		}
		if uint32(pair>>32) == hash {
			return uint32(pair) - 1, i
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

// remove takes a pair out, which must be there; used is how many there are without it.
func (t *table) remove(hash, slot, used uint32) {
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
	if len(t.pairs) > minTable && 8*int(used) < len(t.pairs) {
		t.resize(len(t.pairs) / 2)
	}
}

// reset empties the table. It keeps the memory that a busy list needs again.
func (t *table) reset() {
	if len(t.pairs) > 2*minTable {
		t.pairs = nil
	}
	clear(t.pairs)
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
