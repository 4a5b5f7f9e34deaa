package waitlist

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// never is a deadline that does not come.
const never = math.MaxInt64

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

	// leaf guards the rest, and what closing keeps. It is the last lock anybody
	// takes; only a Clock's AfterFunc, Stop and Reset are called under it.
	leaf     sync.Mutex
	timer    Timer // made at the first use
	fires    int32 // calls of fire that the timer still owes
	sweeping int32 // sweeps under way
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
// No deadline is lost between an Add and a sweep: the sweep resets armed before it
// locks the first shard, so either it finds the entry, or the Add, which calls arm
// after it has unlocked the shard, finds what the sweep has written.
func (l *core[K]) arm(deadline int64) {
	if max(deadline, l.floor.Load()) < l.armed.Load() {
		l.armEarlier(deadline)
	}
}

func (l *core[K]) armEarlier(deadline int64) {
	l.leaf.Lock()
	defer l.leaf.Unlock()
	at := max(deadline, l.floor.Load())
	if at >= l.armed.Load() {
		return
	}
	l.armed.Store(at)
	for range 10 {
		now := l.now()
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
		// A fake clock may have been advanced between the reading and the
		// arming; then the timer would be late by that much, on a clock that may
		// not move again. One that always moves is not late for it: hence the
		// limit.
		if l.clock == nil || wait <= 0 || l.now() == now {
			return
		}
	}
}

// disarm stops the timer for good. The caller holds leaf.
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
// it the owner's task. It reads the clock once, claims what is due, arms the timer
// again, and only then calls. It costs what is due and a look at each shard. Any
// goroutine may call it, also several at once.
func (l *core[K]) Sweep() (expired int) { return l.sweep(0) }

// sweep expires what is due. fired is how many calls of the timer this one settles.
func (l *core[K]) sweep(fired int32) int {
	now := l.now()
	l.leaf.Lock()
	l.fires -= fired
	l.sweeping++
	if l.armed.Load() != math.MinInt64 {
		l.armed.Store(never)
		l.floor.Store(max(l.floor.Load(), deadline(now, l.interval)))
	}
	l.leaf.Unlock()
	defer l.swept()

	p := pass[K]{list: l}
	next := uint64(never)
	due := min(uint64(now), never-1)
	for _, s := range l.shards {
		s.mu.Lock()
		if s.due.allBy(due) {
			s.claimAllLocked(&p, EndTimedOut, ErrTimeout)
		}
		slot, at, ok := s.due.first()
		for ; ok && at <= due; slot, at, ok = s.due.first() {
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

func (l *core[K]) swept() {
	l.leaf.Lock()
	l.sweeping--
	l.leaf.Unlock()
	l.checkDone()
}
