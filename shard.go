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
	// What every request writes comes first and fills one cache line: two cores
	// that take turns at a shard pass on that line and those of the table, the
	// entry and its place in the agenda, and share what follows.
	mu       sync.Mutex
	added    uint64        // registrations so far
	returned atomic.Uint64 // callbacks that are back; the only count kept without mu
	live     uint32        // entries parked
	closed   atomic.Bool   // no more registrations; written under mu

	late       uint64 // the answers that counted for nothing, as in Stats
	duplicates uint64
	foreign    uint64

	due     agenda // deadlines
	entries []*[chunk]entry[K]
	find    finder[K] // written once
	list    *core[K]  // written once

	// ended counts by End, from EndCompleted on. What has been added, is not
	// parked and is not counted here was reached. woken counts the claims among
	// them that had a Wait to wake instead of a callback to call.
	ended [numEnds - EndCompleted]uint64
	woken uint64
}

// idle reports whether every callback of the entries claimed here is back.
func (s *shard[K]) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runningLocked() == 0
}

// runningLocked returns how many entries claimed here have a callback that is not back.
func (s *shard[K]) runningLocked() int {
	return int(s.added - uint64(s.live) - s.woken - s.returned.Load())
}

// finder is how a list finds its entries, and all in which the shards of the two
// lists differ. Its methods are called with the shard's mutex held.
type finder[K comparable] interface {
	// forget is told that an entry leaves. It is still in its slot.
	forget(slot uint32, e *entry[K])
	// forgetAll is told that every entry leaves.
	forgetAll()
	// moved is told that an entry has gone from one slot to another.
	moved(from, to uint32, e *entry[K])
	// tally returns who has answered an entry that has no rule of its own.
	tally(e *entry[K]) Tally
}

func (s *shard[K]) entry(slot uint32) *entry[K] { return &s.entries[slot/chunk][slot%chunk] }

// admitLocked makes the checks that both lists begin with. The session, if there is one,
// is locked too, so that it cannot end before the entry is in it. Lock order: shard,
// then session.
func (s *shard[K]) admitLocked(session *Session) error {
	if s.closed.Load() {
		return refusedClosed
	}
	if session != nil && session.ended != nil {
		return &refusal{session.ended}
	}
	return nil
}

// parkLocked takes a slot for a new entry, which is the caller's to fill in: all but
// its tie, which is made here if it needs one and has none, since and serial. The session
// is locked.
func (s *shard[K]) parkLocked(now, deadline int64, t *tie, session *Session) (slot uint32, e *entry[K], err error) {
	if s.list.capacity > 0 && !s.list.reserve() {
		return 0, nil, refusedFull
	}
	slot = s.live
	s.live++
	s.added++
	if slot/chunk == uint32(len(s.entries)) {
		s.entries = append(s.entries, new([chunk]entry[K]))
	}
	e = s.entry(slot)
	e.tie, e.since, e.serial = t, now, uint32(s.added)
	if session != nil {
		session.joinLocked(e.tied(), s)
	}
	if e.tie != nil {
		e.tie.slot = slot
	}
	s.due.insert(slot, uint64(deadline), e.serial)
	return slot, e, nil
}

// claimLocked takes an entry out of the list: out of its session, the deadlines, the
// finder and its slot, so that nobody else can end it. With claimAllLocked it is the
// only way out. The caller owns the claim and must finish it after it has unlocked
// the shard.
func (s *shard[K]) claimLocked(c *claim[K], slot uint32, end End, err error) {
	e := s.entry(slot)
	s.takeLocked(c, e, end, err)
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
	if keep := s.live/chunk + 2; keep < uint32(len(s.entries)) {
		s.entries = dropLast(s.entries)
		s.due.trim(len(s.entries))
	}
	c.last = s.live == 0 && s.closed.Load()
}

// claimAllLocked claims every entry for a pass. Many at once are not taken out one by
// one: the shard starts afresh, and the pass gets the entries where they lie.
func (s *shard[K]) claimAllLocked(p *pass[K], end End, err error) {
	if s.live <= chunk { // keep the memory that a busy list needs again
		for s.live > 0 {
			p.claimLocked(s, s.live-1, end, err) // from the end: nothing moves
		}
		return
	}
	lot := lot[K]{shard: s, entries: s.entries, n: s.live, end: end, err: err}
	for slot := range s.live {
		e := s.entry(slot)
		if e.rule != nil && (e.tie == nil || !e.tie.wake) {
			s.leaveLocked(e, end)
			continue
		}
		// A Wait is woken first, and a WatermarkList's tally is made now.
		s.takeLocked(p.next(&p.calls, e), e, end, err)
		*e = entry[K]{}
		lot.n--
	}
	p.addLot(lot)
	s.live, s.entries, s.due = 0, nil, agenda{}
	s.find.forgetAll()
	if s.closed.Load() {
		p.drained++
	}
}

// takeLocked fills in c, which must be empty, for an entry that leaves.
func (s *shard[K]) takeLocked(c *claim[K], e *entry[K], end End, err error) {
	c.fill(s, e, end, err)
	if e.rule == nil {
		c.out.Tally = s.find.tally(e)
	}
	s.leaveLocked(e, end)
}

// fill makes c, which must be empty, the claim of an entry that leaves; the tally of one
// without a rule of its own is the caller's.
func (c *claim[K]) fill(s *shard[K], e *entry[K], end End, err error) {
	out := &c.out
	out.Key, out.End, out.Err, out.Since = e.key, end, err, s.list.at(e.since)
	out.Tally.rule, out.Tally.acked = e.rule, e.acked[0]
	c.done, c.shard = e.done, s
	if t := e.tie; t != nil {
		out.Tally.answers = &t.answers
		c.wake = t.wake
	}
}

// leaveLocked enters the end of an entry in the books and makes its references void.
func (s *shard[K]) leaveLocked(e *entry[K], end End) {
	wake := false
	if t := e.tie; t != nil {
		if t.session != nil {
			t.session.leave(t)
			t.session = nil
		}
		t.slot = gone
		wake = t.wake
	}
	s.countLocked(end, wake)
	if s.list.capacity > 0 {
		s.list.parked.Add(-1)
	}
}

// countLocked enters a claim in the books.
func (s *shard[K]) countLocked(end End, wake bool) {
	if end != EndReached {
		s.ended[end-EndCompleted]++
	}
	if wake {
		s.woken++
	}
}

// snapshotLocked shows one parked entry.
func (s *shard[K]) snapshotLocked(slot uint32) Parked[K] {
	e := s.entry(slot)
	return Parked[K]{
		Key:      e.key,
		Since:    s.list.at(e.since),
		Deadline: s.list.at(int64(s.due.place(slot).at)),
		Tally:    s.tallyLocked(e),
	}
}

// tallyLocked returns who has answered a parked entry. What may still change is copied.
func (s *shard[K]) tallyLocked(e *entry[K]) Tally {
	if e.rule == nil {
		return s.find.tally(e)
	}
	t := Tally{rule: e.rule, acked: e.acked[0]}
	if e.tie != nil {
		t.answers = e.tie.answers.clone()
	}
	return t
}
