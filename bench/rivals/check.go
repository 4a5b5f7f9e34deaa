package rivals

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// checkTimeout is the timeout that Check is run with. Clocks move in steps that leave room for LateBy.
const checkTimeout = 10 * time.Second

// Check drives a way through random operations and compares what completes, and how, with a plain model after
// each of them. move turns the clock that cfg uses forward; without it nothing expires. The operations follow
// from the seed.
func Check(r Rival, cfg Config, seed uint64, move func(time.Duration)) error {
	rnd := rand.New(rand.NewPCG(seed, 0))
	cfg.Timeout = checkTimeout
	w := r.New(cfg)
	defer w.Close()

	c := &checker{rival: r, model: make(map[uint64]*modelEntry), outcomes: make(map[uint64]bool)}
	c.req = w.Requester(func(key uint64, ok bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, twice := c.outcomes[key]; twice {
			c.twice = append(c.twice, key)
		}
		c.outcomes[key] = ok
	})
	last := uint64(0)
	for step := range 600 {
		var err error
		switch kind := rnd.IntN(100); {
		case kind < 30:
			last++
			err = c.add(last)
		case kind < 98 || move == nil || r.Expiry == NoDeadline:
			// Often a key that is over, sometimes one that never was.
			key := last + 1 - min(last, uint64(rnd.IntN(24)))
			err = c.ack(key, rnd.IntN(Peers))
		default:
			err = c.pass(w, move, time.Duration(1+rnd.IntN(5)))
		}
		if err == nil {
			err = c.compare(w)
		}
		if err != nil {
			return fmt.Errorf("%s, seed %d, step %d: %w", r.Name, seed, step, err)
		}
	}
	return nil
}

type modelEntry struct {
	acked   [Peers]bool
	age     time.Duration
	ticket  Ticket
	ended   bool
	success bool
}

type checker struct {
	rival Rival
	req   Requester
	model map[uint64]*modelEntry // every key ever added

	mu       sync.Mutex
	outcomes map[uint64]bool // what the callbacks, or the tickets, have said
	twice    []uint64
}

func (c *checker) add(key uint64) error {
	c.model[key] = &modelEntry{ticket: c.req.Add(key)}
	return nil
}

func (c *checker) ack(key uint64, peer int) error {
	e := c.model[key]
	decides := false
	if e != nil && !e.ended {
		e.acked[peer] = true
		n := 0
		for _, yes := range e.acked {
			if yes {
				n++
			}
		}
		decides = n >= Need
		e.ended, e.success = decides, decides
	}
	if !c.rival.CountsNothing {
		c.req.Ack(key, peer)
	} else if decides || e == nil {
		c.req.Ack(key, decider) // whoever counts for it has counted
	}
	return nil
}

// pass lets time go by, in steps whose sums hit the deadline where the way is exact and miss it where it is late.
func (c *checker) pass(w Waiter, move func(time.Duration), steps time.Duration) error {
	d := steps * checkTimeout / 5
	if c.rival.LateBy > 0 {
		d = steps * checkTimeout * 3 / 10
	}
	move(d)
	if s, ok := w.(Sweeper); ok {
		s.Sweep()
	}
	move(0) // lets goroutines that run callbacks come to an end
	for _, e := range c.model {
		if e.ended {
			continue
		}
		e.age += d
		switch {
		case e.age >= checkTimeout+c.rival.LateBy:
			e.ended = true
		case e.age >= checkTimeout:
			return errUndecidable
		}
	}
	return nil
}

var errUndecidable = fmt.Errorf("the check's own steps leave it open whether an entry has expired")

// compare holds the outcomes so far against the model's.
func (c *checker) compare(w Waiter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.twice) > 0 {
		return fmt.Errorf("keys %v ended twice", c.twice)
	}
	parked := 0
	for key, e := range c.model {
		if e.ticket != nil {
			if _, known := c.outcomes[key]; !known && c.req.Ready(e.ticket) {
				c.outcomes[key] = c.req.Receive(e.ticket)
			}
		}
		ok, ended := c.outcomes[key]
		switch {
		case ended != e.ended:
			return fmt.Errorf("key %d: ended is %t and should be %t", key, ended, e.ended)
		case ok != e.success:
			return fmt.Errorf("key %d: success is %t and should be %t", key, ok, e.success)
		case !e.ended:
			parked++
		}
	}
	if n := w.Len(); n >= 0 && n != parked {
		return fmt.Errorf("Len is %d and should be %d", n, parked)
	}
	return nil
}

// CheckMarker does the same for a way of waiting for a watermark.
func CheckMarker(r MarkerRival, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 1))
	type entry struct {
		index  uint64
		ticket Ticket
	}
	var (
		called  []uint64
		parked  []entry // in order of registration
		wanted  []uint64
		tickets bool
		mark    uint64
	)
	m := r.New(func(index uint64, ok bool) {
		if ok {
			called = append(called, index)
		}
	})
	defer m.Close()
	for step := range 2000 {
		called, wanted = called[:0], wanted[:0]
		if rnd.IntN(3) > 0 {
			index := mark + uint64(rnd.IntN(40))
			e := entry{index, m.Add(index)}
			tickets = tickets || e.ticket != nil
			parked = append(parked, e)
		} else {
			to := mark + uint64(rnd.IntN(20))
			completed := m.Advance(to)
			due := 0
			for _, e := range parked {
				if e.index <= to {
					due++
				}
			}
			if completed >= 0 && completed != due {
				return fmt.Errorf("%s, seed %d, step %d: Advance(%d) says %d and should say %d", r.Name, seed, step, to, completed, due)
			}
			mark = to
		}
		parked = slices.DeleteFunc(parked, func(e entry) bool {
			if e.ticket != nil && m.Ready(e.ticket) {
				called = append(called, e.index)
			}
			if e.index <= mark {
				wanted = append(wanted, e.index)
				return true
			}
			return false
		})
		slices.Sort(wanted)
		if tickets {
			slices.Sort(called) // channels have no order
		}
		if !slices.Equal(called, wanted) {
			return fmt.Errorf("%s, seed %d, step %d: completed %v and should complete %v", r.Name, seed, step, called, wanted)
		}
	}
	return nil
}
