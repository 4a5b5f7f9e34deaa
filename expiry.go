package waitlist

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// never is a deadline that does not come.
const never = math.MaxInt64

// How long the sweeper waits for a clock that is behind its timers.
const (
	minPause = time.Millisecond
	maxPause = time.Second
)

// sweeper is the timer that expires what is due. It is a timer and not a loop:
// while nothing is parked nothing is armed, and no goroutine is ever held.
type sweeper struct {
	// armed is when the timer will fire next, never if it is not armed, and
	// math.MinInt64 if no timer may be armed. floor is the earliest moment for
	// the next sweep. Both are written under leaf and read without it, so that an
	// Add whose deadline is not the earliest pays for two loads of a line that
	// hardly ever changes.
	armed, floor atomic.Int64

	interval time.Duration

	// leaf guards the rest, and what closing keeps. Nobody takes it while holding a
	// shard, and only a Clock is called under it. (checkDone looks into the shards
	// under it.)
	leaf     sync.Mutex
	timer    Timer // made at the first use
	fires    int32 // calls of fire that the timer still owes
	sweeping int32 // sweeps, and other calls that must be over before the list is done
}

func (w *sweeper) init(opts *Options) {
	w.interval = opts.SweepInterval
	if w.interval == 0 && opts.Clock == nil {
		w.interval = defaultSweepInterval
	}
	if opts.ManualSweep {
		w.armed.Store(math.MinInt64)
	} else {
		w.armed.Store(never)
	}
}

// arm makes sure that the timer fires no later than the deadline, or the floor if
// that is later. Nobody is told to hurry for an entry that is not the earliest.
//
// No deadline is lost between an Add and a sweep: the sweep that the timer owed last resets
// armed before it locks the first shard, so either it finds the entry, or the Add, which
// calls arm after it has unlocked the shard, finds what the sweep has written. A Sweep by
// hand leaves the timer as it is.
func (l *core[K]) arm(deadline int64) {
	if max(deadline, l.floor.Load()) < l.armed.Load() {
		l.armEarlier(deadline)
	}
}

// armEarlier arms the timer for a deadline, if that is earlier. It reads the clock itself:
// since the reading by which an Add or a sweep decides, much time may have passed.
func (l *core[K]) armEarlier(deadline int64) {
	l.leaf.Lock()
	defer l.leaf.Unlock()
	at := max(deadline, l.floor.Load())
	if at >= l.armed.Load() {
		return
	}
	l.armed.Store(at)
	now := l.now()
	for range 2 {
		wait := time.Duration(at - now)
		switch {
		case l.timer == nil && l.clock == nil:
			l.timer = systemClock{}.AfterFunc(wait, l.fire)
			l.fires++
		case l.timer == nil:
			l.timer = l.clock.AfterFunc(wait, l.fire)
			l.fires++
		case !l.timer.Reset(wait):
			l.fires++
		}
		if l.clock == nil || wait <= 0 {
			return
		}
		// A fake clock may have been advanced between the reading and the arming.
		// Then the timer would be late by that much, on a clock that may not move
		// again; one that always moves is not late for it.
		last := now
		if now = l.now(); now == last {
			return
		}
	}
}

// disarmLocked stops the timer for good. The caller holds leaf.
func (l *core[K]) disarmLocked() {
	l.armed.Store(math.MinInt64)
	if l.timer != nil && l.timer.Stop() {
		l.fires--
	}
}

// fire is what the timer calls.
func (l *core[K]) fire() { l.sweep(1) }

// Sweep ends every entry whose deadline has come, as EndTimedOut, and returns how
// many. The sweeper's timer does this by itself; only with Options.ManualSweep is
// it the owner's task. It decides by one reading of the clock, claims what is due,
// arms the timer again, and only then calls. It costs what is due and a look at each shard. Any
// goroutine may call it, also several at once.
func (l *core[K]) Sweep() (expired int) { return l.sweep(0) }

// sweep expires what is due. fired is how many calls of the timer this one settles.
func (l *core[K]) sweep(fired int32) int {
	now := l.now()
	l.leaf.Lock()
	l.fires -= fired
	l.sweeping++
	if armed := l.armed.Load(); armed != math.MinInt64 {
		pause := l.interval
		if fired > 0 && l.fires == 0 { // or armed belongs to the call that is still owed
			l.armed.Store(never)
			if armed != never && now < armed {
				// The timer is ahead of the clock, which has gone back and stands
				// still, or the timer fires early. Wait twice as long as it did
				// now, or the two would play for as long as the clock stands.
				pause = max(pause, min(2*time.Duration(armed-now), maxPause), minPause)
			}
		}
		l.floor.Store(max(l.floor.Load(), deadline(now, pause)))
	}
	l.leaf.Unlock()
	defer l.swept()

	p := pass[K]{list: l}
	next := uint64(never)
	due := min(uint64(now), never-1)
	for _, s := range l.shards {
		s.mu.Lock()
		if s.due.allBy(s, due) {
			s.claimAllLocked(&p, EndTimedOut, ErrTimeout)
		}
		slot, at, ok := s.due.first(s)
		for ; ok && at <= due; slot, at, ok = s.due.first(s) {
			p.claimLocked(s, slot, EndTimedOut, ErrTimeout)
		}
		if ok {
			next = min(next, at)
		}
		s.mu.Unlock()
	}
	l.arm(int64(next))
	return p.finish()
}

// hold keeps the list from being done until swept is called, unless it is already.
func (l *core[K]) hold() bool {
	l.leaf.Lock()
	defer l.leaf.Unlock()
	if l.finished {
		return false
	}
	l.sweeping++
	return true
}

func (l *core[K]) swept() {
	l.leaf.Lock()
	l.sweeping--
	l.leaf.Unlock()
	l.checkDone()
}
