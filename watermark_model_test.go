package waitlist

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
)

var watermarkKinds = kinds(map[kind]int{
	opAdd: 60, opWait: 12, opAdvance: 16, opAck: 60, opSetQuorum: 12, opBeginTerm: 3, opTruncate: 6,
	opFailAll: 2, opAll: 4, opSweep: 6, opTick: 14, opJump: 4, opEnd: 4, opRenew: 5, opRun: 10, opShutdown: 1,
	opClose: 1,
})

// indexOf is the index that an operation names: from a little below the mark on, and now and then one of the
// ends of what an I can be. What goes beyond the end begins anew at the other.
func indexOf[I Integer](o op, mark I) I {
	if o.key < 74 {
		return mark - 3 + I(o.key)
	}
	lowest, highest := I(0), ^I(0)
	if highest < 0 {
		lowest = I(1) << (8*reflect.TypeFor[I]().Size() - 1)
		highest = ^lowest
	}
	return []I{lowest, lowest + 1, highest, highest - 1, 0}[o.key-74]
}

// watermarkList makes the list of a world.
func watermarkList[I Integer](w *world[I], start I) *WatermarkList[I] {
	l := NewWatermarkList(start, w.options())
	w.core = &l.core
	w.own = func(o op, r *registration[I]) (res result[I]) {
		at := indexOf(o, l.Watermark())
		switch o.kind {
		case opAdd:
			r.key = at
			res.err = l.Add(at, w.callback(r), w.addOptions(o)...)
		case opWait:
			r.key, r.n = at, max(r.n, 1) // it sends nothing
			return w.waiting(r, func(ctx context.Context, _ func() error) (Outcome[I], error) {
				return l.Wait(ctx, at, w.addOptions(o)...)
			})
		case opAdvance:
			res.n = l.Advance(at)
		case opAck:
			res.ack = l.Ack(at, peers[o.peer])
		case opSetQuorum:
			res.n, res.err = l.SetQuorum(rulings[o.rule].quorum)
		case opBeginTerm:
			l.BeginTerm(at)
		case opTruncate:
			res.n, res.err = l.Truncate(at, reasons[o.err])
		}
		return res
	}
	return l
}

// watermarkModel is the model of a WatermarkList, and the oracle of what it has of its own.
type watermarkModel[I Integer] struct {
	model[I]
	list  *WatermarkList[I]
	mark  I
	first *I                 // of the term
	rule  *ruling            // nil: none yet
	match map[PeerID]I       // of the members that have acked in this term
	line  []*registration[I] // completions in the order in which they have to be called
}

func newWatermarkModel[I Integer](p plan, start I) *watermarkModel[I] {
	m := &watermarkModel[I]{mark: start, match: map[PeerID]I{}}
	m.setup = p.setup
	m.witness = m
	m.list = watermarkList(&m.world, start)
	m.oracle = oracle[I]{
		capacity: p.capacity, now: m.world.clock.held, view: m.viewOfAll,
		ended: map[*registration[I]]*ending{}, causes: map[*Session]error{},
	}
	m.foresee = m.foreseeOwn
	m.invariants = m.checkInvariants
	m.poison = poison(index[I](math.MaxUint64 / 3))
	return m
}

func (m *watermarkModel[I]) viewOfAll(r *registration[I]) view {
	if m.rule == nil {
		return view{rule: Quorum{}.String()}
	}
	v := view{rule: m.rule.quorum.String()}
	for _, p := range m.rule.members() {
		if match, ok := m.match[p]; ok && match >= r.key {
			v.acked = append(v.acked, p)
		} else {
			v.missing = append(v.missing, p)
		}
	}
	return v
}

// raise moves the mark, and claims what it reaches in order of index and registration.
func (m *watermarkModel[I]) raise(to I) (reached []*registration[I]) {
	if to <= m.mark {
		return nil
	}
	m.mark = to
	for _, r := range m.oracle.parked {
		if r.key <= to {
			reached = append(reached, r)
		}
	}
	slices.SortStableFunc(reached, func(a, b *registration[I]) int { return cmp.Compare(a.key, b.key) })
	for _, r := range reached {
		m.claim(r, EndReached)
		if r.kind == opAdd {
			m.line = append(m.line, r)
		}
	}
	return reached
}

// commit moves the mark to the highest index that enough members hold, if that is of this term.
func (m *watermarkModel[I]) commit() (reached []*registration[I]) {
	best := m.mark
	for _, v := range m.match {
		holds := func(p PeerID) bool {
			match, ok := m.match[p]
			return ok && match >= v
		}
		if v > best && (m.first == nil || v >= *m.first) && m.rule.tree.met(holds) {
			best = v
		}
	}
	return m.raise(best)
}

func (m *watermarkModel[I]) acked(at I, peer PeerID) AckResult {
	if m.rule == nil || !slices.Contains(m.rule.members(), peer) {
		m.books.ForeignAcks++
		return AckNotMember
	}
	if match, ok := m.match[peer]; ok && match >= at {
		m.books.DuplicateAcks++
		return AckDuplicate
	}
	m.match[peer] = at
	before := m.mark
	for _, r := range m.commit() {
		e := m.ended[r]
		e.view.decider, e.view.decided = peer, true
	}
	if m.mark > before {
		return AckDecided
	}
	return AckCounted
}

func (m *watermarkModel[I]) foreseeOwn(o op, r *registration[I]) func(result[I]) error {
	at := indexOf(o, m.mark)
	var want result[I]
	switch o.kind {
	case opAdd, opWait:
		return m.foreseeAdd(r, at)
	case opAdvance:
		want.n = len(m.raise(at))
	case opAck:
		want.ack = m.acked(at, peers[o.peer])
	case opSetQuorum:
		q := &rulings[o.rule]
		if q.invalid {
			return func(got result[I]) error { return matchesOnly(got.err, ErrInvalidQuorum) }
		}
		for p := range m.match {
			if !slices.Contains(q.members(), p) {
				delete(m.match, p)
			}
		}
		m.rule = q
		want.n = len(m.commit())
	case opBeginTerm:
		m.first = &at
		clear(m.match)
	case opTruncate:
		if at <= m.mark {
			return func(got result[I]) error {
				if got.n != 0 {
					return fmt.Errorf("refused, but ended %d", got.n)
				}
				return matchesOnly(got.err, ErrReached)
			}
		}
		for _, r := range slices.Clone(m.oracle.parked) {
			if r.key >= at {
				m.claim(r, EndTruncated, ErrTruncated, orNone(reasons[o.err]))
				want.n++
			}
		}
		for p, match := range m.match {
			m.match[p] = min(match, at-1)
		}
	}
	return func(got result[I]) error {
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("returned %+v, want %+v", got, want)
		}
		return nil
	}
}

func (m *watermarkModel[I]) foreseeAdd(r *registration[I], at I) func(result[I]) error {
	r.key, r.in = at, m.session(r.op)
	var refusal []error
	switch {
	case r.kind == opWait && r.n == 2:
		refusal = []error{context.Canceled, errGivenUp}
	case r.kind == opAdd && r.err > 0:
		refusal = []error{ErrNilCallback}
	case m.refusal(r) != nil:
		refusal = m.refusal(r)
	case at <= m.mark:
		m.books.Added++
		r.since = m.now()
		m.finish(r, EndReached)
	case m.timeoutOf(r.op) <= 0:
		refusal = []error{ErrTimeout}
	case m.full():
		refusal = []error{ErrFull}
	default:
		m.park(r, m.timeoutOf(r.op))
	}
	return m.parks(r, refusal)
}

func (m *watermarkModel[I]) asked(op, I) {}

// called makes sure of the order of completions.
func (m *watermarkModel[I]) called(r *registration[I], out Outcome[I]) {
	if i := slices.Index(m.line, r); i > 0 {
		m.failf("index %v completes before %v", r.key, m.line[0].key)
	} else if i == 0 {
		m.line = m.line[1:]
	}
	m.model.called(r, out)
}

func (m *watermarkModel[I]) checkInvariants() error {
	if mark := m.list.Watermark(); mark != m.mark {
		return fmt.Errorf("the watermark is %v, want %v", mark, m.mark)
	}
	for _, p := range peers {
		want, ok := m.match[p]
		if match, known := m.list.Match(p); match != want || known != ok {
			return fmt.Errorf("peer %d holds %v (%v), want %v (%v)", p, match, known, want, ok)
		}
	}
	if q := &m.list.ordered.queue; len(m.frames) == 0 && (m.list.ordered.draining || q.head != nil || q.tail != nil) {
		return errors.New("the queue is not empty, although nobody moves the mark")
	}
	return m.core.checkInvariants()
}

// agenda gives the order of the indexes to the tests that both lists have.
func (s *ordered[I]) agenda() *agenda[I] { return s.order }

func (s *ordered[I]) checkOrder() error {
	if err := s.order.checkInvariants(&s.shard); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	for slot := range s.live {
		switch at := position(s.entry(slot).key); {
		case s.order.position(&s.shard, slot) != at:
			return fmt.Errorf("order: slot %d is at %d, want %d", slot, s.order.position(&s.shard, slot), at)
		case at <= s.mark:
			return fmt.Errorf("slot %d is parked although the mark has reached it", slot)
		}
	}
	return nil
}

// checkWatermark runs a plan on lists of signed and of unsigned indexes.
func checkWatermark(p plan, met *Stats) error {
	return guarded(func() error {
		signed := newWatermarkModel[int32](p, -2)
		if err := signed.run(p); err != nil {
			return fmt.Errorf("int32: %w", err)
		}
		met.add(signed.books)
		unsigned := newWatermarkModel[uint64](p, 3)
		if err := unsigned.run(p); err != nil {
			return fmt.Errorf("uint64: %w", err)
		}
		met.add(unsigned.books)
		return nil
	})
}

func TestWatermarkListDoesWhatTheOracleForesees(t *testing.T) {
	t.Parallel()
	met := checkPlans(t, trials(1000), watermarkKinds, checkWatermark)
	met.Completed, met.Unreachable, met.LateAcks = 1, 1, 1 // of the other list
	requireAll(t, met)
}

func FuzzWatermark(f *testing.F) {
	for round := range uint64(30) {
		f.Add(randomBytes(1, round))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		checkBytes(t, data[:min(len(data), 800)], watermarkKinds, checkWatermark, new(Stats))
	})
}

// watermarkRacer also watches in which order completions are called: one after the other, and never one that
// was parked by then after one of a higher index.
type watermarkRacer struct {
	*racer[int64]

	mu    sync.Mutex
	under *registration[int64] // what is being called
	last  int64                // the highest index that was
}

func newWatermarkRacer(s setup) *watermarkRacer {
	r := &watermarkRacer{racer: newRacer[int64](s), last: math.MinInt64}
	r.witness = r
	r.uncounted = true // nor do an Ack, and an Add of what is reached
	return r
}

func (w *watermarkRacer) called(r *registration[int64], out Outcome[int64]) {
	w.racer.called(r, out)
	if out.End != EndReached || w.executor == queued || !r.added.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.under != nil {
		w.failf("index %d is called while %d is", out.Key, w.under.key)
	}
	if out.Key < w.last {
		w.failf("index %d is called after %d", out.Key, w.last)
	}
	w.under, w.last = r, out.Key
}

func (w *watermarkRacer) returning(r *registration[int64]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.under == r {
		w.under = nil
	}
}

func TestWatermarkListUnderConcurrentOperations(t *testing.T) {
	t.Parallel()
	checkRaces(t, watermarkKinds, func(s setup) (*racer[int64], func() error) {
		r := newWatermarkRacer(s)
		r.poison = poison(int64(math.MinInt64 / 3))
		return r.racer, watermarkList(&r.world, 3).core.checkInvariants
	})
}
