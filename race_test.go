package waitlist

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// racer lets several goroutines do plans to one list at once. Nobody can foresee what comes of it, but
// what must hold in the end is known: each registration that was not refused was told how it ended,
// once; the returned numbers add up to what the books say; everything is given back.
type racer[K comparable] struct {
	world[K]
	poison    poisoned[K]
	uncounted bool // calls do not say how many have reached their end

	lost   atomic.Bool           // a call was left by a panic or an exit, its result with it
	sums   [numEnds]atomic.Int64 // what calls said that they had ended
	told   [numEnds]atomic.Int64 // what callbacks and Waits were told
	steps  atomic.Int64
	panics atomic.Int64
	heard  atomic.Int64

	guard   sync.Mutex
	all     []*registration[K] // guarded by guard, like failure
	failure error
}

func newRacer[K comparable](s setup) *racer[K] {
	r := &racer[K]{}
	r.setup, r.unsteady = s, true
	r.witness = r
	return r
}

func (w *racer[K]) failf(format string, args ...any) {
	w.guard.Lock()
	defer w.guard.Unlock()
	if w.failure == nil {
		w.failure = fmt.Errorf(format, args...)
	}
}

func (w *racer[K]) step(o op) {
	if o.kind == opAdd && o.n > 1 {
		for i := range o.n {
			one := o
			one.n, one.key = 1, (o.key+i)%len(keys)
			w.step(one)
		}
		return
	}
	if w.steps.Add(1) > 4*maxSteps && o.kind != opRun && o.kind != opClose {
		return
	}
	r := &registration[K]{op: o}
	if o.kind == opAdd || o.kind == opWait {
		w.guard.Lock()
		w.all = append(w.all, r)
		w.guard.Unlock()
	}
	got := w.call(func() result[K] { return w.perform(o, r) })
	if n := w.core.parked.Load(); w.capacity > 0 && n > int64(w.capacity) {
		w.failf("%d parked, with a capacity of %d", n, w.capacity)
	}
	if got.exited || got.panicked != nil {
		if reason := fmt.Sprint(got.panicked); !got.exited && !strings.HasPrefix(reason, "panic ") && !strings.Contains(reason, "unhashable") {
			w.failf("%s: %v", kindNames[o.kind], reason)
		}
		w.lost.Store(true)
		r.added.Store(r.calls.Load() > 0)
		return
	}
	switch o.kind {
	case opAdd:
		r.added.Store(got.err == nil)
	case opWait:
		w.told[got.out.End].Add(1)
		if (got.out.End == 0) != errors.Is(got.err, ErrNotParked) {
			w.failf("a Wait returned %+v and %v", got.out, got.err)
		}
	}
	if end, ended := got.ended(o); end != 0 {
		w.sums[end].Add(int64(ended))
	}
}

// ended tells how many entries a call says that it has ended, and how.
func (got *result[K]) ended(o op) (end End, n int) {
	switch o.kind {
	case opAckBatch, opAdvance, opSetQuorum:
		return EndReached, got.n
	case opPeerDown:
		return EndUnreachable, got.n
	case opFailFunc, opFailAll:
		return EndFailed, got.n
	case opSweep:
		return EndTimedOut, got.n
	case opEnd:
		return EndSession, got.n
	case opTruncate:
		return EndTruncated, got.n
	case opFail:
		end = EndFailed
	case opComplete:
		end = EndCompleted
	case opAck, opAckWith:
		end, got.ok = EndReached, got.ack == AckDecided
	case opNack:
		end, got.ok = EndUnreachable, got.ack == AckDecided
	}
	if got.ok {
		n = 1
	}
	return end, n
}

func (w *racer[K]) called(r *registration[K], out Outcome[K]) {
	if n := r.calls.Load(); n != 1 {
		w.failf("callback called %d times, now with %+v", n, out)
	}
	if (out.Err == nil) != (out.End == EndReached || out.End == EndCompleted) || errors.Is(out.Err, ErrNotParked) {
		w.failf("outcome %+v", out)
	}
	w.told[out.End].Add(1)
}

func (w *racer[K]) returning(*registration[K])              {}
func (w *racer[K]) asked(op, K)                             {}
func (w *racer[K]) cancels(*registration[K], ...error) bool { return true }
func (w *racer[K]) patience() bool                          { return true }
func (w *racer[K]) panicked(_ K, _ any, _ []byte)           { w.heard.Add(1) }
func (w *racer[K]) unwinds(callback bool, value any) {
	if callback && value != nil {
		w.panics.Add(1)
	}
}

// run does the plans at once and looks at what is left.
func (w *racer[K]) run(plans []plan, invariants func() error) error {
	stop := make(chan struct{})
	var watcher, racers sync.WaitGroup
	watcher.Go(func() { w.watch(stop) })
	for _, p := range plans {
		racers.Go(func() {
			for _, o := range p.ops {
				w.step(o)
			}
		})
	}
	racers.Wait()
	close(stop)
	watcher.Wait()
	w.step(op{kind: opClose})
	for len(w.runs) > 0 {
		w.step(op{kind: opRun})
	}
	<-w.core.Done()
	return errors.Join(w.failure, w.account(), invariants())
}

// watch looks at the books while they are written.
func (w *racer[K]) watch(stop chan struct{}) {
	for last := (Stats{}); ; {
		select {
		case <-stop:
			return
		default:
		}
		st := w.core.Stats()
		if ends := st.ends(); st.Added != uint64(st.Parked)+ends || ends < last.ends() || st.Running < 0 {
			w.failf("books do not balance: %+v after %+v", st, last)
			return
		}
		last = st
		w.poison.spread(w.core)
	}
}

func (st Stats) ends() (n uint64) {
	for end := EndReached; end < numEnds; end++ {
		n += *st.counter(end)
	}
	return n
}

// account compares the books with what the callers know.
func (w *racer[K]) account() error {
	st := w.core.Stats()
	if st.Parked != 0 || st.Running != 0 || w.core.Len() != 0 {
		return fmt.Errorf("after the end: %+v", st)
	}
	for i := range w.sessions {
		if n := w.sessions[i].Load().Len(); n != 0 {
			return fmt.Errorf("after the end: session %d holds %d", i, n)
		}
	}
	for _, r := range w.all {
		if calls := r.calls.Load(); r.kind == opAdd && (calls == 1) != r.added.Load() || calls > 1 {
			return fmt.Errorf("an Add of key %d was called %d times; accepted: %v", r.op.key, calls, r.added.Load())
		}
	}
	if panics := w.panics.Load(); st.CallbackPanics != uint64(panics) || w.onPanic && w.heard.Load() != panics {
		return fmt.Errorf("%d callbacks panicked; %d were counted and %d reported", panics, st.CallbackPanics, w.heard.Load())
	}
	if w.lost.Load() {
		return nil
	}
	for end := EndReached; end < numEnds; end++ {
		booked := int64(*st.counter(end))
		if told := w.told[end].Load(); told != booked {
			return fmt.Errorf("%v: %d are in the books, but %d were told", end, booked, told)
		}
		said := w.sums[end].Load()
		switch {
		case end == EndCanceled || end == EndClosed: // Wait and Shutdown do not return numbers
		case end == EndReached && w.uncounted:
		case end == EndTimedOut && w.setup.clock != sweptByOwner: // most are swept by the timer
		case said != booked:
			return fmt.Errorf("%v: %d are in the books, but calls said %d", end, booked, said)
		}
	}
	return nil
}

// checkRaces lets four goroutines at a time loose on a new list.
func checkRaces[K comparable](t *testing.T, from []kind, make func(setup) (*racer[K], func() error)) {
	t.Helper()
	seed := seeded(t)
	for round := range trials(400) {
		var plans []plan
		for i := range uint64(4) {
			plans = append(plans, decode(randomBytes(seed, 4*round+i), from))
		}
		racer, invariants := make(plans[0].setup)
		if err := guarded(func() error { return racer.run(plans, invariants) }); err != nil {
			report(t, fmt.Errorf("round %d: %w", round, err), plans...)
		}
	}
}
