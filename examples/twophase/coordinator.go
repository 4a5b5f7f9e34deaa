//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waitlist-go/waitlist"
)

// Limits of one coordinator.
const (
	voteTimeout = 2 * time.Second // how long a transaction may be without all its votes
	maxInFlight = 128             // from begin until every server knows the decision
	voters      = 8               // connections to each server that do work and prepare it
	settlers    = 4               // connections to each server that carry decisions
)

// verdict is how a transfer ended, as far as its client is concerned.
type verdict string

const (
	committed verdict = "committed"
	aborted   verdict = "aborted"
	unknown   verdict = "unknown" // ask again, under the same request
)

type result struct {
	Verdict verdict `json:"verdict"`
	Reason  reason  `json:"reason,omitempty"`
	Detail  string  `json:"detail,omitempty"`
}

// coordinator moves money between banks by two-phase commit.
//
// A transaction is parked in list, under its id, until all its servers have voted.
// Its callback is the one place where a transaction is decided, and that it is
// called exactly once, be it by the last yes, the first no, the deadline or the
// shutdown, is what makes the decision single. A server that votes yes too late
// learns so from what Ack returns.
type coordinator struct {
	log   *decisionLog
	list  *waitlist.WaitingList[string]
	rules [][]waitlist.Quorum // All of the two banks, built once and shared
	desks []*desk
	probe probe
	seq   atomic.Uint64

	ctx     context.Context // over when the coordinator stops waiting for servers
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu       sync.Mutex
	inFlight map[string]*transaction // guarded by mu: begun, and not yet known to every server
	stopping bool                    // guarded by mu
	idle     chan struct{}           // closed when stopping and nothing is in flight
	leftover []string                // guarded by mu: earlier commits, until every desk is swept
}

// transaction is one attempt at a transfer.
type transaction struct {
	id       string
	request  string
	branches []branch
	done     func(result)
	open     atomic.Int32 // branches whose server may still have to be told something
	commit   atomic.Bool  // the decision, once it is on disk
}

// open starts a coordinator over the log in a folder. It looks after what an
// earlier one left at the servers before it returns; a server that cannot be
// reached takes part as soon as it can.
func open(ctx context.Context, folder string, banks []bank, p probe) (*coordinator, recovery, error) {
	log, err := openLog(folder, p)
	if err != nil {
		return nil, recovery{}, err
	}
	c := &coordinator{
		log: log,
		// No Executor: the callback runs inside the Ack of a voter, or on the
		// sweeper's timer, and only puts things into queues. The disk is for the
		// log's own goroutine.
		list:     waitlist.New[string](waitlist.Options{Timeout: voteTimeout}),
		probe:    p,
		inFlight: map[string]*transaction{},
		idle:     make(chan struct{}),
		leftover: log.unsettled(),
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for i, b := range banks {
		c.desks = append(c.desks, newDesk(c, waitlist.PeerID(i), b))
		row := make([]waitlist.Quorum, len(banks))
		for j := range banks {
			row[j] = waitlist.All(waitlist.PeerID(i), waitlist.PeerID(j))
			if i == j {
				row[j] = waitlist.All(waitlist.PeerID(i))
			}
		}
		c.rules = append(c.rules, row)
	}
	found := c.recover(ctx)
	for _, d := range c.desks {
		d.start()
	}
	return c, found, nil
}

// begin starts a transfer and returns. done is called exactly once, on some goroutine
// of the coordinator, and must not block.
func (c *coordinator) begin(t transfer, done func(result)) {
	if err := c.check(t); err != nil {
		done(result{aborted, reasonBad, err.Error()})
		return
	}
	tx := &transaction{
		// The epoch and the number make every attempt's id new: an id that is
		// used again could collect votes that were meant for its earlier use.
		id:       fmt.Sprintf("%s%d-%d", c.prefix(), c.log.epoch, c.seq.Add(1)),
		request:  t.Request,
		branches: t.branches(),
		done:     done,
	}
	tx.open.Store(int32(len(tx.branches)))
	if err := c.enter(tx); err != nil {
		done(result{aborted, reasonOf(err), err.Error()})
		return
	}
	// Park, then send: a vote may be back before the loop below has ended.
	err := c.list.Add(tx.id, c.rules[t.From.Bank][t.To.Bank], func(out waitlist.Outcome[string]) {
		c.decide(tx, out)
	})
	if err != nil {
		// There will be no callback. No server has heard of the transaction.
		c.leave(tx)
		done(result{aborted, reasonOf(err), err.Error()})
		return
	}
	c.probe.at(stepParked)
	for _, b := range tx.branches {
		c.desks[b.bank].votes.put(errand{tx: tx, branch: b})
	}
}

func (c *coordinator) check(t transfer) error {
	for _, a := range []account{t.From, t.To} {
		if a.Bank < 0 || a.Bank >= len(c.desks) {
			return fmt.Errorf("there is no bank %d", a.Bank)
		}
	}
	switch {
	case t.Request == "":
		return errors.New("the request has no name")
	case t.From == t.To:
		return errors.New("both accounts are the same")
	case t.Amount <= 0:
		return errors.New("the amount is not positive")
	}
	return nil
}

// decide is the callback: the votes are in, or will not be waited for.
func (c *coordinator) decide(tx *transaction, out waitlist.Outcome[string]) {
	why := out.Err
	if out.End == waitlist.EndReached {
		c.probe.at(stepAllVoted)
		if why = c.log.commit(tx.id, func(err error) { c.decided(tx, out, err) }); why == nil {
			return
		}
	} else if out.End == waitlist.EndUnreachable {
		c.probe.at(stepVotedNo)
	}
	c.abort(tx, out, why)
}

// decided is called when the decision to commit is on disk, or is not.
func (c *coordinator) decided(tx *transaction, out waitlist.Outcome[string], err error) {
	switch {
	case errors.Is(err, errNotWritten):
		c.abort(tx, out, err)
	case err != nil:
		// The disk knows the decision and nobody else does. The transaction
		// stays in flight, so that nobody settles it, until a coordinator that
		// can read the log takes over.
		tx.done(result{unknown, reasonOther, err.Error()})
	default:
		c.probe.at(stepDecided)
		tx.commit.Store(true)
		tx.done(result{Verdict: committed})
		for i, b := range tx.branches {
			if i > 0 {
				c.probe.at(stepHalfSent)
			}
			c.desks[b.bank].decisions.put(errand{tx: tx})
		}
	}
}

// abort needs no disk: a transaction that the log does not know is aborted.
//
// Only servers that have voted yes are told. One that voted no has nothing, and one
// that has not voted will find the transaction gone when it wants to vote.
func (c *coordinator) abort(tx *transaction, out waitlist.Outcome[string], why error) {
	tx.done(result{aborted, reasonOf(why), why.Error()})
	for peer := range out.Tally.Acked() {
		c.desks[peer].decisions.put(errand{tx: tx})
	}
}

// prefix begins the ids of all transactions under this log.
func (c *coordinator) prefix() string { return fmt.Sprintf("twophase-%s-", c.log.id) }

// enter counts a transaction as in flight, so that the resolver leaves it alone.
func (c *coordinator) enter(tx *transaction) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stopping:
		return waitlist.ErrClosed
	case len(c.inFlight) >= maxInFlight:
		// Among them may be those that a dead server has still to commit. The
		// locks that they hold elsewhere should not become ever more.
		return &refusal{reasonBusy, errors.New("too many transactions in flight")}
	}
	c.inFlight[tx.id] = tx
	return nil
}

func (c *coordinator) leave(tx *transaction) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inFlight, tx.id)
	c.checkIdleLocked()
}

func (c *coordinator) checkIdleLocked() {
	if c.stopping && len(c.inFlight) == 0 {
		select {
		case <-c.idle:
		default:
			close(c.idle)
		}
	}
}

func (c *coordinator) isInFlight(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.inFlight[id]
	return ok
}

// branchEnded says that one server needs no further word about a transaction.
func (c *coordinator) branchEnded(tx *transaction) {
	if tx.open.Add(-1) > 0 {
		return
	}
	if tx.commit.Load() {
		c.probe.at(stepAllSent)
		c.log.end(tx.id)
	}
	c.leave(tx)
}

// close stops the coordinator. Until ctx ends it lets transactions come to their
// decision and servers learn it. If that is not enough it returns an error: what was
// undecided has been aborted, and what a server could not be told is settled when a
// coordinator opens the log again.
func (c *coordinator) close(ctx context.Context) (stats waitlist.Stats, err error) {
	c.mu.Lock()
	c.stopping = true
	c.checkIdleLocked()
	c.mu.Unlock()
	c.list.Shutdown(ctx) // its error says that some were given back, and so does Stats
	<-c.list.Done()      // the last decision has been taken
	select {
	case <-c.idle:
	case <-ctx.Done():
		c.mu.Lock()
		if n := len(c.inFlight); n > 0 {
			err = fmt.Errorf("stopped with %d transactions in flight: %w", n, context.Cause(ctx))
		}
		c.mu.Unlock()
	}
	c.cancel()
	for _, d := range c.desks {
		d.close()
	}
	c.workers.Wait()
	if c.log.stop() == nil {
		c.lastLook(ctx)
	}
	c.log.release()
	return c.list.Stats(), err
}

// reasonOf says in a word why a transaction ended without a commit.
func reasonOf(err error) reason {
	var no *refusal
	switch {
	case errors.As(err, &no): // a server's vote; ErrUnreachable wraps them
		return no.reason
	case errors.Is(err, waitlist.ErrTimeout):
		return reasonBusy
	case errors.Is(err, waitlist.ErrClosed), errors.Is(err, errNotWritten):
		return reasonStopping
	default:
		return reasonOther
	}
}

// errand is a piece of work for one server: to prepare a branch, or to learn the
// decision.
type errand struct {
	tx     *transaction
	branch branch
}
