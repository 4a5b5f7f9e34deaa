package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waitlist-go/waitlist"
)

// A Node is where one replica is.
type Node struct {
	Name       string
	Datacentre string
	URL        string // http://host:port
}

// Config is what a coordinator has to be told. Everything but Clock and Log is
// required.
type Config struct {
	Local        string        // the datacentre that LOCAL_QUORUM means
	Nodes        []Node        // all replicas; each holds every key
	HintFile     string        // for this coordinator alone
	Timeout      time.Duration // how long a client waits for a decision
	Settle       time.Duration // how long a replica may take before it is owed a hint or let off a repair
	ProbeTimeout time.Duration // how long a living replica may take to say so

	Clock waitlist.Clock // for deadlines and timestamps; nil: the system clock
	Log   *slog.Logger   // nil: nobody listens
}

// A coordinator takes requests of clients, asks all replicas, and answers once
// enough of them have.
//
// Each request is parked twice. In deciding, under the rule of its level: that entry
// is what the client waits for. In settling, under a rule that wants an answer of
// every replica, good or bad: that entry outlives the client, tells which replicas
// need a hint or a repair, and its deadline is what ends the calls to replicas that
// hang. They are two lists because a dead replica ends entries of the first at once
// (PeerDown), while the second still waits for the living ones.
type coordinator struct {
	cfg      Config
	peers    *waitlist.Roster[string]
	remotes  []*remote // by the order of their ids
	rules    map[Level]waitlist.Quorum
	everyone waitlist.Quorum
	client   *http.Client
	hints    *hints

	deciding *waitlist.WaitingList[uint64]
	settling *waitlist.WaitingList[uint64]
	lastID   atomic.Uint64 // ids are never used again, so that no late answer meets another request
	lastTime atomic.Int64

	replayed, repaired atomic.Uint64 // what replicas were given afterwards

	ctx    context.Context // ends when Shutdown has run out of patience
	cancel context.CancelFunc
	work   sync.WaitGroup // requests, calls to replicas, and probing
	gate   sync.Mutex
	closed bool // guarded by gate: once set, nothing is added to work from outside it
}

var (
	errDown    = errors.New("replica is known to be down")
	errClosing = errors.New("coordinator is shutting down")
)

func newCoordinator(cfg Config) (*coordinator, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &coordinator{cfg: cfg, peers: waitlist.NewRoster[string](), client: newClient()}
	members := make(map[string][]waitlist.PeerID)
	for _, n := range cfg.Nodes {
		if _, known := c.peers.Lookup(n.Name); known || n.Name == "" {
			return nil, fmt.Errorf("replica name %q is empty or used twice", n.Name)
		}
		r := &remote{Node: n, id: c.peers.ID(n.Name), client: c.client}
		c.remotes = append(c.remotes, r)
		members[n.Datacentre] = append(members[n.Datacentre], r.id)
	}
	var err error
	if c.rules, err = rules(cfg.Local, members); err != nil {
		return nil, err
	}
	c.everyone = c.rules[All]
	if c.hints, err = openHints(cfg.HintFile); err != nil {
		return nil, err
	}
	c.deciding = waitlist.New[uint64](waitlist.Options{Timeout: cfg.Timeout, Clock: cfg.Clock})
	c.settling = waitlist.New[uint64](waitlist.Options{
		Timeout: cfg.Settle,
		Clock:   cfg.Clock,
		// What happens after a request has settled syncs files and calls replicas.
		// It must not hold up the reader of an answer, nor the sweeper.
		Executor: func(run func()) { go run() },
	})
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// shutdown refuses new requests, lets those under way finish until ctx ends, and
// returns when nothing of the coordinator runs any more. What replicas have not
// confirmed by then is on disk as hints.
func (c *coordinator) shutdown(ctx context.Context) error {
	c.gate.Lock()
	again := c.closed
	c.closed = true
	c.gate.Unlock()
	if again {
		return errClosing
	}
	err := errors.Join(c.deciding.Shutdown(ctx), c.settling.Shutdown(ctx))
	c.cancel()
	c.work.Wait()
	<-c.settling.Done()
	<-c.deciding.Done()
	c.client.CloseIdleConnections()
	return errors.Join(err, c.hints.close())
}

// enter lets a client's request in, unless the coordinator is closing. Then leave
// must follow.
func (c *coordinator) enter() bool {
	c.gate.Lock()
	defer c.gate.Unlock()
	if !c.closed {
		c.work.Add(1)
	}
	return !c.closed
}

func (c *coordinator) leave() { c.work.Done() }

func (c *coordinator) now() int64 {
	if c.cfg.Clock != nil {
		return c.cfg.Clock.Now().UnixMicro()
	}
	return time.Now().UnixMicro()
}

// timestamp is later than all before it from this coordinator, so that of two writes
// in a row the second one wins.
func (c *coordinator) timestamp() int64 {
	for {
		last := c.lastTime.Load()
		if t := max(c.now(), last+1); c.lastTime.CompareAndSwap(last, t) {
			return t
		}
	}
}

// A result is what became of one request.
type result struct {
	waitlist.Outcome[uint64]
	sent bool      // some replica was asked, so a write that failed may have been stored
	down []*remote // those that were not asked, because they were known to be down
}

// A reply is what a replica has told the settling list.
type reply struct {
	cell Cell
	err  error
}

// ask calls every replica that is not known to be down and waits until rule is
// decided, ctx ends, or time is up. Later, when every replica has answered or has had
// its time, settled is called, in a goroutine of its own, if any was asked at all.
func (c *coordinator) ask(ctx context.Context, rule waitlist.Quorum, call func(context.Context, *remote) (Cell, error), settled func(waitlist.Tally)) result {
	id := c.lastID.Add(1)
	var v result
	v.Outcome, _ = c.deciding.Wait(ctx, id, rule, func() error {
		lives := make(map[*remote]uint64) // of those that live
		for _, r := range c.remotes {
			if life := r.life.Load(); life%2 == 0 {
				lives[r] = life
				continue
			}
			v.down = append(v.down, r)
			switch c.deciding.Nack(id, r.id, errDown) {
			case waitlist.AckDecided, waitlist.AckUnknown:
				return nil // hopeless, or over, before anybody has heard of it
			}
		}
		calling, cancel := context.WithCancel(c.ctx)
		err := c.settling.Add(id, c.everyone, func(out waitlist.Outcome[uint64]) {
			cancel() // nobody listens any more
			settled(out.Tally)
		})
		if err != nil {
			cancel()
			return err
		}
		v.sent = true
		for _, r := range v.down {
			c.settling.AckWith(id, r.id, reply{err: errDown})
		}
		for r, life := range lives {
			c.work.Go(func() { c.deliver(calling, id, r, life, call) })
		}
		return nil
	})
	if peer, ok := v.Tally.Decider(); ok {
		c.remote(peer).decided.Add(1)
	}
	return v
}

// deliver makes one call and tells both lists how it went.
func (c *coordinator) deliver(ctx context.Context, id uint64, r *remote, life uint64, call func(context.Context, *remote) (Cell, error)) {
	cell, err := call(ctx, r)
	switch {
	case err == nil:
		c.deciding.AckWith(id, r.id, cell)
	case ctx.Err() != nil:
		return // it took so long that the request has settled without it
	default:
		c.deciding.Nack(id, r.id, err)
	}
	// To the settling list a refusal is an answer like any other. As a nack it would
	// end the entry, since then not all can ack, and the others would go unheard.
	c.settling.AckWith(id, r.id, reply{cell, err})
	if err != nil && nobodyThere(err) {
		c.markDown(r, life, err)
	}
}

func (c *coordinator) remote(peer waitlist.PeerID) *remote { return c.remotes[peer-1] }

// write stores one version of a key.
func (c *coordinator) write(ctx context.Context, level Level, key string, cell Cell) result {
	v := c.ask(ctx, c.rules[level],
		func(ctx context.Context, r *remote) (Cell, error) {
			_, err := r.put(ctx, key, cell)
			return cell, err
		},
		func(t waitlist.Tally) {
			absent := slices.Collect(t.Missing())
			for peer, a := range t.Responses() {
				if a.(reply).err != nil {
					absent = append(absent, peer)
				}
			}
			c.hint(absent, key, cell)
		})
	if v.sent {
		// Those that are known to have missed it get their hint before the client gets
		// its answer. Whoever has not answered yet may still store it, and gets one
		// only when the request settles. A write that failed is hinted too, since it
		// may have been stored somewhere: all replicas end up with the same.
		refused := maps.Collect(v.Tally.Refused())
		for _, r := range v.down {
			refused[r.id] = errDown
		}
		c.hint(slices.Collect(maps.Keys(refused)), key, cell)
	}
	return v
}

// hint keeps a write for replicas that have missed it. A level that was reached is
// reached without hints, so if the disk refuses one the client is told nothing else;
// the replica then has to be repaired by reads.
func (c *coordinator) hint(peers []waitlist.PeerID, key string, cell Cell) {
	if err := c.hints.add(c.names(slices.Values(peers)), key, cell); err != nil {
		c.cfg.Log.Error("hint lost", "key", key, "reason", err)
	}
}

func (c *coordinator) names(peers iter.Seq[waitlist.PeerID]) []string {
	names := []string{} // an empty list in JSON, not null
	for peer := range peers {
		names = append(names, c.remote(peer).Name)
	}
	return names
}
