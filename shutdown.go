package waitlist

import (
	"context"
	"fmt"
	"sync/atomic"
)

// closing is how far a list is on its way to the end. A shard first takes no more,
// then is drained (nothing parked), and nothing is undone. The channels are made
// when somebody asks for them and guarded by sweeper.leaf.
type closing struct {
	undrained atomic.Int32 // shards that still take entries or hold some
	empty     bool         // nothing is parked or taken: drained is closed, or will be when made
	finished  bool         // all is over: done is closed, or will be when made
	drained   chan struct{}
	done      chan struct{}
}

func (c *closing) init(shards int) { c.undrained.Store(int32(shards)) }

// Shutdown closes the list with patience. From now on every Add is refused with
// ErrClosed. Shutdown waits until nothing is parked, and when ctx ends it gives back
// what still is: each entry ends as EndClosed with ErrClosed, so that its owner can
// return a claim or a lease now and not when it expires.
//
// Stop first whatever feeds the list: a queue that is still being pulled from delivers
// to you again what you give back.
//
// It returns nil if this call gave nothing back, or else an error that says how
// many and matches ctx's. It does not wait for callbacks that other goroutines have
// begun (Done tells when they are over), so a callback may call it. It may be called
// any number of times, by any goroutine.
func (l *core[K]) Shutdown(ctx context.Context) error {
	l.takeNoMore()
	select {
	case <-l.channel(&l.drained):
		return nil
	case <-ctx.Done():
	}
	n := l.endAll(EndClosed, ErrClosed)
	if n == 0 {
		return nil
	}
	return fmt.Errorf("waitlist: shutdown gave back %d parked: %w", n, contextError(ctx))
}

// Close is Shutdown without patience: what is parked is given back at once. It
// always returns nil.
func (l *core[K]) Close() error {
	l.takeNoMore()
	l.endAll(EndClosed, ErrClosed)
	return nil
}

// Done returns a channel that is closed when the list is closed, nothing is parked,
// the timer is gone, no sweep runs and every callback is back. From then on the
// list calls nothing. Do not wait for it inside a callback, which it waits for.
func (l *core[K]) Done() <-chan struct{} { return l.channel(&l.done) }

// channel returns one of the channels of closing, made and closed as need be.
func (l *core[K]) channel(c *chan struct{}) <-chan struct{} {
	l.leaf.Lock()
	defer l.leaf.Unlock()
	if *c == nil {
		*c = make(chan struct{})
		if c == &l.drained && l.empty || c == &l.done && l.finished {
			close(*c)
		}
	}
	return *c
}

// takeNoMore closes the shards to new entries. An Add that came before holds, one
// that comes after is refused: the shard's lock decides.
func (l *core[K]) takeNoMore() {
	for _, s := range l.shards {
		s.mu.Lock()
		drained := s.live == 0 && !s.closed.Load()
		s.closed.Store(true)
		s.mu.Unlock()
		if drained {
			l.shardDrained()
		}
	}
}

// shardDrained is called once for each shard, when it takes no more and holds
// nothing, with no lock held.
func (l *core[K]) shardDrained() {
	if l.undrained.Add(-1) > 0 {
		return
	}
	l.leaf.Lock()
	l.empty = true
	l.disarmLocked()
	if l.drained != nil {
		close(l.drained)
	}
	l.leaf.Unlock()
	l.checkDone()
}

// checkDone closes done when all is over. It is called after each step that may
// have been the last: once nothing is parked and no more is taken, the numbers it
// looks at only fall.
func (l *core[K]) checkDone() {
	if l.undrained.Load() > 0 {
		return
	}
	l.leaf.Lock()
	defer l.leaf.Unlock()
	if !l.empty || l.finished || l.fires > 0 || l.sweeping > 0 {
		return
	}
	for _, s := range l.shards {
		if !s.idle() {
			return
		}
	}
	l.finished = true
	if l.done != nil {
		close(l.done)
	}
}
