package waitlist

import "slices"

// ordered is the only shard of a WatermarkList: its entries are found in order of
// their index. Guarded by mu.
//
// Indexes are kept as positions, which are unsigned and in the same order.
type ordered[I Integer] struct {
	shard[I]
	order *agenda[I] // by position of the index; nil until something is parked

	mark   uint64  // position of the watermark: it never falls
	first  uint64  // acks commit only from this position on
	voters *voters // nil before the first SetQuorum

	// Completions that wait in order for whoever is draining.
	queue    queue[I]
	draining bool
}

// voters are the members of a list's rule and what they are known to hold.
type voters struct {
	rule  *rule
	match []uint64 // by member: position up to which it holds everything
	known []bool   // by member: whether it has acked, in this term
}

// member returns a peer's place among the voters, or -1.
func (v *voters) member(peer PeerID) int {
	if v == nil {
		return -1
	}
	return v.rule.index(peer)
}

// position maps an index to an unsigned number, keeping the order.
func position[I Integer](index I) uint64 { return uint64(index) ^ signBit[I]() }

func index[I Integer](position uint64) I { return I(position ^ signBit[I]()) }

func signBit[I Integer]() uint64 {
	if ^I(0) < 0 {
		return 1 << 63
	}
	return 0
}

// addLocked parks a request, or completes the claim of one that the mark has reached,
// which was never parked.
func (s *ordered[I]) addLocked(c *claim[I], now, expires int64, with addOptions, t *tie) (parked bool, err error) {
	if err := s.admitLocked(with.session); err != nil {
		return false, err
	}
	at := position(c.out.Key)
	if at <= s.mark {
		s.added++
		s.countLocked(EndReached, c.wake)
		c.out.Tally = s.tallyAt(at)
		return false, nil
	}
	if with.timeout <= 0 {
		return false, refusedTimeout
	}
	if s.needsRoomLocked() {
		if err := s.makeRoomLocked(); err != nil {
			return false, err
		}
	}
	if t == nil && with.session != nil {
		t = new(tie)
	}
	e := s.takeSlotLocked()
	e.key, e.acked[0], e.tie, e.done, e.since, e.deadline = c.out.Key, at, t, c.done, now, expires
	s.parkLocked(e, with.session)
	return true, nil
}

func (s *ordered[I]) insert(slot uint32, _ *entry[I]) { s.order.insert(&s.shard, slot) }

func (s *ordered[I]) insertAll() {
	if s.order == nil {
		s.order = new(agenda[I])
	}
	s.order.insertAll(&s.shard)
}

func (s *ordered[I]) forget(slot uint32, _ *entry[I]) {
	s.order.remove(&s.shard, slot)
	s.order.trim(len(s.entries))
}

func (s *ordered[I]) moves(from, to uint32, _ *entry[I]) { s.order.move(from, to) }

func (s *ordered[I]) reset() { s.order.reset() }

func (s *ordered[I]) tally(e *entry[I]) Tally { return s.tallyAt(position(e.key)) }

// tallyAt tells which members are known to hold everything up to a position.
func (s *ordered[I]) tallyAt(index uint64) Tally {
	v := s.voters
	if v == nil {
		return Tally{}
	}
	t := Tally{rule: v.rule}
	var word [1]uint64
	acked := word[:]
	if n := v.rule.words(); n > 1 {
		t.answers = &answers{wide: make([]uint64, 2*n)}
		acked = t.answers.wide
	}
	for i, at := range v.match {
		if at >= index && v.known[i] {
			put(acked, i)
		}
	}
	t.acked = acked[0]
	return t
}

func (s *ordered[I]) ackLocked(at uint64, peer PeerID, p *pass[I]) AckResult {
	v := s.voters
	i := v.member(peer)
	switch {
	case i < 0:
		s.foreign++
		return AckNotMember
	case v.known[i] && at <= v.match[i]:
		s.duplicates++
		return AckDuplicate
	}
	v.match[i], v.known[i] = at, true
	if s.commitLocked(p, peer, true) {
		return AckDecided
	}
	return AckCounted
}

func (s *ordered[I]) setRuleLocked(r *rule) {
	old := s.voters
	v := &voters{r, make([]uint64, len(r.members)), make([]bool, len(r.members))}
	for i, peer := range r.members {
		if was := old.member(peer); was >= 0 {
			v.match[i], v.known[i] = old.match[was], old.known[was]
		}
	}
	s.voters = v
}

func (s *ordered[I]) truncateLocked(from uint64, err error, p *pass[I]) {
	// A claim moves the last slot into the gap, so from the highest slot down none
	// of those still to be claimed moves.
	slots := s.order.from(&s.shard, from)
	slices.Sort(slots)
	for _, slot := range slices.Backward(slots) {
		p.claimLocked(&s.shard, slot, EndTruncated, err)
	}
	if v := s.voters; v != nil {
		for i, at := range v.match {
			v.match[i] = min(at, from-1)
		}
	}
}

// raiseLocked moves the mark up to a position, claims what it has reached, and reports
// whether the mark has moved. If nobody is draining the queue, which is then empty, the
// pass gets the completions and has to drain; otherwise they join the queue. decider is
// the peer whose ack did it, if one did.
func (s *ordered[I]) raiseLocked(to uint64, p *pass[I], decider PeerID, decided bool) bool {
	if to <= s.mark {
		return false
	}
	s.mark = to
	calls := &p.calls
	if s.draining {
		calls = &s.queue
	}
	for slot, at, ok := s.order.first(&s.shard); ok && at <= to; slot, at, ok = s.order.first(&s.shard) {
		c := p.claimInto(calls, &s.shard, slot, EndReached, nil)
		c.out.Tally.decider, c.out.Tally.decided = decider, decided
	}
	s.draining = s.draining || p.calls.head != nil
	return true
}

// commitLocked raises the mark to the commit index of the rule over what its members
// are known to hold.
func (s *ordered[I]) commitLocked(p *pass[I], decider PeerID, decided bool) bool {
	to := s.voters.rule.committed(s.voters.match)
	return to >= s.first && s.raiseLocked(to, p, decider, decided)
}

// complete finishes a call that may have raised the mark: it wakes the waiters and, if
// the call has to drain, calls one callback after the other until the queue is empty.
// Who appends meanwhile need not wait: draining ends only under the lock and with the
// queue empty.
func (s *ordered[I]) complete(p *pass[I]) (completed int) {
	p.wake()
	if p.calls.head == nil {
		return p.claimed
	}
	var panicking bool
	throughout(func() { // a panic or an exit goes on when the queue is empty
		for more := true; more; more = s.take(&p.calls) {
			p.run(&panicking)
		}
	})
	return p.claimed
}

// take moves the queue's contents to q. If there are none, draining is over.
func (s *ordered[I]) take(q *queue[I]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	*q, s.queue = s.queue, queue[I]{}
	s.draining = q.head != nil
	return s.draining
}
