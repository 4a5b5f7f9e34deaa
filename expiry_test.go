package waitlist

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// countingClock counts what a list does to its clock.
type countingClock struct {
	*FakeClock
	readings, armings, fired atomic.Int32
}

func newCountingClock() *countingClock { return &countingClock{FakeClock: NewFakeClock(fakeStart)} }

func (c *countingClock) Now() time.Time {
	c.readings.Add(1)
	return c.FakeClock.Now()
}

func (c *countingClock) AfterFunc(d time.Duration, f func()) Timer {
	c.armings.Add(1)
	return &countingTimer{c.FakeClock.AfterFunc(d, func() { c.fired.Add(1); f() }), c}
}

type countingTimer struct {
	Timer
	clock *countingClock
}

func (t *countingTimer) Reset(d time.Duration) bool {
	t.clock.armings.Add(1)
	return t.Timer.Reset(d)
}

func TestClock_StopsExactlyAtTheDeadline(t *testing.T) {
	for _, timeout := range []time.Duration{1, 999, time.Microsecond, time.Millisecond, 10 * time.Second, time.Hour, 24 * 365 * 100 * time.Hour} {
		for _, added := range []time.Duration{0, 1, time.Second, 1<<40 - 1} {
			var outs outcomes[int]
			clock := newCountingClock()
			l := New[int](Options{Clock: clock})
			clock.Advance(added)
			require.NoError(t, l.Add(1, ofThree, outs.note, Timeout(timeout)))
			clock.Advance(timeout - 1)
			require.Empty(t, outs.take(), "%v after %v", timeout, added)
			require.Equal(t, 1, l.Len())

			clock.Advance(1)

			out := outs.one(t)
			require.Equal(t, EndTimedOut, out.End)
			require.ErrorIs(t, out.Err, ErrTimeout)
			require.LessOrEqual(t, clock.fired.Load(), int32(2), "sweeps")
			require.Zero(t, clock.Armed(), "nothing is parked")
			require.Equal(t, AckUnknown, l.Ack(1, 1))
			require.EqualValues(t, 1, l.Stats().LateAcks)
			_, ok := l.Get(1)
			require.False(t, ok)
			audit(t, l)
		}
	}
}

func TestClock_ShortTimeoutAmongLongOnesIsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{})
		start, ended := time.Now(), time.Duration(0)
		require.NoError(t, l.Add(-1, ofThree, func(Outcome[int]) { ended = time.Since(start) }, Timeout(50*time.Millisecond)))
		for i := range 100 {
			require.NoError(t, l.Add(i, ofThree, ignore, Timeout(10*time.Second)))
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		require.Equal(t, 50*time.Millisecond, ended)
		require.Equal(t, 100, l.Len())
		require.NoError(t, l.Close())
		<-l.Done()
	})
}

func TestClock_EachDeadlineOnItsOwn(t *testing.T) {
	orders := [][]time.Duration{
		{10 * time.Second, 100 * time.Millisecond},
		{math.MaxInt64, 10 * time.Second, 1, 100 * time.Millisecond, math.MaxInt64 - 1},
		{1, 2, 3, 4, 5}, {5, 4, 3, 2, 1}, {time.Hour, time.Second, time.Hour, time.Second},
	}
	t.Run("fake clock", func(t *testing.T) {
		for _, timeouts := range orders {
			clock := NewFakeClock(fakeStart)
			l := New[int](Options{Clock: clock})
			var ended []time.Duration
			for i, timeout := range timeouts {
				require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) {
					ended = append(ended, clock.Now().Sub(fakeStart))
				}, Timeout(timeout)))
			}
			clock.Advance(2 * time.Hour)
			require.Equal(t, finite(timeouts), ended)
			require.NoError(t, l.Close())
		}
	})
	t.Run("system clock", func(t *testing.T) {
		for _, timeouts := range orders {
			synctest.Test(t, func(t *testing.T) {
				l := New[int](Options{})
				start := time.Now()
				var ended outcomes[int]
				for i, timeout := range timeouts {
					require.NoError(t, l.Add(i, ofThree, func(out Outcome[int]) {
						if out.End == EndClosed {
							return
						}
						late := time.Since(start) - timeout
						assert.True(t, late >= 0 && late <= time.Millisecond, "%v was late by %v", timeout, late)
						ended.note(out)
					}, Timeout(timeout)))
				}
				time.Sleep(2 * time.Hour)
				require.Len(t, ended.take(), len(finite(timeouts)))
				require.NoError(t, l.Close())
				<-l.Done()
			})
		}
	})
}

// finite returns the timeouts that come to an end within hours, sorted.
func finite(timeouts []time.Duration) []time.Duration {
	return slices.Sorted(func(yield func(time.Duration) bool) {
		for _, d := range timeouts {
			if d < math.MaxInt64/2 && !yield(d) {
				return
			}
		}
	})
}

func TestClock_TimeoutsSaturate(t *testing.T) {
	for _, never := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 - 1e9} {
		clock := newCountingClock()
		l := New[int](Options{Clock: clock, Timeout: never})
		for i := range 10 {
			require.NoError(t, l.Add(2*i, ofThree, ignore))
			require.NoError(t, l.Add(2*i+1, ofThree, ignore, Timeout(never)))
			clock.Advance(24 * 365 * time.Hour)
			require.Zero(t, l.Sweep(), "%v is over after %d years", never, i+1)
		}
		for p := range l.All() {
			require.True(t, p.Deadline.After(p.Since.AddDate(200, 0, 0)), "%v", p.Deadline)
		}
		require.NoError(t, l.Close())
		<-l.Done()
		audit(t, l)
	}
}

func TestClock_EntriesForEverKeepNoTimer(t *testing.T) {
	clock := newCountingClock()
	l := New[int](Options{Clock: clock})
	require.NoError(t, l.Add(1, ofThree, ignore, Timeout(math.MaxInt64)))
	require.Zero(t, clock.Armed())
	require.NoError(t, l.Close())
}

func TestClock_NoTimeLeftIsRefused(t *testing.T) {
	l := New[int](Options{})
	for _, d := range []time.Duration{0, -1, math.MinInt64} {
		require.ErrorIs(t, l.Add(1, ofThree, ignore, Timeout(d)), ErrTimeout)
	}
	require.Zero(t, l.Len())
}

// steppedClock is a clock whose wall can be moved. Timers do not see it.
type steppedClock struct {
	*FakeClock
	step atomic.Int64
}

func (c *steppedClock) Now() time.Time { return c.FakeClock.Now().Add(time.Duration(c.step.Load())) }

func TestClock_ThatStepsBackStandsStill(t *testing.T) {
	for _, manual := range []bool{true, false} {
		var outs outcomes[int]
		clock := &steppedClock{FakeClock: NewFakeClock(fakeStart)}
		l := New[int](Options{Clock: clock, ManualSweep: manual})
		sweep := func() int {
			if manual {
				l.Sweep()
			}
			return len(outs.take())
		}
		require.NoError(t, l.Add(1, ofThree, outs.note))
		clock.step.Store(int64(-1000 * time.Second))
		require.Zero(t, sweep())
		require.NoError(t, l.Add(2, ofThree, outs.note))
		p, _ := l.Get(2)
		require.True(t, p.Since.Equal(fakeStart), "time has not gone back")

		clock.Advance(1000 * time.Second)
		require.Zero(t, sweep(), "it has caught up: not a second has gone by")
		clock.Advance(10*time.Second - 1)
		require.Zero(t, sweep())
		clock.Advance(1)
		require.Equal(t, 2, sweep())
		require.Zero(t, clock.Armed())
		audit(t, l)
	}
}

func TestClock_ThatStepsForwardAndBack(t *testing.T) {
	var outs outcomes[int]
	clock := &steppedClock{FakeClock: NewFakeClock(fakeStart)}
	l := New[int](Options{Clock: clock, ManualSweep: true})
	require.NoError(t, l.Add(1, ofThree, outs.note, Timeout(time.Minute)))
	require.NoError(t, l.Add(2, ofThree, outs.note, Timeout(2*time.Hour)))
	clock.step.Store(int64(time.Hour))
	require.Equal(t, 1, l.Sweep())
	require.Equal(t, 1, outs.one(t).Key)
	clock.step.Store(0)
	require.Zero(t, l.Sweep())
	require.NoError(t, l.Add(3, ofThree, outs.note, Timeout(time.Minute)))
	clock.Advance(time.Hour)
	require.Zero(t, l.Sweep(), "the clock was there before")
	clock.Advance(time.Minute)
	require.Equal(t, 1, l.Sweep())
	require.Equal(t, 3, outs.one(t).Key)
}

func TestClock_TimerThatFiresEarlyIsArmedAgainAndNotInALoop(t *testing.T) {
	var outs outcomes[int]
	clock := newCountingClock()
	stepped := &steppedClock{FakeClock: clock.FakeClock}
	l := New[int](Options{Clock: struct {
		*steppedClock
		afterFunc
	}{stepped, clock.AfterFunc}})
	require.NoError(t, l.Add(1, ofThree, outs.note))
	stepped.step.Store(int64(-5 * time.Second)) // so the timer fires 5 s before the deadline
	clock.Advance(10 * time.Second)
	require.Empty(t, outs.take())
	clock.Advance(time.Hour)
	outs.one(t)
	require.LessOrEqual(t, clock.fired.Load(), int32(4))
}

type afterFunc func(d time.Duration, f func()) Timer

func (f afterFunc) AfterFunc(d time.Duration, run func()) Timer { return f(d, run) }

// restlessClock moves with every reading, as a real clock does.
type restlessClock struct {
	now   atomic.Int64
	timer atomic.Pointer[func()]
}

func (c *restlessClock) Now() time.Time { return fakeStart.Add(time.Duration(c.now.Add(1))) }
func (c *restlessClock) AfterFunc(_ time.Duration, f func()) Timer {
	c.timer.Store(&f)
	return idleTimer{}
}

type idleTimer struct{}

func (idleTimer) Stop() bool               { return true }
func (idleTimer) Reset(time.Duration) bool { return true }

func TestClock_OfTheUserThatNeverStandsStill(t *testing.T) {
	var outs outcomes[int]
	clock := &restlessClock{}
	l := New[int](Options{Clock: clock})
	require.NoError(t, l.Add(1, ofThree, outs.note, Timeout(time.Second)))
	require.NoError(t, l.Add(2, ofThree, outs.note, Timeout(time.Millisecond)))
	clock.now.Add(int64(time.Millisecond))
	(*clock.timer.Load())()
	require.Equal(t, 2, outs.one(t).Key)
	require.Equal(t, 1, l.Len())
	require.NoError(t, l.Close())
	outs.one(t)
}

func TestSweeper_ArmsOnlyForTheEarliestEntry(t *testing.T) {
	clock := newCountingClock()
	l := New[int](Options{Clock: clock})
	for i := range 1000 {
		require.NoError(t, l.Add(i, ofThree, ignore, Timeout(time.Hour+time.Duration(i))))
		require.NoError(t, l.Add(-1, ofThree, ignore))
		require.NoError(t, l.Add(-2, ofThree, ignore))
		l.Complete(-1, nil)
		l.Complete(-2, nil)
	}
	require.LessOrEqual(t, clock.armings.Load(), int32(2), "for the first hour, and for the first ten seconds")
	require.Equal(t, 1, clock.Armed())

	// An Add reads the clock once unless it is the earliest; answers never do.
	before := clock.readings.Load()
	require.NoError(t, l.Add(-1, ofThree, ignore))
	require.Equal(t, before+1, clock.readings.Load())
	l.Ack(-1, 1)
	l.Nack(-1, 3, nil)
	l.AckBatch([]int{-1, 5}, 1)
	l.PeerDown(3, nil)
	l.Ack(-1, 2)
	l.Complete(5, nil)
	l.Fail(6, nil)
	l.FailAll(nil)
	require.Equal(t, before+1, clock.readings.Load())
}

func TestSweeper_IdleListIsWokenAtMostOnceMore(t *testing.T) {
	clock := newCountingClock()
	l := New[int](Options{Clock: clock})
	require.Zero(t, clock.Armed(), "nothing was ever parked")
	for range 5 {
		fired := clock.fired.Load()
		for i := range 100 {
			require.NoError(t, l.Add(i, Majority(1), ignore))
			require.Equal(t, AckDecided, l.Ack(i, 1))
		}
		clock.Advance(time.Hour)
		require.LessOrEqual(t, clock.fired.Load()-fired, int32(1))
		require.Zero(t, clock.Armed())
	}
}

func TestSweeper_ReadsTheClockOnceAndClaimsAllBeforeItCalls(t *testing.T) {
	clock := newCountingClock()
	l := New[int](Options{Clock: clock, ManualSweep: true})
	called := map[int]int{}
	for i := range 300 {
		require.NoError(t, l.Add(i, Majority(1), func(out Outcome[int]) {
			called[out.Key]++
			require.Zero(t, l.Len())
			for j := range 300 {
				require.Equal(t, AckUnknown, l.Ack(j, 1))
			}
		}, Timeout(time.Second+time.Duration(i))))
	}
	clock.Advance(2 * time.Second)
	before := clock.readings.Load()
	require.Equal(t, 300, l.Sweep())
	require.Equal(t, before+1, clock.readings.Load())
	require.Len(t, called, 300)
	require.Zero(t, l.Sweep())
}

func TestSweeper_DoesNotTouchWhatItsCallbacksAdd(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	l := New[int](Options{Clock: clock})
	var times []time.Duration
	var again Callback[int]
	again = func(out Outcome[int]) {
		times = append(times, clock.Now().Sub(fakeStart))
		if len(times) < 5 {
			require.NoError(t, l.Add(out.Key, ofThree, again, Timeout(time.Second)))
		}
	}
	require.NoError(t, l.Add(1, ofThree, again, Timeout(time.Second)))
	clock.Advance(time.Hour)
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second}, times)
}

func TestSweeper_KeepsItsInterval(t *testing.T) {
	clock := newCountingClock()
	l := New[int](Options{Clock: clock, SweepInterval: time.Second})
	latest := time.Duration(0)
	for i := range 1000 {
		timeout := 10*time.Second + time.Duration(i)*10*time.Millisecond // to 20 s
		require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) {
			late := clock.Now().Sub(fakeStart) - timeout
			require.GreaterOrEqual(t, late, time.Duration(0))
			latest = max(latest, late)
		}, Timeout(timeout)))
	}
	clock.Advance(time.Hour)
	require.Zero(t, l.Len())
	require.LessOrEqual(t, latest, time.Second)
	require.LessOrEqual(t, clock.fired.Load(), int32(12))

	// After a pause the first one is exact again.
	require.NoError(t, l.Add(1, ofThree, ignore, Timeout(time.Millisecond)))
	clock.Advance(time.Millisecond)
	require.Zero(t, l.Len())
}

func TestSweeper_AnEntryDueWithinTheIntervalIsNotForgotten(t *testing.T) {
	clock := newCountingClock()
	l := New[int](Options{Clock: clock, SweepInterval: time.Second})
	require.NoError(t, l.Add(1, ofThree, ignore, Timeout(time.Millisecond)))
	clock.Advance(time.Millisecond)
	require.NoError(t, l.Add(2, ofThree, ignore, Timeout(time.Millisecond)))
	clock.Advance(time.Second - 1)
	require.Equal(t, 1, l.Len())
	clock.Advance(1)
	require.Zero(t, l.Len())
}

func TestSweeper_OneMillisecondOnTheSystemClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{})
		var mu sync.Mutex
		sweeps := map[time.Time]int{}
		for i := range 1000 {
			require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) {
				mu.Lock()
				defer mu.Unlock()
				sweeps[time.Now()]++
			}, Timeout(time.Second+time.Duration(i)*10*time.Microsecond))) // 10 ms of deadlines
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Zero(t, l.Len())
		require.LessOrEqual(t, len(sweeps), 12)
		require.NoError(t, l.Close())
	})
}

func TestSweeper_BlockedCallbackDoesNotStopLaterSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{})
		release, ended := make(chan struct{}), make(chan int, 10)
		require.NoError(t, l.Add(0, ofThree, func(Outcome[int]) { <-release }, Timeout(time.Second)))
		for i := 1; i < 5; i++ {
			require.NoError(t, l.Add(i, ofThree, func(out Outcome[int]) { ended <- out.Key }, Timeout(time.Duration(i+1)*time.Second)))
		}
		time.Sleep(10 * time.Second)
		require.Len(t, ended, 4)
		require.Equal(t, 1, l.Stats().Running)
		close(release)
		require.NoError(t, l.Close())
		<-l.Done()
	})
}

func TestManualSweep_LeavesItToTheOwner(t *testing.T) {
	clock := newCountingClock()
	var outs outcomes[int]
	l := New[int](Options{Clock: clock, ManualSweep: true})
	for i := range 3 {
		require.NoError(t, l.Add(i, ofThree, outs.note, Timeout(time.Duration(i+1)*time.Second)))
	}
	clock.Advance(time.Hour)
	require.Zero(t, clock.armings.Load())
	require.Equal(t, 3, l.Len())

	// Late, but before the sweep: it still counts.
	require.Equal(t, AckCounted, l.Ack(0, 1))
	require.Equal(t, AckDecided, l.Ack(0, 2))
	require.Equal(t, EndReached, outs.one(t).End)
	require.True(t, l.Complete(1, nil))
	require.Equal(t, EndCompleted, outs.one(t).End)
	require.Equal(t, AckCounted, l.Nack(2, 1, nil))
	require.Equal(t, 1, l.Sweep())
	require.Equal(t, EndTimedOut, outs.one(t).End)
	require.Zero(t, l.Sweep())
	require.NoError(t, l.Close())
	require.Zero(t, l.Sweep(), "closed")
}

func TestSweep_ByHandBesidesTheTimer(t *testing.T) {
	clock := newCountingClock()
	var outs outcomes[int]
	l := New[int](Options{Clock: clock})
	require.NoError(t, l.Add(1, ofThree, outs.note, Timeout(time.Second)))
	for range 10 {
		clock.Advance(time.Second / 20)
		require.Zero(t, l.Sweep())
	}
	require.Equal(t, 1, clock.Armed())
	clock.Advance(time.Second / 2)
	outs.one(t)
	require.LessOrEqual(t, clock.fired.Load(), int32(2))
}

func TestLostDeadline_AddRacingTheSweep(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	l := New[int](Options{Clock: clock})
	var called, key int32
	collide(rounds(100_000), func() { key++ }, func() {
		clock.Advance(time.Millisecond)
		require.Zero(t, l.Len(), "nobody wakes up for it any more")
		require.Equal(t, key, atomic.LoadInt32(&called))
	},
		func() {
			assert.NoError(t, l.Add(int(key), ofThree, func(Outcome[int]) { atomic.AddInt32(&called, 1) }, Timeout(time.Millisecond)))
		},
		func() { clock.Advance(time.Millisecond) },
	)
	require.Zero(t, clock.Armed())
	audit(t, l)
}

func TestSweeps_AtOnceCallEachEntryOnce(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	l := New[int](Options{Clock: clock, ManualSweep: true})
	var called, expired atomic.Int32
	sweep := func() { expired.Add(int32(l.Sweep())) }
	n := int32(0)
	collide(rounds(5_000), func() {
		for i := range 10 {
			n++
			require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) { called.Add(1) }, Timeout(time.Second)))
		}
		clock.Advance(time.Second)
	}, func() {
		require.Equal(t, n, called.Load())
		require.Equal(t, n, expired.Load())
	}, sweep, sweep, sweep)
}
