package main

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waitlist-go/waitlist"
)

// leader is a partition on the broker that leads it, and the place where requests wait:
//
//	committed  its mark is the last offset that every replica in sync has (Kafka's high
//	           watermark is the one after it). A produce with acks=all waits for its
//	           last record, a consumer's fetch for the first that it has not seen.
//	appended   its mark is the last offset of the leader's own log. A follower's fetch
//	           waits for the first that it has not got.
//
// Callbacks of both lists run wherever a mark is moved: while a reader of some
// connection appends, hears from a follower or changes the in-sync set. So they take
// neither mu nor isrMu, and never block.
type leader struct {
	name      partitionName
	self      int32
	cluster   *cluster
	log       *recordLog
	minInSync int
	committed *waitlist.WatermarkList[int64]
	appended  *waitlist.WatermarkList[int64]

	mu        sync.Mutex // what is appended is numbered, checked and parked in one order
	producers producers

	isrMu     sync.Mutex // held over SetQuorum, or two changes could end in the wrong order
	followers map[int32]*follower

	inSync atomic.Pointer[[]int32] // sorted; written under isrMu
}

// follower is what the leader knows of one. Guarded by isrMu.
type follower struct {
	next     int64     // the offset it has last asked for: it holds all before
	caughtUp time.Time // when it last had all that the leader had
	asked    time.Time // when it last asked
	endThen  int64     // the end of the leader's log when it last asked
}

func newLeader(b *broker, name partitionName, a assignment, log *recordLog, known producers, minInSync int) *leader {
	l := &leader{
		name: name, self: b.id, cluster: b.cluster, log: log, minInSync: minInSync, producers: known,
		// What is in the log is committed when the replicas in sync say that they have
		// it, so a leader that returns begins with nothing.
		committed: waitlist.NewWatermarkList(int64(-1), waitlist.Options{}),
		appended:  waitlist.NewWatermarkList(log.end()-1, waitlist.Options{}),
		followers: make(map[int32]*follower),
	}
	for _, id := range a.replicas {
		if id != b.id {
			l.followers[id] = &follower{caughtUp: time.Now()}
		}
	}
	l.inSync.Store(&a.inSync)
	l.setQuorum(a.inSync)
	l.committed.Ack(log.end()-1, peer(b.id))
	return l
}

// Brokers have numbers, so they need no roster.
func peer(id int32) waitlist.PeerID { return waitlist.PeerID(id) }

func (l *leader) close() {
	l.committed.Close()
	l.appended.Close()
}

func (l *leader) join() {
	<-l.committed.Done()
	<-l.appended.Done()
}

func (l *leader) stats() waitlist.Stats {
	return addStats(l.committed.Stats(), l.appended.Stats())
}

// highWatermark is, as in Kafka, the offset that consumers cannot see yet.
func (l *leader) highWatermark() int64 { return l.committed.Watermark() + 1 }

// enoughInSync tells whether acks=all would mean what it promises.
func (l *leader) enoughInSync() bool { return len(*l.inSync.Load()) >= l.minInSync }

const (
	acksNone   = 0
	acksLeader = 1
	acksAll    = -1
)

// append appends a batch and calls done, at once or when the replicas in sync have it,
// with its first offset or with one of Kafka's errors. done must not block, and may be
// called with a lock held.
func (l *leader) append(b []byte, acks int16, patience time.Duration, s *waitlist.Session, done func(base int64, err error)) {
	info, err := parseProduced(b)
	switch {
	case err == nil && info.size > maxBatchSize:
		err = kerr.MessageTooLarge
	case err == nil && acks == acksAll && !l.enoughInSync():
		// Refused before anything is written: the client may do what it likes.
		err = kerr.NotEnoughReplicas
	}
	if err == nil {
		info, err = l.appendOnce(b, info, func(i batchInfo) {
			if acks == acksAll {
				l.park(i, patience, s, done)
			}
		})
	}
	if err != nil {
		done(-1, err)
		return
	}
	if acks != acksAll {
		done(info.base, nil)
	}
	// Only now can the mark pass the batch, for the leader is always in sync. The two
	// calls may overtake those of another batch, which does no harm: marks only rise.
	l.committed.Ack(info.last(), peer(l.self))
	l.appended.Advance(info.last())
}

// appendOnce appends a batch, unless it is there, and calls then while nothing can come
// after it, so that requests are parked in the order of the log.
func (l *leader) appendOnce(b []byte, info batchInfo, then func(batchInfo)) (batchInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	repeated, err := l.producers.check(info)
	switch {
	case err != nil:
		return info, err
	case repeated != nil:
		// The first answer has got lost, and the batch may or may not be committed
		// by now. Its producer waits for what is in the log already.
		info = *repeated
	default:
		if info, err = l.log.append(b, info); err != nil {
			return info, err
		}
		l.producers.note(info)
	}
	then(info)
	return info, nil
}

// park lets a produce wait for its batch.
func (l *leader) park(info batchInfo, patience time.Duration, s *waitlist.Session, done func(int64, error)) {
	err := l.committed.Add(info.last(), func(out waitlist.Outcome[int64]) {
		l.cluster.metrics.produced(out)
		done(info.base, l.judge(out))
	}, waitlist.InSession(s), waitlist.Timeout(patience))
	if err != nil {
		// No time is left, or the client or the broker is going. The log has the
		// batch, so to the producer this is as unknown as silence.
		done(-1, kerr.RequestTimedOut)
	}
}

// judge says what becomes of a produce that has waited.
func (l *leader) judge(out waitlist.Outcome[int64]) error {
	switch out.End {
	case waitlist.EndReached:
		if len(out.Tally.Quorum().Members()) < l.minInSync {
			// Some have left the in-sync set since the batch was appended, and those
			// that the mark waited for in the end are fewer than the promise.
			return kerr.NotEnoughReplicasAfterAppend
		}
		return nil
	case waitlist.EndTimedOut:
		return kerr.RequestTimedOut
	}
	return kerr.NotLeaderForPartition // the broker is dying, or the client is gone: nobody reads this
}

// heard takes in that a follower asks for an offset, so it holds all before. It reports
// whether it is a follower at all.
func (l *leader) heard(id int32, next int64, now time.Time) bool {
	l.isrMu.Lock()
	defer l.isrMu.Unlock()
	f := l.followers[id]
	if f == nil {
		return false
	}
	end := l.log.end()
	if next < 0 || next > end {
		return true // nothing that this log has had; the fetch will be refused
	}
	// Under steady load a follower never has the end. If it has what was the end when
	// it asked before, it is behind by no more than it takes to ask.
	if next >= end {
		f.caughtUp = now
	} else if next >= f.endThen && f.asked.After(f.caughtUp) {
		f.caughtUp = f.asked
	}
	f.next, f.asked, f.endThen = next, now, end

	isr := *l.inSync.Load()
	if slices.Contains(isr, id) {
		if held, ok := l.committed.Match(peer(id)); ok && next-1 < held {
			// It has lost what it had, its disk most likely, and must not count
			// for it any longer. Leaving makes the list forget.
			l.change(slices.DeleteFunc(slices.Clone(isr), func(in int32) bool { return in == id }))
			return true
		}
		l.committed.Ack(next-1, peer(id))
		return true
	}
	if next >= l.highWatermark() {
		l.admit(id, next, isr)
	}
	return true
}

// admit takes a follower into the in-sync set, if it still has all that is committed.
// The rule counts it first and it is asked afterwards: in the other order the mark could
// rise in between, and a record would be acknowledged that a replica in sync has not.
func (l *leader) admit(id int32, next int64, isr []int32) {
	with := slices.Sorted(slices.Values(append(slices.Clone(isr), id)))
	l.setQuorum(with) // from here on the mark waits for it
	l.committed.Ack(next-1, peer(id))
	if next < l.highWatermark() {
		l.setQuorum(isr)
		return
	}
	l.inSync.Store(&with)
	l.cluster.setInSync(l.name, with)
	l.tell(isr, with, 0)
}

// dropLaggards takes out of the in-sync set who has been without the end of the log for
// too long.
func (l *leader) dropLaggards(now time.Time) {
	l.isrMu.Lock()
	defer l.isrMu.Unlock()
	end := l.log.end()
	isr := *l.inSync.Load()
	left := slices.DeleteFunc(slices.Clone(isr), func(id int32) bool {
		f := l.followers[id] // nil: the leader itself
		return f != nil && f.next < end && now.Sub(f.caughtUp) > l.cluster.config.lagMax
	})
	if len(left) < len(isr) {
		l.change(left)
	}
}

// change makes a smaller set the one in sync. The caller holds isrMu. Here everybody
// knows first and the rule follows: in the other order records would be acknowledged
// without a replica that the cluster still takes for one that has them.
func (l *leader) change(left []int32) {
	old := *l.inSync.Load()
	l.inSync.Store(&left)
	l.cluster.setInSync(l.name, left)
	l.tell(old, left, l.setQuorum(left))
}

func (l *leader) tell(old, now []int32, released int) {
	if tell := l.cluster.config.inSync; tell != nil {
		tell(isrChange{l.name, old, now, l.highWatermark(), released})
	}
}

// setQuorum makes the mark wait for a set, and returns how many requests that released.
func (l *leader) setQuorum(isr []int32) int {
	peers := make([]waitlist.PeerID, len(isr))
	for i, id := range isr {
		peers[i] = peer(id)
	}
	released, err := l.committed.SetQuorum(waitlist.All(peers...))
	if err != nil {
		panic(err) // the leader is always in the set
	}
	return released
}

// codeOf is the number by which clients know an error.
func codeOf(err error) int16 {
	var known *kerr.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &known):
		return known.Code
	case errors.Is(err, errCorrupt):
		return kerr.CorruptMessage.Code
	case errors.Is(err, errRecord):
		return kerr.InvalidRecord.Code
	}
	return kerr.KafkaStorageError.Code // what is left are files
}
