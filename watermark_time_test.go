package waitlist

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wmCountingClock counts how often a timer has fired.
type wmCountingClock struct {
	*FakeClock
	fired int
}

func (c *wmCountingClock) AfterFunc(d time.Duration, f func()) Timer {
	return c.FakeClock.AfterFunc(d, func() { c.fired++; f() })
}

func newWmTimed(start int, opts Options) (*WatermarkList[int], *wmCountingClock) {
	clock := &wmCountingClock{FakeClock: NewFakeClock(fakeStart)}
	opts.Clock = clock
	return NewWatermarkList(start, opts), clock
}

func TestWatermarkDeadline_ExactlyAtTheDeadline(t *testing.T) {
	for _, timeout := range []time.Duration{1, time.Millisecond, 10 * time.Second, 1000 * time.Hour} {
		w, clock := newWmTimed(0, Options{Timeout: timeout})
		var outs outcomes[int]
		wmQuorum(t, w, All(1))
		wmPark(t, w, outs.note, 1, 2)
		clock.Advance(timeout - 1)
		require.Empty(t, outs.keys())
		clock.Advance(1)
		list := outs.take()
		require.Len(t, list, 2)
		for _, out := range list {
			require.Equal(t, EndTimedOut, out.End)
			require.ErrorIs(t, out.Err, ErrTimeout)
			require.True(t, out.Since.Equal(fakeStart))
		}
		require.Equal(t, AckDecided, w.Ack(2, 1), "it moves the mark, but ends nothing")
		require.Zero(t, w.Advance(5))
		require.Empty(t, outs.keys())
		clock.Advance(1000 * time.Hour)
		require.LessOrEqual(t, clock.fired, 2)
		require.Zero(t, clock.Armed(), "an idle list arms no timer")
		require.NoError(t, w.Close())
		<-w.Done()
		wmAudit(t, w)
	}
}

func TestWatermarkDeadline_LateMovesStillCountBeforeTheSweep(t *testing.T) {
	w, clock := newWmTimed(0, Options{ManualSweep: true, Timeout: time.Second})
	var outs outcomes[int]
	wmQuorum(t, w, All(1))
	wmPark(t, w, outs.note, 1, 2, 3)
	clock.Advance(time.Hour)
	assert.Zero(t, clock.Armed())
	assert.Equal(t, 1, w.Advance(1))
	assert.Equal(t, AckDecided, w.Ack(2, 1))
	for _, out := range outs.take() {
		assert.Equal(t, EndReached, out.End)
	}
	assert.Equal(t, 1, w.Sweep())
	assert.Equal(t, EndTimedOut, outs.one(t).End)
	assert.Zero(t, w.Sweep())
}

func TestWatermarkDeadline_EachOnItsOwnTime(t *testing.T) {
	w, clock := newWmTimed(0, Options{Timeout: 10 * time.Second})
	var log []string
	note := func(out Outcome[int]) {
		log = append(log, strconv.Itoa(out.Key)+"@"+clock.Now().Sub(fakeStart).String()+" "+out.End.String())
	}
	wmPark(t, w, note, 1)
	require.NoError(t, w.Add(2, note, Timeout(100*time.Millisecond)))
	require.NoError(t, w.Add(3, note, Timeout(math.MaxInt64)))
	require.NoError(t, w.Add(4, note, Timeout(1)))
	require.NoError(t, w.Add(5, note, Timeout(math.MaxInt64-1)))
	require.NoError(t, w.Add(6, note, Timeout(50*time.Millisecond)))
	clock.Advance(time.Hour)
	assert.Equal(t, []string{"4@1ns timed out", "6@50ms timed out", "2@100ms timed out", "1@10s timed out"}, log)
	clock.Advance(100 * 365 * 24 * time.Hour)
	assert.Equal(t, 2, w.Len(), "never is never")
	assert.Equal(t, 2, w.Advance(5))
}

func TestWatermarkDeadline_OneThatIsEarlierThanTheOthers(t *testing.T) {
	w, clock := newWmTimed(0, Options{Timeout: 10 * time.Second})
	var at []time.Duration
	require.NoError(t, w.Add(7, func(Outcome[int]) { at = append(at, clock.Now().Sub(fakeStart)) }, Timeout(50*time.Millisecond)))
	for i := range 20 {
		wmPark(t, w, ignore, 100+i)
		clock.Advance(10 * time.Millisecond)
	}
	assert.Equal(t, []time.Duration{50 * time.Millisecond}, at)
	assert.LessOrEqual(t, clock.fired, 2)
	assert.Equal(t, 20, w.Advance(1000))
	clock.Advance(time.Hour)
	assert.LessOrEqual(t, clock.fired, 3, "at most once more after the list has become empty")
	assert.Zero(t, clock.Armed())
}

func TestWatermarkDeadline_OnTheSystemClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatermarkList[int](0, Options{})
		var outs outcomes[int]
		wmPark(t, w, outs.note, 1)
		require.NoError(t, w.Add(2, outs.note, Timeout(100*time.Millisecond)))
		time.Sleep(100*time.Millisecond + 2*time.Millisecond)
		synctest.Wait()
		assert.Equal(t, 2, outs.one(t).Key)
		time.Sleep(10*time.Second - 103*time.Millisecond)
		synctest.Wait()
		assert.Empty(t, outs.keys())
		time.Sleep(3 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, EndTimedOut, outs.one(t).End)
	})
}

func TestWatermarkWait_ThousandAtOneIndex(t *testing.T) {
	for name, move := range map[string]func(w *WatermarkList[int]){
		"Advance": func(w *WatermarkList[int]) { assert.Equal(t, 1000, w.Advance(42)) },
		"Ack":     func(w *WatermarkList[int]) { assert.Equal(t, AckDecided, w.Ack(43, 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := NewWatermarkList[int](0, Options{})
				wmQuorum(t, w, All(1))
				var woken atomic.Int32
				for range 1000 {
					go func() {
						if out, err := w.Wait(t.Context(), 42); err == nil && out.End == EndReached {
							woken.Add(1)
						}
					}()
				}
				synctest.Wait()
				require.Equal(t, 1000, w.Len())
				move(w)
				synctest.Wait()
				assert.EqualValues(t, 1000, woken.Load())
				wmAudit(t, w)
				require.NoError(t, w.Close())
			})
		})
	}
}

func TestWatermarkWait_WokenByEveryKindOfEnd(t *testing.T) {
	for _, ending := range wmEndings {
		for _, executor := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				opts := Options{}
				gate := make(chan struct{})
				if executor {
					opts.Executor = func(run func()) { go func() { <-gate; run() }() }
				}
				s := newWmStage(opts)
				s.park(t, 11, func(Outcome[int]) { <-gate })
				var out Outcome[int]
				var err error
				go func() {
					out, err = s.Wait(t.Context(), 12, InSession(s.session), Timeout(time.Hour))
				}()
				synctest.Wait()
				s.park(t, 13, func(Outcome[int]) { <-gate })
				assert.Equal(t, 3, s.session.Len())
				go ending.run(s)
				synctest.Wait()
				assert.Equal(t, ending.end, out.End, "woken before any callback has returned")
				assert.Equal(t, 12, out.Key)
				assert.Equal(t, out.Err, err)
				assert.Equal(t, ending.end == EndReached, err == nil)
				assert.Zero(t, s.session.Len())
				assert.NotZero(t, s.Stats().Running)
				close(gate)
				require.NoError(t, s.Close())
				<-s.Done()
				synctest.Wait()
				wmAudit(t, s.WatermarkList)
			})
		}
	}
}

func TestWatermarkWait_ContextThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatermarkList[int](0, Options{Capacity: 1})
		cause := errors.New("client hung up")
		ctx, cancel := context.WithCancelCause(t.Context())
		var out Outcome[int]
		var err error
		go func() { out, err = w.Wait(ctx, 5) }()
		synctest.Wait()
		require.Equal(t, 1, w.Len())
		cancel(cause)
		synctest.Wait()
		assert.Equal(t, EndCanceled, out.End)
		assert.Equal(t, 5, out.Key)
		assert.Equal(t, err, out.Err)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, cause)
		require.NotErrorIs(t, err, ErrNotParked, "it was parked")
		assert.Zero(t, w.Len(), "and is gone")

		deadline, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		out, err = w.Wait(deadline, 5)
		assert.Equal(t, EndCanceled, out.End)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrTimeout)
		assert.EqualValues(t, 2, w.Stats().Canceled)

		// Nobody is bothered by what comes too late.
		assert.Zero(t, w.Advance(5))
		assert.Zero(t, w.Stats().Running)
		wmPark(t, w, ignore, 6)
		assert.Equal(t, 1, w.Advance(6))
		wmAudit(t, w)
		require.NoError(t, w.Close())
		out, err = w.Wait(t.Context(), 7)
		assert.Zero(t, out.End)
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, err, ErrNotParked)
	})
}

func TestWatermarkWait_ContextAgainstAdvance(t *testing.T) {
	w := NewWatermarkList[int](0, Options{})
	index, claimed := 0, 0
	var ctx context.Context
	var cancel context.CancelFunc
	var out Outcome[int]
	seen := map[End]int{}
	collide(rounds(20_000), func() {
		index++
		ctx, cancel = context.WithCancel(context.Background())
	}, func() {
		want := map[End]int{EndReached: 1}[out.End]
		if st := w.Stats(); st.Reached-uint64(seen[EndReached]) == 1 && claimed == 0 {
			want = 0 // it was reached before it was parked
		}
		require.Equal(t, want, claimed, "%v", out)
		seen[out.End]++
		require.Zero(t, w.Len())
		if out.End == EndReached {
			require.NoError(t, out.Err)
		} else {
			require.ErrorIs(t, out.Err, context.Canceled)
		}
	},
		func() { out, _ = w.Wait(ctx, index) },
		func() { claimed = w.Advance(index) },
		func() { cancel() },
	)
	st := w.Stats()
	assert.EqualValues(t, seen[EndReached], st.Reached)
	assert.EqualValues(t, seen[EndCanceled], st.Canceled)
	assert.EqualValues(t, seen[0], st.Refused)
	wmAudit(t, w)
}

func TestWatermarkAlreadyPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatermarkList[int64](0, Options{})
		w.Advance(100)
		for _, index := range []int64{50, 100} {
			out, err := w.Wait(t.Context(), index)
			require.NoError(t, err)
			require.Equal(t, EndReached, out.End)
		}
		woken := false
		go func() {
			_, err := w.Wait(t.Context(), 101)
			woken = err == nil
		}()
		synctest.Wait()
		require.False(t, woken)
		w.Advance(101)
		synctest.Wait()
		require.True(t, woken)
	})
}

func TestWatermarkLostWakeup_AddAndWaitAgainstEveryMover(t *testing.T) {
	for name, move := range map[string]func(w *WatermarkList[int], to int){
		"Advance":   func(w *WatermarkList[int], to int) { w.Advance(to) },
		"Ack":       func(w *WatermarkList[int], to int) { w.Ack(to, 2) },
		"SetQuorum": func(w *WatermarkList[int], _ int) { _, _ = w.SetQuorum(All(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWatermarkList[int](0, Options{})
			to, called, stray := 0, atomic.Int32{}, 0
			done := func(Outcome[int]) { called.Add(1) }
			n := rounds(20_000)
			if name == "Advance" {
				n = rounds(100_000)
			}
			collide(n, func() {
				to++
				called.Store(0)
				_, _ = w.SetQuorum(All(1, 2))
				w.Ack(to, 1)
			}, func() {
				require.EqualValues(t, 1, called.Load())
				require.Zero(t, w.Len())
				require.Equal(t, to, w.Watermark())
			},
				func() { move(w, to) },
				func() { _ = w.Add(to, done) },
				func() {
					if out, _ := w.Wait(context.Background(), to); out.End != EndReached {
						stray++
					}
				},
			)
			assert.Zero(t, stray)
			wmAudit(t, w)
		})
	}
}

func TestWatermarkDrain_EmptyListShutsDownAtOnce(t *testing.T) {
	for _, used := range []bool{false, true} {
		w := NewWatermarkList[int](0, Options{})
		if used {
			wmPark(t, w, ignore, 1, 2)
			w.Advance(2)
		}
		require.NoError(t, w.Shutdown(context.Background()))
		require.NoError(t, w.Shutdown(wmOver()))
		require.NoError(t, w.Close())
		<-w.Done()
		require.ErrorIs(t, w.Add(3, ignore), ErrClosed)
		require.Zero(t, w.Advance(9), "the mark can still be moved")
		require.Equal(t, 9, w.Watermark())
	}
}

func TestWatermarkDrain_ShutdownAgainstTheLastCompletion(t *testing.T) {
	var w *WatermarkList[int]
	var called atomic.Int32
	done := func(Outcome[int]) { called.Add(1) }
	failed := 0
	collide(rounds(100_000), func() {
		w = NewWatermarkList[int](0, Options{ManualSweep: true})
		called.Store(0)
		_ = w.Add(1, done)
		_ = w.Add(2, done)
	}, func() {
		<-w.Done()
		require.EqualValues(t, 2, called.Load())
		require.Zero(t, failed)
	},
		func() { w.Advance(1); w.Advance(2) },
		func() {
			if w.Shutdown(context.Background()) != nil {
				failed++
			}
		},
	)
}

func TestWatermarkDrain_ShutdownGivesBackTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatermarkList[int](0, Options{Timeout: 5 * time.Minute})
		var outs outcomes[int]
		begun := time.Now()
		wmPark(t, w, outs.note, 3, 1, 2, 2)
		cause := errors.New("deploy")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		go func() {
			time.Sleep(time.Second / 2)
			assert.Equal(t, 1, w.Advance(1))
			assert.ErrorIs(t, w.Add(9, outs.note), ErrClosed)
		}()
		err := w.Shutdown(ctx)
		require.Equal(t, time.Second, time.Since(begun))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "3")
		list := outs.take()
		require.Len(t, list, 4)
		for i, out := range list {
			if i == 0 {
				require.Equal(t, EndReached, out.End)
				continue
			}
			require.Equal(t, EndClosed, out.End)
			require.ErrorIs(t, out.Err, ErrClosed)
		}
		<-w.Done()
		require.NoError(t, w.Shutdown(t.Context()), "this call gave nothing back")
		wmAudit(t, w)
	})
}

func TestWatermarkDrain_AddAndWaitAgainstClose(t *testing.T) {
	var w *WatermarkList[int]
	var called atomic.Int32
	var end End
	var addErr error
	var out Outcome[int]
	note := func(out Outcome[int]) { end = out.End; called.Add(1) }
	collide(rounds(100_000), func() {
		w = NewWatermarkList[int](0, Options{Timeout: time.Hour})
		called.Store(0)
	}, func() {
		<-w.Done()
		switch {
		case addErr == nil:
			require.EqualValues(t, 1, called.Load())
			require.Equal(t, EndClosed, end)
		default:
			require.ErrorIs(t, addErr, ErrClosed)
			require.Zero(t, called.Load())
		}
		require.ErrorIs(t, out.Err, ErrClosed)
		require.Equal(t, out.End == 0, errors.Is(out.Err, ErrNotParked))
		require.Zero(t, w.Len())
	},
		func() { addErr = w.Add(1, note) },
		func() { out, _ = w.Wait(context.Background(), 1) },
		func() { _ = w.Close() },
	)
}

func TestWatermarkDone_WaitsForCallbacksInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatermarkList[int](0, Options{})
		gate := make(chan struct{})
		var outs outcomes[int]
		wmPark(t, w, func(out Outcome[int]) { <-gate; outs.note(out) }, 1, 2, 3)
		go w.Advance(3)
		synctest.Wait()
		require.NoError(t, w.Shutdown(t.Context()), "nothing is parked, and it waits for nobody's callback")
		for range 3 {
			select {
			case <-w.Done():
				t.Error("done too early")
			default:
			}
			gate <- struct{}{}
		}
		<-w.Done()
		require.Equal(t, []int{1, 2, 3}, outs.keys())
		wmAudit(t, w)
	})
}
