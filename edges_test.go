package waitlist

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// jumpingClock is elapsed time with a step: its timers do not know of the step.
type jumpingClock struct {
	*FakeClock
	step  atomic.Int64
	fired int
}

func (c *jumpingClock) Now() time.Time { return c.FakeClock.Now().Add(time.Duration(c.step.Load())) }

func (c *jumpingClock) AfterFunc(d time.Duration, f func()) Timer {
	return c.FakeClock.AfterFunc(d, func() { c.fired++; f() })
}

func TestClock_ThatGoesBackDoesNotMakeTheSweeperSpin(t *testing.T) {
	for _, rest := range []time.Duration{time.Second, time.Millisecond, time.Microsecond, 1} {
		clock := &jumpingClock{FakeClock: NewFakeClock(time.Unix(0, 0))}
		l := New[int](Options{Clock: clock})
		expired := false
		require.NoError(t, l.Add(1, Majority(1), func(Outcome[int]) { expired = true }, Timeout(2*time.Second)))
		clock.Advance(2*time.Second - rest)
		require.NoError(t, l.Add(2, Majority(1), ignore)) // a reading just before the deadline
		clock.step.Store(-int64(100 * time.Second))
		clock.Advance(50 * time.Second)
		require.Less(t, clock.fired, 100, "%v before the deadline", rest)
		require.False(t, expired)
		clock.Advance(60 * time.Second)
		require.True(t, expired, "the clock has caught up")
		require.NoError(t, l.Close())
	}
}

// handClock fires nothing by itself, and gives the readings of a script first.
type handClock struct {
	script  []time.Duration
	now, at time.Duration
	waiting bool
	f       func()
}

func (c *handClock) Now() time.Time {
	now := c.now
	if len(c.script) > 0 {
		now, c.script = c.script[0], c.script[1:]
	}
	return time.Unix(0, 0).Add(now)
}

func (c *handClock) AfterFunc(d time.Duration, f func()) Timer {
	c.f, c.waiting, c.at = f, true, c.now+d
	return c
}

func (c *handClock) Stop() bool {
	was := c.waiting
	c.waiting = false
	return was
}

func (c *handClock) Reset(d time.Duration) bool {
	was := c.waiting
	c.waiting, c.at = true, c.now+d
	return was
}

func TestSweeper_TwoOwedFiresDoNotDelayTheNextDeadline(t *testing.T) {
	clock := &handClock{}
	l := New[int](Options{Clock: clock})
	require.NoError(t, l.Add(3, External(), ignore, Timeout(510*time.Millisecond)))
	require.NoError(t, l.Add(1, External(), ignore, Timeout(10*time.Millisecond)))
	clock.now, clock.waiting = 10*time.Millisecond, false // the timer has fired, its sweep is on its way
	clock.script = []time.Duration{4 * time.Millisecond}  // an Add that was held up since 4 ms
	require.NoError(t, l.Add(2, External(), ignore, Timeout(5*time.Millisecond)))
	clock.waiting = false
	clock.f()
	clock.f()
	require.Equal(t, 1, l.Len())
	require.True(t, clock.waiting)
	require.Equal(t, 510*time.Millisecond, clock.at)
}

func TestOptions_TheZeroOptionSetsNothing(t *testing.T) {
	l := New[int](Options{})
	var s Session
	opts := make([]AddOption, 2)
	opts[0] = InSession(&s)
	require.NoError(t, l.Add(1, Majority(1), ignore, opts...))
	require.Equal(t, 1, s.Len())
}

func TestHash_SpreadsConsecutiveIDs(t *testing.T) {
	for range 2000 {
		l := New[uint64](Options{})
		used := map[*hashed[uint64]]bool{}
		for id := range uint64(256) {
			s, _ := l.locate(id)
			used[s] = true
		}
		require.Greater(t, len(used), numShards/2)
	}
}

func TestClock_MaySetOutFromZeroAfterTheListIsMade(t *testing.T) {
	clock := &jumpingClock{FakeClock: NewFakeClock(time.Time{})}
	l := New[int](Options{Clock: clock, Timeout: time.Second, ManualSweep: true})
	clock.Advance(1 << 62) // 146 years at a time: further than nanoseconds reach
	clock.Advance(1 << 62)
	clock.Advance(1 << 62)
	added := clock.Now()
	require.NoError(t, l.Add(1, Majority(1), ignore))
	parked, _ := l.Get(1)
	require.Equal(t, added, parked.Since)
	require.Equal(t, added.Add(time.Second), parked.Deadline)
	clock.Advance(time.Second - 1)
	require.Zero(t, l.Sweep())
	clock.Advance(1)
	require.Equal(t, 1, l.Sweep())
}

func TestClock_ThatAlwaysMovesIsNotArmedForEver(t *testing.T) {
	readings := 0
	l := New[int](Options{Clock: movingClock{&readings}})
	readings = 0
	require.NoError(t, l.Add(1, Majority(1), ignore))
	require.LessOrEqual(t, readings, 4)
	readings = 0
	l.Sweep()
	require.Equal(t, 1, readings, "a sweep reads the clock once")
	require.NoError(t, l.Close())
}

type movingClock struct{ readings *int }

func (c movingClock) Now() time.Time {
	*c.readings++
	return time.Now().Add(time.Duration(*c.readings))
}
func (c movingClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

func TestExecutor_ThatPanicsFirstKeepsItsPanic(t *testing.T) {
	l := New[int](Options{Executor: func(func()) { panic("executor") }})
	require.NoError(t, l.Add(1, Majority(1), func(Outcome[int]) { panic("callback") }))
	require.PanicsWithValue(t, "executor", func() { l.Ack(1, 1) })
	require.Zero(t, l.Stats().Running)
}

func TestExecutor_PanicAfterDoneIsNotReported(t *testing.T) {
	var l *WaitingList[int]
	l = New[int](Options{
		Executor: func(run func()) { run(); panic("executor") },
		OnPanic:  func(any, any, []byte) { require.False(t, isClosed(l.Done())) },
	})
	require.NoError(t, l.Add(1, Majority(1), ignore))
	require.PanicsWithValue(t, "executor", func() { _ = l.Close() })
	require.True(t, isClosed(l.Done()))
}

func TestExecutor_ThatBlocksKeepsNothingOfACallbackThatIsOver(t *testing.T) {
	freed, called, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	l := New[int](Options{Executor: func(run func()) {
		go func() { run(); close(called) }()
		<-release
	}})
	func() {
		payload := new([1 << 20]byte)
		runtime.AddCleanup(payload, func(struct{}) { close(freed) }, struct{}{})
		require.NoError(t, l.Add(1, Majority(1), func(Outcome[int]) { payload[0] = 1 }))
	}()
	go l.FailAll(nil)
	<-called
	for freedYet := false; !freedYet; {
		runtime.GC()
		select {
		case <-freed:
			freedYet = true
		default:
			runtime.Gosched()
		}
	}
	close(release)
}

func TestOnPanic_ThatPanicsStopsNobody(t *testing.T) {
	l := New[int](Options{OnPanic: func(_, value any, _ []byte) { panic(value) }})
	called := 0
	for i := range 1000 {
		require.NoError(t, l.Add(i, Majority(1), func(Outcome[int]) { called++; panic(called) }))
	}
	require.PanicsWithValue(t, 1, func() { l.FailAll(nil) })
	require.Equal(t, 1000, called)
	require.EqualValues(t, 1000, l.Stats().CallbackPanics)
}

// oddContext ends with an error that cannot be compared, or with none.
type oddContext struct {
	context.Context
	done chan struct{}
	err  error
}

func (c oddContext) Done() <-chan struct{} { return c.done }

func (c oddContext) Err() error {
	if isClosed(c.done) {
		return c.err
	}
	return nil
}

type listOfErrors []string

func (e listOfErrors) Error() string { return "several" }

func TestWait_ContextsWithOddErrors(t *testing.T) {
	for _, err := range []error{listOfErrors{"a", "b"}, nil} {
		l := New[int](Options{})
		ctx := oddContext{context.Background(), make(chan struct{}), err}
		out, got := l.Wait(ctx, 1, Majority(1), func() error { close(ctx.done); return nil })
		require.Equal(t, EndCanceled, out.End)
		require.Error(t, got)
		require.Zero(t, l.Len())
		require.NoError(t, l.Add(2, Majority(1), ignore))
		require.Error(t, l.Shutdown(ctx))
	}
}

func TestUnreachable_ErrorKeepsNoPayloads(t *testing.T) {
	l := New[int](Options{})
	var kept error
	freed := make(chan struct{})
	func() {
		payload := new([1 << 20]byte)
		runtime.AddCleanup(payload, func(struct{}) { close(freed) }, struct{}{})
		require.NoError(t, l.Add(1, All(1, 2), func(out Outcome[int]) { kept = out.Err }))
		l.AckWith(1, 1, payload)
	}()
	reason := errors.New("disk full")
	require.Equal(t, AckDecided, l.Nack(1, 2, reason))
	for freedYet := false; !freedYet; {
		runtime.GC()
		select {
		case <-freed:
			freedYet = true
		default:
			runtime.Gosched()
		}
	}
	require.ErrorIs(t, kept, reason)
	require.Equal(t, "waitlist: quorum is unreachable; peer 2: disk full", kept.Error())
}

func TestAckBatch_RepeatsAreFoundInLargeBatches(t *testing.T) {
	for _, n := range []int{1, 63, 64, 65, 128, 129, 1000, 20_000} {
		l := New[int](Options{})
		var keys []int
		for i := range n {
			require.NoError(t, l.Add(i, Majority(1), ignore))
			keys = append(keys, i)
		}
		keys = append(keys, keys...)
		keys = append(keys, -1, -1)
		require.Equal(t, n, l.AckBatch(keys, 1))
		st := l.Stats()
		require.EqualValues(t, n, st.DuplicateAcks)
		require.EqualValues(t, 2, st.LateAcks)
	}
}

func TestSession_OfManyListsEndsEachOnce(t *testing.T) {
	var s Session
	var called int
	lists := make([]*WatermarkList[int], 500)
	for i := range lists {
		lists[i] = NewWatermarkList(0, Options{ManualSweep: true})
	}
	for i := range 5000 {
		require.NoError(t, lists[i%len(lists)].Add(i+1, func(Outcome[int]) { called++ }, InSession(&s)))
	}
	require.Equal(t, 5000, s.End(nil))
	require.Equal(t, 5000, called)
	require.Zero(t, s.Len())
}

func TestTally_String(t *testing.T) {
	l := New[int](Options{})
	require.NoError(t, l.Add(1, All(1, 2, 3), func(out Outcome[int]) {
		require.Equal(t, "3 of {1 2 3}: acked [1], 2 refused (disk full)", out.Tally.String())
	}))
	l.Ack(1, 1)
	l.Nack(1, 2, errors.New("disk full"))
}
