package waitlist

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// world is a list together with all that operations on it need: it makes the calls, and the functions
// that the calls are given. What those functions see goes to the witness: a model that compares, or the
// race test, which counts.
type world[K comparable] struct {
	setup
	core     *core[K]
	own      func(o op, r *registration[K]) result[K] // what only this kind of list has
	witness  witness[K]
	clock    *unsteadyClock
	sessions [4]atomic.Pointer[Session]
	unsteady bool         // the clock may be set while a timer sweeps by it
	handed   atomic.Int64 // callbacks that the executor was given

	mu   sync.Mutex
	runs []func() // those that it has not run yet; guarded by mu
}

// witness is told what happens to the functions that a world has given to its list.
type witness[K comparable] interface {
	step(o op)                                         // do this inside
	called(r *registration[K], out Outcome[K])         // a callback begins
	returning(r *registration[K])                      // and is about to return, panic or exit
	asked(o op, key K)                                 // a predicate
	cancels(r *registration[K], reasons ...error) bool // a Wait's ctx or send is about to end it; false: never mind
	patience() bool                                    // Shutdown's ctx is asked: is it over?
	unwinds(callback bool, value any)                  // the function panics, or exits if value is nil
	panicked(key K, value any, stack []byte)           // OnPanic
}

// registration is an Add or a Wait.
type registration[K comparable] struct {
	op
	key   K
	calls atomic.Int32 // of its callback
	added atomic.Bool
	life
}

// result is all that a call may give back.
type result[K comparable] struct {
	ack      AckResult
	n        int
	ok       bool
	err      error
	out      Outcome[K]
	parked   []Parked[K]
	panicked any
	exited   bool
}

var (
	epoch       = time.Date(2024, 2, 29, 23, 59, 59, 0, time.UTC)
	errSend     = errors.New("send failed")
	errGivenUp  = errors.New("given up")
	errPatience = errors.New("no patience left")
)

// unsteadyClock is a FakeClock that can be set back and forward. It remembers the highest reading that it
// has given out, for that is where a list holds it.
type unsteadyClock struct {
	*FakeClock
	skew   atomic.Int64
	latest atomic.Int64
}

func (c *unsteadyClock) reading() time.Duration {
	return c.FakeClock.Now().Sub(epoch) + time.Duration(c.skew.Load())
}

func (c *unsteadyClock) Now() time.Time {
	now := c.reading()
	for latest := c.latest.Load(); int64(now) > latest && !c.latest.CompareAndSwap(latest, int64(now)); {
		latest = c.latest.Load()
	}
	return epoch.Add(now)
}

// held is the time on a list that is about to read this clock.
func (c *unsteadyClock) held() time.Duration {
	return max(c.reading(), time.Duration(c.latest.Load()))
}

func (w *world[K]) options() Options {
	w.clock = &unsteadyClock{FakeClock: NewFakeClock(epoch)}
	w.clock.latest.Store(math.MinInt64)
	for i := range w.sessions {
		w.sessions[i].Store(new(Session))
	}
	o := Options{Timeout: w.timeout, Capacity: w.capacity, Clock: w.clock, ManualSweep: w.setup.clock == sweptByOwner}
	if w.setup.clock == sweptAtIntervals {
		o.SweepInterval = interval
	}
	if w.onPanic {
		o.OnPanic = func(key, value any, stack []byte) {
			k, _ := key.(K) // nil is a key, too
			w.witness.panicked(k, value, stack)
		}
	}
	if w.executor != noExecutor {
		o.Executor = w.execute
	}
	return o
}

func (w *world[K]) execute(run func()) {
	switch n := w.handed.Add(1); {
	case w.executor == queued:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.runs = append(w.runs, run)
	case w.executor == unwinding && n%6 == 0:
		w.unwind(panics, true)
	case w.executor == unwinding && n%6 == 3:
		w.unwind(exits, true)
	default:
		run()
		run()
	}
}

// session returns the session of an operation. Number 0 is none.
func (w *world[K]) session(o op) *Session {
	if o.session == 0 {
		return nil
	}
	return w.sessions[o.session].Load()
}

func (w *world[K]) addOptions(o op) (all []AddOption) {
	if o.time > 0 {
		all = append(all, Timeout(timeouts[o.time]))
	}
	if o.session > 0 || o.time%2 == 1 {
		all = append(all, InSession(w.session(o)))
	}
	return all
}

// call makes a call on a goroutine of its own, which may exit, and returns when it is over.
func (w *world[K]) call(f func() result[K]) result[K] {
	over := make(chan result[K])
	go func() {
		var r result[K]
		returned := false
		defer func() {
			if !returned {
				r.panicked = recover()
				r.exited = r.panicked == nil
			}
			over <- r
		}()
		r = f()
		returned = true
	}()
	return <-over
}

// perform makes the call of an operation that both lists have.
func (w *world[K]) perform(o op, r *registration[K]) (res result[K]) {
	switch o.kind {
	case opFailAll:
		res.n = w.core.FailAll(reasons[o.err])
	case opSweep:
		res.n = w.core.Sweep()
	case opTick:
		w.clock.Advance(steps[o.time])
	case opJump:
		if w.setup.clock == sweptByOwner || w.unsteady {
			w.clock.skew.Add(int64(steps[o.time]))
		}
	case opEnd:
		res.n = w.session(o).End(reasons[o.err])
	case opRenew:
		w.sessions[o.session].Store(new(Session))
	case opAll:
		for p := range w.core.All() {
			if res.parked = append(res.parked, p); len(res.parked) > 1 {
				continue
			}
			w.script(o)
			if o.fate == fails {
				break
			}
			w.unwind(o.fate, false)
		}
	case opRun:
		w.mu.Lock()
		var run func()
		if len(w.runs) > 0 {
			run, w.runs = w.runs[0], w.runs[1:]
		}
		w.mu.Unlock()
		if run != nil {
			defer run() // does nothing
			run()
		}
	case opShutdown:
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		res.err = w.core.Shutdown(askedContext{ctx, func() <-chan struct{} {
			w.script(o)
			if w.witness.patience() {
				cancel(errPatience)
				return ctx.Done()
			}
			return nil
		}})
	case opClose:
		res.err = w.core.Close()
	default:
		return w.own(o, r)
	}
	return res
}

// script does what an operation wants done inside one of its functions.
func (w *world[K]) script(o op) {
	for _, inner := range o.then {
		w.witness.step(inner)
	}
}

var panicNumber atomic.Int64

// unwind ends a function that does not return.
func (w *world[K]) unwind(f fate, callback bool) {
	switch f {
	case panics:
		value := fmt.Sprintf("panic %d", panicNumber.Add(1))
		w.witness.unwinds(callback, value)
		panic(value)
	case exits:
		w.witness.unwinds(callback, nil)
		runtime.Goexit()
	}
}

// callback makes the callback of a registration.
func (w *world[K]) callback(r *registration[K]) Callback[K] {
	if r.err > 0 {
		return nil
	}
	return func(out Outcome[K]) {
		r.calls.Add(1)
		w.witness.called(r, out)
		w.script(r.op)
		w.witness.returning(r)
		w.unwind(r.fate, true)
	}
}

// waiting calls wait with what a Wait wants: in its first variant the script runs in send, in its second
// when ctx is asked whether it is done, in its third ctx is over before it begins. Nobody ever has to wait
// for real: when there is nothing left to do, ctx ends.
func (w *world[K]) waiting(r *registration[K], wait func(context.Context, func() error) (Outcome[K], error)) (res result[K]) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	if r.n == 2 {
		cancel(errGivenUp)
	}
	asked := false
	watched := askedContext{ctx, func() <-chan struct{} {
		if r.n == 1 && !asked {
			asked = true
			w.script(r.op)
		}
		if w.witness.cancels(r, context.Canceled, errGivenUp) {
			cancel(errGivenUp)
			return ctx.Done()
		}
		return nil
	}}
	send := func() error {
		if r.n == 0 {
			w.script(r.op)
		}
		switch r.fate {
		case fails:
			w.witness.cancels(r, errSend)
			return errSend
		case panics, exits:
			w.witness.cancels(r)
			w.unwind(r.fate, false)
		}
		return nil
	}
	if r.n == 1 && r.fate == returns {
		send = nil
	}
	res.out, res.err = wait(watched, send)
	return res
}

// askedContext says when it is asked for its channel.
type askedContext struct {
	context.Context
	done func() <-chan struct{}
}

func (c askedContext) Done() <-chan struct{} { return c.done() }
