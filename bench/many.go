package main

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waitlist-go/waitlist/bench/rivals"
)

const (
	colSweep      = "sweep/none-due/parked=1000000"
	colSweepWorst = "sweep/none-due/parked=1000000/worst"
	colMassExpiry = "expiry/all-due/parked=1000000"
	colSessionEnd = "session/end/sessions=100/each=10000"
	colSessionAdd = "session/add/sessions=100/each=10000"
)

func bytesName(parked int) string { return fmt.Sprintf("memory/parked=%d", parked) }
func gcName(parked int) string    { return fmt.Sprintf("gc/parked=%d", parked) }

var (
	millionNames  = []string{bytesName(million), gcName(million), colSweep, colSweepWorst, colMassExpiry}
	millionsNames = []string{bytesName(5 * million), gcName(5 * million)}
)

// The requests that are parked by the million arrive one after the other over ten seconds of a clock that is
// moved, and expire thirty seconds after their arrival.
const (
	arrivalSpan = 10 * time.Second
	manyTimeout = 30 * time.Second
	sweepStep   = time.Millisecond
	sweepBudget = 250 * time.Millisecond // for those that need longer than a walk over the whole span
)

// liveHeap is what is reachable.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // finishes what the first has begun to sweep, and empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// heapGrowth is by how many bytes what is reachable has grown.
func heapGrowth(before uint64) float64 { return float64(int64(liveHeap() - before)) }

// gcTime is how long a collection takes.
func gcTime() time.Duration {
	times := make([]time.Duration, 5)
	for i := range times {
		begin := time.Now()
		runtime.GC()
		times[i] = time.Since(begin)
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// parkMany parks n requests, moves the clock meanwhile if there is one, and records memory and collections.
func (b *bench) parkMany(r rivals.Rival, w rivals.Waiter, clock *rivals.Clock, n, column int, done rivals.Done, before uint64) {
	req := w.Requester(done)
	step := arrivalSpan / time.Duration(n)
	for i := range uint64(n) {
		req.Add(parkedKeys | i)
		if clock != nil {
			clock.Move(step)
		}
	}
	b.results.add(bytesName(column), r.Name, heapGrowth(before)/float64(n))
	b.results.add(gcName(column), r.Name, float64(gcTime().Microseconds())/1000)
	runtime.KeepAlive(w)
}

// million parks a million requests and looks at their memory, at a collection, at sweeps that find nothing, and
// at a moment in which all are due.
func (b *bench) million() error {
	return takeTurns(b.waiters, b.size.heavy, func(r rivals.Rival) error {
		n := b.size.many
		cfg := rivals.Config{Timeout: held}
		if r.Expiry == rivals.OnAnyClock {
			cfg = rivals.Config{Timeout: manyTimeout, Clock: new(rivals.Clock)}
		}
		var ended atomic.Int64
		before := liveHeap()
		w := r.New(cfg)
		b.parkMany(r, w, cfg.Clock, n, million, func(uint64, bool) { ended.Add(1) }, before)

		if s, ok := w.(rivals.Sweeper); ok {
			if err := b.sweepNothing(r, s, cfg.Clock); err != nil {
				return err
			}
			if at := ended.Load(); at != 0 {
				return fmt.Errorf("%s: %d requests ended before their deadline", r.Name, at)
			}
			if cfg.Clock != nil {
				cfg.Clock.Move(2 * manyTimeout)
				begin := time.Now()
				swept := s.Sweep()
				took := time.Since(begin)
				if got := int(ended.Load()); got != n && swept != n { // channels call nobody
					return fmt.Errorf("%s: %d of %d expired", r.Name, got, n)
				}
				b.results.add(colMassExpiry, r.Name, float64(took.Nanoseconds())/float64(n))
			}
		}
		w.Close()
		if r.Expiry == rivals.SystemOnly {
			return b.allDueOnSystemClock(r, n)
		}
		return nil
	})
}

// sweepNothing lets the clock walk towards the first deadline and sweeps after each step.
func (b *bench) sweepNothing(r rivals.Rival, s rivals.Sweeper, clock *rivals.Clock) error {
	steps := int((manyTimeout-arrivalSpan)/sweepStep) - 10
	took := make([]float64, 0, steps)
	for budget := time.Now().Add(sweepBudget); len(took) < steps && (len(took) < 3 || time.Now().Before(budget)); {
		if clock != nil {
			clock.Move(sweepStep)
		}
		begin := time.Now()
		swept := s.Sweep()
		took = append(took, float64(time.Since(begin).Nanoseconds())/1000)
		if swept > 0 {
			return fmt.Errorf("%s: a sweep ended %d requests before their deadline", r.Name, swept)
		}
	}
	b.results.add(colSweep, r.Name, summarize(took).median)
	b.results.add(colSweepWorst, r.Name, slices.Max(took))
	return nil
}

// allDueOnSystemClock gives all requests the same deadline, waits for it, and takes the time from then on.
func (b *bench) allDueOnSystemClock(r rivals.Rival, n int) error {
	w := r.New(rivals.Config{Timeout: held})
	defer w.Close()
	var ended atomic.Int64
	req := w.Requester(func(uint64, bool) { ended.Add(1) }).(rivals.DatedRequester)
	deadline := time.Now().Add(b.size.settle)
	for i := range uint64(n) {
		req.AddUntil(parkedKeys|i, deadline)
	}
	runtime.GC()
	if time.Until(deadline) < 0 {
		return nil // this machine was too slow in this round; others count
	}
	time.Sleep(time.Until(deadline))
	if s, ok := w.(rivals.Sweeper); ok {
		time.Sleep(r.LateBy)
		s.Sweep()
	}
	for ended.Load() < int64(n) {
		if time.Since(deadline) > time.Minute {
			return fmt.Errorf("%s: %d of %d expired", r.Name, ended.Load(), n)
		}
		time.Sleep(100 * time.Microsecond)
	}
	b.results.add(colMassExpiry, r.Name, float64(time.Since(deadline).Nanoseconds())/float64(n))
	return nil
}

// millions looks at the memory and the collections of five million requests.
func (b *bench) millions() error {
	return takeTurns(b.waiters, b.size.veryHeavy, func(r rivals.Rival) error {
		cfg := rivals.Config{Timeout: held}
		if r.Expiry == rivals.OnAnyClock {
			cfg.Clock = new(rivals.Clock)
		}
		before := liveHeap()
		w := r.New(cfg)
		defer w.Close()
		b.parkMany(r, w, cfg.Clock, 5*b.size.many, 5*million, ignore, before)
		return nil
	})
}

// sessions parks requests of a hundred connections and ends one of them.
func (b *bench) sessions() error {
	const count = 100
	return takeTurns(b.waiters, b.size.heavy, func(r rivals.Rival) error {
		w, ok := r.New(rivals.Config{Timeout: held}).(rivals.SessionWaiter)
		if !ok {
			return nil
		}
		defer w.Close()
		req := w.Requester(ignore).(rivals.SessionRequester)
		n := b.size.many
		runtime.GC()
		begin := time.Now()
		for i := range uint64(n) {
			req.AddIn(parkedKeys|i, int(i%count))
		}
		b.results.add(colSessionAdd, r.Name, float64(time.Since(begin).Nanoseconds())/float64(n))
		runtime.GC()
		begin = time.Now()
		ended := w.EndSession(count / 3)
		took := time.Since(begin)
		if ended != n/count {
			return fmt.Errorf("%s: the session had %d requests of which %d ended", r.Name, n/count, ended)
		}
		b.results.add(colSessionEnd, r.Name, float64(took.Nanoseconds())/float64(ended))
		return nil
	})
}
