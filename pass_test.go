package waitlist

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// passes are the calls that end several entries. Each ends all that are parked under
// the keys 0 to n-1, which have had an ack from 1.
var passes = map[string]func(l *WaitingList[int], clock *FakeClock, s *Session, n int) int{
	"FailAll": func(l *WaitingList[int], _ *FakeClock, _ *Session, _ int) int { return l.FailAll(errTest) },
	"PeerDown": func(l *WaitingList[int], _ *FakeClock, _ *Session, _ int) int {
		return l.PeerDown(3, errTest) + l.PeerDown(2, errTest)
	},
	"FailFunc": func(l *WaitingList[int], _ *FakeClock, _ *Session, n int) int {
		return l.FailFunc(func(key int) bool { return key < n }, errTest)
	},
	"AckBatch": func(l *WaitingList[int], _ *FakeClock, _ *Session, n int) int {
		keys := make([]int, n)
		for i := range keys {
			keys[i] = i
		}
		return l.AckBatch(keys, 2)
	},
	"sweep": func(_ *WaitingList[int], clock *FakeClock, _ *Session, n int) int { clock.Advance(time.Hour); return n },
	"End":   func(_ *WaitingList[int], _ *FakeClock, s *Session, _ int) int { return s.End(errTest) },
	"Close": func(l *WaitingList[int], _ *FakeClock, _ *Session, n int) int { _ = l.Close(); return n },
}

// The callbacks end the next entry, by every means, and add new ones.
func TestMutationWhileIterating_NoneSkippedNoneTwiceNoNewOnes(t *testing.T) {
	const n = 300
	for name, run := range passes {
		t.Run(name, func(t *testing.T) {
			clock := NewFakeClock(fakeStart)
			l, s := New[int](Options{Clock: clock}), new(Session)
			ended := map[int]int{}
			for i := range n {
				require.NoError(t, l.Add(i, ofThree, func(out Outcome[int]) {
					ended[out.Key]++
					next := (out.Key + 1) % n
					require.Equal(t, AckUnknown, l.Ack(next, 2), "all are claimed before one is called")
					require.False(t, l.Fail(next, nil))
					require.Zero(t, l.AckBatch([]int{next, out.Key}, 3))
					if name != "Close" {
						require.NoError(t, l.Add(n+out.Key, ofThree, func(Outcome[int]) { t.Error("a new one was touched") }))
					}
				}, InSession(s), Timeout(time.Hour)))
				l.Ack(i, 1)
			}
			require.Equal(t, n, run(l, clock, s, n))
			require.Len(t, ended, n)
			for key, times := range ended {
				require.Equal(t, 1, times, "key %d", key)
			}
			if name == "Close" {
				return
			}
			require.Equal(t, n, l.Len())
			audit(t, l)
		})
	}
}

// outcomeOf runs f on a goroutine of its own and tells how it ended.
func outcomeOf(f func()) (how fate, value any) {
	done := make(chan struct{})
	go func() {
		how = exits
		defer close(done)
		defer func() {
			if value = recover(); value != nil {
				how = panics
			}
		}()
		f()
		how = returns
	}()
	<-done
	return how, value
}

// Callbacks that return, panic and exit, in random orders, in every kind of pass,
// inline and by executors.
func TestPanic_HarmsNoOtherCallback(t *testing.T) {
	executors := map[string]func(run func()){
		"inline":         nil,
		"same goroutine": func(run func()) { run() },
		"run twice":      func(run func()) { defer run(); run() },
		"goroutine that recovers": func(run func()) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				run()
			}()
			<-done
		},
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 1))
	for name, run := range passes {
		for how, executor := range executors {
			for try := range 40 {
				fates := make([]fate, 12)
				for i := range fates {
					fates[i] = fate(dice.IntN(3))
					if try%4 == 0 && fates[i] == exits || try%4 == 1 && fates[i] == panics {
						fates[i] = returns
					}
				}
				for _, reported := range []bool{true, false} {
					var told []any
					opts := Options{Executor: executor}
					if reported {
						opts.OnPanic = func(key, value any, stack []byte) {
							require.Equal(t, key, value)
							require.Contains(t, string(stack), "pass_test.go", "where it began")
							told = append(told, value)
						}
					}
					testPass(t, opts, fates, run, name+"/"+how, how == "goroutine that recovers", reported)
					if reported {
						require.Len(t, told, count(fates, panics), "each is reported once")
					}
				}
			}
		}
	}
}

func count(fates []fate, f fate) (n int) {
	for _, x := range fates {
		if x == f {
			n++
		}
	}
	return n
}

func testPass(t *testing.T, opts Options, fates []fate, run func(*WaitingList[int], *FakeClock, *Session, int) int, name string, elsewhere, reported bool) {
	t.Helper()
	clock := NewFakeClock(fakeStart)
	opts.Clock = clock
	l, s := New[int](opts), new(Session)
	called := make([]int, len(fates))
	var first any
	for i, f := range fates {
		require.NoError(t, l.Add(i, ofThree, func(out Outcome[int]) {
			called[out.Key]++
			switch f {
			case panics:
				if first == nil {
					first = out.Key
				}
				panic(out.Key)
			case exits:
				runtime.Goexit()
			}
		}, InSession(s), Timeout(time.Hour)))
		l.Ack(i, 1)
	}

	how, value := outcomeOf(func() { run(l, clock, s, len(fates)) })

	for key, n := range called {
		require.Equal(t, 1, n, "%s: callback %d of %v", name, key, fates)
	}
	switch {
	case elsewhere:
		require.Equal(t, returns, how, name)
	case !reported && count(fates, panics) > 0:
		require.Equal(t, panics, how, "%s: %v", name, fates)
		require.Equal(t, first, value, "%s: the first goes on with its own value", name)
	case count(fates, exits) > 0:
		require.Equal(t, exits, how, "%s: %v", name, fates)
	default:
		require.Equal(t, returns, how, "%s: %v", name, fates)
	}
	st := l.Stats()
	require.EqualValues(t, count(fates, panics), st.CallbackPanics, "%s: %v", name, fates)
	require.Zero(t, st.Running, name)
	if !strings.HasPrefix(name, "Close") {
		require.NoError(t, l.Add(1, Majority(1), ignore), "the list is sound")
		require.Equal(t, AckDecided, l.Ack(1, 1))
	}
	audit(t, l)
	require.NoError(t, l.Close())
	require.True(t, isClosed(l.Done()), name)
	require.Zero(t, clock.Armed())
}

func TestPanic_OfASingleCallback(t *testing.T) {
	for name, executor := range map[string]func(func()){"inline": nil, "executor": func(run func()) { run() }} {
		for _, ending := range endings {
			s := newStage(Options{Executor: executor})
			s.park(t, "k", func(Outcome[string]) { panic(errTest) })
			how, value := outcomeOf(func() { ending.run(s, "k") })
			require.Equal(t, panics, how, ending.name)
			require.Equal(t, errTest, value)
			require.EqualValues(t, 1, s.Stats().CallbackPanics, "%s, %s", name, ending.name)
			require.NoError(t, s.Close())
			require.True(t, isClosed(s.Done()), ending.name)
		}
	}
}

func TestPanic_FirstOfTenDueAndTheSweeperLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports, called atomic.Int32
		l := New[int](Options{OnPanic: func(any, any, []byte) { reports.Add(1) }})
		for i := range 20 {
			require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) {
				if called.Add(1) == 1 {
					panic("first")
				}
			}, Timeout(time.Second*time.Duration(1+i/10))))
		}
		time.Sleep(1500 * time.Millisecond)
		require.EqualValues(t, 10, called.Load())
		time.Sleep(time.Second)
		require.EqualValues(t, 20, called.Load())
		require.EqualValues(t, 1, reports.Load())
		require.NoError(t, l.Close())
		<-l.Done()
	})
}

// t.FailNow and the like exit the goroutine of the sweeper's timer.
func TestGoexit_OnTheSweepersTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var called atomic.Int32
		l := New[int](Options{})
		for i := range 20 {
			require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) { called.Add(1); runtime.Goexit() },
				Timeout(time.Second*time.Duration(1+i/10))))
		}
		time.Sleep(3 * time.Second)
		require.EqualValues(t, 20, called.Load())
		require.Zero(t, l.Stats().CallbackPanics)
		require.NoError(t, l.Close())
		<-l.Done()
	})
}

func TestOnPanic_MayCallAnything(t *testing.T) {
	var l *WaitingList[int]
	told := 0
	l = New[int](Options{OnPanic: func(any, any, []byte) {
		told++
		require.NoError(t, l.Add(1, ofThree, ignore))
		require.True(t, l.Complete(1, nil))
		require.Equal(t, 1, l.FailAll(nil))
		require.NoError(t, l.Close())
		require.False(t, isClosed(l.Done()), "it belongs to the callback")
	}})
	require.NoError(t, l.Add(1, Majority(1), func(Outcome[int]) { panic(1) }))
	require.NoError(t, l.Add(2, Majority(1), ignore))
	require.Equal(t, AckDecided, l.Ack(1, 1))
	require.Equal(t, 1, told)
	require.True(t, isClosed(l.Done()))
}

func TestExecutor_ThatUnwindsLosesNothing(t *testing.T) {
	for name, leave := range map[string]func(){"panics": func() { panic("executor") }, "exits": runtime.Goexit} {
		for _, before := range []bool{true, false} {
			var told int
			called := 0
			l := New[int](Options{
				Executor: func(run func()) {
					if before {
						run()
					}
					leave()
				},
				OnPanic: func(any, any, []byte) { told++ },
			})
			for i := range 3 {
				require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) { called++ }))
			}
			how, _ := outcomeOf(func() { l.FailAll(nil) })
			require.Equal(t, 3, called, name)
			if name == "panics" {
				require.Equal(t, returns, how)
				require.Equal(t, 3, told)
			} else {
				require.Equal(t, exits, how)
			}
			require.NoError(t, l.Close())
			require.True(t, isClosed(l.Done()))
		}
	}
}

func TestExecutor_GetsOneRunPerCallbackWithNoLockHeld(t *testing.T) {
	for _, ending := range endings {
		var queue []func()
		s := newStage(Options{})
		s.executor = func(run func()) {
			s.Len()
			s.Ack("k", 1)
			queue = append(queue, run)
		}
		var outs outcomes[string]
		s.park(t, "k", outs.note)
		ending.run(s, "k")
		require.Empty(t, outs.take(), ending.name)
		require.Len(t, queue, 1)
		require.Equal(t, 1, s.Stats().Running)
		for range 3 {
			queue[0]()
		}
		require.Equal(t, ending.end, outs.one(t).End)
		require.Zero(t, s.Stats().Running)
	}
}

func TestExecutor_OnOneGoroutineKeepsTheOrderOfCalls(t *testing.T) {
	var wg sync.WaitGroup
	runs := make(chan func(), 100)
	wg.Go(func() {
		for run := range runs {
			run()
		}
	})
	var outs outcomes[int]
	l := New[int](Options{Executor: func(run func()) { runs <- run }})
	var want []int
	for i := range 100 {
		require.NoError(t, l.Add(i, Majority(1), outs.note))
	}
	for _, key := range rand.Perm(100) {
		want = append(want, key)
		l.Ack(key, 1)
	}
	require.NoError(t, l.Close())
	<-l.Done()
	close(runs)
	wg.Wait()
	require.Equal(t, want, outs.keys())
}
