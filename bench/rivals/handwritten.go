package rivals

import (
	"math/bits"
	"sync"
)

// handwritten is the best that a week of work in one's own code base gets: everything that this one rule and
// this one timeout allow is used.
var handwritten = Rival{
	Name:   "hand-written",
	New:    newHandwritten,
	Expiry: OnAnyClock,
	About: "64 shards, each a mutex, a map to recycled entries with a bit set and a callback, and a list in order of arrival, " +
		"which is the order of the deadlines since all have one timeout; a set of keys for each session",
	Lacks: "one rule and one timeout for all requests; no refusals, no tally, no capacity, no statistics, no shutdown; a panic in a callback stops the sweeper",
}

const (
	handShards = 64
	// handSpares is how many ended entries a shard keeps for reuse, so that a peak is given back.
	handSpares = 1024
)

type handEntry struct {
	key      uint64
	done     Done
	deadline int64
	acked    uint32
	session  int32 // -1: none
	// Neighbours in order of arrival; next also chains what is spare or has just been ended.
	prev, next *handEntry
}

type handShard struct {
	mu      sync.Mutex
	pending map[uint64]*handEntry
	arrived handEntry // the ring's head: next is the oldest
	spare   *handEntry
	spares  int
	_       [64]byte // the next shard's lock is on another cache line
}

type handWaiter struct {
	nanos    func() int64
	timeout  int64
	stop     func()
	shards   [handShards]handShard
	sessions [MaxSessions]handSession
}

type handSession struct {
	mu   sync.Mutex
	keys map[uint64]struct{}
	_    [48]byte
}

type handRequester struct {
	calledBack
	*handWaiter
	done Done
}

func newHandwritten(cfg Config) Waiter {
	w := &handWaiter{nanos: cfg.nanos(), timeout: int64(cfg.Timeout)}
	for i := range w.shards {
		s := &w.shards[i]
		s.pending = make(map[uint64]*handEntry)
		s.arrived.prev, s.arrived.next = &s.arrived, &s.arrived
	}
	w.stop = cfg.background(cheapSweep, w.Sweep)
	return w
}

func (w *handWaiter) shard(key uint64) *handShard {
	return &w.shards[key*0x9e3779b97f4a7c15>>(64-6)]
}

func (w *handWaiter) Requester(done Done) Requester { return &handRequester{handWaiter: w, done: done} }
func (w *handWaiter) Close()                        { w.stop() }

func (w *handWaiter) Len() (n int) {
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		n += len(s.pending)
		s.mu.Unlock()
	}
	return n
}

func (r *handRequester) Add(key uint64) Ticket {
	r.add(key, r.done, -1)
	return nil
}

func (r *handRequester) AddIn(key uint64, session int) Ticket {
	s := &r.sessions[session]
	s.mu.Lock()
	if s.keys == nil {
		s.keys = make(map[uint64]struct{})
	}
	s.keys[key] = struct{}{}
	s.mu.Unlock()
	r.add(key, r.done, int32(session))
	return nil
}

func (w *handWaiter) add(key uint64, done Done, session int32) {
	deadline := w.nanos() + w.timeout
	s := w.shard(key)
	s.mu.Lock()
	e := s.spare
	if e != nil {
		s.spare = e.next
		s.spares--
	} else {
		e = new(handEntry)
	}
	last := s.arrived.prev
	*e = handEntry{key: key, done: done, deadline: deadline, session: session, prev: last, next: &s.arrived}
	last.next, s.arrived.prev = e, e
	s.pending[key] = e
	s.mu.Unlock()
}

func (w *handWaiter) Ack(key uint64, peer int) {
	s := w.shard(key)
	s.mu.Lock()
	e := s.pending[key]
	if e == nil {
		s.mu.Unlock()
		return
	}
	e.acked |= 1 << peer
	if bits.OnesCount32(e.acked) < Need {
		s.mu.Unlock()
		return
	}
	s.removeLocked(e)
	done, session := e.done, e.session
	s.recycleLocked(e)
	s.mu.Unlock()
	w.leave(session, key)
	done(key, true)
}

// removeLocked takes e out of the shard. s.mu is held.
func (s *handShard) removeLocked(e *handEntry) {
	delete(s.pending, e.key)
	e.prev.next, e.next.prev = e.next, e.prev
}

// recycleLocked keeps e for reuse. s.mu is held, and nobody has a reference to e any more.
func (s *handShard) recycleLocked(e *handEntry) {
	if s.spares >= handSpares {
		return
	}
	*e = handEntry{next: s.spare}
	s.spare = e
	s.spares++
}

func (w *handWaiter) leave(session int32, key uint64) {
	if session < 0 {
		return
	}
	s := &w.sessions[session]
	s.mu.Lock()
	delete(s.keys, key)
	s.mu.Unlock()
}

func (w *handWaiter) Sweep() (ended int) {
	now := w.nanos()
	for i := range w.shards {
		s := &w.shards[i]
		var due, last *handEntry
		s.mu.Lock()
		for e := s.arrived.next; e != &s.arrived && e.deadline <= now; e = s.arrived.next {
			s.removeLocked(e)
			e.next = nil
			if last == nil {
				due = e
			} else {
				last.next = e
			}
			last = e
		}
		s.mu.Unlock()
		for e := due; e != nil; e = e.next {
			w.leave(e.session, e.key)
			e.done(e.key, false)
			ended++
		}
	}
	return ended
}

func (w *handWaiter) EndSession(session int) (ended int) {
	own := &w.sessions[session]
	own.mu.Lock()
	keys := own.keys
	own.keys = nil
	own.mu.Unlock()
	for key := range keys {
		s := w.shard(key)
		s.mu.Lock()
		e := s.pending[key]
		if e == nil || e.session != int32(session) {
			s.mu.Unlock()
			continue
		}
		s.removeLocked(e)
		done := e.done
		s.recycleLocked(e)
		s.mu.Unlock()
		done(key, false)
		ended++
	}
	return ended
}
