//go:build unix

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// resolveEvery is how often a desk looks for transactions that are prepared at its
// server and that nobody takes care of.
const resolveEvery = 500 * time.Millisecond

// recovery is what was done about transactions that an earlier coordinator, or a
// vote that got lost, had left prepared.
type recovery struct {
	Committed  int      `json:"committed"`
	RolledBack int      `json:"rolled_back"`
	Away       []string `json:"away,omitempty"` // servers that could not be asked
}

func (r *recovery) add(other recovery) {
	r.Committed += other.Committed
	r.RolledBack += other.RolledBack
	r.Away = append(r.Away, other.Away...)
}

// lineName is the name of this coordinator's connections at the servers.
func (c *coordinator) lineName() string { return fmt.Sprintf("%s%d", c.prefix(), c.log.epoch) }

// recover settles what earlier coordinators left, at all servers at once.
func (c *coordinator) recover(ctx context.Context) (total recovery) {
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, d := range c.desks {
		asked.Go(func() {
			l := line{desk: d}
			defer l.close()
			found, err := d.resolve(ctx, &l)
			if err != nil {
				found.Away = []string{d.bank.Name}
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(found)
		})
	}
	asked.Wait()
	return total
}

// resolveForever is the goroutine of one desk that looks for the forgotten. It also
// does at last what recover could not do at a server that was away.
func (d *desk) resolveForever() {
	l := line{desk: d}
	defer l.close()
	tick := time.NewTicker(resolveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.resolve(d.c.ctx, &l) // an error: next time
		case <-d.c.ctx.Done():
			return
		}
	}
}

// resolve settles every prepared transaction of this log that is not in flight: it
// commits those whose decision is in the log, and rolls back all others.
func (d *desk) resolve(ctx context.Context, l *line) (found recovery, err error) {
	conn, err := l.get(ctx)
	if err != nil {
		return found, err
	}
	if !d.swept.Load() {
		if err := fence(ctx, conn, d.c.prefix(), d.c.lineName()); err != nil {
			return found, err
		}
	}
	if found, err = d.settleForgotten(ctx, conn, d.c.isInFlight); err != nil {
		return found, err
	}
	if d.swept.CompareAndSwap(false, true) {
		d.c.deskSwept()
	}
	return found, nil
}

// settleForgotten does what resolve says, and leaves alone what spare says is in
// flight.
func (d *desk) settleForgotten(ctx context.Context, conn *pgx.Conn, spare func(id string) bool) (found recovery, err error) {
	ids, err := prepared(ctx, conn, d.c.prefix())
	if err != nil {
		return found, err
	}
	for _, id := range ids {
		// This order matters: first the server's list, then what is in flight, then
		// the log. A transaction that was prepared when the list was made was in
		// flight then; if it no longer is, its decision has been taken since and
		// the log's answer is final. (It may even be forgotten by the log, if the
		// commit has reached all servers. The rollback below then finds nothing.)
		if spare(id) {
			continue
		}
		commit := d.c.log.committed(id)
		if err := settle(ctx, conn, id, commit); err != nil {
			return found, err
		}
		if commit {
			found.Committed++
		} else {
			found.RolledBack++
		}
		d.c.probe.at(stepRecovering)
	}
	return found, nil
}

// lastLook settles what is prepared when the coordinator has stopped: all decisions
// have been taken, and the log has those to commit. A server that does not answer is
// left to the next coordinator.
func (c *coordinator) lastLook(ctx context.Context) {
	// The caller's patience may be at its end, but this is worth a moment.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	var asked sync.WaitGroup
	for _, d := range c.desks {
		asked.Go(func() {
			l := line{desk: d}
			defer l.close()
			conn, err := l.get(ctx)
			if err != nil || fence(ctx, conn, c.prefix(), "") != nil {
				return
			}
			d.settleForgotten(ctx, conn, func(string) bool { return false })
		})
	}
	asked.Wait()
}

// deskSwept notes earlier commits as ended once no server can have them prepared.
func (c *coordinator) deskSwept() {
	for _, d := range c.desks {
		if !d.swept.Load() {
			return
		}
	}
	c.mu.Lock()
	ids := c.leftover
	c.leftover = nil
	c.mu.Unlock()
	for _, id := range ids {
		c.log.end(id)
	}
}
