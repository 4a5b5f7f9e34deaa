package waitlist

import (
	"context"
	"iter"
)

// Integer is what a log index or an offset may be.
type Integer interface {
	~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64
}

// WatermarkList parks requests by log index, any number per index, until the high
// watermark reaches them. Advance moves the mark, or Ack under a quorum, whose commit
// index is the mark: Raft's commit and apply, Kafka's acks=all, reads on a follower.
//
// Requests complete in order of index, those of one index in order of registration,
// also when several goroutines move the mark at once and when callbacks move it: all
// completions go through one queue, which one mover at a time drains, calling one
// callback after the other with no lock held. A mover that finds somebody draining
// leaves its completions to them and returns at once. A callback that blocks
// therefore holds up those after it; set Options.Executor if callbacks do that. Other
// ends (a deadline, a session, FailAll, Truncate) have no order relative to completions.
//
// A list has one lock, which a call holds while it claims what it ends: 0.1 to 0.25 µs an
// entry.
//
// All methods may be called by any number of goroutines at once, and by callbacks.
// Make one with NewWatermarkList; it must not be copied.
type WatermarkList[I Integer] struct {
	ordered ordered[I] // first: see shard
	core[I]
	shard [1]*shard[I] // what core.shards lists
}

// NewWatermarkList makes an empty list whose watermark is start: all up to start,
// negative indexes included, is already reached. It panics if an option makes no
// sense, naming it. A new list takes 512 bytes and holds no goroutine and no timer.
func NewWatermarkList[I Integer](start I, opts Options) *WatermarkList[I] {
	opts.check()
	w := &WatermarkList[I]{}
	s := &w.ordered
	s.find = s
	s.mark = position(start)
	w.shard[0] = &s.shard
	w.init(&opts, w.shard[:])
	return w
}

// Add parks a request until the watermark reaches index, or something else ends it,
// and then calls done exactly once. If the watermark is there already the request
// completes at once: done is called before Add returns, and has no order relative
// to other callbacks.
//
// Every error matches ErrNotParked and its reason, of which the first that applies is
// given: ErrNilCallback, ErrClosed, ErrSessionEnded (and the session's cause),
// ErrTimeout (no time left; not if the index is reached), ErrFull. Nothing was parked
// then and done will not be called; but what the log has already been given an index
// for may still be committed, so to its client the request is unknown, not failed, and
// whoever has appended it acks it all the same.
//
// A log takes the index, parks and appends under one lock of its own, and gives up
// leadership under the same lock before it calls Truncate or FailAll: a proposal that
// parks after those is completed by another leader's entry. That lock is safe, since for
// an index above the mark done is never called inside Add.
//
// Cost: one reading of the clock and one lock; O(1) for an index no lower than those
// parked, O(log n) for one out of order; nothing is allocated, except as memory
// grows and for an entry in a session.
func (w *WatermarkList[I]) Add(index I, done Callback[I], opts ...AddOption) error {
	_, err := w.add(index, done, w.options(opts), nil)
	return err
}

// Wait blocks until the watermark has reached index, or the request has ended
// otherwise, or ctx has. It returns the outcome and its Err. If nothing was parked,
// because ctx was over or for a reason of Add, the outcome's End is 0 and the error
// matches ErrNotParked. A ctx that ends ends the request as EndCanceled, with an error
// that matches ctx's error and cause. Wait is woken before any callback is
// called, whatever the queue holds.
func (w *WatermarkList[I]) Wait(ctx context.Context, index I, opts ...AddOption) (Outcome[I], error) {
	with := w.options(opts)
	return w.wait(ctx, index, nil, func(wake Callback[I], t *tie) (*shard[I], error) {
		return w.add(index, wake, with, t)
	})
}

func (w *WatermarkList[I]) add(index I, done Callback[I], with addOptions, t *tie) (*shard[I], error) {
	if done == nil {
		return nil, w.refuse(refusedNil)
	}
	s := &w.ordered
	now := w.now()
	expires := deadline(now, with.timeout)
	reached := claim[I]{
		out:  Outcome[I]{Key: index, End: EndReached, Since: w.at(now)},
		done: done, shard: &s.shard, wake: t != nil,
	}

	s.mu.Lock()
	with.session.lock()
	parked, err := s.addLocked(&reached, now, expires, with, t)
	with.session.unlock()
	s.mu.Unlock()
	switch {
	case err != nil:
		return nil, w.refuse(err)
	case parked:
		w.arm(expires)
	default:
		w.finish(&reached)
	}
	return &s.shard, nil
}

// Advance raises the watermark to an index, completes as EndReached what it has
// reached, and returns how many requests this call completed. A lower index than
// the watermark is a no-op. Callbacks run in order before Advance returns, unless
// another goroutine, or a caller further up this stack, is already running them.
// Cost: what it completes, whatever is parked.
//
// After leadership is lost call FailAll or Truncate before the next Advance, or
// another leader's entries are reported as yours.
func (w *WatermarkList[I]) Advance(to I) (completed int) {
	p := pass[I]{list: &w.core}
	s := &w.ordered
	s.mu.Lock()
	s.raiseLocked(position(to), &p, 0, false)
	s.mu.Unlock()
	return s.complete(&p)
}

// Ack says that peer holds everything up to index. If that raises the commit index of
// the quorum, the watermark follows and what it reaches completes, as in Advance.
//
// The result is AckDecided if this ack moved the mark, even with nothing parked,
// AckDuplicate if peer was known to hold the index, AckNotMember if it is not in the
// quorum or there is none, and AckCounted otherwise, also for a first ack below the
// mark. What a peer is known to hold falls only by BeginTerm and Truncate: one that has
// lost data must leave the rule and join again. After BeginTerm, drop messages of older
// terms before you call Ack. Cost: one lock and one evaluation of the quorum, and what
// it completes.
func (w *WatermarkList[I]) Ack(index I, peer PeerID) AckResult {
	p := pass[I]{list: &w.core}
	s := &w.ordered
	s.mu.Lock()
	result := s.ackLocked(position(index), peer, &p)
	s.mu.Unlock()
	s.complete(&p)
	return result
}

// SetQuorum makes q the rule under which acks move the watermark, for what is parked
// as for what comes. It re-evaluates at once, so that an in-sync set that shrinks
// completes what it held up, and returns how many requests that completed. Peers that
// stay keep their match, those that leave are forgotten; acks of strangers are not
// stored, so ack a joining peer's known position right after. If the rule must hold for
// all that is committed (an in-sync set that grows), compare that position with
// Watermark after the ack, and go back to the old rule if it lies below: the mark may
// have risen meanwhile. Before the first SetQuorum, and under External, only Advance moves
// the mark.
//
// An invalid rule leaves the old one in force; the error matches ErrInvalidQuorum.
func (w *WatermarkList[I]) SetQuorum(q Quorum) (completed int, err error) {
	if err := q.Err(); err != nil {
		return 0, err
	}
	p := pass[I]{list: &w.core}
	s := &w.ordered
	s.mu.Lock()
	s.setRuleLocked(q.rule)
	s.commitLocked(&p, 0, false)
	s.mu.Unlock()
	return s.complete(&p), nil
}

// BeginTerm begins the term of a new leader, whose first own index is first: all that
// peers acked before is forgotten, and from now on acks move the watermark only to
// first or beyond, since a leader commits by counting only what it has appended
// itself (Raft, section 5.4.2). Advance is not restricted. The last call counts, also
// with a lower first.
//
// The list does not know terms: drop messages of older terms before calling Ack. When
// leadership is lost, call FailAll or Truncate before the next Advance, or another
// leader's entries are reported as yours.
func (w *WatermarkList[I]) BeginTerm(first I) {
	s := &w.ordered
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = position(first)
	if v := s.voters; v != nil {
		clear(v.match)
		clear(v.known)
	}
}

// Truncate ends every request at from and above as EndTruncated, since another
// leader's entries replace that suffix, forgets acks for it, and returns how many it
// ended. The error in the outcomes matches ErrTruncated and the cause; a nil cause
// becomes ErrNoReason. Their tallies are as they were before the cut.
//
// What the watermark has reached cannot be cut: if from is not above it, Truncate
// changes nothing and returns ErrReached. It first claims all and then calls. Cost:
// what it ends, and a look at what was added out of order.
func (w *WatermarkList[I]) Truncate(from I, cause error) (ended int, err error) {
	p := pass[I]{list: &w.core}
	s := &w.ordered
	s.mu.Lock()
	reached := position(from) <= s.mark
	if !reached {
		s.truncateLocked(position(from), caused(ErrTruncated, cause), &p)
	}
	s.mu.Unlock()
	if reached {
		return 0, ErrReached
	}
	return p.finish(), nil
}

// All yields a snapshot of each parked request, in no particular order, as they were at
// one moment. No lock is held while the loop body runs, so the body may call anything; a
// request may have ended before it is yielded. Cost: a copy of what is parked.
func (w *WatermarkList[I]) All() iter.Seq[Parked[I]] { return w.core.All() }

// Watermark returns the highest index that has been reached.
func (w *WatermarkList[I]) Watermark() I {
	s := &w.ordered
	s.mu.Lock()
	defer s.mu.Unlock()
	return index[I](s.mark)
}

// Match returns the index up to which peer is known to hold everything, if it is a
// member and has acked in this term.
func (w *WatermarkList[I]) Match(peer PeerID) (I, bool) {
	s := &w.ordered
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.voters.member(peer); i >= 0 && s.voters.known[i] {
		return index[I](s.voters.match[i]), true
	}
	return 0, false
}
