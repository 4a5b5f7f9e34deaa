//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waitlist-go/waitlist"
)

// room is where callers wait: one list, whatever the number of connections.
type room struct {
	guide     *guide
	heartbeat time.Duration // how often a connection is tried; three times that and it is lost
	longest   time.Duration // of one wait, however patient the caller
	waits     *waitlist.WaitingList[ticket]
	tickets   atomic.Uint64
	overslept atomic.Uint64 // waits that ended at their deadline with the value there

	connections []*connection

	closing context.Context // ends when the room closes
	cancel  context.CancelCauseFunc
}

func newRoom(g *guide, connections int, heartbeat, longest time.Duration) *room {
	closing, cancel := context.WithCancelCause(context.Background())
	r := &room{
		closing: closing, cancel: cancel,
		guide: g, heartbeat: heartbeat, longest: longest,
		waits: waitlist.New[ticket](waitlist.Options{}),
	}
	for range connections {
		r.connections = append(r.connections, &connection{room: r, turn: newTurn()})
	}
	return r
}

// close ends all waits, whose callers are told, and returns when nothing is left of the
// room.
func (r *room) close() {
	r.waits.Close()
	r.cancel(errClosed)
	for _, c := range r.connections {
		c.close()
	}
	<-r.waits.Done()
}

var errClosed = errors.New("the connection is closed")

// connection is what callers hold: a line, and another after that is lost.
type connection struct {
	room *room
	turn turn // who has it may use the fields below

	line   *line
	closed bool
}

// current returns the line in use, or opens one. If there is no primary it tries again
// until ctx ends, one caller for all of this connection.
func (c *connection) current(ctx context.Context) (*line, error) {
	if err := c.turn.take(ctx); err != nil {
		return nil, err
	}
	defer c.turn.giveBack()
	if c.closed {
		return nil, errClosed
	}
	if c.line == nil || c.line.lost() {
		if err := c.open(ctx); err != nil {
			return nil, err
		}
	}
	return c.line, nil
}

// open opens the next line. It has the turn.
func (c *connection) open(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.room.closing, func() { cancel(errClosed) })()
	for {
		l, err := openLine(ctx, c.room)
		if err == nil {
			if c.line != nil {
				c.line.wait()
			}
			c.line = l
			return nil
		}
		if !pause(ctx, retryEvery) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

func (c *connection) close() {
	_ = c.turn.take(context.Background())
	defer c.turn.giveBack()
	c.closed = true
	if c.line != nil {
		c.line.end(errClosed)
		c.line.wait()
	}
}

// answer is what a caller gets.
type answer struct {
	value string
	ends  []waitlist.End // how each of its waits ended; none: the value was there
}

// errEmpty says that the caller's patience has ended, and that there was no value then.
var errEmpty = errors.New("no value")

// errUnchecked says that it has ended with no server to ask.
var errUnchecked = errors.New("not known whether there is a value")

// get waits until there is a value under key, for as long as patience. A ctx that
// ends is a caller that is gone: nothing is checked for it any more.
//
// It is one loop: check, park, check again. How a wait has ended says nothing about the
// value. One that was woken may find it gone; one that was lost, or has run into its
// deadline, may find it there.
func (c *connection) get(ctx context.Context, key string, patience time.Duration) (a answer, err error) {
	deadline := time.Now().Add(patience)
	for {
		left := time.Until(deadline)
		l, err := c.lineWithin(ctx, left)
		if err != nil {
			return a, fmt.Errorf("%w: %w", errUnchecked, err)
		}
		value, err := l.check(ctx, key)
		switch {
		case err == nil:
			if n := len(a.ends); n > 0 && a.ends[n-1] == waitlist.EndTimedOut {
				c.room.overslept.Add(1)
			}
			a.value = value
			return a, nil
		case ctx.Err() != nil:
			return a, context.Cause(ctx)
		case !errors.Is(err, redis.Nil):
			if left <= 0 {
				return a, fmt.Errorf("%w: %w", errUnchecked, err)
			}
			// The line may be lost, or only this one command of it.
			pause(ctx, retryEvery)
			continue
		case left <= 0: // the check was made after the deadline
			return a, errEmpty
		}

		out := l.park(ctx, key, min(left, c.room.longest))
		if out.End == 0 {
			// Never parked: with its line lost meanwhile it takes another one.
			if !errors.Is(out.Err, waitlist.ErrSessionEnded) {
				return a, out.Err
			}
			continue
		}
		a.ends = append(a.ends, out.End)
		if out.End == waitlist.EndClosed {
			return a, out.Err
		}
		if value, ok := out.Value.(string); ok { // found by the check that parking ends with
			a.value = value
			return a, nil
		}
	}
}

// lineWithin gives a caller whose time is up one more try, which is its last check.
func (c *connection) lineWithin(ctx context.Context, left time.Duration) (*line, error) {
	ctx, cancel := context.WithTimeout(ctx, max(left, replyLimit))
	defer cancel()
	return c.current(ctx)
}
