package rivals

import "sync"

// gorums routes answers as the quorum call framework of that name does, without its messages and streams.
var gorums = Rival{
	Name:   "gorums router",
	New:    func(Config) Waiter { return newGorums() },
	Expiry: NoDeadline,
	About: "as `github.com/relab/gorums` routes answers, written out without its streams and latency figures: each peer has a mutex and a map " +
		"from the request to the caller's channel, and the caller reads answers until it has enough",
	Lacks: "no deadline of its own (the caller's context ends the call, not the entry); the one who waits needs a goroutine; " +
		"a peer that never answers keeps its entry; a key cannot be used again",
}

type gorumsAnswer struct {
	peer int
	err  error
}

// gorumsRouter is one peer's.
type gorumsRouter struct {
	mu      sync.Mutex
	pending map[uint64]chan<- gorumsAnswer
	_       [48]byte
}

func (r *gorumsRouter) register(key uint64, answers chan<- gorumsAnswer) {
	r.mu.Lock()
	r.pending[key] = answers
	r.mu.Unlock()
}

func (r *gorumsRouter) route(key uint64, a gorumsAnswer) {
	r.mu.Lock()
	answers, ok := r.pending[key]
	if ok {
		delete(r.pending, key)
	}
	r.mu.Unlock()
	if ok {
		answers <- a // never blocks: there is room for every peer's answer
	}
}

type gorumsWaiter struct{ routers [Peers]gorumsRouter }

func newGorums() *gorumsWaiter {
	w := new(gorumsWaiter)
	for i := range w.routers {
		w.routers[i].pending = make(map[uint64]chan<- gorumsAnswer)
	}
	return w
}

func (w *gorumsWaiter) Requester(Done) Requester { return w }
func (w *gorumsWaiter) Len() int                 { return -1 }
func (w *gorumsWaiter) Close()                   {}

func (w *gorumsWaiter) Add(key uint64) Ticket {
	answers := make(chan gorumsAnswer, Peers)
	for i := range w.routers {
		w.routers[i].register(key, answers)
	}
	return answers
}

func (w *gorumsWaiter) Ack(key uint64, peer int) {
	w.routers[peer].route(key, gorumsAnswer{peer: peer})
}

func (w *gorumsWaiter) Ready(t Ticket) bool { return len(t.(chan gorumsAnswer)) >= Need }

func (w *gorumsWaiter) Receive(t Ticket) bool {
	answers := t.(chan gorumsAnswer)
	for acked := 0; acked < Need; {
		if a := <-answers; a.err == nil {
			acked++
		}
	}
	return true
}
