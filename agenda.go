package waitlist

// chunk is how many slots are allocated and given back together. Eight keep an idle
// list small and fill the allocator's size classes without waste: what holds pointers
// and is larger than 512 bytes gets a header, and with it the next larger class.
const chunk = 8

// agenda keeps the occupied slots of a shard in the order of a 64-bit position:
// deadlines for both lists, and log indexes for a WatermarkList. It is plain
// data: it knows nothing of entries, clocks or locks.
//
// What arrives in order, which is nearly everything (equal timeouts give rising
// deadlines, logs give rising indexes), is appended to a linked list: insertion,
// removal and the earliest cost O(1). A straggler goes into a 4-ary heap:
// O(log n), with four children in view of each other (Johnson, 1975: d-heaps).
//
// A hierarchical timing wheel (Varghese and Lauck, 1987) was built on paper and
// refused. It knows the earliest deadline only to the width of a bucket, so that a
// timer wakes up once per level for nothing, and a million entries added in one
// breath move together at every level boundary: tens of milliseconds inside
// one sweep in which nothing is due. Here the earliest is exact, a sweep touches
// nothing that is not due, and the same structure keeps the order of a log.
type agenda struct {
	head, tail uint32          // first and last of the list, as slot+1; 0: empty
	places     []*[chunk]place // by slot
	heap       []uint32        // the stragglers' slots
}

type place struct {
	at uint64 // the position

	prev, next uint32 // neighbours in the list, as slot+1; unused in the heap
	seq        uint32 // number of registration: orders what has equal positions
	heaped     uint32 // place in the heap plus 1; 0: it is in the list
}

func (a *agenda) place(slot uint32) *place { return &a.places[slot/chunk][slot%chunk] }

// trim gives back the memory of slots beyond the first chunks.
func (a *agenda) trim(chunks int) {
	for len(a.places) > chunks {
		a.places = dropLast(a.places)
	}
}

// before orders two slots. Registration numbers wrap; their difference tells which
// came first as long as fewer than 2^31 registrations lie between two entries at
// the same position.
func (a *agenda) before(x, y uint32) bool {
	nx, ny := a.place(x), a.place(y)
	return nx.at < ny.at || nx.at == ny.at && int32(nx.seq-ny.seq) < 0
}

// insert adds a slot. Its seq is that of the latest registration.
func (a *agenda) insert(slot uint32, at uint64, seq uint32) {
	if slot/chunk >= uint32(len(a.places)) {
		a.places = append(a.places, new([chunk]place)) // slots are taken without gaps
	}
	n := a.place(slot)
	n.at, n.next, n.seq, n.heaped = at, 0, seq, 0
	if a.tail == 0 {
		n.prev, a.head, a.tail = 0, slot+1, slot+1
		return
	}
	if last := a.tail - 1; a.place(last).at > at {
		// Out of order. If only the last in the list stands in the way, that one
		// is the straggler (one hour's timeout among seconds, say), or all that
		// come after it would have to go into the heap.
		if second := a.place(last).prev; second != 0 && a.place(second-1).at > at {
			a.push(slot)
			return
		}
		a.unlink(last)
		a.push(last)
	}
	if n.prev = a.tail; a.tail == 0 {
		a.head = slot + 1
	} else {
		a.place(a.tail - 1).next = slot + 1
	}
	a.tail = slot + 1
}

// remove takes a slot out, which must be in.
func (a *agenda) remove(slot uint32) {
	n := a.place(slot)
	if n.heaped == 0 {
		a.unlink(slot)
		return
	}
	i, last := n.heaped-1, uint32(len(a.heap)-1)
	moved := a.heap[last]
	a.heap = shrunk(a.heap[:last])
	if i != last {
		a.set(i, moved)
		a.up(i)
		a.down(a.place(moved).heaped - 1)
	}
}

func (a *agenda) unlink(slot uint32) {
	n := a.place(slot)
	if n.prev == 0 {
		a.head = n.next
	} else {
		a.place(n.prev - 1).next = n.next
	}
	if n.next == 0 {
		a.tail = n.prev
	} else {
		a.place(n.next - 1).prev = n.prev
	}
}

// move tells that what was in slot from, which must be in, is now in slot to.
func (a *agenda) move(from, to uint32) {
	n := a.place(to)
	*n = *a.place(from)
	if n.heaped != 0 {
		a.heap[n.heaped-1] = to
		return
	}
	if n.prev == 0 {
		a.head = to + 1
	} else {
		a.place(n.prev - 1).next = to + 1
	}
	if n.next == 0 {
		a.tail = to + 1
	} else {
		a.place(n.next - 1).prev = to + 1
	}
}

// first returns the slot that comes first and its position. A nil agenda is empty.
func (a *agenda) first() (slot uint32, at uint64, ok bool) {
	switch {
	case a == nil || a.head == 0 && len(a.heap) == 0:
		return 0, 0, false
	case a.head == 0:
		slot = a.heap[0]
	case len(a.heap) == 0 || a.before(a.head-1, a.heap[0]):
		slot = a.head - 1
	default:
		slot = a.heap[0]
	}
	return slot, a.place(slot).at, true
}

// allBy reports whether everything lies at or before a position. It may say no when
// there are stragglers.
func (a *agenda) allBy(at uint64) bool {
	return len(a.heap) == 0 && a.tail != 0 && a.place(a.tail-1).at <= at
}

// from returns the slots at or beyond a position. It costs what it returns, and a look
// at every straggler.
func (a *agenda) from(at uint64) (slots []uint32) {
	if a == nil {
		return nil
	}
	for s := a.tail; s != 0 && a.place(s-1).at >= at; s = a.place(s - 1).prev {
		slots = append(slots, s-1)
	}
	for _, s := range a.heap {
		if a.place(s).at >= at {
			slots = append(slots, s)
		}
	}
	return slots
}

func (a *agenda) push(slot uint32) {
	a.heap = append(a.heap, slot)
	i := uint32(len(a.heap) - 1)
	a.set(i, slot)
	a.up(i)
}

func (a *agenda) set(i, slot uint32) {
	a.heap[i] = slot
	a.place(slot).heaped = i + 1
}

func (a *agenda) up(i uint32) {
	slot := a.heap[i]
	for i > 0 {
		parent := (i - 1) / 4
		if !a.before(slot, a.heap[parent]) {
			break
		}
		a.set(i, a.heap[parent])
		i = parent
	}
	a.set(i, slot)
}

func (a *agenda) down(i uint32) {
	slot, n := a.heap[i], uint32(len(a.heap))
	for first := 4*i + 1; first < n; first = 4*i + 1 {
		least := first
		for c := first + 1; c < min(first+4, n); c++ {
			if a.before(a.heap[c], a.heap[least]) {
				least = c
			}
		}
		if !a.before(a.heap[least], slot) {
			break
		}
		a.set(i, a.heap[least])
		i = least
	}
	a.set(i, slot)
}

// dropLast removes the last element and lets go of it.
func dropLast[T any](s []*T) []*T {
	s[len(s)-1] = nil
	return shrunk(s[:len(s)-1])
}

// shrunk copies a slice that fills less than a quarter of its memory.
func shrunk[T any](s []T) []T {
	if cap(s) < 64 || 4*len(s) > cap(s) {
		return s
	}
	return append(make([]T, 0, 2*len(s)), s...)
}
