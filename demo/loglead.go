package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

// maxAhead is how many entries a follower is sent beyond what it has acked.
const maxAhead = 4096

// A logLeader leads with a WatermarkList: writes are the entries of a log, and
// parked under their index. A peer's ack is one number, which says that it
// holds everything up to there; when a majority does, the high watermark
// advances, and one sweep completes what it has passed, in order.
//
// An ack must not cover a gap. So followers ack their contiguous prefix only,
// and the leader sends again what a follower is missing. An entry that timed
// out stays in the log and is repaired like any other: its client has been told
// that the outcome is unknown, and it is.
type logLeader struct {
	self    waitlist.PeerID
	store   *store
	list    *waitlist.WatermarkList[uint64]
	cursors map[waitlist.PeerID]*cursor
	ledger  *ledger

	mu  sync.Mutex
	log []op // the entry at index i is log[i-1]; entries never change
}

func newLogLeader(n *node, members []waitlist.PeerID, timeout time.Duration, led *ledger) (*logLeader, error) {
	l := &logLeader{
		self:    n.id,
		store:   n.store,
		list:    waitlist.NewWatermarkList[uint64](0, waitlist.Options{Timeout: timeout, Capacity: parkLimit}),
		cursors: make(map[waitlist.PeerID]*cursor),
		ledger:  led,
	}
	for _, id := range members {
		if id != n.id {
			l.cursors[id] = &cursor{l: l, peer: id, at: 1, ready: make(chan struct{}, 1)}
		}
	}
	_, err := l.list.SetQuorum(waitlist.Majority(members...))
	return l, err
}

func (l *logLeader) submit(from *clientConn, ops []op) {
	l.mu.Lock()
	first := len(l.log)
	var refused []answer
	for _, o := range ops {
		// A log has no holes, and a follower no veto: what the stores would not
		// take must not get an index.
		if l.store.admits(o) != nil {
			refused = append(refused, answer{id: o.id})
			continue
		}
		// Parked first, then in the log, where the cursors find it. This runs
		// under a lock, which is safe only because Add calls no callback here:
		// it would if the watermark had already passed the index, and this
		// index is not given out yet.
		index := uint64(len(l.log)) + 1
		err := l.list.Add(index, func(out waitlist.Outcome[uint64]) {
			l.ledger.count(out.End, out.Since, out.Tally)
			from.answer(answer{id: o.id, stored: out.Key, end: out.End})
		}, waitlist.InSession(&from.session))
		if err != nil {
			refused = append(refused, answer{id: o.id})
			continue // the index is free for the next one
		}
		l.log = append(l.log, op{id: index, key: o.key, value: o.value})
	}
	entries := l.log[first:]
	l.mu.Unlock()

	for _, a := range refused {
		from.answer(a)
	}
	for _, c := range l.cursors {
		nudge(c.ready)
	}
	if len(entries) > 0 {
		l.list.Ack(l.store.extend(entries), l.self)
	}
}

func (l *logLeader) feed(peer waitlist.PeerID) feed { return l.cursors[peer] }

func (l *logLeader) linked(peer waitlist.PeerID) { l.cursors[peer].rewind() }

func (l *logLeader) heard(peer waitlist.PeerID, k kind, body []byte) error {
	ids, err := decodeIDs(body)
	switch {
	case err != nil:
		return err
	case k != kindAppended || len(ids) != 1:
		return fmt.Errorf("%w: kind %d from a follower", errMalformed, k)
	case ids[0] > l.length():
		return fmt.Errorf("%w: peer %d acks entries that do not exist", errMalformed, peer)
	}
	l.list.Ack(ids[0], peer)
	nudge(l.cursors[peer].ready) // there may be room again
	return nil
}

func (l *logLeader) length() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return uint64(len(l.log))
}

// repair sends a follower again what it has not acked, whenever a whole
// interval has passed and its ack has not moved.
func (l *logLeader) repair(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last := make(map[waitlist.PeerID]uint64)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for id, c := range l.cursors {
			match, _ := l.list.Match(id)
			if match == last[id] {
				c.rewind()
			}
			last[id] = match
		}
	}
}

func (l *logLeader) drain(ctx context.Context) error {
	err := l.list.Shutdown(ctx)
	<-l.list.Done()
	return err
}

func (l *logLeader) stats() waitlist.Stats { return l.list.Stats() }

// A cursor is one follower's place in the log, and the feed of its link.
type cursor struct {
	l     *logLeader
	peer  waitlist.PeerID
	ready chan struct{}

	at uint64 // guarded by l.mu: the next index to send
}

// rewind goes back to the first entry that the follower has not acked.
func (c *cursor) rewind() {
	match, _ := c.l.list.Match(c.peer)
	c.l.mu.Lock()
	c.at = min(c.at, match+1)
	c.l.mu.Unlock()
	nudge(c.ready)
}

func (c *cursor) next(buf []byte) []byte {
	match, _ := c.l.list.Match(c.peer)
	c.l.mu.Lock()
	from := max(c.at, match+1)
	to := min(uint64(len(c.l.log)), match+maxAhead)
	if from > to {
		c.l.mu.Unlock()
		return buf
	}
	entries := c.l.log[from-1 : to]
	entries = entries[:fit(entries)]
	c.at = from + uint64(len(entries))
	c.l.mu.Unlock()
	return appendOps(buf, kindAppend, entries)
}

func (c *cursor) wake() <-chan struct{} { return c.ready }
