package waitlist

import (
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a list. The zero value is ready to use.
type Options struct {
	// Timeout is how long an entry may stay parked unless its Add says otherwise, that
	// of a Wait included. Zero means 10 seconds; math.MaxInt64 means for ever.
	Timeout time.Duration

	// SweepInterval is the least time between two sweeps by the timer, so that a
	// stream of deadlines does not become a stream of wake-ups: an entry may
	// expire that much late. Zero means 1 ms on the system clock and no limit on
	// another Clock.
	SweepInterval time.Duration

	// ManualSweep leaves sweeping to the owner: no timer is armed, and nothing
	// expires but by a call of Sweep.
	ManualSweep bool

	// Capacity is how many entries may be parked at once; Add refuses more with
	// ErrFull. Zero means no limit. A limit costs a counter shared by all cores.
	Capacity int

	// Clock tells the time and arms the sweeper's timer. Nil means the system
	// clock, of which only monotonic readings are used.
	Clock Clock

	// Executor runs callbacks elsewhere (but for the end of a Wait, which needs
	// none). Without one a callback runs inside the call that ended its entry: the
	// connection's reader inside Ack, the sweeper's timer, whoever closes. There a
	// callback that blocks or syncs a file holds up every later answer on that
	// connection, and one that takes a lock which the caller of Ack, Advance, Fail
	// or Close holds deadlocks, also a read lock while a writer waits. Set an
	// Executor when callbacks do such things.
	//
	// It gets one run per callback, with no lock held. It must call each run
	// exactly once (a second call does nothing), on any goroutine, must accept
	// work until the list's Done is closed, and must not block on what the
	// callers of this list have to release: a channel with a bounded buffer does,
	// when a callback on its worker ends other entries, or when a caller holds the
	// lock that the callbacks want. Use a queue that grows. One that is first-in
	// first-out on a single goroutine keeps the order of a WatermarkList; a goroutine
	// per run keeps none. If the executor itself panics or exits before it has called
	// run, the callback runs where the executor was called, and then the panic
	// is treated as the callback's. A later panic of the executor goes to OnPanic,
	// too, or on to its caller.
	Executor func(run func())

	// OnPanic is told of each panic in a callback, which ends there. Without it
	// the panic of a callback goes on, after the other callbacks of the same call
	// have run, on the goroutine that ran it; on the sweeper's timer that ends
	// the process.
	OnPanic func(key, value any, stack []byte)
}

const (
	defaultTimeout       = 10 * time.Second
	defaultSweepInterval = time.Millisecond
)

// check panics on options that make no sense: a programmer's mistake, not data.
func (o *Options) check() {
	switch {
	case o.Timeout < 0:
		panic(fmt.Sprintf("waitlist: Options.Timeout is negative: %v", o.Timeout))
	case o.SweepInterval < 0:
		panic(fmt.Sprintf("waitlist: Options.SweepInterval is negative: %v", o.SweepInterval))
	case o.Capacity < 0:
		panic(fmt.Sprintf("waitlist: Options.Capacity is negative: %d", o.Capacity))
	}
}

// AddOption changes one Add or Wait. It is a plain value: passing one allocates
// nothing.
type AddOption struct {
	kind    optionKind
	timeout time.Duration
	session *Session
}

// optionKind is what an AddOption sets. The zero option sets nothing.
type optionKind uint8

const (
	timeoutOption optionKind = 1 + iota
	sessionOption
)

// Timeout gives an entry its own timeout. An Add with d <= 0 is refused with
// ErrTimeout; math.MaxInt64 means that the entry never expires.
func Timeout(d time.Duration) AddOption { return AddOption{kind: timeoutOption, timeout: d} }

// InSession makes an entry live and die with s. Nil means no session.
func InSession(s *Session) AddOption { return AddOption{kind: sessionOption, session: s} }

// addOptions are the options of one Add. The last of each kind counts.
type addOptions struct {
	timeout time.Duration
	session *Session
}

// core is what the two lists share: everything but how an entry is found and what
// decides it. Its exported methods are part of both.
type core[K comparable] struct {
	// Written once, before the list is handed out.
	shards   []*shard[K]
	timeout  time.Duration
	capacity int64
	executor func(run func())
	onPanic  func(key, value any, stack []byte)
	clock    Clock     // nil: the system clock
	epoch    time.Time // on another clock, also written at its first reading: see now

	latest  atomic.Int64 // latest reading of a clock that is not the system's
	parked  atomic.Int64 // entries parked; kept only under a capacity
	refused atomic.Uint64
	panics  atomic.Uint64

	blocks *sync.Pool // *block[K]: see pool

	sweeper
	closing
}

// init prepares a core. The shards are the caller's.
func (l *core[K]) init(opts *Options, shards []*shard[K]) {
	l.shards, l.blocks = shards, pool[K]()
	l.timeout = opts.Timeout
	if l.timeout == 0 {
		l.timeout = defaultTimeout
	}
	l.capacity = int64(opts.Capacity)
	l.executor, l.onPanic = opts.Executor, opts.OnPanic
	if l.clock = opts.Clock; l.clock == nil {
		l.epoch = time.Now()
	} else {
		l.epoch = l.clock.Now()
		l.latest.Store(unread)
	}
	l.sweeper.init(opts)
	l.closing.init(len(shards))
	for _, s := range shards {
		s.list = l
	}
}

// unread is the latest reading of a clock that nobody has needed yet.
const unread = -1

// now reads the clock, in nanoseconds since the epoch. It never goes back: the system's
// monotonic clock does not, another is held at its latest reading.
//
// The epoch is when the list was made; on another clock it is the first reading that is
// needed, if that is later: nanoseconds reach 292 years, and a test's clock may have been
// set from the zero time to today in between. The first reading takes leaf: every caller
// that holds leaf has read the clock before.
func (l *core[K]) now() int64 {
	if l.clock == nil {
		return int64(time.Since(l.epoch))
	}
	reading := l.clock.Now()
	if l.latest.Load() == unread {
		l.leaf.Lock()
		if l.latest.Load() == unread {
			if reading.After(l.epoch) {
				l.epoch = reading
			}
			l.latest.Store(0)
		}
		l.leaf.Unlock()
	}
	now := int64(reading.Sub(l.epoch))
	for {
		latest := l.latest.Load()
		if now <= latest {
			return latest
		}
		if l.latest.CompareAndSwap(latest, now) {
			return now
		}
	}
}

// at turns a reading of now into a time on the list's clock.
func (l *core[K]) at(now int64) time.Time { return l.epoch.Add(time.Duration(now)) }

// deadline adds without overflow.
func deadline(now int64, timeout time.Duration) int64 {
	if at := now + int64(timeout); at >= now {
		return at
	}
	return never
}

func (l *core[K]) options(opts []AddOption) addOptions {
	all := addOptions{timeout: l.timeout}
	for _, o := range opts {
		switch o.kind {
		case timeoutOption:
			all.timeout = o.timeout
		case sessionOption:
			all.session = o.session
		}
	}
	return all
}

// reserve takes a place under the capacity. Incrementing first and undoing it when over
// the limit would, in between, turn others away from free places.
func (l *core[K]) reserve() bool {
	for {
		n := l.parked.Load()
		if n >= l.capacity {
			return false
		}
		if l.parked.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// refuse counts an Add that parked nothing.
func (l *core[K]) refuse(err error) error {
	l.refused.Add(1)
	return err
}

// FailAll ends every entry parked at the call with err, as EndFailed, and returns
// how many. A nil err becomes ErrNoReason. It first claims all of them and then
// calls; what the callbacks add is not touched. It costs what is parked.
func (l *core[K]) FailAll(err error) (ended int) {
	return l.endAll(EndFailed, orNoReason(err))
}

func (l *core[K]) endAll(end End, err error) int {
	p := pass[K]{list: l}
	for _, s := range l.shards {
		s.mu.Lock()
		s.claimAllLocked(&p, end, err)
		s.mu.Unlock()
	}
	return p.finish()
}

// Len returns how many entries are parked. While others add and end entries it is
// a sum that no single moment had. It takes each shard's lock in turn.
func (l *core[K]) Len() int {
	n := 0
	for _, s := range l.shards {
		s.mu.Lock()
		n += int(s.live)
		s.mu.Unlock()
	}
	return n
}

// All yields a snapshot of each parked entry, in no particular order. Each shard's
// part is copied as it was at one moment and no lock is held while the loop body
// runs, so the body may call anything; an entry may have ended before it is
// yielded. Cost: a copy of what is parked.
func (l *core[K]) All() iter.Seq[Parked[K]] {
	return func(yield func(Parked[K]) bool) {
		var part []Parked[K]
		for _, s := range l.shards {
			part = part[:0]
			s.mu.Lock()
			for slot := range s.live {
				part = append(part, s.snapshotLocked(slot))
			}
			s.mu.Unlock()
			for _, p := range part {
				if !yield(p) {
					return
				}
			}
		}
	}
}
