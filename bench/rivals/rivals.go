// Package rivals does one piece of work in the ways that people do it today: hold a request until two of
// three peers have answered, and give it up at its deadline. Package waitlist is one of the ways (library.go);
// the others are what its users would otherwise pick, each written as well as its approach allows.
//
// All of them stand behind [Waiter], or behind [Marker] where a watermark decides. [Check] and [CheckMarker]
// compare one with a plain model, and the tests of this package run every way through both, so that what is
// timed has been seen to do the same.
package rivals

import (
	"sync/atomic"
	"time"
)

// The rule that every way applies.
const (
	Peers = 3 // who may answer, numbered from 0
	Need  = 2 // how many answers are enough
)

// Done is told how a request ended: by enough answers, or not.
type Done func(key uint64, ok bool)

// Ticket is what Add returns where the one who asked has to receive the outcome: a channel, in an interface
// because that allocates nothing. It is nil where a callback brings the outcome.
type Ticket any

// Waiter holds requests. Its methods, and those of its requesters, may be called by any goroutine.
type Waiter interface {
	// Requester returns a handle for one caller. The callback is given here and kept with every request, so
	// that a way whose callbacks have a signature of their own wraps it once and not for each request.
	Requester(done Done) Requester
	// Len is how many requests are held, or -1 where that cannot be told.
	Len() int
	Close()
}

// Requester is one caller's handle on a Waiter.
type Requester interface {
	// Add parks a request. A key is never added twice.
	Add(key uint64) Ticket
	// Ack is a peer's answer. For a key that is not held it does nothing.
	Ack(key uint64, peer int)
	// Ready tells whether Receive would return at once. Tests use it.
	Ready(t Ticket) bool
	// Receive waits for the outcome and returns its ok.
	Receive(t Ticket) bool
}

// Sweeper is a Waiter whose deadlines are looked at when its owner asks.
type Sweeper interface {
	Waiter
	// Sweep ends what is due and returns how many requests that were, or -1 where that cannot be told.
	Sweep() int
}

// SessionWaiter is a Waiter that can end all requests of one client connection.
type SessionWaiter interface {
	Waiter
	EndSession(session int) (ended int)
}

// SessionRequester is the Requester of a SessionWaiter. Sessions are numbered from 0 to [MaxSessions]-1.
type SessionRequester interface {
	Requester
	AddIn(key uint64, session int) Ticket
}

// MaxSessions is how many sessions a SessionWaiter has to provide for.
const MaxSessions = 128

// DatedRequester is the Requester of a way that knows no clock but the system's. A measurement that needs many
// requests to fall due at one moment names the moment.
type DatedRequester interface {
	Requester
	AddUntil(key uint64, deadline time.Time) Ticket
}

// Config is how a Waiter is made.
type Config struct {
	Timeout time.Duration
	// Clock replaces the system clock, where the way has a place for one. Then the owner calls Sweep.
	Clock *Clock
	// Background has the deadlines looked at while the Waiter is in use, as its user would arrange it.
	// Package waitlist always does that on the system clock.
	Background bool
}

// Expiry is what a way does about deadlines.
type Expiry uint8

// What a way does about deadlines.
const (
	NoDeadline Expiry = 1 + iota // nothing
	OnAnyClock                   // it takes a clock, so time can be moved for it
	SystemOnly                   // it reads the system clock and nothing else
)

// Rival is one way of doing the work.
type Rival struct {
	Name string
	New  func(Config) Waiter
	// Expiry says whether, and on which clock, requests expire.
	Expiry Expiry
	// CountsNothing: the way knows that a request is over, not that two peers have answered. Somebody else
	// counts, and only the answer that decides, taken to be peer 1's, gets through to it.
	CountsNothing bool
	// LateBy is how long after its deadline a request may still be held although the sweeper has looked.
	LateBy time.Duration
	// About is how it is done, Lacks what it does not do of what package waitlist does.
	About string
	Lacks string
}

// decider is the peer whose answer decides when the peers answer in turn.
const decider = Need - 1

// All returns every way that requests can be held, package waitlist first.
func All() []Rival {
	return []Rival{
		library, handwritten, etcdWait, xsyncMap, textbook, afterFunc, gorums, otterCache, ttlCache,
	}
}

// Clock is a clock that its owner moves. It starts at a fixed moment.
type Clock struct {
	nanos atomic.Int64
}

var epoch = time.Unix(1_700_000_000, 0)

// Move turns the clock forward.
func (c *Clock) Move(d time.Duration) { c.nanos.Add(int64(d)) }

// Now is the time on the clock.
func (c *Clock) Now() time.Time { return epoch.Add(time.Duration(c.nanos.Load())) }

// started makes the system clock readable as one monotonic number, which is cheaper than time.Now.
var started = time.Now()

func systemNanos() int64 { return int64(time.Since(started)) }

// nanos returns the clock as a number, for the ways that keep deadlines as one.
func (c Config) nanos() func() int64 {
	if c.Clock != nil {
		return c.Clock.nanos.Load
	}
	return systemNanos
}

// now returns the clock as a time.
func (c Config) now() func() time.Time {
	if c.Clock != nil {
		return c.Clock.Now
	}
	return time.Now
}

// background calls sweep again and again until the returned function is called.
func (c Config) background(every time.Duration, sweep func() int) (stop func()) {
	if !c.Background {
		return func() {}
	}
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				sweep()
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-gone
	}
}

// How often the background sweeps: a way that finds what is due by looking at little does it as often as
// package waitlist, one that has to look at everything less often.
const (
	cheapSweep = time.Millisecond
	fullScan   = 10 * time.Millisecond
)

// calledBack is embedded by requesters whose outcome comes by callback.
type calledBack struct{}

func (calledBack) Ready(Ticket) bool   { panic("rivals: the outcome comes by callback") }
func (calledBack) Receive(Ticket) bool { panic("rivals: the outcome comes by callback") }
