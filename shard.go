package waitlist

import (
	"sync"
	"sync/atomic"
)

// shard holds entries, guarded by one mutex. Everything under it is data: no
// callback, predicate or clock is called while it is held.
//
// The entries in use are the first live slots, without a gap: an entry that ends
// is replaced by the last one. So memory always follows what is parked, without
// free lists or compaction, and a walk over the slots from the end is safe
// while it ends entries. Slots instead of pointers keep the entries in few
// allocations.
type shard[K comparable] struct {
	mu      sync.Mutex
	live    uint32 // entries parked here
	serial  uint32 // registrations so far, modulo 2^32
	entries []*[chunk]entry[K]
	find    finder[K] // written once
	list    *core[K]  // written once
	due     agenda    // deadlines

	// running counts entries claimed here whose callback is not yet back.
	// Incremented under mu, so that it never misses a claim; decremented
	// without, so that the return of a callback takes no lock.
	running atomic.Int32
	closed  atomic.Bool // no more registrations; written under mu

	counters
}

// counters are a shard's part of Stats; guarded by the shard's mutex.
type counters struct {
	ended      [numEnds - 1]uint64 // by End, from EndReached on
	duplicates uint64
	foreign    uint64
	late       uint64
}

// finder is how a list finds its entries, and all in which the shards of the two
// lists differ. Its methods are called with the shard's mutex held.
type finder[K comparable] interface {
	// forget is told that an entry leaves. It is still in its slot.
	forget(slot uint32, e *entry[K])
	// moved is told that an entry has gone from one slot to another.
	moved(from, to uint32, e *entry[K])
	// tally returns who has answered e. What may still change is copied, unless
	// the entry is being claimed.
	tally(e *entry[K], claimed bool) Tally
}

func (s *shard[K]) entry(slot uint32) *entry[K] { return &s.entries[slot/chunk][slot%chunk] }

// admitLocked makes the checks that both lists begin with. On success the session,
// if there is one, is locked, so that it cannot end before the entry is in it.
// Lock order: shard, then session.
func (s *shard[K]) admitLocked(session *Session) error {
	if s.closed.Load() {
		return refusedClosed
	}
	if session != nil {
		session.mu.Lock()
		if err := session.ended; err != nil {
			session.mu.Unlock()
			return &refusal{err}
		}
	}
	return nil
}

// parkLocked parks an entry, given without its serial number, in the slot that it
// returns. What admitLocked left locked is still locked. A tie is made for an entry
// that needs one and has none.
func (s *shard[K]) parkLocked(e entry[K], deadline int64, session *Session) (slot uint32, err error) {
	if s.list.capacity > 0 && !s.list.reserve() {
		return 0, refusedFull
	}
	slot = s.live
	s.live++
	s.serial++
	e.serial = s.serial
	if slot/chunk == uint32(len(s.entries)) {
		s.entries = append(s.entries, new([chunk]entry[K]))
	}
	if session != nil {
		session.joinLocked(e.tied(), s)
	}
	if e.tie != nil {
		e.tie.slot = slot
	}
	*s.entry(slot) = e
	s.due.insert(slot, uint64(deadline), e.serial)
	return slot, nil
}

// reserve takes a place under the capacity. An increment that is taken back when it
// went too far was refused: meanwhile others would be turned away from places
// that are free.
func (l *core[K]) reserve() bool {
	for {
		n := l.parked.Load()
		if n >= l.capacity {
			return false
		}
		if l.parked.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// claimLocked takes an entry out of the list: out of the finder, the deadlines, its
// session and its slot, so that nobody else can end it. It is the only way out.
// The caller owns the claim and must finish it after it has unlocked the shard.
func (s *shard[K]) claimLocked(slot uint32, end End, err error) claim[K] {
	e := s.entry(slot)
	c := claim[K]{
		key: e.key, done: e.done, err: err, since: e.since,
		tally: s.find.tally(e, true), shard: s, end: end,
	}
	if t := e.tie; t != nil {
		c.wake = t.wake
		t.slot = gone
		if t.session != nil {
			t.session.leave(t)
			t.session = nil
		}
	}
	s.due.remove(slot)
	s.find.forget(slot, e)
	s.live--
	if last := s.live; slot != last {
		moved := s.entry(last)
		*e = *moved
		s.due.move(last, slot)
		s.find.moved(last, slot, e)
		if e.tie != nil {
			e.tie.slot = slot
		}
		e = moved
	}
	*e = entry[K]{} // whatever the entry held is let go
	if spare := s.live/chunk + 2; spare < uint32(len(s.entries)) {
		s.entries = dropLast(s.entries)
		s.due.trim(len(s.entries))
	}
	s.countLocked(&c)
	if s.list.capacity > 0 {
		s.list.parked.Add(-1)
	}
	c.last = s.live == 0 && s.closed.Load()
	return c
}

// countLocked enters a claim in the books.
func (s *shard[K]) countLocked(c *claim[K]) {
	s.ended[c.end-1]++
	if !c.wake {
		s.running.Add(1)
	}
}

// snapshotLocked shows one parked entry.
func (s *shard[K]) snapshotLocked(slot uint32) Parked[K] {
	e := s.entry(slot)
	return Parked[K]{
		Key:      e.key,
		Since:    s.list.at(e.since),
		Deadline: s.list.at(int64(s.due.place(slot).at)),
		Tally:    s.find.tally(e, false),
	}
}
