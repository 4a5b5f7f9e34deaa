//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/waitlist-go/waitlist"
)

func TestNobodySleepsOverAValueThatIsThereAfterAFailover(t *testing.T) {
	w := newWorld(t, numConnections, never)
	c := w.seat(numCallers, never, spread)

	// The wake-ups of these values never come. So after the failover the values are
	// there, and all that can tell the callers is the loss of their connections.
	w.notify(false)
	w.put(keys(numKeys)...)
	require.Equal(t, numCallers, w.room.waits.Len(), "nobody has been woken")
	w.failOver()

	c.finish() // long before never
	for i, a := range c.answers {
		require.Equal(t, valueOf(key(i%numKeys)), a.value)
	}
	require.Equal(t, map[waitlist.End]int{waitlist.EndSession: numCallers}, c.endsOf())
	require.Zero(t, w.room.overslept.Load())
	w.nothingIsLeft()
}

func TestValuesWrittenAcrossAFailoverReachAllWhoWait(t *testing.T) {
	w := newWorld(t, numConnections, never)
	c := w.seat(numCallers, never, spread)

	killed := make(chan struct{})
	var writes sync.WaitGroup
	for i := range numKeys {
		writes.Go(func() {
			// Some before the kill, some into the gap, some after.
			pause(w.ctx, time.Duration(i)*10*time.Millisecond)
			if i >= numKeys*3/4 {
				<-killed
			}
			_, err := w.writer.put(w.ctx, key(i), valueOf(key(i)))
			assert.NoError(t, err)
		})
	}
	pause(w.ctx, 150*time.Millisecond)
	w.pair.primary.kill()
	close(killed)
	pause(w.ctx, 150*time.Millisecond)
	assert.NoError(t, w.pair.promote(w.ctx))
	writes.Wait()

	// A write that the replica has not confirmed may be gone, if none of its callers
	// was quicker than the kill. Its writer learns of it and writes it again.
	f, err := w.writer.reckon(w.ctx, &w.ledger)
	require.NoError(t, err)
	require.Len(t, w.writer.all(), numKeys)
	require.Equal(t, numKeys, len(f.handled)+len(f.kept)+len(f.lost))
	for _, lost := range f.lost {
		require.False(t, lost.confirmed)
		_, err := w.writer.put(w.ctx, lost.key, lost.value)
		require.NoError(t, err)
	}

	c.finish()
	ends := c.endsOf()
	require.Zero(t, ends[waitlist.EndTimedOut])
	require.Positive(t, ends[waitlist.EndSession], "somebody waited during the failover")
	require.Zero(t, w.room.overslept.Load())
	_, effects := w.ledger.sums()
	require.Equal(t, numKeys, effects)
	w.nothingIsLeft()
}

func TestAWriteIsHandledOrReportedLostByWhetherItWaitedForTheReplica(t *testing.T) {
	w := newWorld(t, 2, never)
	asks := func(k string, patience time.Duration) (string, error) {
		a, err := w.room.connections[0].get(w.ctx, k, patience)
		if err == nil {
			w.ledger.handle(a.value)
		}
		return a.value, err
	}
	const short = 200 * time.Millisecond
	safe := []string{"safe 1", "safe 2", "safe 3"}
	risky := []string{"risky 1", "risky 2", "risky 3"}

	for _, k := range safe {
		w.put(k) // one after the other, since the order is looked at below
	}
	_, err := asks("safe 1", never)
	require.NoError(t, err)
	require.NoError(t, w.pair.cutReplication(w.ctx))
	w.writer.confirmLimit = time.Millisecond
	for _, k := range risky {
		w.putUnconfirmed(k)
	}
	_, err = asks("risky 1", never) // a caller who is quicker than the kill
	require.NoError(t, err)
	w.failOver()

	// What was confirmed is there, also for a caller who has had it before.
	for _, k := range safe {
		value, err := asks(k, never)
		require.NoError(t, err)
		require.Equal(t, valueOf(k), value)
	}
	require.Equal(t, 2, w.ledger.times(valueOf("safe 1")))
	// What was not is gone, and is waited for as if it had never been written.
	for _, k := range risky {
		_, err := asks(k, short)
		require.ErrorIs(t, err, errEmpty)
	}
	f, err := w.writer.reckon(w.ctx, &w.ledger)
	require.NoError(t, err)
	require.Equal(t, []string{"safe 1", "safe 2", "safe 3", "risky 1"}, keysOf(f.handled))
	require.Equal(t, []string{"risky 2", "risky 3"}, keysOf(f.lost))
	require.Empty(t, f.kept)

	// Who is not sure writes everything again, lost or not.
	for _, this := range w.writer.all() {
		_, err := w.writer.put(w.ctx, this.key, this.value)
		require.NoError(t, err)
		value, err := asks(this.key, never)
		require.NoError(t, err)
		require.Equal(t, this.value, value)
	}
	times, effects := w.ledger.sums()
	require.Equal(t, len(safe)+len(risky), effects)
	require.Equal(t, 11, times, "five before, and six again")
	w.nothingIsLeft()
}

func TestAWriteThatIsLostAlthoughConfirmedIsAnError(t *testing.T) {
	w := newWorld(t, 1, never)
	w.put("a")
	require.NoError(t, w.pair.primary.admin.Del(w.ctx, prefix+"a").Err())
	_, err := w.writer.reckon(w.ctx, &w.ledger)
	require.ErrorContains(t, err, "confirmed")
}

func TestHandlingTwiceHasOneEffect(t *testing.T) {
	var l ledger
	require.True(t, l.handle("a"))
	require.False(t, l.handle("a"))
	require.True(t, l.handle("b"))
	times, effects := l.sums()
	require.Equal(t, 3, times)
	require.Equal(t, 2, effects)
}

func keysOf(writes []write) (keys []string) {
	for _, w := range writes {
		keys = append(keys, w.key)
	}
	return keys
}

func TestNobodyIsWokenByAnothersRegistration(t *testing.T) {
	w := newWorld(t, numConnections, never)
	first := w.seat(1, never, func(int) (int, string) { return 0, "k" })
	same := w.seat(20, never, func(int) (int, string) { return 0, "k" })
	others := w.seat(20, never, func(i int) (int, string) { return i % numConnections, "k" })
	unrelated := w.seat(20, never, func(i int) (int, string) { return i % numConnections, "other" })
	s := w.room.waits.Stats()
	require.Equal(t, [2]uint64{61, 0}, [2]uint64{uint64(s.Added), uint64(s.Completed)}, "all are parked, for the first time")

	w.put("k")
	for _, c := range []*crowd{first, same, others} {
		c.finish()
		for _, a := range c.answers {
			require.Equal(t, []waitlist.End{waitlist.EndCompleted}, a.ends, "it waited once")
		}
	}
	require.Equal(t, 20, w.room.waits.Len(), "those who wait for something else sleep on")
	w.put("other")
	unrelated.finish()
	w.nothingIsLeft()
}

func TestNobodyIsWokenByThoseWhoParkAgainAfterAFailover(t *testing.T) {
	w := newWorld(t, numConnections, never)
	c := w.seat(numCallers, never, spread)
	lines := make([]*line, numConnections)
	for i := range lines {
		lines[i] = w.theLine(i)
	}
	w.failOver()
	for _, l := range lines {
		w.gone(l) // or parked would count those who do not know yet
	}
	w.parked(numCallers)
	s := w.room.waits.Stats()
	require.EqualValues(t, numCallers, s.SessionEnded, "each was told once")
	require.EqualValues(t, 2*numCallers, s.Added, "and parked once more")
	require.Zero(t, s.Completed+s.TimedOut+s.Canceled)

	w.putUnconfirmed(keys(numKeys)...)
	c.finish()
	require.Equal(t, map[waitlist.End]int{
		waitlist.EndSession: numCallers, waitlist.EndCompleted: numCallers,
	}, c.endsOf())
	w.nothingIsLeft()
}

func TestALostConnectionEndsOnlyWhatWaitedOnIt(t *testing.T) {
	w := newWorld(t, 4, never)
	c := w.seat(40, never, func(i int) (int, string) { return i % 4, key(i) })
	old := w.theLine(2)
	w.cut(old)
	w.eventually(func() bool { return w.room.waits.Stats().Added == 50 }, "ten park again")
	w.parked(40)
	require.NotSame(t, old, w.theLine(2))
	require.EqualValues(t, 10, w.room.waits.Stats().SessionEnded)

	w.put(keys(40)...)
	c.finish()
	for i, a := range c.answers {
		want := []waitlist.End{waitlist.EndCompleted}
		if i%4 == 2 {
			want = []waitlist.End{waitlist.EndSession, waitlist.EndCompleted}
		}
		require.Equal(t, want, a.ends, "caller %d", i)
	}
	w.nothingIsLeft()
}

func TestAnEndedLineNeverConnectsAgain(t *testing.T) {
	w := newWorld(t, 1, never)
	l := w.theLine(0)
	w.cut(l)
	require.ErrorIs(t, l.wakes.Ping(w.ctx), redis.ErrClosed)
	listeners, err := w.pair.primary.admin.Do(w.ctx, "CLIENT", "LIST", "TYPE", "pubsub").Text()
	require.NoError(t, err)
	require.Empty(t, listeners, "nobody has subscribed again behind its back")
	out := l.park(w.ctx, "k", never)
	require.Zero(t, out.End)
	require.ErrorIs(t, out.Err, waitlist.ErrSessionEnded)
	w.nothingIsLeft()
}

// A server that hangs does not even end its connections.
func TestCallersLeaveASilentPrimary(t *testing.T) {
	w := newWorld(t, 2, never)
	w.room.heartbeat = 100 * time.Millisecond
	c := w.seat(20, never, func(i int) (int, string) { return i % 2, key(i % 5) })
	info, err := w.pair.primary.admin.InfoMap(w.ctx, "server").Result()
	require.NoError(t, err)
	pid, err := strconv.Atoi(info["Server"]["process_id"])
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.NoError(t, w.pair.promote(w.ctx))
	w.writer.confirmLimit = time.Millisecond
	w.putUnconfirmed(keys(5)...)
	c.finish()
	for _, a := range c.answers {
		require.Equal(t, waitlist.EndSession, a.ends[0])
	}
	w.nothingIsLeft()
}

func TestAValueWrittenBeforeTheParkingIsFoundByTheCheckAfterIt(t *testing.T) {
	w := newWorld(t, 1, never)
	l := w.theLine(0)
	w.notify(false)
	w.put("k") // as if between a caller's check and its parking
	out := l.park(w.ctx, "k", never)
	require.Equal(t, waitlist.EndCompleted, out.End)
	require.Equal(t, valueOf("k"), out.Value)
	w.nothingIsLeft()
}

func TestAWakeUpThatIsLostUnnoticedCostsOneWaitAndNotThePatience(t *testing.T) {
	w := newWorld(t, 1, 300*time.Millisecond)
	w.notify(false)
	c := w.seat(1, never, func(int) (int, string) { return 0, "k" })
	w.put("k")
	c.finish()
	ends := c.answers[0].ends
	require.Equal(t, waitlist.EndTimedOut, ends[len(ends)-1])
	require.EqualValues(t, 1, w.room.overslept.Load())
	w.nothingIsLeft()
}

func TestAnEmptyHandedCallerIsToldWhetherItWasChecked(t *testing.T) {
	w := newWorld(t, 2, never)
	_, err := w.room.connections[0].get(w.ctx, "k", 100*time.Millisecond)
	require.ErrorIs(t, err, errEmpty)

	w.pair.primary.kill()
	w.pair.replica.kill()
	var asking sync.WaitGroup
	for _, c := range w.room.connections { // one that had a line and one that had none
		asking.Go(func() {
			_, err := c.get(w.ctx, "k", 100*time.Millisecond)
			assert.ErrorIs(t, err, errUnchecked)
			assert.NotErrorIs(t, err, errEmpty)
		})
	}
	asking.Wait()
	w.nothingIsLeft()
}

func TestACallerThatIsGoneLeavesNothingParked(t *testing.T) {
	w := newWorld(t, 1, never)
	ctx, cancel := context.WithCancelCause(w.ctx)
	hungUp := errors.New("hung up")
	result := make(chan error, 1)
	go func() {
		_, err := w.room.connections[0].get(ctx, "k", never)
		result <- err
	}()
	w.parked(1)
	cancel(hungUp)
	require.ErrorIs(t, <-result, hungUp)
	w.nothingIsLeft()
}

func TestClosingTellsAllWhoWait(t *testing.T) {
	w := newWorld(t, numConnections, never)
	c := w.seat(numCallers, never, spread)
	// One looks for a primary in vain, on a connection that has had none.
	lost := newRoom(&guide{}, 1, time.Second, never)
	searching := make(chan error, 1)
	go func() {
		_, err := lost.connections[0].get(w.ctx, "k", never)
		searching <- err
	}()
	pause(w.ctx, 50*time.Millisecond)
	lost.close()
	require.ErrorIs(t, <-searching, errClosed)

	w.room.close()
	c.left.Wait()
	for _, err := range c.errs {
		require.ErrorIs(t, err, waitlist.ErrClosed)
	}
	_, err := w.room.connections[0].get(w.ctx, "k", never)
	require.ErrorIs(t, err, errClosed)
	w.nothingIsLeft()
}

func TestAKilledServerLeavesNothing(t *testing.T) {
	w := newWorld(t, 1, never)
	for _, s := range []*server{w.pair.primary, w.pair.replica} {
		s.kill()
		s.kill()
		require.NoDirExists(t, s.folder)
		_, err := net.Dial("tcp", s.addr)
		require.Error(t, err)
	}
}

func TestWithoutRedisTheErrorSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := run(t.Context(), nil, io.Discard, io.Discard)
	require.ErrorContains(t, err, "apt-get install redis-server")
}

func TestTheShowRuns(t *testing.T) {
	newWorld(t, 1, never) // skips where there is no Redis
	var out bytes.Buffer
	err := run(t.Context(), []string{"-callers", "40", "-connections", "4", "-keys", "10"}, &out, io.Discard)
	require.NoError(t, err, out.String())
	for _, want := range []string{
		"one connection is cut: 10 callers", "reports 2 lost", "all values were handled", "0 are parked",
	} {
		require.Contains(t, out.String(), want)
	}
}

func TestTheHelpExplains(t *testing.T) {
	var out bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"-h"}, io.Discard, &out), flag.ErrHelp)
	require.True(t, strings.Contains(out.String(), "-callers") && strings.Contains(out.String(), "kill -9"))
	require.Error(t, run(t.Context(), []string{"-callers", "3"}, io.Discard, io.Discard))
	require.Error(t, run(t.Context(), []string{"more"}, io.Discard, io.Discard))
}
