package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/waitlist-go/waitlist"
)

// parkLimit bounds what one leader holds. Clients keep far below it with their
// windows; one that does not is refused instead of filling the memory.
const parkLimit = 1 << 15

// A coordinator leads with a WaitingList: each write is parked under its own
// correlation id, each peer acks each write, and writes complete in the order
// in which their quorums happen to be reached.
//
// What a peer was sent and did not get is not sent again: whoever wrote it sees
// a timeout and knows that the outcome is unknown. (For the repair of gaps, see
// loglead.go.)
type coordinator struct {
	self   waitlist.PeerID
	store  *store
	quorum waitlist.Quorum // built once, shared by all requests
	list   *waitlist.WaitingList[uint64]
	peers  map[waitlist.PeerID]*outbox[op]
	ledger *ledger
	lastID atomic.Uint64
}

func newCoordinator(n *node, members []waitlist.PeerID, timeout time.Duration, led *ledger) (*coordinator, error) {
	c := &coordinator{
		self:   n.id,
		store:  n.store,
		quorum: waitlist.Majority(members...),
		// No Executor: callbacks run where the entry ends, which is fine as
		// long as none of them blocks. These only put into queues.
		list:   waitlist.New[uint64](waitlist.Options{Timeout: timeout, Capacity: parkLimit}),
		peers:  make(map[waitlist.PeerID]*outbox[op]),
		ledger: led,
	}
	for _, id := range members {
		if id != n.id {
			c.peers[id] = newOutbox(boxLimit, func(buf []byte, items []op) ([]byte, int) {
				taken := fit(items)
				return appendOps(buf, kindStore, items[:taken]), taken
			})
		}
	}
	return c, c.quorum.Err()
}

func (c *coordinator) submit(from *clientConn, ops []op) {
	// First park, then send: an ack may be back before this loop has ended, and
	// must find its entry.
	parked := make([]op, 0, len(ops))
	for _, o := range ops {
		// Two clients may use the same ids, so the leader gives its own.
		id := c.lastID.Add(1)
		err := c.list.Add(id, c.quorum, func(out waitlist.Outcome[uint64]) {
			c.ledger.count(out.End, out.Since, out.Tally)
			from.answer(answer{id: o.id, stored: out.Key, end: out.End})
		}, waitlist.InSession(&from.session))
		if err != nil {
			// There will be no callback. Nothing was sent either, so this answer
			// is certain: the client may write again without harm.
			from.answer(answer{id: o.id})
			continue
		}
		parked = append(parked, op{id: id, key: o.key, value: o.value})
	}
	for _, box := range c.peers {
		box.put(parked...)
	}
	// The leader is one of the peers: it stores, and acks, like the others.
	stored := make([]uint64, 0, len(parked))
	for _, o := range parked {
		if err := c.store.put(o); err != nil {
			c.list.Nack(o.id, c.self, err)
			continue
		}
		stored = append(stored, o.id)
	}
	c.list.AckBatch(stored, c.self)
}

func (c *coordinator) feed(peer waitlist.PeerID) feed { return c.peers[peer] }

// linked does nothing: what is still queued for the peer goes over the new
// connection, in time or not.
func (c *coordinator) linked(waitlist.PeerID) {}

func (c *coordinator) heard(peer waitlist.PeerID, k kind, body []byte) error {
	ids, err := decodeIDs(body)
	switch {
	case err != nil:
		return err
	case k == kindStored:
		c.list.AckBatch(ids, peer)
	case k == kindRefused:
		// A refusal is for good, which is what makes it a nack.
		for _, id := range ids {
			c.list.Nack(id, peer, fmt.Errorf("peer %d: %w", peer, errTooLong))
		}
	default:
		return fmt.Errorf("%w: kind %d from a follower", errMalformed, k)
	}
	return nil
}

func (c *coordinator) drain(ctx context.Context) error {
	err := c.list.Shutdown(ctx)
	<-c.list.Done() // the last callback has returned
	return err
}

func (c *coordinator) stats() waitlist.Stats { return c.list.Stats() }
