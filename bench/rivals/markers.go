package rivals

import (
	"sync"

	"github.com/tidwall/btree"
	"go.etcd.io/etcd/pkg/v3/wait"
)

// Marker holds requests until a watermark reaches their index. Package waitlist's watermark list is one; every
// Marker starts with its mark at 0.
type Marker interface {
	// Add parks a request.
	Add(index uint64) Ticket
	// Ready and Receive are as those of a Requester.
	Ready(t Ticket) bool
	Receive(t Ticket) bool
	// Advance moves the mark and returns how many requests that completed, or -1 where that cannot be told.
	Advance(to uint64) int
	Close()
}

// MarkerRival is one way of waiting for a watermark.
type MarkerRival struct {
	Name string
	// New makes a Marker whose callback, where it has one, is done. The callback is kept with every request.
	New   func(done Done) Marker
	About string
	Lacks string
	// Empty makes the list alone, to be weighed; nil: what New makes is all there is.
	Empty func() any
}

// AllMarkers returns every way of waiting for a watermark, package waitlist first.
func AllMarkers() []MarkerRival {
	return []MarkerRival{libraryMarker, btreeMarker, heapMarker, etcdTimeMarker}
}

var etcdTimeMarker = MarkerRival{
	Name:  "etcd WaitTime",
	New:   func(Done) Marker { return etcdTime{wait.NewTimeList()} },
	About: "`go.etcd.io/etcd/pkg/v3/wait`'s `WaitTime`: a mutex and a map from the index to a channel, as etcd waits for an applied index",
	Lacks: "no order, no deadline, no count; the one who waits needs a goroutine; the mark can fall; moving it costs what is parked",
}

type etcdTime struct{ w wait.WaitTime }

func (e etcdTime) Add(index uint64) Ticket { return e.w.Wait(index) }

func (e etcdTime) Advance(to uint64) int {
	e.w.Trigger(to)
	return -1
}

func (etcdTime) Close() {}

func (etcdTime) Ready(t Ticket) bool {
	select {
	case <-t.(<-chan struct{}):
		return true
	default:
		return false
	}
}

func (etcdTime) Receive(t Ticket) bool {
	<-t.(<-chan struct{})
	return true
}

var btreeMarker = MarkerRival{
	Name:  "btree",
	New:   newTreeMarks,
	About: "a mutex and a sorted map (`github.com/tidwall/btree`) from the index to its callbacks, which run when the lock is free again",
	Lacks: "no deadline, no acks, no truncation, no statistics; callbacks of two movers may run out of order",
}

type treeMarks struct {
	calledBack
	done Done

	mu    sync.Mutex
	mark  uint64
	tree  btree.Map[uint64, treeCallbacks]
	ready []treeReady // reused; whoever moves the mark has it, nil meanwhile
}

// treeCallbacks are those of one index, mostly one.
type treeCallbacks struct {
	first Done
	more  []Done
}

type treeReady struct {
	index uint64
	treeCallbacks
}

func newTreeMarks(done Done) Marker { return &treeMarks{done: done} }

func (m *treeMarks) Close() {}

func (m *treeMarks) Add(index uint64) Ticket {
	m.mu.Lock()
	if index <= m.mark {
		m.mu.Unlock()
		m.done(index, true)
		return nil
	}
	if at, ok := m.tree.GetMut(index); ok {
		at.more = append(at.more, m.done)
		m.tree.Set(index, at)
	} else {
		m.tree.Set(index, treeCallbacks{first: m.done})
	}
	m.mu.Unlock()
	return nil
}

func (m *treeMarks) Advance(to uint64) (completed int) {
	m.mu.Lock()
	if to <= m.mark {
		m.mu.Unlock()
		return 0
	}
	m.mark = to
	ready := m.ready
	m.ready = nil
	for {
		index, _, ok := m.tree.Min()
		if !ok || index > to {
			break
		}
		_, at, _ := m.tree.PopMin()
		ready = append(ready, treeReady{index, at})
	}
	m.mu.Unlock()
	for _, r := range ready {
		r.first(r.index, true)
		for _, done := range r.more {
			done(r.index, true)
		}
		completed += 1 + len(r.more)
	}
	m.mu.Lock()
	m.ready = recycled(ready)
	m.mu.Unlock()
	return completed
}

var heapMarker = MarkerRival{
	Name:  "heap",
	New:   newHeapMarks,
	About: "a mutex and a binary heap of (index, order of registration, callback), whose callbacks run when the lock is free again",
	Lacks: "no deadline, no acks, no truncation (a heap finds nothing but its least), no statistics; callbacks of two movers may run out of order",
}

type heapMarks struct {
	calledBack
	done Done

	mu    sync.Mutex
	mark  uint64
	seq   uint64
	heap  []heapMark
	ready []heapMark // reused; whoever moves the mark has it, nil meanwhile
}

type heapMark struct {
	index, seq uint64
	done       Done
}

func (a heapMark) before(b heapMark) bool {
	return a.index < b.index || a.index == b.index && a.seq < b.seq
}

func newHeapMarks(done Done) Marker { return &heapMarks{done: done} }

func (m *heapMarks) Close() {}

func (m *heapMarks) Add(index uint64) Ticket {
	m.mu.Lock()
	if index <= m.mark {
		m.mu.Unlock()
		m.done(index, true)
		return nil
	}
	m.seq++
	m.pushLocked(heapMark{index, m.seq, m.done})
	m.mu.Unlock()
	return nil
}

func (m *heapMarks) Advance(to uint64) (completed int) {
	m.mu.Lock()
	if to <= m.mark {
		m.mu.Unlock()
		return 0
	}
	m.mark = to
	ready := m.ready
	m.ready = nil
	for len(m.heap) > 0 && m.heap[0].index <= to {
		ready = append(ready, m.popLocked())
	}
	m.mu.Unlock()
	for _, r := range ready {
		r.done(r.index, true)
	}
	completed = len(ready)
	m.mu.Lock()
	m.ready = recycled(ready)
	m.mu.Unlock()
	return completed
}

// recycled empties a slice for reuse, unless it has grown large.
func recycled[T any](s []T) []T {
	if cap(s) > 1024 {
		return nil
	}
	clear(s)
	return s[:0]
}

func (m *heapMarks) pushLocked(x heapMark) {
	m.heap = append(m.heap, x)
	i := len(m.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !x.before(m.heap[parent]) {
			break
		}
		m.heap[i] = m.heap[parent]
		i = parent
	}
	m.heap[i] = x
}

func (m *heapMarks) popLocked() heapMark {
	least, last := m.heap[0], len(m.heap)-1
	x := m.heap[last]
	m.heap[last] = heapMark{}
	m.heap = m.heap[:last]
	if last == 0 {
		return least
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= last {
			break
		}
		if right := child + 1; right < last && m.heap[right].before(m.heap[child]) {
			child = right
		}
		if !m.heap[child].before(x) {
			break
		}
		m.heap[i] = m.heap[child]
		i = child
	}
	m.heap[i] = x
	return least
}
