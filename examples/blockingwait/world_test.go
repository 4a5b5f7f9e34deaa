//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waitlist-go/waitlist"
)

func TestMain(m *testing.M) {
	logging.Disable() // connections are lost here on purpose
	goleak.VerifyTestMain(m)
}

const (
	// The two bounds of these tests are far apart, so that a slow machine fails none:
	// what waits for its deadline takes never, and what does not takes less than soon.
	soon  = 15 * time.Second
	never = time.Hour

	numCallers     = 200
	numConnections = 8
	numKeys        = 50
)

// world is a primary, a replica, and callers that wait.
type world struct {
	t      *testing.T
	ctx    context.Context
	pair   *pair
	room   *room
	writer *writer
	ledger ledger

	counted map[*line]bool
	checks  atomic.Int64 // that have ended, on the lines in counted
}

func newWorld(t *testing.T, connections int, longest time.Duration) *world {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), soon, errors.New("the test takes too long"))
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, counted: make(map[*line]bool)}
	var err error
	w.pair, err = startPair(ctx)
	if errors.Is(err, errNoRedis) {
		if ci, _ := strconv.ParseBool(os.Getenv("CI")); !ci {
			t.Skip(err)
		}
	}
	require.NoError(t, err)
	t.Cleanup(func() { w.pair.stop() })
	w.room = newRoom(w.pair.guide(), connections, 5*time.Second, longest)
	t.Cleanup(w.room.close)
	w.writer = newWriter(w.room.guide, replyLimit/2)
	t.Cleanup(w.writer.close)
	return w
}

// keys returns the first n keys.
func keys(n int) (all []string) {
	for i := range n {
		all = append(all, key(i))
	}
	return all
}

func key(i int) string        { return fmt.Sprint("k", i) }
func valueOf(k string) string { return "value of " + k }

// crowd is callers that each wait for one value.
type crowd struct {
	w       *world
	answers []answer
	errs    []error
	left    sync.WaitGroup
}

// seat starts callers, each on the connection and for the key that choose says, and
// returns when all are parked.
func (w *world) seat(n int, patience time.Duration, choose func(i int) (connection int, key string)) *crowd {
	w.t.Helper()
	c := &crowd{w: w, answers: make([]answer, n), errs: make([]error, n)}
	for i := range w.room.connections {
		if l := w.theLine(i); !w.counted[l] {
			w.counted[l] = true
			l.checks.AddHook(checkCounter{w})
		}
	}
	before, checks := w.room.waits.Len(), w.checks.Load()
	for i := range n {
		connection, key := choose(i)
		c.left.Go(func() {
			c.answers[i], c.errs[i] = w.room.connections[connection].get(w.ctx, key, patience)
			if c.errs[i] == nil {
				w.ledger.handle(c.answers[i].value)
			}
		})
	}
	w.t.Cleanup(c.left.Wait) // before the room is closed, and after ctx has ended
	w.parked(before + n)
	// Nor is any of them still at its second check, which would find what the test
	// does next.
	w.eventually(func() bool { return w.checks.Load() >= checks+2*int64(n) }, "callers do not check twice")
	return c
}

// checkCounter counts the checks that have ended.
type checkCounter struct{ w *world }

func (c checkCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c checkCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c checkCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "get" { // and not the greeting of a new connection
			c.w.checks.Add(1)
		}
		return err
	}
}

// spread has the callers of one key on different connections.
func spread(i int) (connection int, k string) {
	return i * numConnections / numCallers, key(i % numKeys)
}

// finish waits until all have an answer.
func (c *crowd) finish() {
	c.w.t.Helper()
	c.left.Wait()
	for i, err := range c.errs {
		require.NoError(c.w.t, err, "caller %d", i)
	}
}

// parked waits until exactly n callers are parked and the readers of their lines could
// wake each of them.
func (w *world) parked(n int) {
	w.t.Helper()
	w.eventually(func() bool {
		if w.room.waits.Len() != n {
			return false
		}
		enrolled := 0
		for _, c := range w.room.connections {
			enrolled += c.enrolled(w.ctx)
		}
		return enrolled == n
	}, fmt.Sprint("callers do not park: ", n))
}

func (c *connection) enrolled(ctx context.Context) (n int) {
	if c.turn.take(ctx) != nil {
		return 0
	}
	defer c.turn.giveBack()
	if c.line == nil {
		return 0
	}
	c.line.mu.Lock()
	defer c.line.mu.Unlock()
	for _, tickets := range c.line.waiting {
		n += len(tickets)
	}
	return n
}

func (w *world) eventually(ok func() bool, what string) {
	w.t.Helper()
	for !ok() {
		require.True(w.t, pause(w.ctx, 2*time.Millisecond), what)
	}
}

// put writes values at once, and each again and again until the replica has confirmed it.
func (w *world) put(keys ...string) {
	w.t.Helper()
	w.putAll(keys, func(this write) bool { return this.confirmed })
}

// putUnconfirmed writes values at once, each once.
func (w *world) putUnconfirmed(keys ...string) {
	w.t.Helper()
	w.putAll(keys, func(this write) bool {
		assert.False(w.t, this.confirmed, this.key)
		return true
	})
}

func (w *world) putAll(keys []string, enough func(write) bool) {
	w.t.Helper()
	var writes sync.WaitGroup
	for _, k := range keys {
		writes.Go(func() {
			for {
				this, err := w.writer.put(w.ctx, k, valueOf(k))
				if !assert.NoError(w.t, err) || enough(this) {
					return
				}
			}
		})
	}
	writes.Wait()
	require.False(w.t, w.t.Failed())
}

// notify turns the wake-ups of the primary on or off.
func (w *world) notify(on bool) {
	w.t.Helper()
	events := map[bool]string{true: "K$"}[on]
	require.NoError(w.t, w.pair.primary.admin.ConfigSet(w.ctx, "notify-keyspace-events", events).Err())
}

// failOver kills the primary and promotes the replica.
func (w *world) failOver() {
	w.t.Helper()
	w.pair.primary.kill()
	require.NoError(w.t, w.pair.promote(w.ctx))
	w.writer.confirmLimit = time.Millisecond // nobody is left who could confirm
}

// theLine returns the line that a connection has now.
func (w *world) theLine(connection int) *line {
	w.t.Helper()
	l, err := w.room.connections[connection].current(w.ctx)
	require.NoError(w.t, err)
	return l
}

// cut has the server close one line.
func (w *world) cut(l *line) {
	w.t.Helper()
	killed, err := w.pair.primary.admin.ClientKillByFilter(w.ctx, "ADDR", l.local).Result()
	require.NoError(w.t, err)
	require.EqualValues(w.t, 1, killed)
	w.gone(l)
}

// gone waits until a line is lost and those who waited on it know.
func (w *world) gone(l *line) {
	w.t.Helper()
	w.eventually(l.lost, "the line does not end")
	l.wait()
}

// nothingIsLeft checks the books of the room when nobody waits.
func (w *world) nothingIsLeft() {
	w.t.Helper()
	s := w.room.waits.Stats()
	require.Zero(w.t, s.Parked)
	require.Equal(w.t, s.Added, s.Completed+s.TimedOut+s.SessionEnded+s.Canceled+s.Closed, "%+v", s)
	for _, c := range w.room.connections {
		require.Zero(w.t, c.enrolled(context.Background()), "tickets that nobody holds any more")
		if c.line != nil {
			require.Zero(w.t, c.line.session.Len())
		}
	}
}

// endsOf counts how all the waits of the callers ended.
func (c *crowd) endsOf() map[waitlist.End]int {
	ends := make(map[waitlist.End]int)
	for _, a := range c.answers {
		for _, end := range a.ends {
			ends[end]++
		}
	}
	return ends
}
