package rivals

import (
	"time"

	"github.com/maypok86/otter/v2"
)

// otterCache uses a cache whose entries expire.
var otterCache = Rival{
	Name:   "otter",
	New:    newOtter,
	Expiry: OnAnyClock,
	LateBy: 1100 * time.Millisecond,
	About:  "`github.com/maypok86/otter/v2` as a map whose entries expire after their creation, answers counted in an atomic word of the entry",
	Lacks: "expiry is up to 1.1 s late (its wheel is that coarse); the callback of an expiry runs under a lock of the cache and may not write to it; " +
		"a goroutine for as long as the cache lives; the end of a session costs what is parked",
}

type otterEntry struct {
	votes
	session int32
	done    Done
}

type otterWaiter struct {
	pending *otter.Cache[uint64, *otterEntry]
}

type otterRequester struct {
	calledBack
	*otterWaiter
	done Done
}

type otterClock struct{ *Clock }

func (c otterClock) NowNano() int64                    { return c.nanos.Load() }
func (otterClock) Tick(time.Duration) <-chan time.Time { return nil }

func newOtter(cfg Config) Waiter {
	opts := &otter.Options[uint64, *otterEntry]{
		ExpiryCalculator: otter.ExpiryCreating[uint64, *otterEntry](cfg.Timeout),
		// Its other handler costs a goroutine for every entry, however it ended.
		OnAtomicDeletion: func(e otter.DeletionEvent[uint64, *otterEntry]) {
			if e.Cause == otter.CauseExpiration && e.Value.giveUp() {
				e.Value.done(e.Key, false)
			}
		},
	}
	if cfg.Clock != nil {
		opts.Clock = otterClock{cfg.Clock}
	}
	return &otterWaiter{otter.Must(opts)}
}

func (w *otterWaiter) Requester(done Done) Requester {
	return &otterRequester{otterWaiter: w, done: done}
}
func (w *otterWaiter) Len() int { return w.pending.EstimatedSize() }
func (w *otterWaiter) Close()   { w.pending.StopAllGoroutines() }

func (r *otterRequester) Add(key uint64) Ticket { return r.AddIn(key, -1) }

func (r *otterRequester) AddIn(key uint64, session int) Ticket {
	r.pending.Set(key, &otterEntry{session: int32(session), done: r.done})
	return nil
}

func (w *otterWaiter) Ack(key uint64, peer int) {
	e, ok := w.pending.GetIfPresent(key)
	if ok && e.ack(peer) {
		w.pending.Invalidate(key)
		e.done(key, true)
	}
}

func (w *otterWaiter) Sweep() int {
	w.pending.CleanUp()
	return -1
}

func (w *otterWaiter) EndSession(session int) (ended int) {
	for key, e := range w.pending.All() {
		if e.session == int32(session) && e.giveUp() {
			w.pending.Invalidate(key)
			e.done(key, false)
			ended++
		}
	}
	return ended
}
