package waitlist

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestDrain_EmptyListReturnsAtOnce(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for name, closing := range map[string]func(l *WaitingList[int]) error{
		"Shutdown":              func(l *WaitingList[int]) error { return l.Shutdown(context.Background()) },
		"Shutdown, ctx over":    func(l *WaitingList[int]) error { return l.Shutdown(over) },
		"Close":                 func(l *WaitingList[int]) error { return l.Close() },
		"Close, then Shutdown":  func(l *WaitingList[int]) error { return errors.Join(l.Close(), l.Shutdown(context.Background())) },
		"Shutdown, then Close":  func(l *WaitingList[int]) error { return errors.Join(l.Shutdown(context.Background()), l.Close()) },
		"Shutdown and Shutdown": func(l *WaitingList[int]) error { return errors.Join(l.Shutdown(over), l.Shutdown(over)) },
	} {
		for _, used := range []bool{false, true} {
			clock := NewFakeClock(fakeStart)
			l := New[int](Options{Clock: clock})
			if used {
				require.NoError(t, l.Add(1, Majority(1), ignore))
				l.Ack(1, 1)
			}
			early := l.Done()
			require.False(t, isClosed(early))
			require.NoError(t, closing(l), name)
			require.True(t, isClosed(early), name)
			require.True(t, isClosed(l.Done()), name)
			require.Zero(t, clock.Armed(), "its timer is gone")

			require.ErrorIs(t, l.Add(1, ofThree, ignore), ErrClosed)
			require.ErrorIs(t, l.Add(1, ofThree, ignore), ErrNotParked)
			_, err := l.Wait(t.Context(), 1, ofThree, func() error { t.Error("sent"); return nil })
			require.ErrorIs(t, err, ErrClosed)
			require.Equal(t, AckUnknown, l.Ack(1, 1))
			require.Zero(t, l.Sweep()+l.FailAll(nil)+l.PeerDown(1, nil))
		}
	}
}

func TestDrain_ShutdownRacingTheLastCompletion(t *testing.T) {
	for name, last := range map[string]func(l *WaitingList[int]){
		"Ack":     func(l *WaitingList[int]) { l.Ack(1, 1) },
		"FailAll": func(l *WaitingList[int]) { l.FailAll(nil) },
		"Close":   func(l *WaitingList[int]) { _ = l.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			var l *WaitingList[int]
			var called atomic.Int32
			var err error
			n := 10_000
			if name == "Ack" {
				n = 100_000
			}
			collide(rounds(n), func() {
				l = New[int](Options{ManualSweep: true})
				called.Store(0)
				require.NoError(t, l.Add(1, Majority(1), func(Outcome[int]) { called.Add(1) }))
			}, func() {
				require.NoError(t, err)
				require.EqualValues(t, 1, called.Load())
				<-l.Done()
			},
				func() { err = l.Shutdown(context.Background()) },
				func() { last(l) },
				func() { <-l.Done() },
			)
		})
	}
}

func TestDrain_PatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{Timeout: 5 * time.Minute})
		start := time.Now()
		var outs outcomes[int]
		for i := range 70 {
			require.NoError(t, l.Add(i, ofThree, func(out Outcome[int]) {
				assert.Equal(t, time.Second, time.Since(start))
				outs.note(out)
			}))
		}
		cause := errors.New("not today")
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, cause)
		defer cancel()
		err := l.Shutdown(ctx)
		require.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "70")
		list := outs.take()
		require.Len(t, list, 70)
		for _, out := range list {
			require.Equal(t, EndClosed, out.End)
			require.ErrorIs(t, out.Err, ErrClosed)
			require.NotErrorIs(t, out.Err, ErrNotParked)
		}
		require.EqualValues(t, 70, l.Stats().Closed)
		require.NoError(t, l.Shutdown(ctx), "this call has given nothing back")
		<-l.Done()
	})
}

func TestDrain_WaitsForWhatIsParkedAndRefusesWhatIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{})
		var outs outcomes[int]
		for i := range 3 {
			require.NoError(t, l.Add(i, Majority(1), outs.note))
		}
		var errs [2]error
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { errs[i] = l.Shutdown(context.Background()) })
		}
		synctest.Wait()
		require.ErrorIs(t, l.Add(9, ofThree, ignore), ErrClosed)
		require.Equal(t, AckDecided, l.Ack(0, 1))
		require.Equal(t, EndReached, outs.one(t).End)
		require.True(t, l.Fail(1, nil))
		outs.one(t)
		time.Sleep(10 * time.Second) // the last one times out
		synctest.Wait()
		require.Equal(t, EndTimedOut, outs.one(t).End)
		wg.Wait()
		require.NoError(t, errors.Join(errs[:]...))
		<-l.Done()
	})
}

func TestDrain_CloseDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{})
		var outs outcomes[int]
		require.NoError(t, l.Add(1, ofThree, outs.note))
		errs := make(chan error, 1)
		go func() { errs <- l.Shutdown(context.Background()) }()
		synctest.Wait()
		require.NoError(t, l.Close())
		require.NoError(t, <-errs, "Close has given it back, not this call")
		require.Equal(t, EndClosed, outs.one(t).End)
	})
}

func TestDrain_AddRacingCloseIsRefusedOrEnded(t *testing.T) {
	for name, closing := range map[string]func(l *WaitingList[int]){
		"Close":    func(l *WaitingList[int]) { _ = l.Close() },
		"Shutdown": func(l *WaitingList[int]) { _ = l.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			clock := NewFakeClock(fakeStart)
			var l *WaitingList[int]
			var errs [2]error
			var called [2]atomic.Int32
			key := 0
			add := func(i int) func() {
				return func() {
					errs[i] = l.Add(key+i, Majority(1), func(Outcome[int]) { called[i].Add(1) })
					l.Ack(key+i, 1)
				}
			}
			n := 20_000
			if name == "Close" {
				n = 100_000
			}
			collide(rounds(n), func() {
				key += 2
				l = New[int](Options{Clock: clock})
				called[0].Store(0)
				called[1].Store(0)
			}, func() {
				for i, err := range errs {
					if err == nil {
						require.EqualValues(t, 1, called[i].Load())
					} else {
						require.ErrorIs(t, err, ErrClosed)
						require.Zero(t, called[i].Load())
					}
				}
				require.Zero(t, l.Len())
				require.Zero(t, clock.Armed(), "a timer outlives its list")
				require.True(t, isClosed(l.Done()))
			}, add(0), add(1), func() { closing(l) })
		})
	}
}

func TestDone_WaitsForCallbacksThatHaveBegun(t *testing.T) {
	for name, end := range map[string]func(l *WaitingList[int]){
		"Ack":     func(l *WaitingList[int]) { l.Ack(1, 1) },
		"FailAll": func(l *WaitingList[int]) { l.FailAll(nil) },
	} {
		for fate, leave := range map[string]func(){"returns": func() {}, "exits": runtime.Goexit, "panics": func() { panic("callback") }} {
			synctest.Test(t, func(t *testing.T) {
				l := New[int](Options{OnPanic: func(_, _ any, _ []byte) {}})
				release := make(chan struct{})
				require.NoError(t, l.Add(1, Majority(1), func(Outcome[int]) { <-release; leave() }))
				go end(l)
				synctest.Wait()
				require.NoError(t, l.Shutdown(context.Background()), "nothing is parked")
				require.NoError(t, l.Close())
				synctest.Wait()
				require.False(t, isClosed(l.Done()), "%s: %s", name, fate)
				require.Equal(t, 1, l.Stats().Running)
				close(release)
				<-l.Done()
				require.Zero(t, l.Stats().Running)
			})
		}
	}
}

func TestDone_WaitsForTheSweepThatIsRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := New[int](Options{})
		for i := range 2 {
			require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) { <-release }, Timeout(time.Second)))
		}
		time.Sleep(2 * time.Second)
		require.NoError(t, l.Close())
		require.False(t, isClosed(l.Done()))
		release <- struct{}{}
		synctest.Wait()
		require.False(t, isClosed(l.Done()), "one more to call")
		release <- struct{}{}
		<-l.Done()
	})
}

// startedTimer is one whose call has begun: it cannot be stopped any more.
type startedTimer struct{ idleTimer }

func (startedTimer) Stop() bool { return false }

func TestDone_WaitsForTheTimerThatHasFired(t *testing.T) {
	var fire func()
	l := New[int](Options{Clock: struct {
		*steppedClock
		afterFunc
	}{&steppedClock{FakeClock: NewFakeClock(fakeStart)}, func(_ time.Duration, f func()) Timer {
		fire = f
		return startedTimer{}
	}}})
	require.NoError(t, l.Add(1, ofThree, ignore))
	require.NoError(t, l.Close())
	require.False(t, isClosed(l.Done()))
	fire()
	require.True(t, isClosed(l.Done()))
}

// Between the last claim and the stop of the timer an Add that was overtaken may
// still arm it; whoever looks then must not find the list done.
func TestDone_NotBeforeTheTimerIsStopped(t *testing.T) {
	l := New[int](Options{})
	l.undrained.Store(0) // as the last claim leaves it
	l.checkDone()
	require.False(t, isClosed(l.Done()))
	l.undrained.Store(1)
	l.shardDrained()
	require.True(t, isClosed(l.Done()))
}

// The callback is back, but the sweep that handed it over is not.
func TestDone_WaitsForTheSweepWhoseExecutorHasNotReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := New[int](Options{Executor: func(run func()) { run(); <-release }})
		require.NoError(t, l.Add(1, ofThree, ignore, Timeout(time.Second)))
		time.Sleep(2 * time.Second)
		require.NoError(t, l.Close())
		require.Zero(t, l.Stats().Running)
		require.False(t, isClosed(l.Done()))
		close(release)
		<-l.Done()
	})
}

func TestDone_WaitsForWhatTheExecutorHolds(t *testing.T) {
	var queue []func()
	l := New[int](Options{Executor: func(run func()) { queue = append(queue, run) }})
	called := 0
	for i := range 3 {
		require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) { called++ }))
	}
	require.NoError(t, l.Close())
	require.Len(t, queue, 3)
	for _, run := range queue {
		require.False(t, isClosed(l.Done()))
		run()
		run()
	}
	require.True(t, isClosed(l.Done()))
	require.Equal(t, 3, called)
}

func TestDone_NotInsideTheLastCallback(t *testing.T) {
	l := New[int](Options{})
	require.NoError(t, l.Add(1, ofThree, func(Outcome[int]) {
		require.NoError(t, l.Close())
		require.NoError(t, l.Shutdown(context.Background()))
		require.False(t, isClosed(l.Done()))
	}))
	require.NoError(t, l.Close())
	require.True(t, isClosed(l.Done()))
}

func TestDone_TheListCallsNothingMore(t *testing.T) {
	clock := newCountingClock()
	l := New[int](Options{Clock: clock})
	require.NoError(t, l.Add(1, Majority(1), ignore, Timeout(time.Second)))
	require.NoError(t, l.Close())
	<-l.Done()
	clock.Advance(time.Hour)
	require.Zero(t, clock.fired.Load())
	require.Zero(t, clock.Armed())
}

// The timer has begun to fire when the list is closed.
func TestDone_TimerInFlight(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	var l *WaitingList[int]
	var called atomic.Int32
	collide(rounds(20_000), func() {
		called.Store(0)
		l = New[int](Options{Clock: clock})
		require.NoError(t, l.Add(1, ofThree, func(Outcome[int]) { called.Add(1) }, Timeout(time.Second)))
	}, func() {
		require.EqualValues(t, 1, called.Load())
		require.True(t, isClosed(l.Done()))
		require.Zero(t, clock.Armed())
	},
		func() { clock.Advance(time.Second) },
		func() { _ = l.Close() },
	)
}
