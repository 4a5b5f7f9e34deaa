package rivals

import "github.com/puzpuzpuz/xsync/v4"

// xsyncMap keeps the requests in the fastest concurrent map there is.
var xsyncMap = Rival{
	Name:   "xsync",
	New:    newXsync,
	Expiry: OnAnyClock,
	About:  "`github.com/puzpuzpuz/xsync/v4`: a lock-free lookup, answers counted in an atomic word of the entry, a sweep that looks at every entry",
	Lacks:  "nothing but the map is given: counting, claiming, deadlines and callbacks are written around it; two allocations a request; a sweep and the end of a session cost what is parked",
}

type xsyncEntry struct {
	votes
	session  int32
	done     Done
	deadline int64
}

type xsyncWaiter struct {
	nanos   func() int64
	timeout int64
	stop    func()
	pending *xsync.Map[uint64, *xsyncEntry]
}

type xsyncRequester struct {
	calledBack
	*xsyncWaiter
	done Done
}

func newXsync(cfg Config) Waiter {
	w := &xsyncWaiter{nanos: cfg.nanos(), timeout: int64(cfg.Timeout), pending: xsync.NewMap[uint64, *xsyncEntry]()}
	w.stop = cfg.background(fullScan, w.Sweep)
	return w
}

func (w *xsyncWaiter) Requester(done Done) Requester {
	return &xsyncRequester{xsyncWaiter: w, done: done}
}
func (w *xsyncWaiter) Len() int { return w.pending.Size() }
func (w *xsyncWaiter) Close()   { w.stop() }

func (r *xsyncRequester) Add(key uint64) Ticket { return r.AddIn(key, -1) }

func (r *xsyncRequester) AddIn(key uint64, session int) Ticket {
	r.pending.Store(key, &xsyncEntry{session: int32(session), done: r.done, deadline: r.nanos() + r.timeout})
	return nil
}

func (w *xsyncWaiter) Ack(key uint64, peer int) {
	e, ok := w.pending.Load(key)
	if ok && e.ack(peer) {
		w.pending.Delete(key)
		e.done(key, true)
	}
}

func (w *xsyncWaiter) Sweep() int {
	now := w.nanos()
	return w.endWhere(func(e *xsyncEntry) bool { return e.deadline <= now })
}

func (w *xsyncWaiter) EndSession(session int) int {
	return w.endWhere(func(e *xsyncEntry) bool { return e.session == int32(session) })
}

func (w *xsyncWaiter) endWhere(match func(*xsyncEntry) bool) (ended int) {
	for key, e := range w.pending.AllRelaxed() {
		if match(e) && e.giveUp() {
			w.pending.Delete(key)
			e.done(key, false)
			ended++
		}
	}
	return ended
}
