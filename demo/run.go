package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waitlist-go/waitlist"
)

// config is what the flags say, and what only tests change.
type config struct {
	faults  faults
	kills   []kill // by when they are due
	timeout time.Duration
	log     bool

	window   int           // how many writes the client may have unanswered
	patience time.Duration // how long an interrupted run waits for what is parked
}

// kill is a peer that dies once so many writes have been answered.
type kill struct {
	peer  waitlist.PeerID
	after int
}

const (
	leaderID = waitlist.PeerID(1)
	nodes    = 3

	tickInterval = 10 * time.Millisecond
	linkPatience = 10 * time.Second // for the nodes to find each other
	answerSlack  = 10 * time.Second // beyond the timeout, after which an answer counts as lost
)

// screen is where a run tells how it goes. Both methods are called from several
// goroutines.
type screen interface {
	say(format string, args ...any) // something happened
	show(progress)                  // so far
}

// run writes all that the source has to a cluster of three nodes.
func run(ctx context.Context, cfg config, src source, scr screen) (*result, error) {
	led := newLedger()
	cluster, lead, err := startCluster(cfg, led)
	if err != nil {
		return nil, err
	}
	res := &result{ledger: led, nodes: cluster, killed: make(map[waitlist.PeerID]int)}
	defer func() {
		for _, n := range cluster {
			n.stop()
			n.wait()
		}
	}()
	if err := linked(ctx, cluster); err != nil {
		return nil, err
	}

	// Peers die at exactly the answer that is named, on the client's reading
	// goroutine; stop waits for nothing.
	kills := slices.Clone(cfg.kills)
	killDue := func(answered int) {
		for len(kills) > 0 && kills[0].after <= answered {
			k := kills[0]
			kills = kills[1:]
			cluster[k.peer-1].stop()
			res.killed[k.peer] = k.after
			scr.say("peer %d died after %s writes", k.peer, thousands(k.after))
		}
	}
	killDue(0)
	cl, err := dial(ctx, cluster[0].addr(), cluster[0].token, cfg.window, killDue)
	if err != nil {
		return nil, err
	}

	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	writes := make(chan op, 4*maxBatch)
	readErr := make(chan error, 1)
	go func() { readErr <- src.run(reading, writes) }()
	clientErr := make(chan error, 1)
	began := time.Now()
	go func() { clientErr <- cl.run(ctx, writes) }()

	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	interrupted := ctx.Done()
	for running := true; running; {
		select {
		case err = <-clientErr:
			running = false
		case <-interrupted:
			interrupted = nil
			res.interrupted = true
			scr.say("interrupted: no more is accepted, and what is parked has %v to end", cfg.patience)
			res.givenBack = drain(lead, cfg.patience)
			scr.say("drained: %s given back", counted(res.givenBack, "write"))
		case <-tick.C:
			p := cl.progress()
			scr.show(p)
			if p.still > cfg.timeout+answerSlack {
				cl.abort(fmt.Errorf("no answer for %v", p.still.Round(time.Second)))
			}
		}
	}
	res.took = time.Since(began)
	scr.show(cl.progress())

	if !res.interrupted {
		res.givenBack = drain(lead, cfg.patience)
	}
	for _, n := range cluster {
		n.stop()
	}
	for _, n := range cluster {
		n.wait()
	}
	res.stats = lead.stats()
	res.progress = cl.progress()
	res.faults = verify(cl, cluster, led)
	if err != nil {
		res.faults = append(res.faults, fmt.Sprintf("the client lost its connection: %v", err))
	}
	stopReading()
	if err == nil && !res.interrupted {
		res.inputErr = <-readErr // the client saw the end of the writes, so the reader is done
	}
	// Otherwise it is only asked to end: it may be blocked on standard input.
	return res, nil
}

// drain ends the list in an orderly way: whoever still waits is answered now,
// and not when its timeout says so.
func drain(lead leader, patience time.Duration) (givenBack int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	before := lead.stats().Closed
	_ = lead.drain(ctx) // says how many, too, in words
	return int(lead.stats().Closed - before)
}

// startCluster starts three nodes that know each other. The first one leads.
func startCluster(cfg config, led *ledger) ([]*node, leader, error) {
	var cluster []*node
	var members []waitlist.PeerID
	fail := func(err error) ([]*node, leader, error) {
		for _, n := range cluster {
			n.stop()
			n.wait()
		}
		return nil, nil, err
	}
	token := rand.Uint64()
	for id := leaderID; id <= nodes; id++ {
		n, err := newNode(id, token, cfg.faults)
		if err != nil {
			return fail(err)
		}
		cluster, members = append(cluster, n), append(members, id)
	}
	first := cluster[0]
	if cfg.log {
		l, err := newLogLeader(first, members, cfg.timeout, led)
		if err != nil {
			return fail(err)
		}
		// An ack takes at most two delays, and is then truly missing.
		first.tasks.Go(func() { l.repair(first.ctx, 20*time.Millisecond+2*cfg.faults.delay) })
		first.lead = l
	} else {
		c, err := newCoordinator(first, members, cfg.timeout, led)
		if err != nil {
			return fail(err)
		}
		first.lead = c
	}
	for i, n := range cluster {
		others := slices.Concat(cluster[:i], cluster[i+1:])
		n.start(others)
	}
	return cluster, first.lead, nil
}

// linked waits until every node is connected to every other.
func linked(ctx context.Context, cluster []*node) error {
	timer := time.NewTimer(linkPatience)
	defer timer.Stop()
	for _, n := range cluster {
		for _, l := range n.links {
			select {
			case <-l.up:
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-timer.C:
				return errors.New("the nodes do not reach each other on 127.0.0.1")
			}
		}
	}
	return nil
}

// verify checks what the demo promises, from what the client was told and what
// the stores hold, never from what the list says of itself.
func verify(cl *client, cluster []*node, led *ledger) (faults []string) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	var lost, repeated, parked, minority, altered int
	for _, r := range cl.sent {
		switch {
		case r.answers == 0:
			lost++
		case r.answers > 1:
			repeated++
		}
		if r.answers == 0 || r.stored == 0 {
			continue
		}
		parked++
		holders := 0
		for _, n := range cluster {
			o, ok := n.store.get(r.stored)
			switch {
			case ok && o.key == r.write.key && o.value == r.write.value:
				holders++
			case ok:
				altered++
			}
		}
		if r.end == waitlist.EndReached && holders <= len(cluster)/2 {
			minority++
		}
	}
	for _, f := range []struct {
		n    int
		what string
	}{
		{lost, "got no answer"},
		{repeated, "got more than one answer"},
		{minority, "committed without a majority that holds it"},
		{altered, "on a node with another key or value"},
	} {
		if f.n > 0 {
			faults = append(faults, counted(f.n, "write")+" "+f.what)
		}
	}
	led.mu.Lock()
	defer led.mu.Unlock()
	if lost == 0 && led.calls != parked {
		faults = append(faults, counted(led.calls, "callback")+" for "+counted(parked, "parked write"))
	}
	if cl.strange > 0 {
		faults = append(faults, counted(cl.strange, "answer")+" to no write")
	}
	return faults
}
