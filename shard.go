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
	// What every request writes comes first and fills one cache line. Two cores that
	// take turns at a shard pass on that line and the entry's, while the shard is
	// indexed also those of the table and of the agenda's links, and share what
	// follows.
	mu       sync.Mutex
	added    uint64        // registrations so far
	returned atomic.Uint64 // callbacks that are back, and Waits woken; the only count kept without mu
	live     uint32        // entries parked
	closed   atomic.Bool   // no more registrations; written under mu

	late       uint64 // the answers that counted for nothing, as in Stats
	duplicates uint64
	foreign    uint64

	due  agenda[K] // deadlines; its first words fill the line
	list *core[K]  // written once

	// indexed says that the agenda and the finder's index hold what is parked; else they
	// are empty. Invariant: it is true if more than unindexed entries are parked, and
	// false if fewer than half of that. 0: it is always true while anything is parked.
	indexed   bool
	unindexed uint32 // written once

	// ended counts by End, from EndCompleted on. What has been added, is not
	// parked and is not counted here was reached.
	ended [numEnds - EndCompleted]uint64

	entries slots[K]
	find    finder[K] // written once
}

// idle reports whether every callback of the entries claimed here is back.
func (s *shard[K]) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runningLocked() == 0
}

// runningLocked returns how many entries claimed here have a callback that is not back.
func (s *shard[K]) runningLocked() int {
	return int(s.added - uint64(s.live) - s.returned.Load())
}

// finder is how a list finds its entries, and all in which the shards of the two
// lists differ. Its methods are called with the shard's mutex held, and those that keep
// an index only while the shard is indexed.
type finder[K comparable] interface {
	// insert adds the newest entry.
	insert(slot uint32, e *entry[K])
	// insertAll adds every entry to an empty index.
	insertAll()
	// forget takes out an entry that leaves. It is still in its slot.
	forget(slot uint32, e *entry[K])
	// moves is told that an entry is about to go from one slot to another.
	moves(from, to uint32, e *entry[K])
	// reset empties the index.
	reset()
	// tally returns who has answered an entry that has no rule of its own.
	tally(e *entry[K]) Tally
}

func (s *shard[K]) entry(slot uint32) *entry[K] { return s.entries.entry(slot) }

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

// needsRoomLocked reports whether a new entry needs makeRoomLocked first.
func (s *shard[K]) needsRoomLocked() bool { return s.fullLocked() || s.list.capacity > 0 }

// makeRoomLocked reserves a place under the capacity and sees to it that a slot is free.
func (s *shard[K]) makeRoomLocked() error {
	if s.list.capacity > 0 && !s.list.reserve() {
		return refusedFull
	}
	if s.fullLocked() {
		s.entries = append(s.entries, new([chunk]entry[K]))
	}
	return nil
}

// fullLocked reports whether every slot is taken.
func (s *shard[K]) fullLocked() bool { return s.live/chunk == uint32(len(s.entries)) }

// takeSlotLocked takes a slot for a new entry. It is zero but for its serial number, the
// caller's to fill in, and then to park.
func (s *shard[K]) takeSlotLocked() *entry[K] {
	e := s.entry(s.live)
	s.live++
	s.added++
	e.serial = uint32(s.added)
	return e
}

// parkLocked parks the entry that took the last slot. One that is to be in a session, which
// is locked, has a tie. For most entries of most shards nothing is left to do.
func (s *shard[K]) parkLocked(e *entry[K], session *Session) {
	if e.tie != nil || s.live > s.unindexed || s.indexed {
		s.enterLocked(e, session)
	}
}

func (s *shard[K]) enterLocked(e *entry[K], session *Session) {
	slot := s.live - 1
	if e.tie != nil {
		e.tie.slot = slot
		if session != nil {
			session.joinLocked(e.tie, s)
		}
	}
	switch {
	case s.indexed:
		s.due.insert(s, slot)
		s.find.insert(slot, e)
	case s.live > s.unindexed:
		s.indexed = true
		s.due.insertAll(s)
		s.find.insertAll()
	}
}

// unindexLocked empties the agenda and the finder's index.
func (s *shard[K]) unindexLocked() {
	s.indexed = false
	s.due.reset()
	s.find.reset()
}

// claimLocked takes an entry out of the list: out of its session, the deadlines, the
// finder and its slot, so that nobody else can end it. With claimAllLocked it is the
// only way out. The caller owns the claim and must finish it after it has unlocked
// the shard. (It begins as takeLocked does, written out: that saves 3 ns of a request.)
func (s *shard[K]) claimLocked(c *claim[K], slot uint32, end End, err error) {
	e := s.entry(slot)
	c.fill(s, e, end, err)
	c.out.Since = s.list.at(e.since)
	if e.rule == nil {
		c.out.Tally = s.find.tally(e)
	}
	s.leaveLocked(e, end)
	if s.indexed {
		s.forgetLocked(slot, e)
	}
	s.live--
	if last := s.live; slot != last {
		e = s.moveLocked(last, slot)
	}
	*e = entry[K]{} // whatever the entry held is let go
	if s.live/chunk+2 < uint32(len(s.entries)) {
		s.trimLocked()
	}
	c.last = s.live == 0 && s.closed.Load()
}

// moveLocked moves an entry to another slot.
func (s *shard[K]) moveLocked(from, to uint32) (free *entry[K]) {
	e := s.entry(to)
	free = s.entry(from)
	*e = *free
	if e.tie != nil {
		e.tie.slot = to
	}
	return free
}

// trimLocked gives back the last chunk, which is not the only free one.
func (s *shard[K]) trimLocked() {
	s.entries = dropLast(s.entries)
	s.due.trim(len(s.entries))
}

// forgetLocked takes an entry that leaves out of the agenda and the finder's index, and tells
// them that the last one moves into its slot.
func (s *shard[K]) forgetLocked(slot uint32, e *entry[K]) {
	last := s.live - 1
	if last < s.unindexed/2 { // half, or a shard that wavers would do it over and over
		s.unindexLocked()
		return
	}
	s.due.remove(s, slot)
	s.find.forget(slot, e)
	if slot != last {
		s.due.move(last, slot)
		s.find.moves(last, slot, s.entry(last))
	}
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
	s.live, s.entries = 0, nil
	s.unindexLocked()
	if s.closed.Load() {
		p.drained++
	}
}

// takeLocked fills in c, which must be empty, for an entry that leaves.
func (s *shard[K]) takeLocked(c *claim[K], e *entry[K], end End, err error) {
	c.fill(s, e, end, err)
	c.out.Since = s.list.at(e.since)
	if e.rule == nil {
		c.out.Tally = s.find.tally(e)
	}
	s.leaveLocked(e, end)
}

// fill makes c, which must be empty, the claim of an entry that leaves; Since, and the tally
// of one without a rule of its own, are the caller's.
func (c *claim[K]) fill(s *shard[K], e *entry[K], end End, err error) {
	out := &c.out
	out.Key, out.End, out.Err = e.key, end, err
	out.Tally.rule, out.Tally.acked = e.rule, e.acked[0]
	c.done, c.shard = e.done, s
	if t := e.tie; t != nil {
		out.Tally.answers, c.wake = &t.answers, t.wake
	}
}

// leaveLocked enters the end of an entry in the books and makes its references void. Most
// have no references, and those that are reached are not counted.
func (s *shard[K]) leaveLocked(e *entry[K], end End) {
	if end != EndReached || e.tie != nil || s.list.capacity > 0 {
		s.writeOffLocked(e, end)
	}
}

func (s *shard[K]) writeOffLocked(e *entry[K], end End) {
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
		s.returned.Add(1)
	}
}

// snapshotLocked shows one parked entry.
func (s *shard[K]) snapshotLocked(slot uint32) Parked[K] {
	e := s.entry(slot)
	return Parked[K]{
		Key:      e.key,
		Since:    s.list.at(e.since),
		Deadline: s.list.at(e.deadline),
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
