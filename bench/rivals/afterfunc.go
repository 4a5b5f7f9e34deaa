package rivals

import (
	"math/bits"
	"sync"
	"time"
)

// afterFunc gives every entry a timer of its own, as memberlist does for its probes.
var afterFunc = Rival{
	Name:   "time.AfterFunc",
	New:    newAfterFunc,
	Expiry: SystemOnly,
	About:  "one mutex, a map to entries with a bit set, a callback and a `time.AfterFunc` each, as memberlist waits for the answers to its probes",
	Lacks:  "every entry that expires gets a goroutine, all of them at once when many do; no clock but the system's; the end of a session costs what is parked",
}

type afterEntry struct {
	done    Done
	timer   *time.Timer
	acked   uint32
	session int32
}

type afterWaiter struct {
	timeout time.Duration

	mu      sync.Mutex
	pending map[uint64]*afterEntry
}

type afterRequester struct {
	calledBack
	*afterWaiter
	done Done
}

func newAfterFunc(cfg Config) Waiter {
	return &afterWaiter{timeout: cfg.Timeout, pending: make(map[uint64]*afterEntry)}
}

func (w *afterWaiter) Requester(done Done) Requester {
	return &afterRequester{afterWaiter: w, done: done}
}

func (w *afterWaiter) Close() {
	w.endWhere(func(*afterEntry) bool { return true })
}

func (w *afterWaiter) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending)
}

func (r *afterRequester) Add(key uint64) Ticket { return r.add(key, r.done, -1, r.timeout) }

func (r *afterRequester) AddIn(key uint64, session int) Ticket {
	return r.add(key, r.done, session, r.timeout)
}

func (r *afterRequester) AddUntil(key uint64, deadline time.Time) Ticket {
	return r.add(key, r.done, -1, time.Until(deadline))
}

func (w *afterWaiter) add(key uint64, done Done, session int, timeout time.Duration) Ticket {
	e := &afterEntry{done: done, session: int32(session)}
	w.mu.Lock()
	w.pending[key] = e
	e.timer = time.AfterFunc(timeout, func() { w.expire(key, e) })
	w.mu.Unlock()
	return nil
}

func (w *afterWaiter) expire(key uint64, e *afterEntry) {
	w.mu.Lock()
	mine := w.pending[key] == e
	if mine {
		delete(w.pending, key)
	}
	w.mu.Unlock()
	if mine {
		e.done(key, false)
	}
}

func (w *afterWaiter) Ack(key uint64, peer int) {
	w.mu.Lock()
	e := w.pending[key]
	if e == nil {
		w.mu.Unlock()
		return
	}
	e.acked |= 1 << peer
	if bits.OnesCount32(e.acked) < Need {
		w.mu.Unlock()
		return
	}
	delete(w.pending, key)
	w.mu.Unlock()
	e.timer.Stop()
	e.done(key, true)
}

func (w *afterWaiter) EndSession(session int) int {
	return w.endWhere(func(e *afterEntry) bool { return e.session == int32(session) })
}

func (w *afterWaiter) endWhere(match func(*afterEntry) bool) int {
	type ending struct {
		key uint64
		e   *afterEntry
	}
	var ended []ending
	w.mu.Lock()
	for key, e := range w.pending {
		if match(e) {
			delete(w.pending, key)
			ended = append(ended, ending{key, e})
		}
	}
	w.mu.Unlock()
	for _, x := range ended {
		x.e.timer.Stop()
		x.e.done(x.key, false)
	}
	return len(ended)
}
