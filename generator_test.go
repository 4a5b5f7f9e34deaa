package waitlist

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// kind is what an operation calls.
type kind uint8

const (
	opAdd kind = iota
	opWait
	opAck
	opAckWith
	opNack
	opAckBatch
	opPeerDown
	opComplete
	opFail
	opFailFunc
	opFailAll
	opGet
	opAll
	opSweep
	opTick // the clock goes on
	opJump // the clock is set, forward or back
	opEnd  // of a session
	opRenew
	opRun // the executor runs what it was given
	opShutdown
	opClose
	opAdvance
	opSetQuorum
	opBeginTerm
	opTruncate
)

var kindNames = [...]string{
	"Add", "Wait", "Ack", "AckWith", "Nack", "AckBatch", "PeerDown", "Complete", "Fail", "FailFunc",
	"FailAll", "Get", "All", "Sweep", "tick", "jump", "End", "renew", "run", "Shutdown", "Close",
	"Advance", "SetQuorum", "BeginTerm", "Truncate",
}

// fate is how a function of the caller's ends: a callback, a send, a predicate, a loop's body.
type fate uint8

const (
	returns fate = iota
	panics
	exits
	fails // a send returns an error, a loop is left
)

var fateNames = [...]string{"", "panic", "exit", "fail"}

// op is one call, told in small numbers that index the tables below, so that a list of them can be made
// of bytes, replayed, shrunk and read.
type op struct {
	kind    kind
	key     int
	n       int // how many keys from key on; a variant of the call
	peer    int
	rule    int
	session int // 0: none
	time    int
	err     int // 0: nil
	then    []op
	fate    fate
}

// timeouts are what an Add asks for; the first asks for nothing.
var timeouts = []time.Duration{
	math.MinInt64, time.Second, time.Millisecond, 1, time.Hour, math.MaxInt64, 3 * time.Millisecond, 0, -5,
}

// steps are what a clock makes: a tick those from the first on, a jump any.
var steps = []time.Duration{
	1, time.Millisecond, 2 * time.Millisecond, time.Second, 0, 10 * time.Second, time.Hour, 5000 * time.Hour,
	-1, -time.Second, -1000 * time.Second,
}

const tickSteps = 8

// peers may answer. Some are in no rule.
var peers = []PeerID{1, 2, 3, 4, 0, math.MaxUint64, 5, 65, 66, 70, 999}

// reasons are what callers give. Some match errors of this package, which must not be taken for them.
var reasons = []error{
	nil, errors.New("reason"), fmt.Errorf("other's: %w", ErrTimeout), fmt.Errorf("other's: %w", ErrClosed),
}

// ruling is a rule together with its definition, which knows nothing of quorum.go.
type ruling struct {
	name     string
	quorum   Quorum
	tree     drawn
	external bool
	invalid  bool
}

var rulings = func() (all []ruling) {
	sound := func(name string, d drawn) { all = append(all, ruling{name: name, quorum: d.build(), tree: d}) }
	invalid := func(name string, q Quorum) { all = append(all, ruling{name: name, quorum: q, invalid: true}) }
	var wide []PeerID
	votes := make([]uint64, 70)
	for p := range PeerID(70) {
		wide = append(wide, p+1)
		votes[p] = uint64(p % 3)
	}
	votes[0], votes[1] = 60, 60
	sound("majority", counts(2, 1, 2, 3))
	sound("one", counts(1, 1, 2, 3))
	sound("all", counts(3, 1, 2, 3))
	sound("five", counts(3, 1, 2, 3, 4, 5))
	sound("extremes", counts(2, 0, math.MaxUint64, 1))
	sound("joint", joins(2, counts(2, 1, 2, 3), counts(1, 4)))
	sound("either", joins(1, counts(2, 1, 2), counts(2, 3, 4)))
	sound("weighted", drawn{need: 3, peers: []PeerID{1, 2, 3, 4}, votes: []uint64{2, 1, 1, 0}})
	sound("wide", counts(2, wide...))
	sound("nearly-all-wide", counts(69, wide...))
	sound("weighted-wide", drawn{need: 100, peers: wide, votes: votes})
	sound("joint-wide", joins(2, counts(2, 1, 2, 3), counts(1, wide[63:]...)))
	all = append(all, ruling{name: "external", quorum: External(), external: true})
	invalid("zero", Quorum{})
	invalid("empty-side", AllOf(Majority(1, 2, 3), Majority()))
	invalid("repeated", Majority(1, 2, 1))
	invalid("external-part", AtLeastOf(1, External(), Majority(1)))
	return all
}()

// setup is how the list of a run is made.
type setup struct {
	clock    int // 0: the timer sweeps; 1: the owner; 2: the timer, with an interval
	capacity int
	executor int
	onPanic  bool
	timeout  time.Duration
}

const (
	sweptByTimer = iota
	sweptByOwner
	sweptAtIntervals
)

const (
	noExecutor    = iota
	inline        // runs at once, and twice
	queued        // runs when told to
	unwinding     // panics or exits instead of every third
	executorKinds = iota
)

const interval = 2 * time.Millisecond

// plan is a whole run: how the list is made and what is done to it.
type plan struct {
	setup
	ops []op
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "clock=%s capacity=%d executor=%s onPanic=%v timeout=%v\n",
		[]string{"timer", "manual", "interval"}[p.clock], p.capacity,
		[]string{"none", "inline", "queued", "unwinding"}[p.executor], p.onPanic, p.timeout)
	write(&b, p.ops, "")
	return b.String()
}

func write(b *strings.Builder, ops []op, indent string) {
	for _, o := range ops {
		b.WriteString(indent + kindNames[o.kind])
		for _, field := range []struct {
			name  string
			value int
		}{
			{"key", o.key}, {"n", o.n}, {"peer", o.peer}, {"rule", o.rule}, {"session", o.session},
			{"time", o.time}, {"err", o.err},
		} {
			switch {
			case field.value == 0:
			case field.name == "rule":
				fmt.Fprintf(b, " rule=%s", rulings[field.value].name)
			case field.name == "time" && o.kind <= opWait:
				fmt.Fprintf(b, " timeout=%v", timeouts[field.value])
			case field.name == "time":
				fmt.Fprintf(b, " step=%v", steps[field.value])
			default:
				fmt.Fprintf(b, " %s=%d", field.name, field.value)
			}
		}
		b.WriteString(" " + fateNames[o.fate] + "\n")
		write(b, o.then, indent+"    ")
	}
}

// What operations are drawn from: more of a kind makes it more frequent.
var waitingKinds = kinds(map[kind]int{
	opAdd: 60, opWait: 12, opAck: 40, opAckWith: 12, opNack: 16, opAckBatch: 8, opPeerDown: 4, opComplete: 8,
	opFail: 8, opFailFunc: 6, opFailAll: 2, opGet: 4, opAll: 4, opSweep: 6, opTick: 14, opJump: 4, opEnd: 4,
	opRenew: 5, opRun: 10, opShutdown: 1, opClose: 1,
})

func kinds(weights map[kind]int) (all []kind) {
	for k := range kind(len(kindNames)) {
		all = append(all, slices.Repeat([]kind{k}, weights[k])...)
	}
	return all
}

// decode makes a plan out of bytes. Every plan is sound: what makes no sense is for the list to refuse.
func decode(data []byte, from []kind) plan {
	d := &dice{data: data}
	p := plan{setup: setup{
		clock:    []int{sweptByTimer, sweptByTimer, sweptByOwner, sweptAtIntervals}[d.roll(4)],
		capacity: []int{0, 0, 0, 1, 3, 20}[d.roll(6)],
		executor: max(0, d.roll(executorKinds+2)-2),
		onPanic:  d.roll(2) == 0,
		timeout:  []time.Duration{0, 0, time.Second, math.MaxInt64}[d.roll(4)],
	}}
	switch {
	case p.executor == unwinding:
		p.onPanic = true
	case p.executor == queued && p.clock == sweptAtIntervals:
		p.executor = inline // or what has expired could not be foreseen
	}
	for len(d.data) > 0 {
		p.ops = append(p.ops, d.op(from, len(data), 0))
	}
	return p
}

func (d *dice) op(from []kind, total, depth int) op {
	o := op{kind: from[d.roll(len(from))]}
	if o.kind >= opShutdown && o.kind <= opClose && 4*len(d.data) > total && d.roll(8) > 0 {
		o.kind = opAll // or few plans would have a life
	}
	// Few keys, so that operations meet; many now and then.
	o.key = d.roll([]int{3, 3, 12, len(keys)}[d.roll(4)])
	o.peer = d.roll([]int{4, len(peers)}[d.roll(2)])
	switch o.kind {
	case opAdd, opWait:
		o.rule = d.roll([]int{1, len(rulings)}[d.roll(2)])
		o.time = d.roll([]int{1, 5, len(timeouts)}[d.roll(3)])
		o.session = max(0, d.roll(7)-3)
		if d.roll(24) == 0 {
			o.err = 1 // no callback
		}
		o.n = d.roll(3)
		if o.kind == opAdd && depth == 0 && d.roll(8) == 0 {
			o.n = d.roll(70)
		}
	case opAckBatch:
		o.n = []int{0, 1, 4, 9, 20, 130, 200}[d.roll(7)]
		o.rule, o.session = d.roll(3), d.roll(2) // the stride; 1: hashable keys only
	case opNack, opPeerDown, opFail, opFailAll, opTruncate:
		o.err = d.roll(len(reasons))
	case opAckWith, opComplete:
		o.n = d.roll(4)
	case opFailFunc:
		o.n, o.err = d.roll(4), d.roll(len(reasons))
	case opSetQuorum:
		o.rule = d.roll(len(rulings))
	case opTick:
		o.time = d.roll([]int{3, tickSteps}[d.roll(2)])
	case opJump:
		o.time = d.roll(len(steps))
	case opEnd, opRenew:
		o.session, o.err = 1+d.roll(3), d.roll(len(reasons))
	}
	switch o.kind {
	case opAdd, opWait, opFailFunc, opAll, opShutdown:
		if depth < 3 && d.roll(2) == 0 {
			for range d.roll(4) {
				o.then = append(o.then, d.op(from, total, depth+1))
			}
		}
		if d.roll(6) == 0 && o.kind != opShutdown {
			o.fate = fate(d.roll(4))
		}
	}
	return o
}
