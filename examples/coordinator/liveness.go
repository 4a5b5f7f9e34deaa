package main

import (
	"context"
	"time"
)

// watch probes every replica now and then again and again, until Shutdown. Each has
// a goroutine of its own, so that one which hangs delays no news of the others.
func (c *coordinator) watch(every time.Duration) {
	for _, r := range c.remotes {
		c.work.Go(func() {
			ticker := time.NewTicker(every)
			defer ticker.Stop()
			for {
				c.probe(c.ctx, r)
				select {
				case <-ticker.C:
				case <-c.ctx.Done():
					return
				}
			}
		})
	}
}

// probe asks a replica whether it is there, and if so delivers its hints.
func (c *coordinator) probe(ctx context.Context, r *remote) {
	life := r.life.Load()
	probing, cancel := context.WithTimeout(ctx, c.cfg.ProbeTimeout)
	err := r.ping(probing)
	cancel()
	switch {
	case ctx.Err() != nil: // the coordinator is closing; the replica may be fine
	case err != nil:
		c.markDown(r, life, err)
	default:
		c.markUp(r, life)
		c.deliverHints(ctx, r)
	}
}

// markDown ends at once every parked request that cannot be decided without r, unless
// r is known to be dead already or has returned since the life in which it was called:
// news of an earlier death must not end what now waits for the living.
//
// A request that is being parked meanwhile is not overlooked: the list holds it
// before it looks at r.life, and here r.life is changed before the list is searched,
// so either the request has seen that r is down or PeerDown finds the request. And
// none that was sent after r's return is found, since r cannot return before
// PeerDown has.
func (c *coordinator) markDown(r *remote, life uint64, reason error) {
	r.turning.Lock()
	defer r.turning.Unlock()
	if life%2 != 0 || !r.life.CompareAndSwap(life, life+1) {
		return
	}
	ended := c.deciding.PeerDown(r.id, reason)
	c.cfg.Log.Warn("replica is down", "name", r.Name, "reason", reason, "ended", ended)
}

func (c *coordinator) markUp(r *remote, life uint64) {
	r.turning.Lock()
	defer r.turning.Unlock()
	if life%2 != 0 && r.life.CompareAndSwap(life, life+1) {
		c.cfg.Log.Info("replica is back", "name", r.Name)
	}
}

// deliverHints writes to r what it has missed. It may be interrupted anywhere: a
// hint is let go of only when r has it.
func (c *coordinator) deliverHints(ctx context.Context, r *remote) {
	r.replay.Lock()
	defer r.replay.Unlock()
	for _, d := range c.hints.pending(r.Name) {
		sending, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		_, err := r.put(sending, d.key, d.cell)
		cancel()
		if err != nil {
			c.cfg.Log.Warn("hint not delivered", "name", r.Name, "reason", err)
			return // the next probe tries again
		}
		if err := c.hints.delivered(r.Name, d); err != nil {
			c.cfg.Log.Error("hint delivered, but still on disk", "name", r.Name, "reason", err)
		}
		c.replayed.Add(1)
	}
}
