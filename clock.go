package waitlist

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Clock tells a list the time and wakes it. The system clock is used where
// [Options] names none; [FakeClock] is the one for tests.
//
// A list calls its clock from any goroutine and while holding a lock of its
// own, so:
//
//   - all methods of a Clock and of its Timers are safe for concurrent use and
//     do not block;
//   - none of them calls the list;
//   - AfterFunc, Stop and Reset never call f before they return;
//   - no lock that those methods need is held while f runs, for f calls them.
//
// A Clock whose Now goes back is taken to stand still until it has caught up.
type Clock interface {
	// Now is the current time. Two readings are compared by their monotonic
	// parts if both have one.
	Now() time.Time

	// AfterFunc arranges for one call of f, d from now or as soon as possible
	// after that; d <= 0 is as soon as possible. It may run f on any goroutine.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is one call that [Clock.AfterFunc] has arranged. It behaves like the
// [time.Timer] of [time.AfterFunc], which is one.
type Timer interface {
	// Stop calls the arranged call off, and reports whether there was one. If
	// it reports false, f was called off before, or has been started: Stop does
	// not wait for it to return.
	Stop() bool

	// Reset calls the arranged call off, if there is one, and arranges for one
	// d from now. It reports what Stop would have: after false, the new call of
	// f may run at the same time as an old one.
	Reset(d time.Duration) bool
}

// systemClock is package time.
type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// FakeClock is a [Clock] for tests: it stands still until [FakeClock.Advance]
// moves it, so that an hour of timeouts passes in no time. What expires does so
// in order of the deadlines; entries of a WaitingList that share one, in no
// particular order.
//
//	clock := waitlist.NewFakeClock(time.Unix(0, 0))
//	list := waitlist.New[string](waitlist.Options{Timeout: time.Minute, Clock: clock})
//	// Add ...
//	clock.Advance(time.Minute) // what was not answered has now timed out
//
// A list sweeps on it without pause (unless SweepInterval asks for one), so
// that its deadlines are exact: a callback that reports a timeout finds in Now
// the very deadline of its entry and, without an Executor, has returned when
// Advance does.
//
// Contexts do not follow it: a Shutdown or a Wait that hangs on the clock goes on
// when another goroutine advances it.
//
// Its methods and those of its timers may be called from any goroutine, and
// from the functions that it runs. The zero value is a clock that stands at the
// zero time. A FakeClock must not be copied.
type FakeClock struct {
	mu sync.Mutex // a leaf; never held while a timer's function runs

	// Guarded by mu.
	now     time.Time
	target  time.Time // where now is heading; Invariant: equal to now unless moving
	moving  bool      // an Advance is at work; it alone changes now
	armings uint64    // how many there were; gives ties their order

	// waiting holds the armed timers, the next one last. Guarded by mu.
	//
	// Arming and stopping cost a binary search and a move of the pointers behind
	// the place; firing costs neither. A heap would save the move, but with ten
	// thousand timers that is half a microsecond, and a list has one at most.
	//
	// Invariant: strictly descending by fakeTimer.compare, none due before now.
	waiting []*fakeTimer
}

// endOfTime is the last second that time.Time can hold. The clock can be moved
// there, but what is due then or would be later does not fire: a timer that is
// armed anew whenever it fires would otherwise keep Advance busy for ever.
var endOfTime = time.Unix(math.MaxInt64-secondsToEpoch, 0)

const secondsToEpoch = 62_135_596_800 // from the zero time to that of Unix

// NewFakeClock returns a clock that stands at start.
func NewFakeClock(start time.Time) *FakeClock {
	return &FakeClock{now: start, target: start}
}

// Now is the time that the clock has been moved to. In a function that the
// clock runs it is the time for which that function was due, however far the
// Advance that runs it will go, and it stays so until the function returns.
func (c *FakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc arranges for f to be called by the [FakeClock.Advance] that brings
// the clock d further. With d <= 0 it is due at once: the Advance at work calls
// it, or else the next one, be it Advance(0). AfterFunc itself never does.
func (c *FakeClock) AfterFunc(d time.Duration, f func()) Timer {
	t := &fakeTimer{clock: c, f: f}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armLocked(t, d)
	return t
}

// Advance moves the clock by d, and on the way calls the function of each timer
// that falls due, those included that are armed meanwhile: one after the other
// on the goroutine of the caller, in order of their due times, ties in order of
// arming, each at its due time. When it returns they have returned and the
// clock has arrived. It panics if d is negative.
//
// An Advance during another, from a function that the clock runs or from a
// second goroutine, adds d to what the first one has to do and returns at once.
//
// A function may call anything. If one panics or calls [runtime.Goexit], as
// t.FailNow does, the clock still runs all others that are due and arrives; only
// then the panic goes on, with its own value, or the goroutine exits. Of several
// panics the first goes on and the others are dropped. After a panic and a
// Goexit, in either order, the panic goes on, and the goroutine exits even if it
// is recovered.
//
// A clock that is moved past the end of time stays there.
func (c *FakeClock) Advance(d time.Duration) {
	if d < 0 {
		panic("waitlist: FakeClock.Advance: negative duration " + d.String())
	}
	if c.move(d) {
		c.run(false)
	}
}

// Armed is the number of timers that wait for their time: those that were not
// stopped and whose functions have not been called since they were armed.
func (c *FakeClock) Armed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

// move adds d to the target, and reports whether the caller has to run the
// clock until it gets there: no, if somebody does already.
func (c *FakeClock) move(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target = addUpToEnd(c.target, d)
	if c.moving {
		return false
	}
	c.moving = true
	return true
}

// run calls what is due until the clock has arrived. It goes on in a deferred
// function when a call did not return: once for the first panic, once for each
// Goexit, and not at all for later panics.
//
// The first panic is recovered only because a later Goexit would otherwise
// swallow it. It starts again before the deferred function returns, so that a
// crash still shows the frames in which it began.
func (c *FakeClock) run(panicked bool) {
	arrived := false
	defer func() {
		if arrived {
			return
		}
		if value := recover(); value != nil { // else a Goexit
			panicked = true
			defer panic(value)
		}
		c.run(panicked)
	}()
	for t := c.next(); t != nil; t = c.next() {
		if panicked {
			t.callDroppingPanic()
		} else {
			t.f()
		}
	}
	arrived = true
}

// next moves the clock to the next timer that is due by the target and takes it
// off the waiting ones. If there is none, it moves the clock to the target, ends
// the Advance, and returns nil: in one step, so that a timer armed or a target
// moved by another goroutine is either seen here or left to the next Advance.
func (c *FakeClock) next() *fakeTimer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.waiting) - 1; last >= 0 {
		t := c.waiting[last]
		if !t.due.After(c.target) && t.due.Before(endOfTime) {
			c.waiting[last] = nil
			c.waiting = c.waiting[:last]
			t.armed = false
			c.now = t.due
			return t
		}
	}
	c.now = c.target
	c.moving = false
	return nil
}

// armLocked makes t, which is not armed, due d from now.
func (c *FakeClock) armLocked(t *fakeTimer, d time.Duration) {
	c.armings++
	t.due, t.order, t.armed = addUpToEnd(c.now, max(d, 0)), c.armings, true
	at, _ := slices.BinarySearchFunc(c.waiting, t, (*fakeTimer).compare)
	c.waiting = slices.Insert(c.waiting, at, t)
}

// disarmLocked takes t off the waiting timers, and reports whether it was there.
func (c *FakeClock) disarmLocked(t *fakeTimer) bool {
	if !t.armed {
		return false
	}
	at, _ := slices.BinarySearchFunc(c.waiting, t, (*fakeTimer).compare)
	c.waiting = slices.Delete(c.waiting, at, at+1)
	t.armed = false
	return true
}

// addUpToEnd is t+d, or the end of time if that is later.
func addUpToEnd(t time.Time, d time.Duration) time.Time {
	if sum := t.Add(d); sum.Before(endOfTime) {
		return sum
	}
	return endOfTime.In(t.Location())
}

// fakeTimer is a [Timer] of a [FakeClock].
type fakeTimer struct {
	clock *FakeClock
	f     func()

	// Guarded by clock.mu. due and order do not change while the timer is armed.
	due   time.Time
	order uint64 // unique among the armed timers
	armed bool   // Invariant: true if and only if it is in clock.waiting
}

// compare sorts timers by when they fire, the last one first.
func (t *fakeTimer) compare(other *fakeTimer) int {
	if byTime := other.due.Compare(t.due); byTime != 0 {
		return byTime
	}
	if t.order > other.order {
		return -1
	}
	if t.order < other.order {
		return 1
	}
	return 0
}

func (t *fakeTimer) callDroppingPanic() {
	defer func() { _ = recover() }()
	t.f()
}

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.clock.disarmLocked(t)
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	waited := t.clock.disarmLocked(t)
	t.clock.armLocked(t, d)
	return waited
}
