package waitlist

import "slices"

// chunk is how many slots are allocated and given back together. Eight keep an idle list
// small and, with keys of eight bytes on a 64-bit machine, fill the allocator's size class
// of 512 bytes: each entry is a cache line. (What holds pointers and is larger gets a
// header, and with it the next larger class. Other keys are only slower.)
const chunk = 8

// slots holds the entries of a shard.
type slots[K comparable] []*[chunk]entry[K]

func (s slots[K]) entry(slot uint32) *entry[K] { return &s[slot/chunk][slot%chunk] }

// agenda keeps the entries of a shard in the order of a 64-bit position, those with the
// same in order of registration: deadlines for both lists, and log indexes for a
// WatermarkList. Its methods take the shard, of which they read the entries; they know
// nothing of clocks and locks.
//
// While a shard is not indexed, the agenda is empty, and to know the first is to look at
// all of its few entries. Else what arrives in order, which is nearly
// everything (equal timeouts give rising deadlines, logs give rising indexes), is appended
// to a linked list: insertion, removal and the earliest cost O(1). A straggler goes into
// a 4-ary heap: O(log n), with four children in view of each other (Johnson, 1975:
// d-heaps).
//
// A hierarchical timing wheel (Varghese and Lauck, 1987) was built on paper and
// refused. It knows the earliest deadline only to the width of a bucket, so that a
// timer wakes up once per level for nothing, and a million entries added in one
// breath move together at every level boundary: tens of milliseconds inside
// one sweep in which nothing is due. Here the earliest is exact, a sweep touches
// nothing that is not due, and the same structure keeps the order of a log.
type agenda[K comparable] struct {
	head, tail uint32         // first and last of the list, as slot+1; 0: empty
	heap       []uint32       // the stragglers' slots
	links      []*[chunk]link // by slot; free ones hold anything
}

// link is where a slot is in the list: its neighbours, as slot+1; or in the heap: next is
// heaped, and prev its place there.
type link struct{ prev, next uint32 }

const heaped = ^uint32(0)

func (a *agenda[K]) link(slot uint32) *link { return &a.links[slot/chunk][slot%chunk] }

// position returns the position of an entry: its deadline in the agenda that every shard
// has, and in the other, which only a WatermarkList has and may be nil, its index.
func (a *agenda[K]) position(s *shard[K], slot uint32) uint64 {
	e := s.entry(slot)
	if a == &s.due {
		return uint64(e.deadline)
	}
	return e.acked[0]
}

// before orders two slots. Registration numbers wrap; their difference tells which
// came first as long as fewer than 2^31 registrations lie between two entries at
// the same position.
func (a *agenda[K]) before(s *shard[K], x, y uint32) bool {
	px, py := a.position(s, x), a.position(s, y)
	return px < py || px == py && int32(s.entry(x).serial-s.entry(y).serial) < 0
}

// reset empties the agenda. It keeps the memory that a busy list needs again.
func (a *agenda[K]) reset() {
	if len(a.links) > 2 {
		a.links = nil
	}
	if cap(a.heap) > 2*chunk {
		a.heap = nil
	}
	a.head, a.tail, a.heap = 0, 0, a.heap[:0]
}

// trim gives back the memory of slots beyond the first chunks.
func (a *agenda[K]) trim(chunks int) {
	for len(a.links) > chunks {
		a.links = dropLast(a.links)
	}
}

// insertAll adds every entry of the shard to an empty agenda: in order, so that no one is a
// straggler. (The order of registration alone would not do: the numbers of entries at
// different positions may lie further apart than before can tell.)
func (a *agenda[K]) insertAll(s *shard[K]) {
	var space [chunk + 1]uint32
	slots := space[:0]
	for slot := range s.live {
		slots = append(slots, slot)
	}
	slices.SortFunc(slots, func(x, y uint32) int {
		if a.before(s, x, y) {
			return -1
		}
		return 1
	})
	for _, slot := range slots {
		a.insert(s, slot)
	}
}

// insert adds a slot whose registration came after those of all others at its position.
func (a *agenda[K]) insert(s *shard[K], slot uint32) {
	for slot/chunk >= uint32(len(a.links)) {
		a.links = append(a.links, new([chunk]link))
	}
	at := a.position(s, slot)
	if last := a.tail - 1; a.tail != 0 && a.position(s, last) > at {
		// Out of order. If only the last in the list stands in the way, that one
		// is the straggler (one hour's timeout among seconds, say), or all that
		// come after it would have to go into the heap.
		if second := a.link(last).prev; second != 0 && a.position(s, second-1) > at {
			a.push(s, slot)
			return
		}
		a.unlink(last)
		a.push(s, last)
	}
	*a.link(slot) = link{prev: a.tail}
	if a.tail == 0 {
		a.head = slot + 1
	} else {
		a.link(a.tail - 1).next = slot + 1
	}
	a.tail = slot + 1
}

// remove takes a slot out, which must be in.
func (a *agenda[K]) remove(s *shard[K], slot uint32) {
	n := a.link(slot)
	if n.next != heaped {
		a.unlink(slot)
		return
	}
	i, last := n.prev, uint32(len(a.heap)-1)
	moved := a.heap[last]
	a.heap = shrunk(a.heap[:last])
	if i != last {
		a.set(i, moved)
		a.up(s, i)
		a.down(s, a.link(moved).prev)
	}
}

func (a *agenda[K]) unlink(slot uint32) {
	n := a.link(slot)
	if n.prev == 0 {
		a.head = n.next
	} else {
		a.link(n.prev - 1).next = n.next
	}
	if n.next == 0 {
		a.tail = n.prev
	} else {
		a.link(n.next - 1).prev = n.prev
	}
}

// move tells that what was in slot from, which must be in, is now in slot to.
func (a *agenda[K]) move(from, to uint32) {
	n := a.link(to)
	*n = *a.link(from)
	if n.next == heaped {
		a.heap[n.prev] = to
		return
	}
	if n.prev == 0 {
		a.head = to + 1
	} else {
		a.link(n.prev - 1).next = to + 1
	}
	if n.next == 0 {
		a.tail = to + 1
	} else {
		a.link(n.next - 1).prev = to + 1
	}
}

// first returns the slot that comes first and its position.
func (a *agenda[K]) first(s *shard[K]) (slot uint32, at uint64, ok bool) {
	switch {
	case s.live == 0:
		return 0, 0, false
	case !s.indexed:
		for other := uint32(1); other < s.live; other++ {
			if a.before(s, other, slot) {
				slot = other
			}
		}
	case a.head == 0:
		slot = a.heap[0]
	case len(a.heap) == 0 || a.before(s, a.head-1, a.heap[0]):
		slot = a.head - 1
	default:
		slot = a.heap[0]
	}
	return slot, a.position(s, slot), true
}

// allBy reports whether everything lies at or before a position. It may say no when
// there are stragglers, or few entries.
func (a *agenda[K]) allBy(s *shard[K], at uint64) bool {
	return len(a.heap) == 0 && a.tail != 0 && a.position(s, a.tail-1) <= at
}

// from returns the slots at or beyond a position. It costs what it returns, and a look
// at every straggler, or at all of few.
func (a *agenda[K]) from(s *shard[K], at uint64) (slots []uint32) {
	if !s.indexed {
		for slot := range s.live {
			if a.position(s, slot) >= at {
				slots = append(slots, slot)
			}
		}
		return slots
	}
	for next := a.tail; next != 0 && a.position(s, next-1) >= at; next = a.link(next - 1).prev {
		slots = append(slots, next-1)
	}
	for _, slot := range a.heap {
		if a.position(s, slot) >= at {
			slots = append(slots, slot)
		}
	}
	return slots
}

func (a *agenda[K]) push(s *shard[K], slot uint32) {
	a.heap = append(a.heap, slot)
	i := uint32(len(a.heap) - 1)
	a.set(i, slot)
	a.up(s, i)
}

func (a *agenda[K]) set(i, slot uint32) {
	a.heap[i] = slot
	*a.link(slot) = link{prev: i, next: heaped}
}

func (a *agenda[K]) up(s *shard[K], i uint32) {
	slot := a.heap[i]
	for i > 0 {
		parent := (i - 1) / 4
		if !a.before(s, slot, a.heap[parent]) {
			break
		}
		a.set(i, a.heap[parent])
		i = parent
	}
	a.set(i, slot)
}

func (a *agenda[K]) down(s *shard[K], i uint32) {
	slot, n := a.heap[i], uint32(len(a.heap))
	for first := 4*i + 1; first < n; first = 4*i + 1 {
		least := first
		for c := first + 1; c < min(first+4, n); c++ {
			if a.before(s, a.heap[c], a.heap[least]) {
				least = c
			}
		}
		if !a.before(s, a.heap[least], slot) {
			break
		}
		a.set(i, a.heap[least])
		i = least
	}
	a.set(i, slot)
}

// dropLast removes the last element and lets go of it.
func dropLast[S ~[]*T, T any](s S) S {
	s[len(s)-1] = nil
	return shrunk(s[:len(s)-1])
}

// shrunk copies a slice that fills less than a quarter of its memory.
func shrunk[S ~[]T, T any](s S) S {
	if cap(s) < 64 || 4*len(s) > cap(s) {
		return s
	}
	return append(make(S, 0, 2*len(s)), s...)
}
