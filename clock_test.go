package waitlist

import (
	"fmt"
	"math"
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

var fakeStart = time.Date(2024, 2, 29, 23, 59, 59, 0, time.UTC)

// checkInvariants fails the test if what the comments of FakeClock promise does
// not hold.
func (c *FakeClock) checkInvariants(t testing.TB) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.True(t, c.moving || c.now.Equal(c.target), "at rest, but not at the target")
	require.False(t, c.now.After(c.target), "past the target")
	for i, timer := range c.waiting {
		require.True(t, timer.armed, "waiting, but not armed")
		require.False(t, timer.due.Before(c.now), "overdue")
		require.True(t, i == 0 || c.waiting[i-1].compare(timer) < 0, "out of order")
	}
}

// clockLog notes which timer fired and when.
type clockLog struct {
	clock *FakeClock
	lines []string
}

func (l *clockLog) note(name string) func() {
	return func() {
		l.lines = append(l.lines, fmt.Sprint(name, "@", l.clock.Now().Sub(fakeStart)))
	}
}

func newClockLog() (*FakeClock, *clockLog) {
	clock := NewFakeClock(fakeStart)
	return clock, &clockLog{clock: clock}
}

func TestFakeClockFiresAtDueTimesAndInOrderOfArming(t *testing.T) {
	clock, log := newClockLog()
	first := clock.AfterFunc(2*time.Second, log.note("was first"))
	clock.AfterFunc(3*time.Second, log.note("late"))
	clock.AfterFunc(2*time.Second, log.note("second"))
	clock.AfterFunc(time.Second, log.note("early"))
	clock.AfterFunc(4*time.Second, log.note("not due"))
	assert.True(t, first.Reset(2*time.Second)) // and goes to the end of its queue
	clock.checkInvariants(t)

	clock.Advance(time.Second - 1)
	assert.Empty(t, log.lines)
	clock.Advance(3 * time.Second)
	assert.Equal(t, []string{"early@1s", "second@2s", "was first@2s", "late@3s"}, log.lines)
	assert.Equal(t, fakeStart.Add(4*time.Second-1), clock.Now())
	assert.Equal(t, 1, clock.Armed())
	clock.checkInvariants(t)
}

func TestFakeClockFiresAtTheDueTimeAndNotAfterIt(t *testing.T) {
	clock, log := newClockLog()
	clock.AfterFunc(time.Second, log.note("timer"))
	clock.Advance(time.Second - 1)
	assert.Empty(t, log.lines)
	clock.Advance(1)
	assert.Equal(t, []string{"timer@1s"}, log.lines)
	clock.Advance(time.Hour)
	assert.Len(t, log.lines, 1, "a timer fires once")
}

func TestFakeClockRunsWhatIsArmedMeanwhile(t *testing.T) {
	clock, log := newClockLog()
	var again Timer
	left := 3
	again = clock.AfterFunc(time.Second, func() {
		log.note("again")()
		clock.AfterFunc(0, log.note("at once"))
		clock.AfterFunc(-time.Hour, log.note("also at once"))
		clock.AfterFunc(500*time.Millisecond, log.note("between"))
		if left--; left > 0 {
			assert.False(t, again.Reset(time.Second), "it fired, so it does not wait")
		}
	})
	clock.Advance(3 * time.Second)
	assert.Equal(t, []string{
		"again@1s", "at once@1s", "also at once@1s", "between@1.5s",
		"again@2s", "at once@2s", "also at once@2s", "between@2.5s",
		"again@3s", "at once@3s", "also at once@3s",
	}, log.lines)
	assert.Equal(t, 1, clock.Armed(), "the last one between is beyond the target")
}

func TestFakeClockDoesNotCallBeforeAfterFuncOrResetReturns(t *testing.T) {
	clock, log := newClockLog()
	timer := clock.AfterFunc(0, log.note("zero"))
	clock.AfterFunc(-time.Second, log.note("negative"))
	timer.Reset(-time.Second)
	assert.Empty(t, log.lines)
	assert.Equal(t, 2, clock.Armed())

	clock.Advance(0)
	assert.Equal(t, []string{"negative@0s", "zero@0s"}, log.lines)
	clock.Advance(0)
	assert.Len(t, log.lines, 2)

	clock.AfterFunc(time.Second, func() {
		inside := clock.AfterFunc(0, log.note("inside"))
		before := len(log.lines)
		inside.Reset(0)
		clock.Advance(0)
		assert.Len(t, log.lines, before)
	})
	clock.Advance(time.Second)
	assert.Equal(t, "inside@1s", log.lines[len(log.lines)-1])
}

func TestFakeClockHoldsNoLockWhileATimerRuns(t *testing.T) {
	clock, log := newClockLog()
	other := clock.AfterFunc(time.Hour, log.note("never"))
	clock.AfterFunc(time.Second, func() {
		assert.Equal(t, fakeStart.Add(time.Second), clock.Now())
		assert.Equal(t, 1, clock.Armed())
		assert.True(t, other.Reset(time.Minute))
		assert.True(t, other.Stop())
		clock.AfterFunc(time.Second, log.note("new"))
		clock.checkInvariants(t)
	})
	clock.Advance(2 * time.Second)
	assert.Equal(t, []string{"new@2s"}, log.lines)
}

func TestFakeClockAdvanceFromATimerOnlyMovesTheTarget(t *testing.T) {
	clock, log := newClockLog()
	clock.AfterFunc(time.Second, func() {
		clock.Advance(10 * time.Second)
		assert.Empty(t, log.lines, "the outer Advance runs what is due")
		assert.Equal(t, fakeStart.Add(time.Second), clock.Now(), "now is the due time")
	})
	clock.AfterFunc(11*time.Second, log.note("due by the moved target"))
	clock.AfterFunc(13*time.Second, log.note("not due"))
	clock.Advance(2 * time.Second)
	assert.Equal(t, []string{"due by the moved target@11s"}, log.lines)
	assert.Equal(t, fakeStart.Add(12*time.Second), clock.Now(), "both are added")
}

func TestFakeClockAdvanceFromAnotherGoroutineDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, log := newClockLog()
		entered, leave, done := make(chan bool), make(chan bool), make(chan bool)
		clock.AfterFunc(time.Second, func() { close(entered); <-leave })
		clock.AfterFunc(3*time.Second, log.note("second"))
		go func() { clock.Advance(2 * time.Second); close(done) }()
		<-entered

		clock.Advance(time.Second) // would end the bubble in a deadlock if it waited
		assert.Equal(t, fakeStart.Add(time.Second), clock.Now())
		close(leave)
		<-done
		assert.Equal(t, []string{"second@3s"}, log.lines)
		assert.Equal(t, fakeStart.Add(3*time.Second), clock.Now())
	})
}

func TestFakeClockRefusesToGoBack(t *testing.T) {
	clock, log := newClockLog()
	clock.AfterFunc(time.Second, log.note("timer"))
	assert.PanicsWithValue(t, "waitlist: FakeClock.Advance: negative duration -1ns", func() { clock.Advance(-1) })
	assert.Equal(t, fakeStart, clock.Now())
	clock.Advance(time.Second)
	assert.Len(t, log.lines, 1)

	clock.AfterFunc(time.Second, func() { clock.Advance(-time.Second) })
	clock.AfterFunc(2*time.Second, log.note("later"))
	assert.Panics(t, func() { clock.Advance(2 * time.Second) }, "the timer's panic goes on")
	assert.Equal(t, []string{"timer@1s", "later@3s"}, log.lines)
}

// advanceFate is how a call of Advance ended.
type advanceFate struct {
	value  any // of its panic
	exited bool
}

// advanceOutcome advances on a goroutine of its own.
func advanceOutcome(clock *FakeClock, d time.Duration) (fate advanceFate) {
	done := make(chan bool)
	go func() {
		defer close(done)
		fate.exited = true
		func() {
			defer func() { fate.value = recover() }()
			clock.Advance(d)
		}()
		fate.exited = false // not reached by a goroutine that exits
	}()
	<-done
	return fate
}

func TestFakeClockRunsTheRestAfterAPanicOrExit(t *testing.T) {
	const (
		panics = 'p' // with the number of the timer
		exits  = 'x'
	)
	for _, test := range []struct {
		timers string
		want   advanceFate
	}{
		{"ccc", advanceFate{}},
		{"pcc", advanceFate{value: 0}},
		{"cpc", advanceFate{value: 1}},
		{"ccp", advanceFate{value: 2}},
		{"cpcpp", advanceFate{value: 1}},
		{"xcc", advanceFate{exited: true}},
		{"ccx", advanceFate{exited: true}},
		{"xxcxx", advanceFate{exited: true}},
		{"cpcxc", advanceFate{value: 1, exited: true}},
		{"cxcpc", advanceFate{value: 3, exited: true}},
		{"xpxpxpc", advanceFate{value: 1, exited: true}},
		{"ppxxpp", advanceFate{value: 0, exited: true}},
	} {
		t.Run("timers="+test.timers, func(t *testing.T) {
			clock, log := newClockLog()
			var want []string
			for i, kind := range test.timers {
				due := time.Duration(i) * time.Second
				name := fmt.Sprint(i)
				want = append(want, fmt.Sprint(name, "@", due))
				clock.AfterFunc(due, func() {
					log.note(name)()
					switch kind {
					case panics:
						panic(i)
					case exits:
						runtime.Goexit()
					}
				})
			}
			assert.Equal(t, test.want, advanceOutcome(clock, time.Minute))
			assert.Equal(t, want, log.lines)
			assert.Equal(t, fakeStart.Add(time.Minute), clock.Now(), "it arrives before the panic goes on")
			clock.checkInvariants(t)

			clock.AfterFunc(time.Second, log.note("next"))
			assert.Equal(t, advanceFate{}, advanceOutcome(clock, time.Second), "the clock still works")
			assert.Equal(t, "next@1m1s", log.lines[len(log.lines)-1])
		})
	}
}

func TestFakeClockRunsWhatAPanickingTimerArmed(t *testing.T) {
	clock, log := newClockLog()
	clock.AfterFunc(time.Second, func() {
		clock.AfterFunc(0, log.note("armed"))
		clock.Advance(time.Second)
		panic("later")
	})
	assert.PanicsWithValue(t, "later", func() { clock.Advance(time.Second) })
	assert.Equal(t, []string{"armed@1s"}, log.lines)
	assert.Equal(t, fakeStart.Add(2*time.Second), clock.Now())
}

func TestFakeClockStackDoesNotGrowWithPanics(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	var depths []int
	frames := make([]uintptr, 4096)
	for range 1000 {
		clock.AfterFunc(time.Second, func() {
			depths = append(depths, runtime.Callers(0, frames))
			panic("again")
		})
	}
	assert.Panics(t, func() { clock.Advance(time.Second) })
	require.Len(t, depths, 1000)
	assert.Equal(t, depths[1], depths[999])
}

func TestFakeClockStackGrowsByOneLevelPerExit(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	var depths []int
	frames := make([]uintptr, 4096)
	for i := range 300 {
		clock.AfterFunc(time.Second, func() {
			depths = append(depths, runtime.Callers(0, frames))
			if i%3 == 0 {
				runtime.Goexit()
			}
		})
	}
	assert.Equal(t, advanceFate{exited: true}, advanceOutcome(clock, time.Second))
	require.Len(t, depths, 300)
	perExit := depths[3+1] - depths[1]
	assert.Equal(t, depths[1]+99*perExit, depths[3*99+1])
	assert.Less(t, perExit, 10)
}

func TestFakeClockSaturatesAtTheEndOfTime(t *testing.T) {
	for _, start := range []time.Time{fakeStart, {}, endOfTime.Add(-time.Hour), time.Now()} {
		clock := NewFakeClock(start)
		var fired []time.Duration
		clock.AfterFunc(math.MaxInt64, func() { fired = append(fired, clock.Now().Sub(start)) })
		last := start
		for range 3 {
			clock.Advance(math.MaxInt64)
			assert.False(t, clock.Now().Before(last), "from %v: went back to %v", last, clock.Now())
			last = clock.Now()
			clock.checkInvariants(t)
		}
		if start.Before(endOfTime.Add(-math.MaxInt64)) {
			assert.Equal(t, []time.Duration{math.MaxInt64}, fired)
		} else {
			assert.Empty(t, fired, "due after the end of time")
			assert.True(t, clock.Now().Equal(endOfTime))
		}
	}
}

func TestFakeClockDoesNotSpinAtTheEndOfTime(t *testing.T) {
	clock := NewFakeClock(endOfTime.Add(-3 * time.Second))
	fired := 0
	var again Timer
	again = clock.AfterFunc(time.Second, func() { fired++; again.Reset(time.Second) })
	clock.Advance(time.Hour)
	clock.Advance(time.Hour)
	assert.Equal(t, 2, fired)
	assert.Equal(t, 1, clock.Armed())
	assert.True(t, again.Stop())
}

func TestFakeClockZeroValueStandsAtTheZeroTime(t *testing.T) {
	var clock FakeClock
	fired := false
	clock.AfterFunc(time.Second, func() { fired = true })
	clock.Advance(time.Second)
	assert.True(t, fired)
	assert.Equal(t, time.Time{}.Add(time.Second), clock.Now())
}

func TestFakeClockLetsGoOfTimersThatAreOver(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	stopped := clock.AfterFunc(time.Second, func() {})
	clock.AfterFunc(time.Second, func() {})
	stopped.Stop()
	clock.Advance(time.Second)
	for _, timer := range clock.waiting[:cap(clock.waiting)] {
		assert.Nil(t, timer)
	}
}

// TestFakeClockDoesWhatPackageTimeDoes plays the same random script on package
// time, in a bubble, and on a FakeClock: the same timers have to fire at the
// same times, and the same calls of Stop and Reset to find one waiting.
func TestFakeClockDoesWhatPackageTimeDoes(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			fake := NewFakeClock(start)
			want := playClockScript(systemClock{}, seed, start, func(d time.Duration) {
				time.Sleep(d)
				synctest.Wait()
			})
			got := playClockScript(fake, seed, start, func(d time.Duration) {
				fake.Advance(d)
				fake.checkInvariants(t)
			})
			require.Equal(t, want, got, "seed %d", seed)
		})
	}
}

func playClockScript(clock Clock, seed uint64, start time.Time, advance func(time.Duration)) (log []string) {
	random := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex // package time fires on goroutines of its own
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, fmt.Sprintf("%v: ", clock.Now().Sub(start))+fmt.Sprintf(format, args...))
	}
	unique := time.Duration(0) // no two timers are due together: package time has no order for them
	some := func() time.Duration {
		unique++
		return time.Duration(random.IntN(100))*time.Millisecond + unique
	}
	var timers []Timer
	for range 200 {
		name := len(timers)
		pick := func() (int, Timer) { i := random.IntN(name); return i, timers[i] }
		switch action := random.IntN(6); {
		case name == 0 || action == 0:
			timers = append(timers, clock.AfterFunc(some(), func() { note("%d fired", name) }))
		case action == 1: // arms itself once more
			d, more := some(), some()
			left := 2
			var self Timer
			mu.Lock()
			self = clock.AfterFunc(d, func() {
				note("%d fired", name)
				mu.Lock()
				defer mu.Unlock()
				if left--; left > 0 {
					self.Reset(more)
				}
			})
			mu.Unlock()
			timers = append(timers, self)
		case action == 2:
			i, timer := pick()
			note("stop %d: %v", i, timer.Stop())
		case action == 3:
			i, timer := pick()
			note("reset %d: %v", i, timer.Reset(some()))
		default:
			advance(some() / 4)
		}
	}
	advance(time.Second)
	return log
}

// TestFakeClockLosesNoTimerUnderConcurrency: every arming ends in one call or in
// one report that it was called off.
func TestFakeClockLosesNoTimerUnderConcurrency(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	var armed, fired, calledOff, running atomic.Int64
	var users sync.WaitGroup
	for user := range uint64(4) {
		users.Go(func() {
			random := rand.New(rand.NewPCG(user, 1))
			var timers []Timer
			for range 500 {
				switch random.IntN(4) {
				case 0:
					timers = append(timers, clock.AfterFunc(time.Duration(random.IntN(50)), func() {
						assert.Equal(t, int64(1), running.Add(1), "two at once")
						fired.Add(1)
						running.Add(-1)
					}))
					armed.Add(1)
				case 1:
					clock.Advance(time.Duration(random.IntN(20)))
				default:
					if len(timers) == 0 {
						continue
					}
					timer := timers[random.IntN(len(timers))]
					waited := false
					if random.IntN(2) == 0 {
						waited = timer.Stop()
					} else {
						waited = timer.Reset(time.Duration(random.IntN(50)))
						armed.Add(1)
					}
					if waited {
						calledOff.Add(1)
					}
				}
			}
		})
	}
	users.Wait()
	clock.checkInvariants(t)
	clock.Advance(time.Second)
	assert.Zero(t, clock.Armed())
	assert.Equal(t, armed.Load(), fired.Load()+calledOff.Load())
}

func TestFakeClockStaysFastWithManyTimers(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	random := rand.New(rand.NewPCG(1, 2))
	var fired []time.Time
	for range 10_000 {
		clock.AfterFunc(time.Duration(random.Int64N(1e9)), func() { fired = append(fired, clock.Now()) })
	}
	clock.checkInvariants(t)
	clock.Advance(time.Second)
	assert.Len(t, fired, 10_000)
	assert.True(t, slices.IsSortedFunc(fired, time.Time.Compare))
}

func TestSystemClockIsPackageTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clock Clock = systemClock{}
		start := clock.Now()
		assert.Equal(t, time.Now(), start)
		var fired time.Duration
		timer := clock.AfterFunc(time.Hour, func() { fired = clock.Now().Sub(start) })
		assert.True(t, timer.Reset(2*time.Hour))
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		assert.Equal(t, 2*time.Hour, fired)
		assert.False(t, timer.Stop())
	})
}
