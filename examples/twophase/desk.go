//go:build unix

package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waitlist-go/waitlist"
)

// desk is the coordinator's side of one server. Its goroutines are as many as its
// connections, however many transactions wait.
type desk struct {
	c    *coordinator
	peer waitlist.PeerID
	bank bank

	// Votes and decisions have goroutines of their own. A voter may be waiting for
	// a lock that only a decision, for another transaction, releases.
	votes     *queue[errand]
	decisions *queue[errand]

	swept atomic.Bool // what earlier coordinators left here is settled
}

func newDesk(c *coordinator, peer waitlist.PeerID, b bank) *desk {
	return &desk{c: c, peer: peer, bank: b, votes: newQueue[errand](), decisions: newQueue[errand]()}
}

func (d *desk) start() {
	for range voters {
		d.c.workers.Go(d.vote)
	}
	for range settlers {
		d.c.workers.Go(d.settle)
	}
	d.c.workers.Go(d.resolveForever)
}

func (d *desk) close() {
	d.votes.close()
	d.decisions.close()
}

// line is one goroutine's connection, opened when it is needed and again when it
// was lost.
type line struct {
	desk *desk
	conn *pgx.Conn
}

func (l *line) get(ctx context.Context) (*pgx.Conn, error) {
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, nil
	}
	var err error
	l.conn, err = dial(ctx, l.desk.bank, l.desk.c.lineName())
	return l.conn, err
}

func (l *line) close() {
	if l.conn != nil {
		// The coordinator's own context is over by now.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		l.conn.Close(ctx)
	}
}

var errNotSwept = errors.New("what an earlier coordinator left there is not settled yet")

// vote is the goroutine of one voter.
func (d *desk) vote() {
	l := line{desk: d}
	defer l.close()
	for {
		e, ok := d.votes.get()
		if !ok {
			return
		}
		d.voteOn(&l, e)
	}
}

func (d *desk) voteOn(l *line, e errand) {
	list, id := d.c.list, e.tx.id
	parked := func() bool {
		_, ok := list.Get(id)
		return ok
	}
	if !parked() { // another server was quicker with its no
		d.c.branchEnded(e.tx)
		return
	}
	if !d.swept.Load() {
		// A client that asks again must not be told no here while its earlier
		// attempt can still be committed.
		list.Nack(id, d.peer, &refusal{reasonUnreachable, errNotSwept})
		d.c.branchEnded(e.tx)
		return
	}
	conn, err := l.get(d.c.ctx)
	if err != nil {
		// Nobody answers there. Everything that waits for this server's vote is
		// aborted now, this transaction and those still in the queue alike, and
		// lets go of its locks at the other servers.
		list.PeerDown(d.peer, refused(err))
		d.c.branchEnded(e.tx)
		return
	}
	if err := prepare(d.c.ctx, conn, id, e.tx.request, e.branch.changes, parked); err != nil {
		list.Nack(id, d.peer, refused(err))
		d.c.branchEnded(e.tx)
		return
	}
	d.c.probe.at(stepPrepared)
	switch list.Ack(id, d.peer) {
	case waitlist.AckCounted:
		d.c.probe.at(stepFirstVote)
	case waitlist.AckUnknown:
		// Aborted while this server prepared. The decision was not sent here,
		// since this vote was not in its tally.
		d.decisions.put(e)
	}
}

// settle is the goroutine of one settler.
func (d *desk) settle() {
	l := line{desk: d}
	defer l.close()
	for {
		e, ok := d.decisions.get()
		if !ok {
			return
		}
		if d.deliver(&l, e.tx) {
			d.c.branchEnded(e.tx)
		}
	}
}

// deliver tells the server the decision, as often as it takes. It gives up only when
// the coordinator stops.
func (d *desk) deliver(l *line, tx *transaction) (delivered bool) {
	commit := tx.commit.Load() // false: the decision is to abort, for nothing else is sent
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		conn, err := l.get(d.c.ctx)
		if err == nil {
			err = settle(d.c.ctx, conn, tx.id, commit)
		}
		if err == nil {
			if !commit {
				d.c.probe.at(stepRolledBack)
			}
			return true
		}
		select {
		case <-d.c.ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}
