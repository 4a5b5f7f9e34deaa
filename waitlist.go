package waitlist

import (
	"context"
	"hash/maphash"
)

// WaitingList parks requests by key until peers, an application, a deadline or an
// owner ends them. Each entry has a rule of its own that says which peers are
// enough; each entry's callback is called exactly once. See the package comment for
// the life of an entry.
//
// All methods may be called by any number of goroutines at once, and by callbacks.
// Make one with New; it must not be copied.
type WaitingList[K comparable] struct {
	core[K]
	seed   maphash.Seed // of its own: a client who chooses keys cannot make them collide
	hashed [numShards]*hashed[K]
}

// A WaitingList has numShards shards: two goroutines meet at a lock once in that many
// calls. The top shardBits bits of a key's hash choose its shard.
const (
	shardBits = 7
	numShards = 1 << shardBits
)

// New makes an empty list. It panics if an option makes no sense, naming it. An
// empty list holds no goroutine and no timer; it needs no Close if its entries have
// ended.
func New[K comparable](opts Options) *WaitingList[K] {
	opts.check()
	l := &WaitingList[K]{seed: maphash.MakeSeed()}
	shards := make([]*shard[K], numShards)
	for i := range l.hashed {
		h := new(hashed[K])
		h.find, h.unindexed = h, fewEntries
		l.hashed[i], shards[i] = h, &h.shard
	}
	l.init(&opts, shards)
	return l
}

// locate returns the shard of a key and the hash under which its table has it. It
// panics for a key whose dynamic type cannot be hashed, as a map would.
func (l *WaitingList[K]) locate(key K) (*hashed[K], uint32) {
	h := maphash.Comparable(l.seed, key)
	return l.hashed[h>>(64-shardBits)], uint32(h)
}

// Add parks a request under key until the quorum's members have acked, or something
// else ends it, and then calls done exactly once. Add before you send: an error means
// that nothing was parked, that done will not be called and that, if the caller
// has sent nothing yet, the request has certainly not reached anybody.
//
// Every error matches ErrNotParked and its reason, of which the first that applies is
// given: ErrNilCallback, ErrInvalidQuorum, ErrClosed, ErrSessionEnded (and the
// session's cause), ErrTimeout (no time left), ErrDuplicateKey, ErrFull.
//
// Do not reuse a key while answers to its earlier use may be on their way: the list
// knows neither attempts nor terms, so put the attempt into the key.
//
// Cost: one reading of the clock, one hash, one lock; nothing is allocated, except
// as memory grows, for an entry in a session, and for a rule of more than 64 members.
func (l *WaitingList[K]) Add(key K, quorum Quorum, done Callback[K], opts ...AddOption) error {
	_, err := l.add(key, quorum, done, l.options(opts), nil)
	return err
}

// Wait parks a request, calls send, and blocks until the request has ended or ctx
// has. It returns the outcome and its Err.
//
// If nothing was parked, because ctx was over or for a reason of Add, the outcome's
// End is 0, the error matches ErrNotParked, and send has not been called. Otherwise
// send (nil: there is nothing to send) runs on this goroutine, with no lock held,
// while the entry is parked; it may ack and nack, and had better return nil if that has
// decided the entry. A send that fails, panics or exits, and a ctx that ends, end the
// entry as EndCanceled, with an error that matches send's, or ctx's error and cause; if
// something else has ended the entry first, its outcome is returned. Who ends the entry
// wakes the waiter before calling any callback, so Wait does not outlive ctx because of
// somebody's callback.
func (l *WaitingList[K]) Wait(ctx context.Context, key K, quorum Quorum, send func() error, opts ...AddOption) (Outcome[K], error) {
	with := l.options(opts)
	return l.wait(ctx, key, send, func(wake Callback[K], t *tie) (*shard[K], error) {
		return l.add(key, quorum, wake, with, t)
	})
}

func (l *WaitingList[K]) add(key K, quorum Quorum, done Callback[K], with addOptions, t *tie) (*shard[K], error) {
	if done == nil {
		return nil, l.refuse(refusedNil)
	}
	if err := quorum.Err(); err != nil {
		return nil, l.refuse(&refusal{err})
	}
	n := quorum.rule.words()
	if t == nil && (n > 1 || with.session != nil) {
		t = new(tie)
	}
	if n > 1 {
		t.wide = make([]uint64, 2*n)
	}
	s, hash := l.locate(key)
	now := l.now()
	expires := deadline(now, with.timeout)

	s.mu.Lock()
	with.session.lock()
	err := s.admitLocked(with.session)
	switch {
	case err != nil:
	case with.timeout <= 0:
		err = refusedTimeout
	case s.live > 0 && s.holds(hash, key): // most shards hold nothing: a call less
		err = refusedDuplicate
	default:
		if s.needsRoomLocked() {
			err = s.makeRoomLocked()
		}
		if err == nil {
			e := s.takeSlotLocked()
			e.key, e.rule, e.tie, e.done, e.since, e.deadline, e.hash = key, quorum.rule, t, done, now, expires, hash
			s.parkLocked(e, with.session)
		}
	}
	with.session.unlock()
	s.mu.Unlock()
	if err != nil {
		return nil, l.refuse(err)
	}
	l.arm(expires)
	return &s.shard, nil
}

// Ack counts an acknowledgement of peer for the entry under key. If that satisfies
// the entry's quorum, the entry ends as EndReached and its callback runs before Ack
// returns, on this goroutine (or goes to Options.Executor). Acks read no clock: one
// that comes after the deadline but before the sweep still counts.
//
// Unknown keys and peers that are not members are counted in Stats and change
// nothing. AckUnknown is a promise: this ack is not, and will not be, in the tally of any
// outcome. Cost: one hash, one lock, nothing is allocated.
func (l *WaitingList[K]) Ack(key K, peer PeerID) AckResult {
	s, hash := l.locate(key)
	s.mu.Lock()
	slot, result, end := s.ackLocked(hash, key, peer)
	if result == AckDecided {
		return l.decide(s, slot, peer, end)
	}
	s.mu.Unlock()
	return result
}

// AckWith is Ack with the peer's response, which the outcome's tally will hold. A
// nil response is none. The response is kept until the entry has ended and the last
// Tally is gone; keeping it allocates.
func (l *WaitingList[K]) AckWith(key K, peer PeerID, response any) AckResult {
	return l.answer(key, peer, response, nil)
}

// Nack counts a refusal of peer for the entry under key. Once the quorum can no
// longer be reached by those that have not refused, the entry ends as EndUnreachable,
// at once and never one answer too early: so do not nack what you will retry. A
// later ack from the same peer counts, if the entry still lives. A nil reason becomes
// ErrNoReason. Keeping the reason allocates.
func (l *WaitingList[K]) Nack(key K, peer PeerID, reason error) AckResult {
	return l.answer(key, peer, nil, orNoReason(reason))
}

// answer enters one answer: a refusal if there is a reason.
func (l *WaitingList[K]) answer(key K, peer PeerID, payload any, reason error) AckResult {
	s, hash := l.locate(key)
	s.mu.Lock()
	slot, e := s.lookup(hash, key)
	result, end := s.answerLocked(e, peer, payload, reason)
	if result == AckDecided {
		return l.decide(s, slot, peer, end)
	}
	s.mu.Unlock()
	return result
}

// decide ends an entry that peer's answer has decided. The shard is locked.
func (l *WaitingList[K]) decide(s *hashed[K], slot uint32, peer PeerID, end End) AckResult {
	var c claim[K]
	s.claimLocked(&c, slot, end, nil)
	c.decidedBy(peer)
	s.mu.Unlock()
	l.finish(&c)
	return AckDecided
}

// AckBatch is Ack for many keys, as one frame of a replication stream carries them.
// It returns how many entries it has ended. It hashes every key before it applies the
// first, claims all entries that it ends, and only then calls their callbacks. A
// key that is repeated counts as a duplicate, also when its first occurrence has ended
// the entry; an unknown one is late each time. Batches of up to 128 keys allocate
// nothing. keys must not change during the call; it is not kept.
func (l *WaitingList[K]) AckBatch(keys []K, peer PeerID) (ended int) {
	var (
		space [128]uint64
		heads [64]int32
	)
	hashes, chains := space[:0], heads[:]
	if len(keys) > len(space) {
		hashes, chains = make([]uint64, 0, len(keys)), make([]int32, len(keys)/2)
	}
	for _, key := range keys {
		hashes = append(hashes, maphash.Comparable(l.seed, key))
	}

	// The keys whose entries this call has ended are chained by a few bits of
	// their hash, through the places of their hashes, which are used up. So a
	// repeated key is known without a second table. Chains hold an index plus 1;
	// 0 ends one.
	p := pass[K]{list: &l.core}
	for i, key := range keys {
		s, hash := l.hashed[hashes[i]>>(64-shardBits)], uint32(hashes[i])
		chain := &chains[hash%uint32(len(chains))]
		repeated := false
		for j := *chain; j != 0 && !repeated; j = int32(hashes[j-1]) {
			repeated = keys[j-1] == key
		}
		s.mu.Lock()
		if repeated {
			s.duplicates++
			s.mu.Unlock()
			continue
		}
		if slot, result, end := s.ackLocked(hash, key, peer); result == AckDecided {
			p.claimLocked(&s.shard, slot, end, nil).decidedBy(peer)
			hashes[i] = uint64(uint32(*chain))
			*chain = int32(i + 1)
		}
		s.mu.Unlock()
	}
	return p.finish()
}

// PeerDown nacks, in the name of peer, every entry parked now that names it and has
// no answer from it, and returns how many that has ended. It is an event and not a
// state: entries added later know nothing of it, so whoever keeps such a state changes
// it first and then calls PeerDown, and whoever adds looks at it after the Add. A nil
// reason becomes ErrNoReason. It first claims all and then calls. Cost: a look at
// everything parked.
func (l *WaitingList[K]) PeerDown(peer PeerID, reason error) (ended int) {
	reason = orNoReason(reason)
	p := pass[K]{list: &l.core}
	for _, s := range &l.hashed {
		s.mu.Lock()
		for slot := s.live; slot > 0; slot-- { // from the end: what moves has been seen
			e := s.entry(slot - 1)
			if !e.awaits(peer) {
				continue
			}
			if result, end := s.answerLocked(e, peer, nil, reason); result == AckDecided {
				p.claimLocked(&s.shard, slot-1, end, nil).decidedBy(peer)
			}
		}
		s.mu.Unlock()
	}
	return p.finish()
}

// Complete ends the entry under key as EndCompleted, whatever its quorum, and hands
// value to its callback. It reports whether there was one.
func (l *WaitingList[K]) Complete(key K, value any) bool {
	return l.end(key, EndCompleted, value, nil)
}

// Fail ends the entry under key as EndFailed with err; nil becomes ErrNoReason. It
// reports whether there was one.
func (l *WaitingList[K]) Fail(key K, err error) bool {
	return l.end(key, EndFailed, nil, orNoReason(err))
}

func (l *WaitingList[K]) end(key K, end End, value any, err error) bool {
	s, hash := l.locate(key)
	s.mu.Lock()
	slot, e := s.lookup(hash, key)
	if e == nil {
		s.mu.Unlock()
		return false
	}
	var c claim[K]
	s.claimLocked(&c, slot, end, err)
	c.out.Value = value
	s.mu.Unlock()
	l.finish(&c)
	return true
}

// FailFunc ends every entry whose key matches, as EndFailed with err, and returns how
// many; a nil err becomes ErrNoReason. It asks match once for each entry parked at
// the call, over a copy of the keys and with no lock held; only then does it claim the
// matching entries that are still parked, and then call. An entry that was added
// meanwhile under the same key is not touched. If match panics nothing is ended.
// Cost: a copy of every key.
func (l *WaitingList[K]) FailFunc(match func(K) bool, err error) (ended int) {
	type candidate struct {
		key          K
		hash, serial uint32
	}
	asked := make([][]candidate, numShards)
	for i, s := range &l.hashed {
		s.mu.Lock()
		for slot := range s.live {
			e := s.entry(slot)
			asked[i] = append(asked[i], candidate{e.key, e.hash, e.serial})
		}
		s.mu.Unlock()
	}
	for i, candidates := range asked {
		matching := candidates[:0]
		for _, c := range candidates {
			if match(c.key) {
				matching = append(matching, c)
			}
		}
		asked[i] = matching
	}
	err = orNoReason(err)
	p := pass[K]{list: &l.core}
	for i, candidates := range asked {
		s := l.hashed[i]
		s.mu.Lock()
		for _, c := range candidates {
			if slot, ok := s.lookupSerial(c.hash, c.serial); ok {
				p.claimLocked(&s.shard, slot, EndFailed, err)
			}
		}
		s.mu.Unlock()
	}
	return p.finish()
}

// Get returns a snapshot of the entry under key, if it is parked.
func (l *WaitingList[K]) Get(key K) (Parked[K], bool) {
	s, hash := l.locate(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, e := s.lookup(hash, key)
	if e == nil {
		return Parked[K]{}, false
	}
	return s.snapshotLocked(slot), true
}
