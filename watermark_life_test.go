package waitlist

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWatermarkOptionsThatMakeNoSensePanic(t *testing.T) {
	for field, opts := range map[string]Options{
		"Timeout": {Timeout: -1}, "SweepInterval": {SweepInterval: -1}, "Capacity": {Capacity: -1},
	} {
		value := wmUnwound(func() { NewWatermarkList[int](0, opts) })
		assert.Contains(t, value, field)
	}
}

func TestWatermarkAtOrBelowTheMarkCompletesInsideAdd(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	w := NewWatermarkList[int](10, Options{Clock: clock, Capacity: 1})
	wmPark(t, w, ignore, 11) // full
	var session Session
	var outs outcomes[int]
	clock.Advance(time.Second)
	for name, opts := range map[string][]AddOption{
		"plain": nil, "in a session": {InSession(&session)}, "nil session": {InSession(nil)},
		"with a timeout": {Timeout(1)}, "with no time left": {Timeout(0)}, "overdue": {Timeout(-1), InSession(&session)},
	} {
		for _, index := range []int{10, 9, 0, -1, math.MinInt} {
			require.NoError(t, w.Add(index, outs.note, opts...), name)
			out := outs.one(t)
			assert.Equal(t, index, out.Key)
			assert.Equal(t, EndReached, out.End)
			require.NoError(t, out.Err)
			assert.True(t, out.Since.Equal(fakeStart.Add(time.Second)))
			out, err := w.Wait(t.Context(), index, opts...)
			require.NoError(t, err, name)
			assert.Equal(t, EndReached, out.End)
			assert.Equal(t, index, out.Key)
		}
		assert.Zero(t, session.Len())
	}
	assert.Equal(t, 1, w.Len())
	assert.EqualValues(t, 60, w.Stats().Reached)
	assert.EqualValues(t, 61, w.Stats().Added)
	assert.Equal(t, 1, clock.Armed(), "only for what is parked")
	wmAudit(t, w)
}

func TestWatermarkRefusals_TheFirstThatAppliesIsGiven(t *testing.T) {
	cause := errors.New("cause")
	reasons := []error{ErrNilCallback, ErrClosed, ErrSessionEnded, ErrTimeout, ErrFull}
	for _, c := range []struct {
		name                                          string
		nilDone, closed, ended, reached, late, isFull bool
		want                                          error
	}{
		{"everything", true, true, true, true, true, true, ErrNilCallback},
		{"nil callback alone", true, false, false, false, false, false, ErrNilCallback},
		{"nil callback, reached", true, false, false, true, false, false, ErrNilCallback},
		{"closed and the rest", false, true, true, true, true, true, ErrClosed},
		{"closed, reached", false, true, false, true, false, false, ErrClosed},
		{"closed alone", false, true, false, false, false, false, ErrClosed},
		{"session and the rest", false, false, true, true, true, true, ErrSessionEnded},
		{"session alone", false, false, true, false, false, false, ErrSessionEnded},
		{"reached and the rest", false, false, false, true, true, true, nil},
		{"late and full", false, false, false, false, true, true, ErrTimeout},
		{"late alone", false, false, false, false, true, false, ErrTimeout},
		{"full alone", false, false, false, false, false, true, ErrFull},
		{"nothing", false, false, false, false, false, false, nil},
	} {
		w := NewWatermarkList[int](10, Options{Capacity: 1, ManualSweep: true})
		var outs outcomes[int]
		if c.isFull {
			wmPark(t, w, ignore, 50)
		}
		var session Session
		if c.ended {
			session.End(cause)
		}
		if c.closed {
			go func() { _ = w.Shutdown(t.Context()) }()
			for !errors.Is(w.Add(-1, ignore), ErrClosed) {
				runtime.Gosched()
			}
		}
		index, opts, done := 60, []AddOption{InSession(&session)}, outs.note
		if c.reached {
			index = 10
		}
		if c.late {
			opts = append(opts, Timeout(-1))
		}
		if c.nilDone {
			done = nil
		}
		refused, added := w.Stats().Refused, w.Stats().Added
		err := w.Add(index, done, opts...)
		check := func() {
			t.Helper()
			if c.want == nil {
				require.NoError(t, err, c.name)
				return
			}
			require.ErrorIs(t, err, ErrNotParked, c.name)
			for _, reason := range reasons {
				require.Equal(t, reason == c.want, errors.Is(err, reason), "%s: %v", c.name, err)
			}
			require.Equal(t, c.want == ErrSessionEnded, errors.Is(err, cause))
			refused++
			require.Equal(t, refused, w.Stats().Refused)
			require.Equal(t, added, w.Stats().Added)
			require.Empty(t, outs.keys())
		}
		check()
		if !c.nilDone && (c.want != nil || c.reached) {
			var out Outcome[int]
			out, err = w.Wait(t.Context(), index, opts...)
			require.Equal(t, c.want != nil, out.End == 0)
			require.Equal(t, err, out.Err)
			require.Equal(t, index, out.Key)
			check()
		}
		if !c.nilDone { // a ctx that is over comes first of all
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(cause)
			out, err := w.Wait(ctx, index, opts...)
			require.Zero(t, out.End)
			for _, target := range []error{ErrNotParked, context.Canceled, cause} {
				require.ErrorIs(t, err, target)
			}
			require.NotErrorIs(t, err, ErrClosed)
			require.NotErrorIs(t, err, ErrTimeout)
		}
		w.FailAll(nil)
		_ = w.Close()
		<-w.Done()
		require.Zero(t, session.Len())
		wmAudit(t, w)
	}
}

func TestWatermarkPermits_RefusalsAndEndsGiveThemBack(t *testing.T) {
	for _, ending := range wmEndings {
		s := newWmStage(Options{Capacity: 50})
		free := 0
		for i := range 50 {
			s.park(t, 11+i, func(Outcome[int]) {
				free++
				if free == 1 && ending.end != EndClosed {
					for j := range 50 { // before any other callback has run
						require.NoError(t, s.Add(5000+j, ignore))
					}
					require.ErrorIs(t, s.Add(6000, ignore), ErrFull)
				}
			})
		}
		require.ErrorIs(t, s.Add(6000, ignore), ErrFull)
		require.ErrorIs(t, s.Add(6000, ignore, Timeout(0)), ErrTimeout)
		require.ErrorIs(t, s.Add(6000, nil), ErrNilCallback)
		_, err := s.Wait(t.Context(), 6000)
		require.ErrorIs(t, err, ErrFull)
		require.Equal(t, 50, s.Len())
		ending.run(s)
		require.Equal(t, 50, free, ending.name)
		require.EqualValues(t, 4, s.Stats().Refused-uint64(min(1, s.Len())))
		wmAudit(t, s.WatermarkList)
	}
}

func TestWatermarkCapacityIsExactUnderConcurrency(t *testing.T) {
	w := NewWatermarkList[int](0, Options{Capacity: 100})
	var wg sync.WaitGroup
	var accepted atomic.Int64
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				switch err := w.Add(1+i*4+g, ignore); {
				case err == nil:
					accepted.Add(1)
				case !errors.Is(err, ErrFull):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 100, accepted.Load())
	assert.Equal(t, 100, w.Advance(1000))
	wmAudit(t, w)
}

func TestWatermarkSession_HoldsEntriesOfSeveralLists(t *testing.T) {
	cause := errors.New("connection reset")
	var session, other Session
	a, b := NewWatermarkList[int](0, wmManual), NewWatermarkList[uint32](0, wmManual)
	l := New[string](Options{})
	var outsA outcomes[int]
	var outsB outcomes[uint32]
	var outsL outcomes[string]
	for i := range 10 {
		require.NoError(t, a.Add(1+i, outsA.note, InSession(&session)))
		require.NoError(t, b.Add(uint32(1+i), outsB.note, InSession(&session)))
	}
	require.NoError(t, a.Add(20, outsA.note, InSession(&other)))
	require.NoError(t, a.Add(21, outsA.note))
	require.NoError(t, l.Add("k", ofThree, outsL.note, InSession(&session)))
	require.Equal(t, 21, session.Len())
	require.Equal(t, 4, a.Advance(4))
	require.Equal(t, 17, session.Len(), "what has ended otherwise leaves at once")
	outsA.take()
	require.Equal(t, 17, session.End(cause))
	require.Zero(t, session.End(errTest), "the first cause stays")
	require.Zero(t, session.Len())
	require.Len(t, outsA.list, 6)
	require.Len(t, outsB.list, 10)
	for _, out := range outsA.list {
		require.Equal(t, EndSession, out.End)
		require.ErrorIs(t, out.Err, ErrSessionEnded)
		require.ErrorIs(t, out.Err, cause)
	}
	require.Equal(t, EndSession, outsL.one(t).End)
	require.Equal(t, 2, a.Len())
	require.Equal(t, 1, other.Len())
	err := a.Add(30, outsA.note, InSession(&session))
	require.ErrorIs(t, err, ErrSessionEnded)
	require.ErrorIs(t, err, cause)
	require.NotErrorIs(t, err, errTest)
	require.Equal(t, 2, a.Advance(30))
	require.Zero(t, other.Len())
	wmAudit(t, a)
	wmAudit(t, b)
}

// wmSteppedClock is a FakeClock with monotonic readings and a wall clock that is set
// to another time, as the system's may be.
type wmSteppedClock struct {
	*FakeClock
	base    time.Time
	seconds int64 // by which the wall clock has been set
}

func (c *wmSteppedClock) Now() time.Time {
	now := c.base.Add(c.FakeClock.Now().Sub(fakeStart))
	*(*uint64)(unsafe.Pointer(&now)) += uint64(c.seconds) << 30 // the layout of time.Time
	return now
}

func TestWatermarkClock_WallClockStepsChangeNothing(t *testing.T) {
	for _, step := range []int64{-1000, 3600, -40_000_000, 40_000_000} {
		clock := &wmSteppedClock{FakeClock: NewFakeClock(fakeStart), base: time.Now()}
		w := NewWatermarkList[int](0, Options{Clock: clock, Timeout: 10 * time.Second})
		var outs outcomes[int]
		before := clock.Now()
		wmPark(t, w, outs.note, 1)
		clock.seconds = step
		require.EqualValues(t, step, clock.Now().Round(0).Sub(before.Round(0))/time.Second, "the wall clock has been set")
		require.Zero(t, clock.Now().Sub(before), "the monotonic clock has not")
		require.NoError(t, w.Add(2, outs.note, Timeout(5*time.Second)))
		assert.Zero(t, w.Sweep())
		clock.Advance(5*time.Second - 1)
		assert.Zero(t, w.Sweep())
		assert.Empty(t, outs.keys())
		clock.Advance(1)
		assert.Equal(t, 2, outs.one(t).Key)
		clock.seconds = -step
		assert.Zero(t, w.Sweep())
		clock.Advance(5*time.Second - 1)
		assert.Zero(t, w.Sweep())
		assert.Empty(t, outs.keys())
		clock.Advance(1)
		assert.Equal(t, 1, outs.one(t).Key)
	}
}

// wmSetClock has no monotonic readings and is set by hand. It has no timers.
type wmSetClock struct{ now time.Time }

func (c *wmSetClock) Now() time.Time                        { return c.now }
func (c *wmSetClock) AfterFunc(time.Duration, func()) Timer { panic("nobody asked for a sweeper") }

func TestWatermarkClock_ThatGoesBackStandsStill(t *testing.T) {
	clock := &wmSetClock{fakeStart}
	w := NewWatermarkList[int](0, Options{Clock: clock, Timeout: 10 * time.Second, ManualSweep: true})
	var outs outcomes[int]
	wmPark(t, w, outs.note, 1)
	clock.now = fakeStart.Add(-1000 * time.Second)
	assert.Zero(t, w.Sweep())
	wmPark(t, w, outs.note, 2)
	for p := range w.All() {
		assert.True(t, p.Since.Equal(fakeStart), "%v", p.Since)
	}
	clock.now = fakeStart.Add(10*time.Second - 1)
	assert.Zero(t, w.Sweep())
	clock.now = fakeStart.Add(10 * time.Second)
	assert.Equal(t, 2, w.Sweep())
	assert.Len(t, outs.take(), 2)
	require.NoError(t, w.Close())
}
