package waitlist

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWatermarkOrder_ByIndexThenByRegistration(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, shuffled := range []int{0, 1, 10, 1000} { // how many are out of order
		for range 3 {
			w := NewWatermarkList[int](0, wmManual)
			var got [][2]int
			parked := make([][2]int, 1000) // index and number of registration
			for i := range parked {
				parked[i][0] = 1 + i/3
			}
			for range shuffled {
				i, j := rng.IntN(len(parked)), rng.IntN(len(parked))
				parked[i], parked[j] = parked[j], parked[i]
			}
			for i := range parked {
				parked[i][1] = i
				wmPark(t, w, func(Outcome[int]) { got = append(got, parked[i]) }, parked[i][0])
			}
			want := slices.Clone(parked)
			slices.SortFunc(want, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
			got = make([][2]int, 0, len(parked))
			for mark, n := 0, 0; n < len(parked); mark += rng.IntN(40) {
				n += w.Advance(mark)
				require.Equal(t, want[:n], got)
			}
			wmAudit(t, w)
		}
	}
}

func TestWatermarkOrder_KeptWhenEntriesLeaveFromTheMiddle(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		w := NewWatermarkList[int](0, Options{ManualSweep: true})
		var session Session
		var got, want outcomes[int]
		var left int
		for i := range 300 {
			index := 1 + rng.IntN(60)
			var opts []AddOption
			done := func(out Outcome[int]) { assert.Equal(t, EndSession, out.End); left++ }
			if rng.IntN(3) > 0 {
				done = func(out Outcome[int]) { out.Value = i; got.note(out) }
				want.note(Outcome[int]{Key: index, Value: i})
			} else {
				opts = append(opts, InSession(&session))
			}
			require.NoError(t, w.Add(index, done, opts...))
		}
		require.Equal(t, session.Len(), session.End(nil))
		slices.SortStableFunc(want.list, func(a, b Outcome[int]) int { return a.Key - b.Key })
		for mark := range 61 {
			w.Advance(mark)
		}
		require.Equal(t, 300, left+len(got.list))
		for i, out := range got.list {
			require.Equal(t, want.list[i].Key, out.Key)
			require.Equal(t, want.list[i].Value, out.Value)
		}
	}
}

func TestWatermarkOrder_LateEntryCompletesInsideItsAdd(t *testing.T) {
	w := NewWatermarkList[int](2, wmManual)
	var log []string
	late := func(Outcome[int]) { log = append(log, "late") }
	wmPark(t, w, func(Outcome[int]) {
		log = append(log, "3")
		assert.Equal(t, 5, w.Watermark())
		assert.Zero(t, w.Len(), "all were claimed before the first is called")
		wmPark(t, w, late, 5)
		log = append(log, "added")
		assert.Zero(t, w.Advance(5))
		wmPark(t, w, func(Outcome[int]) { log = append(log, "6") }, 6)
		assert.Equal(t, 1, w.Advance(7), "claimed by this call, called by the one that drains")
		log = append(log, "3 ends")
	}, 3)
	wmPark(t, w, func(Outcome[int]) { log = append(log, "4") }, 4)
	wmPark(t, w, func(Outcome[int]) { log = append(log, "5") }, 5)
	assert.Equal(t, 3, w.Advance(5))
	assert.Equal(t, []string{"3", "late", "added", "3 ends", "4", "5", "6"}, log)
	wmAudit(t, w)
}

func TestWatermarkOrder_AcrossConcurrentAndReentrantMovers(t *testing.T) {
	const last = 3000
	rng := rand.New(rand.NewPCG(7, 8))
	for range rounds(60) {
		w := NewWatermarkList[int](0, wmManual)
		wmQuorum(t, w, All(1, 2))
		indexes := make([]int, last+last/2)
		for i := range indexes {
			indexes[i] = 1 + i%last
		}
		rng.Shuffle(len(indexes), func(i, j int) { indexes[i], indexes[j] = indexes[j], indexes[i] })

		var running, completed atomic.Int64
		var got [][2]int // guarded by the promise that callbacks run one after the other
		for i, index := range indexes {
			wmPark(t, w, func(out Outcome[int]) {
				assert.Equal(t, EndReached, out.End)
				assert.EqualValues(t, 1, running.Add(1), "two callbacks at once")
				got = append(got, [2]int{index, i})
				if index%7 == 0 {
					completed.Add(int64(w.Advance(index + 3)))
				}
				running.Add(-1)
			}, index)
		}
		var wg sync.WaitGroup
		var next atomic.Int64
		for range 2 {
			wg.Go(func() {
				for to := next.Add(5); to < last+5; to = next.Add(5) {
					completed.Add(int64(w.Advance(int(to))))
				}
			})
		}
		for peer := PeerID(1); peer <= 2; peer++ {
			wg.Go(func() {
				for to := 0; to < last; to += 3 {
					w.Ack(to, peer)
				}
			})
		}
		wg.Go(func() {
			for i := range 200 {
				n, err := w.SetQuorum([]Quorum{All(1, 2), AtLeast(1, 1, 2)}[i%2])
				assert.NoError(t, err)
				completed.Add(int64(n))
			}
		})
		wg.Wait()
		w.Advance(last)
		require.Len(t, got, len(indexes), "everything has been called when the last mover is back")
		require.True(t, slices.IsSortedFunc(got, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }), "out of order")
		require.LessOrEqual(t, completed.Load(), int64(len(indexes)))
		wmAudit(t, w)
	}
}

func TestWatermarkOrder_EachCompletionIsCountedByTheMoverThatClaimedIt(t *testing.T) {
	w := NewWatermarkList[int](0, wmManual)
	const each = 20_000
	var called, counted atomic.Int64
	var add, move sync.WaitGroup
	for g := range 2 {
		add.Go(func() {
			for i := range each {
				_ = w.Add(2*i+g, func(Outcome[int]) { called.Add(1) }, Timeout(time.Hour))
			}
		})
	}
	var added atomic.Bool
	for range 2 {
		move.Go(func() {
			for to := 0; !added.Load() || to < 2*each; to = min(to+1, 2*each) {
				counted.Add(int64(w.Advance(to)))
			}
		})
	}
	add.Wait()
	added.Store(true)
	move.Wait()
	assert.EqualValues(t, 2*each, called.Load())
	assert.LessOrEqual(t, counted.Load(), called.Load())
	st := w.Stats()
	assert.EqualValues(t, 2*each, st.Reached)
	wmAudit(t, w)

	counted.Store(0) // with all of them parked before, the counts are exact
	for i := range each {
		wmPark(t, w, ignore, 2*each+1+i)
	}
	for g := range 2 {
		move.Go(func() {
			for to := 2 * each; to <= 3*each; to += 1 + g {
				counted.Add(int64(w.Advance(to)))
			}
		})
	}
	move.Wait()
	assert.EqualValues(t, each, counted.Load())
}

// wmDepth is how many frames the goroutine has on its stack, up to 200.
func wmDepth() int {
	var frames [200]uintptr
	return runtime.Callers(0, frames[:])
}

func TestWatermarkReentrancy_ChainOfMoversDoesNotGrowTheStack(t *testing.T) {
	links := 100_000
	if underRace() {
		links /= 5
	}
	movers := []func(w *WatermarkList[int], to int) int{
		func(w *WatermarkList[int], to int) int { return w.Advance(to) },
		func(w *WatermarkList[int], to int) int {
			if w.Ack(to, 1) == AckDecided {
				return 1
			}
			return 0
		},
		func(w *WatermarkList[int], to int) int {
			_, _ = w.SetQuorum(All(1, 2))
			w.Ack(to, 1)
			n, _ := w.SetQuorum(All(1))
			return n
		},
	}
	for i, mover := range movers {
		w := NewWatermarkList[int](0, Options{ManualSweep: true})
		wmQuorum(t, w, All(1))
		depths := map[int]int{}
		calls := 0
		var link func(out Outcome[int])
		link = func(out Outcome[int]) {
			calls++
			if out.Key%500 == 2 {
				depths[wmDepth()]++
			}
			if out.Key == links {
				return
			}
			if err := w.Add(out.Key+1, link); err != nil {
				t.Error(err)
			}
			before := calls
			if n := mover(w, out.Key+1); n != 1 || calls != before {
				t.Errorf("the mover returned %d and called %d at link %d", n, calls-before, out.Key)
			}
		}
		wmPark(t, w, link, 1)
		mover(w, 1)
		require.Equal(t, links, calls, "mover %d", i)
		require.Len(t, depths, 1, "frames and how often: %v", depths)
	}
}

func TestWatermarkReentrancy_TwoListsThatMoveEachOther(t *testing.T) {
	a, b := NewWatermarkList[int](0, wmManual), NewWatermarkList[int32](0, wmManual)
	calls := 0
	for i := range 1000 {
		wmPark(t, a, func(out Outcome[int]) { calls++; b.Advance(int32(out.Key)) }, i+1)
		wmPark(t, b, func(out Outcome[int32]) { calls++; a.Advance(int(out.Key) + 1) }, int32(i+1))
	}
	a.Advance(1)
	assert.Equal(t, 2000, calls)

	// Two goroutines, A's callback moves B while B's moves A.
	for range rounds(2000) {
		a, b := NewWatermarkList[int](0, wmManual), NewWatermarkList[int](0, wmManual)
		var called atomic.Int32
		wmPark(t, a, func(Outcome[int]) { called.Add(1); b.Advance(2) }, 1, 2)
		wmPark(t, b, func(Outcome[int]) { called.Add(1); a.Advance(2) }, 1, 2)
		var wg sync.WaitGroup
		wg.Go(func() { a.Advance(1) })
		wg.Go(func() { b.Advance(1) })
		wg.Wait()
		require.EqualValues(t, 4, called.Load())
	}
}

func TestWatermarkBlockedCallback_HoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatermarkList[int](10, Options{Timeout: time.Hour})
		wmQuorum(t, w, All(1))
		gate := make(chan struct{})
		var outs, waits outcomes[int]
		var session Session
		wmPark(t, w, func(out Outcome[int]) { <-gate; outs.note(out) }, 11)
		wmPark(t, w, outs.note, 12, 13)
		require.NoError(t, w.Add(50, outs.note, InSession(&session)))
		require.NoError(t, w.Add(51, outs.note, Timeout(time.Second)))
		for _, index := range []int{11, 13, 14, 60, 70} {
			go func() {
				out, _ := w.Wait(t.Context(), index)
				waits.note(out)
			}()
		}
		synctest.Wait()
		var drained bool
		go func() {
			assert.Equal(t, 2, w.Advance(11), "the entry and the Wait")
			drained = true
		}()
		synctest.Wait()
		assert.Equal(t, []int{11}, waits.keys(), "a Wait does not wait for a callback")
		assert.Equal(t, 1, w.Stats().Running)

		// On this goroutine: nothing blocks, completions only queue up.
		assert.Equal(t, AckDecided, w.Ack(12, 1))
		assert.Equal(t, 2, w.Advance(13), "the entry and the Wait")
		synctest.Wait()
		assert.Equal(t, []int{11, 13}, waits.keys())
		assert.Empty(t, outs.keys(), "completions keep their order")
		wmPark(t, w, outs.note, 13)
		assert.Equal(t, []int{13}, outs.keys(), "but what is reached completes inside its Add")
		assert.Equal(t, 1, session.End(nil))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Equal(t, []int{13, 50, 51}, outs.keys(), "and other ends have no order relative to them")
		n, err := w.Truncate(70, nil)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		assert.Equal(t, 3, w.Stats().Running, "one runs, two are in the queue")
		go func() { _ = w.Shutdown(t.Context()) }()
		synctest.Wait()
		assert.Equal(t, 1, w.Advance(14))
		assert.Equal(t, 1, w.FailAll(errTest))
		require.NoError(t, w.Close())
		synctest.Wait()
		assert.Equal(t, []int{11, 13, 14, 60, 70}, slices.Sorted(slices.Values(waits.keys())))
		select {
		case <-w.Done():
			t.Error("Done, but a callback is running")
		default:
		}
		assert.False(t, drained)

		outs.take()
		close(gate)
		<-w.Done()
		synctest.Wait()
		assert.True(t, drained)
		assert.Equal(t, []int{11, 12, 13}, outs.keys())
		wmAudit(t, w)
	})
}

func TestWatermarkCallersOwnLock_DeadlockFreeWithExecutor(t *testing.T) {
	for _, move := range []func(w *WatermarkList[int]){
		func(w *WatermarkList[int]) { w.Advance(1) },
		func(w *WatermarkList[int]) { w.Ack(1, 1) },
		func(w *WatermarkList[int]) { w.FailAll(nil) },
		func(w *WatermarkList[int]) { _ = w.Close() },
		func(w *WatermarkList[int]) { _ = w.Add(0, func(Outcome[int]) {}) },
	} {
		var mu sync.RWMutex
		var wg sync.WaitGroup
		w := NewWatermarkList[int](0, Options{Executor: func(run func()) { wg.Go(run) }})
		wmQuorum(t, w, All(1))
		wmPark(t, w, func(Outcome[int]) { mu.RLock(); defer mu.RUnlock() }, 1)
		mu.RLock()
		wg.Go(func() { mu.Lock(); defer mu.Unlock() })
		for mu.TryRLock() { // until the writer waits
			mu.RUnlock()
			runtime.Gosched()
		}
		move(w)
		mu.RUnlock()
		w.Advance(1)
		wg.Wait()
		wmAudit(t, w)
	}
}

func TestWatermarkExecutor_GetsOneRunPerCallbackInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *WatermarkList[int]
		var runs []func()
		w = NewWatermarkList[int](0, Options{Executor: func(run func()) {
			w.Watermark() // no lock is held
			runs = append(runs, run)
		}, Capacity: 4})
		var outs outcomes[int]
		wmPark(t, w, outs.note, 0)
		require.Len(t, runs, 1, "handed over before Add returns")
		wmPark(t, w, outs.note, 3, 1, 2)
		go func() {
			out, err := w.Wait(t.Context(), 3)
			assert.NoError(t, err)
			assert.Equal(t, 3, out.Key)
		}()
		synctest.Wait()
		require.ErrorIs(t, w.Add(9, outs.note), ErrFull)
		assert.Equal(t, 4, w.Advance(5))
		synctest.Wait()
		require.Len(t, runs, 4, "the Wait needs no executor")
		assert.Empty(t, outs.keys())
		assert.Equal(t, 4, w.Stats().Running)
		out, err := w.Wait(t.Context(), 1)
		require.NoError(t, err)
		assert.Equal(t, EndReached, out.End)
		require.Len(t, runs, 4, "nor does one that is reached already")
		wmPark(t, w, ignore, 9, 9, 9, 9)
		w.FailAll(nil)
		require.NoError(t, w.Close())
		require.Len(t, runs, 8)
		for _, run := range runs {
			select {
			case <-w.Done():
				t.Error("Done, but not all is called")
			default:
			}
			run()
			run() // does nothing
		}
		<-w.Done()
		assert.Equal(t, []int{0, 1, 2, 3}, outs.keys())
		wmAudit(t, w)
	})
}

func TestWatermarkExecutor_ThatPanicsOrExitsLosesNoCallback(t *testing.T) {
	for name, unwind := range map[string]func(){"panic": func() { panic("executor") }, "Goexit": runtime.Goexit} {
		for _, before := range []bool{true, false} {
			w := NewWatermarkList[int](0, Options{Executor: func(run func()) {
				if !before {
					run()
				}
				unwind()
			}})
			var outs outcomes[int]
			wmPark(t, w, outs.note, 2, 1, 3)
			value := wmUnwound(func() { w.Advance(3) })
			if name == "panic" {
				require.Equal(t, "executor", value)
			} else {
				require.Equal(t, errWmExited, value)
			}
			require.Equal(t, []int{1, 2, 3}, outs.keys())
			wmAudit(t, w)
		}
	}
}

var errWmExited = errors.New("the goroutine has exited")

// wmUnwound runs f on a goroutine of its own and tells with what it panicked, or
// that it exited; nil if it returned.
func wmUnwound(f func()) (value any) {
	back := make(chan any, 1)
	go func() {
		returned := false
		defer func() {
			value := recover()
			if value == nil && !returned {
				value = errWmExited
			}
			back <- value
		}()
		f()
		returned = true
	}()
	return <-back
}

func wmOver() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
