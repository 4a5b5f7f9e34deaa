package rivals

import (
	"sync"
	"time"
)

// textbook is what most people would write down first.
var textbook = Rival{
	Name:   "textbook",
	New:    newTextbook,
	Expiry: OnAnyClock,
	About:  "one mutex, a map from the key to the set of peers that have answered, a channel per request, and a sweep that looks at every entry",
	Lacks:  "the one who waits needs a goroutine; a sweep holds the lock while it looks at everything that is parked",
}

type textbookWaiter struct {
	now     func() time.Time
	timeout time.Duration
	stop    func()

	mu      sync.Mutex
	pending map[uint64]*textbookEntry
}

type textbookEntry struct {
	acked    map[int]struct{}
	result   chan bool
	deadline time.Time
	session  int
}

func newTextbook(cfg Config) Waiter {
	w := &textbookWaiter{now: cfg.now(), timeout: cfg.Timeout, pending: make(map[uint64]*textbookEntry)}
	w.stop = cfg.background(fullScan, w.Sweep)
	return w
}

func (w *textbookWaiter) Requester(Done) Requester { return w }
func (w *textbookWaiter) Close()                   { w.stop() }

func (w *textbookWaiter) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending)
}

func (w *textbookWaiter) Add(key uint64) Ticket { return w.AddIn(key, -1) }

func (w *textbookWaiter) AddIn(key uint64, session int) Ticket {
	e := &textbookEntry{
		acked:    make(map[int]struct{}),
		result:   make(chan bool, 1),
		deadline: w.now().Add(w.timeout),
		session:  session,
	}
	w.mu.Lock()
	w.pending[key] = e
	w.mu.Unlock()
	return e.result
}

func (w *textbookWaiter) Ack(key uint64, peer int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.pending[key]
	if e == nil {
		return
	}
	e.acked[peer] = struct{}{}
	if len(e.acked) >= Need {
		delete(w.pending, key)
		e.result <- true
	}
}

func (w *textbookWaiter) Sweep() int {
	now := w.now()
	return w.endWhere(func(e *textbookEntry) bool { return !now.Before(e.deadline) })
}

func (w *textbookWaiter) EndSession(session int) int {
	return w.endWhere(func(e *textbookEntry) bool { return e.session == session })
}

func (w *textbookWaiter) endWhere(match func(*textbookEntry) bool) (ended int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, e := range w.pending {
		if match(e) {
			delete(w.pending, key)
			e.result <- false
			ended++
		}
	}
	return ended
}

func (*textbookWaiter) Ready(t Ticket) bool   { return len(t.(chan bool)) > 0 }
func (*textbookWaiter) Receive(t Ticket) bool { return <-t.(chan bool) }
