package main

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waitlist-go/waitlist/bench/rivals"
)

const (
	colAllocs   = "request/allocations"
	colHandoff  = "request/acked-elsewhere"
	colExpiring = "request/expiring=10%"
)

func requestName(parked, cores int) string {
	return fmt.Sprintf("request/parked=%d/cores=%d", parked, cores)
}

func requestNames(parked int) []string {
	return []string{requestName(parked, 1), requestName(parked, 2)}
}

// parkedKeys is where the keys of requests begin that are only parked. Those of a caller begin at its number
// shifted by callerShift.
const (
	parkedKeys  = 1 << 60
	callerShift = 40
)

// caller is one goroutine's part of a load: its own keys, its own count of what completed.
type caller struct {
	req       rivals.Requester
	next      uint64
	completed int
	_         [64]byte // another caller counts on another cache line
}

// load is a Waiter with callers.
type load struct {
	rivals.Rival
	w       rivals.Waiter
	callers [2]*caller
	perTurn int // requests that fill one turn
}

func newLoad(r rivals.Rival, cfg rivals.Config, parked int) *load {
	l := &load{Rival: r, w: r.New(cfg)}
	for i := range l.callers {
		c := &caller{next: uint64(i+1) << callerShift}
		c.req = l.w.Requester(func(uint64, bool) { c.completed++ })
		l.callers[i] = c
	}
	park(l.w, parked)
	return l
}

func ignore(uint64, bool) {}

func park(w rivals.Waiter, n int) {
	req := w.Requester(ignore)
	for i := range uint64(n) {
		req.Add(parkedKeys | i)
	}
}

// request does n requests from begin to end: parked, two answers that decide, the outcome, one late answer.
func (c *caller) request(n int) {
	req := c.req
	for key := c.next; key < c.next+uint64(n); key++ {
		ticket := req.Add(key)
		req.Ack(key, 0)
		req.Ack(key, 1)
		if ticket != nil && req.Receive(ticket) {
			c.completed++
		}
		req.Ack(key, 2)
	}
	c.next += uint64(n)
}

// turn has the first callers do n requests each and returns the time per request.
func (l *load) turn(cores, n int) (time.Duration, error) {
	var (
		before = 0
		after  = 0
		start  = make(chan struct{})
		wg     sync.WaitGroup
	)
	for _, c := range l.callers[:cores] {
		before += c.completed
		wg.Go(func() {
			<-start
			c.request(n)
		})
	}
	begin := time.Now()
	close(start)
	wg.Wait()
	took := time.Since(begin)
	for _, c := range l.callers[:cores] {
		after += c.completed
	}
	if after-before != n*cores {
		return 0, fmt.Errorf("%s: %d of %d requests completed", l.Name, after-before, n*cores)
	}
	return took, nil
}

// calibrate finds how many requests fill a turn, and warms up.
func (l *load) calibrate(cores int, slice time.Duration) error {
	n := 500
	for {
		took, err := l.turn(cores, n)
		if err != nil {
			return err
		}
		if took >= slice/2 {
			l.perTurn = max(1, int(float64(n)*float64(slice)/float64(took)))
			return nil
		}
		n *= 2
	}
}

// perRequest takes one turn and returns nanoseconds of the clock per request, whoever did it.
func (l *load) perRequest(cores int) (float64, error) {
	runtime.GC() // nobody pays for the garbage of the one before
	took, err := l.turn(cores, l.perTurn)
	return float64(took.Nanoseconds()) / float64(l.perTurn*cores), err
}

// held is the timeout of requests that are not to expire.
const held = time.Hour

// requests measures whole requests while few others are parked, short turns by all rivals after each other.
func (b *bench) requests(parked int) error {
	var loads []*load
	for _, r := range b.waiters {
		l := newLoad(r, rivals.Config{Timeout: held}, parked)
		defer l.w.Close()
		loads = append(loads, l)
	}
	for cores := 1; cores <= 2; cores++ {
		if !b.wants(requestName(parked, cores)) {
			continue
		}
		runtime.GOMAXPROCS(cores)
		for _, l := range loads {
			if err := l.calibrate(cores, b.size.slice); err != nil {
				return err
			}
		}
		err := takeTurns(loads, b.size.rounds, func(l *load) error {
			ns, err := l.perRequest(cores)
			b.results.add(requestName(parked, cores), l.Name, ns)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// nothing is a Waiter that does nothing: what a request on it takes is what the measuring itself takes.
type nothing struct{}

func (nothing) Requester(rivals.Done) rivals.Requester { return nothing{} }
func (nothing) Len() int                               { return 0 }
func (nothing) Close()                                 {}
func (nothing) Add(uint64) rivals.Ticket               { return nil }
func (nothing) Ack(uint64, int)                        {}
func (nothing) Ready(rivals.Ticket) bool               { return true }
func (nothing) Receive(rivals.Ticket) bool             { return true }

// loopCost is what of every request is the loop that asks for it, in nanoseconds.
func loopCost() float64 {
	const n = 100_000
	c := &caller{req: nothing{}}
	times := make([]float64, 21)
	for i := range times {
		begin := time.Now()
		c.request(n)
		times[i] = float64(time.Since(begin).Nanoseconds()) / n
	}
	return summarize(times).median
}

// requestsAmongMany measures them with many others parked. Each rival is alone in the heap then, since a
// collection caused by one would have to mark what all of them hold.
func (b *bench) requestsAmongMany() error {
	return takeTurns(b.waiters, b.size.heavy, func(r rivals.Rival) error {
		runtime.GOMAXPROCS(runtime.NumCPU())
		l := newLoad(r, rivals.Config{Timeout: held}, b.size.many)
		defer l.w.Close()
		for cores := 1; cores <= 2; cores++ {
			runtime.GOMAXPROCS(cores)
			// Long enough for several collections, whose cost with many parked is the
			// price of making garbage.
			if err := l.calibrate(cores, 80*b.size.slice); err != nil {
				return err
			}
			ns, err := l.perRequest(cores)
			if err != nil {
				return err
			}
			b.results.add(requestName(million, cores), r.Name, ns)
		}
		return nil
	})
}

// allocations counts what one request allocates.
func (b *bench) allocations() error {
	return takeTurns(b.waiters, 3, func(r rivals.Rival) error {
		const n = 20_000
		l := newLoad(r, rivals.Config{Timeout: held}, 0)
		defer l.w.Close()
		if _, err := l.turn(1, n); err != nil { // tables and spares are made once
			return err
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := l.turn(1, n)
		runtime.ReadMemStats(&after)
		// What the turn itself allocates is lost in n.
		b.results.add(colAllocs, r.Name, float64((after.Mallocs-before.Mallocs)/n))
		return err
	})
}

// handoff measures requests that are acked by another goroutine than the one that adds them, as they are when
// a connection's reader brings the answers. The requests travel in batches, so that what is measured is not
// the channel between the two.
func (b *bench) handoff() error {
	runtime.GOMAXPROCS(2)
	var loads []*load
	for _, r := range b.waiters {
		l := newLoad(r, rivals.Config{Timeout: held}, 0)
		defer l.w.Close()
		loads = append(loads, l)
	}
	measure := func(l *load, batches int) (time.Duration, error) {
		begin := time.Now()
		completed := l.handOver(batches)
		took := time.Since(begin)
		if completed != batches*batchSize {
			return 0, fmt.Errorf("%s: %d of %d requests completed", l.Name, completed, batches*batchSize)
		}
		return took, nil
	}
	for _, l := range loads {
		took, err := measure(l, 100)
		if err != nil {
			return err
		}
		l.perTurn = max(1, int(100*float64(b.size.slice)/float64(took)))
	}
	return takeTurns(loads, b.size.rounds, func(l *load) error {
		runtime.GC()
		took, err := measure(l, l.perTurn)
		b.results.add(colHandoff, l.Name, float64(took.Nanoseconds())/float64(l.perTurn*batchSize))
		return err
	})
}

const (
	batchSize       = 64
	batchesUnderWay = 8
)

type batch struct {
	first   uint64
	tickets [batchSize]rivals.Ticket
}

// handOver adds requests here, has another goroutine ack them, and returns how many completed.
func (l *load) handOver(batches int) int {
	var (
		c     = l.callers[0]
		acker = l.w.Requester(ignore)
		there = make(chan *batch, batchesUnderWay)
		back  = make(chan *batch, batchesUnderWay)
		start = c.completed // written by the acker meanwhile, read when it is gone
		mine  = 0
	)
	receive := func(bt *batch) {
		for _, ticket := range bt.tickets {
			if ticket != nil && c.req.Receive(ticket) {
				mine++
			}
		}
	}
	go func() {
		defer close(back)
		for bt := range there {
			for key := bt.first; key < bt.first+batchSize; key++ {
				acker.Ack(key, 0)
				acker.Ack(key, 1)
				acker.Ack(key, 2)
			}
			back <- bt
		}
	}()
	for i := range batches {
		var bt *batch
		if i < batchesUnderWay {
			bt = new(batch)
		} else {
			bt = <-back
			receive(bt)
		}
		bt.first = c.next
		for k := range bt.tickets {
			bt.tickets[k] = c.req.Add(c.next)
			c.next++
		}
		there <- bt
	}
	close(there)
	for bt := range back {
		receive(bt)
	}
	return c.completed - start + mine
}

// Requests of which a tenth is never answered, on the system clock, with each rival's own way of finding what
// is due at work. Waiting for the last deadline is part of it, so what counts is the processor's time.
const (
	shortTimeout = 50 * time.Millisecond
	expireEvery  = 10
)

func (b *bench) expiring() error {
	if !cpuTimeKnown {
		return nil
	}
	runtime.GOMAXPROCS(2)
	rounds, n := 7, 200_000
	if b.size.many < million {
		rounds, n = 1, 5_000
	}
	return takeTurns(b.waiters, rounds, func(r rivals.Rival) error {
		if r.Expiry == rivals.NoDeadline {
			return nil
		}
		w := r.New(rivals.Config{Timeout: shortTimeout, Background: true})
		defer w.Close()
		var completed, abandoned int
		var expired atomic.Int64
		req := w.Requester(func(_ uint64, ok bool) {
			if ok {
				completed++ // on this goroutine
			} else {
				expired.Add(1)
			}
		})
		receive := func(ticket rivals.Ticket) {
			if req.Receive(ticket) {
				completed++
			} else {
				expired.Add(1)
			}
		}
		tickets := make([]rivals.Ticket, 0, n/expireEvery)
		runtime.GC()
		begin := cpuTime()
		for key := range uint64(n) {
			ticket := req.Add(key)
			req.Ack(key, 0)
			if key%expireEvery == 0 {
				abandoned++
				if ticket != nil {
					tickets = append(tickets, ticket)
				}
				continue
			}
			req.Ack(key, 1)
			if ticket != nil {
				receive(ticket)
			}
			req.Ack(key, 2)
		}
		for _, ticket := range tickets {
			receive(ticket)
		}
		for limit := time.Now().Add(20 * time.Second); completed+int(expired.Load()) < n; {
			if time.Now().After(limit) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		took := cpuTime() - begin
		// A few may expire between two answers, when the machine does something else for so long.
		if all := completed + int(expired.Load()); all != n || completed < (n-abandoned)*9/10 {
			return fmt.Errorf("%s: %d completed and %d expired of %d and %d", r.Name, completed, expired.Load(), n-abandoned, abandoned)
		}
		b.results.add(colExpiring, r.Name, float64(took.Nanoseconds())/float64(n))
		return nil
	})
}
