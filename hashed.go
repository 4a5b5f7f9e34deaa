package waitlist

// hashed is a shard whose entries are found by the hash of their key. On a 64-bit machine it
// has 256 bytes and is allocated by itself, so its memory begins with a cache line and ends
// with one. (A slice of all shards does not: what holds pointers and is smaller than
// 32 KiB begins 8 bytes into a line.)
//
// Up to fewEntries it is not indexed: to look at all entries costs no more then than the
// table does, and a request writes two cache lines less (measured one after the other, in
// an empty list: 5 % of its time by one goroutine, 13 % by two). What it costs: a sweep that
// finds nothing due looks at up to fewEntries entries in each such shard.
type hashed[K comparable] struct {
	shard[K]
	table table // guarded by mu
}

// lookup finds the entry of a key. The caller holds the shard's lock.
func (s *hashed[K]) lookup(hash uint32, key K) (slot uint32, e *entry[K]) {
	if !s.indexed {
		return s.scan(hash, key)
	}
	for i := s.table.home(hash); ; i = s.table.after(i) {
		if slot, i = s.table.probe(hash, i); slot == gone {
			return gone, nil
		}
		if e = s.entry(slot); e.key == key {
			return slot, e
		}
	}
}

// fewEntries is how many entries a shard of a WaitingList has before it is indexed.
const fewEntries = chunk

// scan is lookup without the table. Unlike lookup it is inlined.
func (s *hashed[K]) scan(hash uint32, key K) (slot uint32, e *entry[K]) {
	for slot = range s.live {
		if e = s.entry(slot); e.hash == hash && e.key == key {
			return slot, e
		}
	}
	return gone, nil
}

func (s *hashed[K]) holds(hash uint32, key K) bool {
	_, e := s.lookup(hash, key)
	return e != nil
}

// lookupSerial finds the entry of a registration, whatever its key.
func (s *hashed[K]) lookupSerial(hash, serial uint32) (slot uint32, ok bool) {
	if !s.indexed {
		for slot = range s.live {
			if e := s.entry(slot); e.hash == hash && e.serial == serial {
				return slot, true
			}
		}
		return gone, false
	}
	for i := s.table.home(hash); ; i = s.table.after(i) {
		if slot, i = s.table.probe(hash, i); slot == gone || s.entry(slot).serial == serial {
			return slot, slot != gone
		}
	}
}

func (s *hashed[K]) insert(slot uint32, e *entry[K]) { s.table.put(e.hash, slot, s.live) }

func (s *hashed[K]) insertAll() {
	for slot := range s.live {
		s.insert(slot, s.entry(slot))
	}
}

func (s *hashed[K]) forget(slot uint32, e *entry[K]) { s.table.remove(e.hash, slot, s.live-1) }

func (s *hashed[K]) moves(from, to uint32, e *entry[K]) { s.table.move(e.hash, from, to) }

func (s *hashed[K]) reset() { s.table.reset() }

// tally is not asked for: every entry has a rule of its own.
func (s *hashed[K]) tally(*entry[K]) Tally { return Tally{} }

// ackLocked enters an ack without a payload. It is lookup and answerLocked for what nearly
// every ack is (few members, none of which has refused), written out: that saves 3 ns of
// a request.
func (s *hashed[K]) ackLocked(hash uint32, key K, peer PeerID) (slot uint32, result AckResult, end End) {
	var e *entry[K]
	if !s.indexed {
		slot, e = s.scan(hash, key)
	} else {
		slot, e = s.lookup(hash, key)
	}
	if e == nil {
		s.late++
		return slot, AckUnknown, 0
	}
	if e.tie != nil || len(e.rule.members) > fewMembers {
		result, end = s.answerLocked(e, peer, nil, nil)
		return slot, result, end
	}
	bit := e.rule.bit(peer)
	if bit == 0 {
		s.foreign++
		return slot, AckNotMember, 0
	}
	if e.acked[0]&bit != 0 {
		s.duplicates++
		return slot, AckDuplicate, 0
	}
	if e.acked[0] |= bit; e.rule.reached(e.acked[:]) {
		return slot, AckDecided, EndReached
	}
	return slot, AckCounted, 0
}

// answerLocked enters one answer in an entry, nil if there is none. If it decides the
// entry, end is how.
func (s *hashed[K]) answerLocked(e *entry[K], peer PeerID, payload any, reason error) (result AckResult, end End) {
	if e == nil {
		s.late++
		return AckUnknown, 0
	}
	i := e.rule.index(peer)
	if i < 0 {
		s.foreign++
		return AckNotMember, 0
	}
	acked, refused := e.words()
	if has(acked, i) || reason != nil && has(refused, i) {
		s.duplicates++
		return AckDuplicate, 0
	}
	if payload != nil || reason != nil {
		t := e.tied()
		t.log = append(t.log, answer{peer, payload, reason})
		acked, refused = e.words()
	}
	if reason != nil {
		if put(refused, i); e.rule.possible(refused) {
			return AckCounted, 0
		}
		return AckDecided, EndUnreachable
	}
	drop(refused, i)
	if put(acked, i); e.rule.reached(acked) {
		return AckDecided, EndReached
	}
	return AckCounted, 0
}

// awaits tells whether peer is a member and has not answered.
func (e *entry[K]) awaits(peer PeerID) bool {
	i := e.rule.index(peer)
	if i < 0 {
		return false
	}
	acked, refused := e.words()
	return !has(acked, i) && !has(refused, i)
}
