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
	pairs []uint64 // hash<<32 | slot+1; 0 is free. Length: zero, a power of two, or three times one
}

const minTable = 16 // two cache lines

// put adds a pair; used is how many there will be at most, with it. Invariant: at most three
// quarters of the pairs are in use, so that a probe for an absent key ends after a few
// steps.
//
// The table grows by half and by a third in turn, so that it is never less than half full
// when it has grown, where doubling leaves three eighths. With a million entries parked
// the miss of a cache line here is a third of a request's time, and the fewer lines there are
// the cheaper it is (measured: 230 ns a request instead of 260).
func (t *table) put(hash, slot, used uint32) {
	if n := len(t.pairs); 4*int(used) > 3*n {
		switch {
		case n == 0:
			n = minTable
		case n&(n-1) == 0:
			n += n / 2
		default:
			n += n / 3
		}
		t.resize(n)
	}
	t.place(uint64(hash)<<32 | uint64(slot+1))
}

// home returns where a pair with this hash would be best, in a table that is not empty: the
// hash, a fraction of 2^32, of the table.
func (t *table) home(hash uint32) uint64 { return uint64(hash) * uint64(len(t.pairs)) >> 32 }

// after returns the position that follows i.
func (t *table) after(i uint64) uint64 {
	if i++; i < uint64(len(t.pairs)) {
		return i
	}
	return 0
}

// place stores a pair in the first free position from its home on.
func (t *table) place(pair uint64) {
	i := t.home(uint32(pair >> 32))
	for t.pairs[i] != 0 {
		i = t.after(i)
	}
	t.pairs[i] = pair
}

// probe searches from a position on, the first time from home, for a pair with this hash, and
// returns its slot, or gone if there is none, and its position.
func (t *table) probe(hash uint32, i uint64) (slot uint32, at uint64) {
	for ; ; i = t.after(i) {
		pair := t.pairs[i]
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
	pair := uint64(hash)<<32 | uint64(slot+1)
	i := t.home(hash)
	for t.pairs[i] != pair {
		i = t.after(i)
	}
	return i
}

// move tells that what was in slot from is now in slot to.
func (t *table) move(hash, from, to uint32) {
	t.pairs[t.position(hash, from)] = uint64(hash)<<32 | uint64(to+1)
}

// remove takes a pair out, which must be there; used is how many there are without it.
func (t *table) remove(hash, slot, used uint32) {
	gap := t.position(hash, slot)
	for i := t.after(gap); t.pairs[i] != 0; i = t.after(i) {
		// A pair may move back into the gap unless its home lies behind it.
		if t.distance(t.home(uint32(t.pairs[i]>>32)), i) >= t.distance(gap, i) {
			t.pairs[gap] = t.pairs[i]
			gap = i
		}
	}
	t.pairs[gap] = 0
	if len(t.pairs) > minTable && 8*int(used) < len(t.pairs) {
		t.resize(max(minTable, len(t.pairs)/2))
	}
}

// distance returns how many positions lie between from and to, which comes after it.
func (t *table) distance(from, to uint64) uint64 {
	if to < from {
		to += uint64(len(t.pairs))
	}
	return to - from
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
