package main

import (
	"context"
	"maps"
	"sync"

	"github.com/waitlist-go/waitlist"
)

// read returns the newest version among the answers that decided the read.
//
// If those disagree, the stale ones among them are repaired before the client gets
// its answer: otherwise a write of which a minority knows could be seen by one read
// at QUORUM and not by the next. All other stale replicas are repaired later, when
// the read has settled.
func (c *coordinator) read(ctx context.Context, level Level, key string) (Cell, result) {
	rule := c.rules[level]
	answered := make(chan struct{})
	defer close(answered)
	repaired := make(map[waitlist.PeerID]Cell) // written before answered is closed, read after
	v := c.ask(ctx, rule,
		func(ctx context.Context, r *remote) (Cell, error) { return r.get(ctx, key) },
		func(t waitlist.Tally) {
			<-answered
			c.repairLate(t, key, repaired)
		})
	if v.End != waitlist.EndReached {
		return Cell{}, v
	}
	got := make(map[waitlist.PeerID]Cell)
	for peer, a := range v.Tally.Responses() {
		got[peer] = a.(Cell)
	}
	newest := newestOf(got)
	if len(staleOf(got, newest)) > 0 {
		if out := c.repairNow(ctx, rule, key, newest, got, repaired); out.End != waitlist.EndReached {
			v.Outcome = out // the newest version is not held by enough replicas yet
		}
	}
	return newest, v
}

// repairNow waits until the newest version is where the rule wants it: a write, of
// which the replicas that hold this version already have acked the beginning. It is
// sent to those too that have not answered the read, so that no replica's death in
// this moment fails a read that the others can serve. Whoever it is sent to goes into
// repaired.
func (c *coordinator) repairNow(ctx context.Context, rule waitlist.Quorum, key string, newest Cell, got, repaired map[waitlist.PeerID]Cell) waitlist.Outcome[uint64] {
	id := c.lastID.Add(1)
	out, _ := c.deciding.Wait(ctx, id, rule, func() error {
		for _, peer := range rule.Members() {
			cell, ok := got[peer]
			switch r := c.remote(peer); {
			case ok && cell.same(newest):
				c.deciding.Ack(id, peer)
			case r.down():
				c.deciding.Nack(id, peer, errDown)
			default:
				repaired[peer] = newest
				c.work.Go(func() {
					if err := c.repair(r, key, newest); err != nil {
						c.deciding.Nack(id, peer, err)
						return
					}
					c.deciding.Ack(id, peer)
				})
			}
		}
		return nil
	})
	return out
}

// repairLate brings the replicas up to date whose answer came after the decision or
// was not the newest after all.
func (c *coordinator) repairLate(t waitlist.Tally, key string, repaired map[waitlist.PeerID]Cell) {
	got := make(map[waitlist.PeerID]Cell)
	for peer, a := range t.Responses() {
		if a := a.(reply); a.err == nil {
			got[peer] = a.cell
		}
	}
	maps.Copy(got, repaired)
	newest := newestOf(got)
	var work sync.WaitGroup
	for _, peer := range staleOf(got, newest) {
		work.Go(func() {
			if err := c.repair(c.remote(peer), key, newest); err != nil {
				c.cfg.Log.Warn("repair failed", "reason", err) // the next read tries again
			}
		})
	}
	work.Wait()
}

func (c *coordinator) repair(r *remote, key string, cell Cell) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.Timeout)
	defer cancel()
	newer, err := r.put(ctx, key, cell)
	if newer {
		c.repaired.Add(1)
	}
	return err
}

func newestOf(got map[waitlist.PeerID]Cell) (newest Cell) {
	for _, cell := range got {
		if cell.newer(newest) {
			newest = cell
		}
	}
	return newest
}

func staleOf(got map[waitlist.PeerID]Cell, newest Cell) (stale []waitlist.PeerID) {
	for peer, cell := range got {
		if newest.newer(cell) {
			stale = append(stale, peer)
		}
	}
	return stale
}
