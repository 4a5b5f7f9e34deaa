package waitlist

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"
)

// model does to an oracle what a world does to its list, one call at a time, and compares after each,
// also within callbacks and whatever else the list calls. The order in which a call runs its callbacks is
// the list's choice; the oracle follows.
type model[K comparable] struct {
	world[K]
	oracle[K]
	foresee    func(o op, r *registration[K]) func(result[K]) error // what only this kind of list has
	invariants func() error
	poison     poisoned[K]

	failure error    // the first
	steps   int      // calls so far
	frames  []*frame // of the calls under way, the innermost last
	ticking int      // of these, how many move the clock
	waits   int      // and how many are Waits
	shown   []shown  // tallies from earlier
	panics  []any    // that OnPanic has to be told of
}

// maxSteps bounds what callbacks that add entries with callbacks that add entries can do.
const maxSteps = 1000

// frame is one call under way.
type frame struct {
	first      any  // the panic that has to go on after it
	exits      bool // something in it has called Goexit
	unhashable bool // a run-time panic has to come out of it
	gaveBack   int  // what it ended as a Shutdown without patience
}

// shown is a tally that was seen, and must not change any more.
type shown struct {
	tally Tally
	view  view
}

func (m *model[K]) fail(err error) {
	if m.failure == nil && err != nil {
		m.failure = err
	}
}

func (m *model[K]) failf(format string, args ...any) { m.fail(fmt.Errorf(format, args...)) }

// exact tells whether the timer sweeps at each deadline.
func (m *model[K]) exact() bool { return m.setup.clock == sweptByTimer }

// catchUp makes the oracle sweep as the timer has: what was claimed by it may have been a Wait, of which
// nobody is told before it returns.
func (m *model[K]) catchUp() {
	if m.ticking > 0 && m.exact() {
		m.sweep(m.now())
	}
}

// run does all of a plan, closes the list, and returns what went wrong first.
func (m *model[K]) run(p plan) error {
	for i, o := range p.ops {
		if m.step(o); m.failure != nil {
			return fmt.Errorf("operation %d: %s: %w", i, kindNames[o.kind], m.failure)
		}
	}
	for m.step(op{kind: opClose}); len(m.runs) > 0; {
		m.step(op{kind: opRun})
	}
	select {
	case <-m.core.Done():
	default:
		m.failf("closed, with nothing parked and no callback under way, but not done")
	}
	if armed := m.world.clock.Armed(); armed > 0 {
		m.failf("%d timers are armed after the end", armed)
	}
	for _, s := range m.shown {
		if got := viewOf(s.tally); !reflect.DeepEqual(got, s.view) {
			m.failf("a tally has changed to %+v from %+v", got, s.view)
		}
	}
	return m.failure
}

// step makes one call, maybe inside another, and compares.
func (m *model[K]) step(o op) {
	if o.kind == opAdd && o.n > 1 {
		for i := range o.n {
			one := o
			one.n, one.key = 1, (o.key+i)%len(keys)
			m.step(one)
		}
		return
	}
	if m.steps++; m.failure != nil || m.steps > maxSteps && len(m.frames) > 0 {
		return
	}
	m.catchUp()
	if o.kind == opTick && m.waits > 0 && !m.exact() {
		return // whether a Wait has expired already could not be foreseen
	}
	f := &frame{}
	m.frames = append(m.frames, f)
	r := &registration[K]{op: o}
	compare := m.expect(o, r, f)
	if o.kind == opTick {
		m.ticking++
	}
	if o.kind == opWait {
		m.waits++
	}
	got := m.call(func() result[K] { return m.perform(o, r) })
	if o.kind == opTick {
		m.ticking--
	}
	if o.kind == opWait {
		m.waits--
	}
	m.frames = m.frames[:len(m.frames)-1]
	mismatch := compare(got)
	switch _, runtimeError := got.panicked.(runtime.Error); {
	case f.unhashable && runtimeError:
	case f.unhashable || got.panicked != f.first:
		m.failf("%s: panic %v, want %v", kindNames[o.kind], got.panicked, f.first)
	case got.panicked != nil:
	case got.exited != f.exits:
		m.failf("%s: exit %v, want %v", kindNames[o.kind], got.exited, f.exits)
	case !got.exited && mismatch != nil:
		m.failf("%s: %w", kindNames[o.kind], mismatch)
	}
	m.check()
}

// check compares all that can be asked at any time.
func (m *model[K]) check() {
	if m.failure != nil {
		return
	}
	m.catchUp()
	stats := m.stats()
	over := m.closed && stats.Parked == 0 && stats.Running == 0
	if got := m.core.Stats(); got != stats {
		m.failf("Stats:\n%+v, want\n%+v", got, stats)
	}
	if n := m.core.Len(); n != stats.Parked {
		m.failf("Len is %d, want %d", n, stats.Parked)
	}
	select {
	case <-m.core.Done():
		if !over {
			m.failf("done too early: %+v, closed: %v", stats, m.closed)
		}
	default:
		if over && len(m.frames) == 0 {
			m.failf("not done")
		}
	}
	for i := range m.sessions {
		s := m.sessions[i].Load()
		if n := s.Len(); n != m.held(s) {
			m.failf("session %d holds %d, want %d", i, n, m.held(s))
		}
		m.fail(s.checkInvariants())
	}
	m.fail(m.invariants())
	m.poison.spread(m.core)
	if armed := m.world.clock.Armed(); armed > 1 || armed == 1 && m.setup.clock == sweptByOwner {
		m.failf("%d timers are armed", armed)
	}
	if len(m.frames) == 0 && m.executor != queued && len(m.ended) > 0 {
		m.failf("%d were ended, but their callbacks were not called", len(m.ended))
	}
}

// expect foresees what an operation of both lists does.
func (m *model[K]) expect(o op, r *registration[K], f *frame) func(result[K]) error {
	count := func(n int) func(result[K]) error {
		return func(got result[K]) error {
			if got.n != n {
				return fmt.Errorf("returned %d, want %d", got.n, n)
			}
			return nil
		}
	}
	succeed := func(got result[K]) error { return got.err }
	switch o.kind {
	case opFailAll:
		return count(m.endAll(EndFailed, orNone(reasons[o.err]), anyOf))
	case opSweep:
		return count(m.oracle.sweep(m.now()))
	case opEnd:
		return count(m.endSession(m.session(o), reasons[o.err]))
	case opAll:
		want := make([]string, len(m.oracle.parked))
		for i, r := range m.oracle.parked {
			want[i] = m.snapshot(r)
		}
		return func(got result[K]) error { return m.compareAll(o, got.parked, want) }
	case opTick:
		return m.ticked
	case opShutdown:
		m.closed = true
		return func(got result[K]) error { return compareShutdown(got.err, f.gaveBack) }
	case opClose:
		m.closed = true
		m.endAll(EndClosed, ErrClosed, anyOf)
		return succeed
	case opJump, opRenew, opRun:
		return succeed
	}
	return m.foresee(o, r)
}

// ticked looks at what the timer should have done.
func (m *model[K]) ticked(result[K]) error {
	if m.ticking > 0 || m.setup.clock == sweptByOwner {
		return nil // inside another tick, which goes on
	}
	// What the timer has missed is still parked in the list, and no callback of it comes.
	if m.exact() {
		m.sweep(m.now())
	} else {
		m.sweep(m.now() - interval)
	}
	return nil
}

func compareShutdown(err error, n int) error {
	if n == 0 {
		return err
	}
	if err := matchesOnly(err, context.Canceled, errPatience); err != nil {
		return err
	}
	if !strings.Contains(err.Error(), fmt.Sprintf(" %d ", n)) {
		return fmt.Errorf("%q does not say that %d were given back", err, n)
	}
	return nil
}

// shownDeadline lets the deadlines that never come be one: they are centuries away, counted
// from the list's first reading of the clock.
func shownDeadline(at time.Time) string {
	if at.Year() > 2300 {
		return "never"
	}
	return at.String()
}

// snapshot tells what a Parked should say.
func (m *model[K]) snapshot(r *registration[K]) string {
	return fmt.Sprint(r.key, epoch.Add(r.since), shownDeadline(epoch.Add(r.deadline)), m.oracle.view(r))
}

func (m *model[K]) compareAll(o op, got []Parked[K], want []string) error {
	if len(o.then) > 0 || o.fate != returns {
		return nil // of shards that come after the first nobody can say what they held
	}
	lines := make([]string, len(got))
	for i, p := range got {
		lines[i] = fmt.Sprint(p.Key, p.Since, shownDeadline(p.Deadline), viewOf(p.Tally))
		m.show(p.Tally)
	}
	slices.Sort(lines)
	slices.Sort(want)
	if !slices.Equal(lines, want) {
		return fmt.Errorf("yields\n%v, want\n%v", lines, want)
	}
	return nil
}

// show remembers a tally.
func (m *model[K]) show(t Tally) {
	if len(m.shown) < 30 {
		m.shown = append(m.shown, shown{t, viewOf(t)})
	}
}

// parks foresees an Add or a Wait that is refused for the given reasons, or not.
func (m *model[K]) parks(r *registration[K], refusal []error) func(result[K]) error {
	if refusal != nil {
		m.books.Refused++
		return func(got result[K]) error {
			if err := matchesOnly(got.err, append(refusal, ErrNotParked)...); err != nil {
				return err
			}
			if r.kind == opWait {
				want := Outcome[K]{Key: r.key, Err: got.err}
				if fmt.Sprint(got.out) != fmt.Sprint(want) {
					return fmt.Errorf("refused with %+v, want %+v", got.out, want)
				}
			}
			return nil
		}
	}
	if r.kind == opAdd {
		return func(got result[K]) error { return got.err }
	}
	return func(got result[K]) error {
		e := m.ended[r]
		delete(m.ended, r)
		switch {
		case e == nil:
			return fmt.Errorf("returned %+v, but is parked", got.out)
		case got.out.Err != got.err:
			return fmt.Errorf("returned %v, but its outcome has %v", got.err, got.out.Err)
		}
		m.show(got.out.Tally)
		return compareOutcome(r, e, got.out)
	}
}

func compareOutcome[K comparable](r *registration[K], e *ending, out Outcome[K]) error {
	if out.Key != r.key && r.key == r.key {
		return fmt.Errorf("key %v, want %v", out.Key, r.key)
	}
	return e.check(out, out.End, out.Err, out.Value, out.Since, out.Tally)
}

// timeout is what an Add asks for.
func (m *model[K]) timeoutOf(o op) time.Duration {
	switch {
	case o.time > 0:
		return timeouts[o.time]
	case m.setup.timeout > 0:
		return m.setup.timeout
	}
	return 10 * time.Second
}

// The functions that the list calls come here.

func (m *model[K]) called(r *registration[K], out Outcome[K]) {
	m.catchUp()
	if out.End == EndTimedOut && m.ended[r] == nil && m.ticking > 0 {
		if m.sweep(m.now()); m.exact() {
			m.failf("expired at %v, but its deadline was %v", m.now(), r.deadline)
		}
	}
	e := m.ended[r]
	if e == nil {
		m.failf("key %v: called with %+v, though nothing has ended it, or called twice", r.key, out)
		return
	}
	delete(m.ended, r)
	m.fail(compareOutcome(r, e, out))
	m.show(out.Tally)
	m.check()
}

func (m *model[K]) returning(*registration[K]) { m.running-- }

func (m *model[K]) cancels(r *registration[K], reasons ...error) bool {
	m.catchUp()
	if !m.isParked(r) {
		return false
	}
	m.claim(r, EndCanceled, reasons...)
	return true
}

func (m *model[K]) patience() bool {
	m.catchUp()
	n := m.endAll(EndClosed, ErrClosed, anyOf)
	m.frames[len(m.frames)-1].gaveBack += n
	return n > 0
}

func (m *model[K]) unwinds(callback bool, value any) {
	f := m.frames[len(m.frames)-1]
	switch {
	case value == nil:
		f.exits = true
	case callback && m.onPanic:
		m.books.CallbackPanics++
		m.panics = append(m.panics, value)
	default:
		if f.first == nil {
			f.first = value
		}
		if callback {
			m.books.CallbackPanics++
		}
	}
}

func (m *model[K]) panicked(_ K, value any, stack []byte) {
	if n := len(m.panics); n == 0 || m.panics[n-1] != value || len(stack) == 0 {
		m.failf("OnPanic was told of %v, want %v; %d bytes of stack", value, m.panics, len(stack))
		return
	}
	m.panics = m.panics[:len(m.panics)-1]
	m.core.Len() // no lock is held
}
