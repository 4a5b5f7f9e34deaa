package waitlist

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"reflect"
	"slices"
	"testing"
)

// One seed for every list of these tests, so that the place of a key is known before the list is made.
var keySeed = maphash.MakeSeed()

// keys are what the operations on a WaitingList use: most of them in one shard and there in few places of
// the table, so that they meet; and kinds of keys that are known for trouble.
var keys, crowdedKeys = func() ([]any, int) {
	var all []any
	list := New[any](Options{ManualSweep: true})
	list.seed = keySeed
	for i := 0; len(all) < 70; i++ {
		shard, hash := list.locate(i)
		crowded := shard == list.hashed[5] && (uint64(hash)*minTable>>32+2)%minTable < 4
		if crowded || shard == list.hashed[6] && len(all)%16 == 15 {
			all = append(all, i)
		}
	}
	type pair struct {
		a any
		b string
	}
	return append(all, "a", "b", pair{1, "x"}, math.NaN(), 0.0, math.Copysign(0, -1), [0]int{}, nil, unhashable), len(all)
}()

var unhashable = any([]int{1})

// number is the place of a key in keys.
var number = func() map[any]int {
	m := map[any]int{}
	for i, key := range keys[:crowdedKeys] {
		m[key] = i
	}
	return m
}()

// matches is the predicate of an operation.
func matches(o op, key any) bool { return number[key]%3 != o.n }

// batch returns the numbers of the keys that an AckBatch names, with repeats; rule is the stride, and a session
// spares it the key that cannot be hashed.
func batch(o op) (numbers []int) {
	for i := range o.n {
		numbers = append(numbers, (o.key+i*(1+o.rule))%min(1+o.n, len(keys)-o.session))
	}
	return numbers
}

func keysOf(numbers []int) (all []any) {
	for _, i := range numbers {
		all = append(all, keys[i])
	}
	return all
}

// waitingList makes the list of a world.
func waitingList(w *world[any]) *WaitingList[any] {
	l := New[any](w.options())
	l.seed = keySeed
	w.core = &l.core
	w.own = func(o op, r *registration[any]) (res result[any]) {
		key, peer, q := keys[o.key], peers[o.peer], rulings[o.rule].quorum
		switch o.kind {
		case opAdd:
			res.err = l.Add(key, q, w.callback(r), w.addOptions(o)...)
		case opWait:
			return w.waiting(r, func(ctx context.Context, send func() error) (Outcome[any], error) {
				return l.Wait(ctx, key, q, send, w.addOptions(o)...)
			})
		case opAck:
			res.ack = l.Ack(key, peer)
		case opAckWith:
			res.ack = l.AckWith(key, peer, payload(o))
		case opNack:
			res.ack = l.Nack(key, peer, reasons[o.err])
		case opAckBatch:
			res.n = l.AckBatch(keysOf(batch(o)), peer)
		case opPeerDown:
			res.n = l.PeerDown(peer, reasons[o.err])
		case opComplete:
			res.ok = l.Complete(key, payload(o))
		case opFail:
			res.ok = l.Fail(key, reasons[o.err])
		case opFailFunc:
			asked := false
			res.n = l.FailFunc(func(key any) bool {
				if !asked {
					asked = true
					w.script(o)
					if o.fate != returns {
						w.unwind(min(o.fate, exits), false)
					}
				}
				w.witness.asked(o, key)
				return matches(o, key)
			}, reasons[o.err])
		case opGet:
			var p Parked[any]
			if p, res.ok = l.Get(key); res.ok {
				res.parked = append(res.parked, p)
			}
		}
		return res
	}
	return l
}

// payload is what an AckWith or a Complete carries: sometimes nothing.
func payload(o op) any {
	if o.n == 0 {
		return nil
	}
	return o.n
}

// waitingModel is the model of a WaitingList.
type waitingModel struct {
	model[any]
	predicates map[*frame]*predicate
}

// predicate is a FailFunc under way: about which entries it has to ask yet, and which it has to end.
type predicate struct {
	asking, matching []*registration[any]
	ended            int
}

func newWaitingModel(p plan) *waitingModel {
	m := &waitingModel{predicates: map[*frame]*predicate{}}
	m.setup = p.setup
	m.witness = m
	l := waitingList(&m.world)
	m.oracle = oracle[any]{
		capacity: p.capacity, now: m.world.clock.held, view: viewOfOwn[any],
		ended: map[*registration[any]]*ending{}, causes: map[*Session]error{},
	}
	m.foresee = m.foreseeOwn
	m.invariants = l.checkInvariants
	m.poison = poison[any]("poison")
	return m
}

func (m *waitingModel) foreseeOwn(o op, r *registration[any]) func(result[any]) error {
	f := m.frames[len(m.frames)-1]
	if o.kind == opAckBatch {
		f.unhashable = slices.Contains(batch(o), len(keys)-1)
	} else if o.kind != opPeerDown && o.kind != opFailFunc {
		f.unhashable = o.key == len(keys)-1
	}
	r.key, r.in = keys[o.key], m.session(o)
	if o.kind == opAdd || o.kind == opWait {
		refusal, early := m.refuses(r)
		if f.unhashable = f.unhashable && !early; !f.unhashable {
			if refusal == nil {
				m.park(r, m.timeoutOf(o))
			}
			return m.parks(r, refusal)
		}
	}
	if f.unhashable {
		return func(result[any]) error { return nil } // and nothing has changed
	}

	var want result[any]
	peer, entry := peers[o.peer], m.find(r.key)
	switch o.kind {
	case opAck:
		want.ack = m.answer(entry, peer, nil, nil)
	case opAckWith:
		want.ack = m.answer(entry, peer, payload(o), nil)
	case opNack:
		want.ack = m.answer(entry, peer, nil, orNone(reasons[o.err]))
	case opAckBatch:
		want.n = m.answerMany(keysOf(batch(o)), peer)
	case opPeerDown:
		want.n = m.peerDown(peer, reasons[o.err])
	case opComplete:
		if want.ok = entry != nil; want.ok {
			m.claim(entry, EndCompleted).value = payload(o)
		}
	case opFail:
		if want.ok = entry != nil; want.ok {
			m.claim(entry, EndFailed, orNone(reasons[o.err])).exact = orNone(reasons[o.err])
		}
	case opFailFunc:
		asks := &predicate{asking: slices.Clone(m.oracle.parked)}
		m.predicates[f] = asks
		return func(got result[any]) error {
			if len(asks.asking) > 0 || got.n != asks.ended {
				return fmt.Errorf("returned %d, want %d; not asked about: %d", got.n, asks.ended, len(asks.asking))
			}
			return nil
		}
	case opGet:
		if want.ok = entry != nil; want.ok {
			snapshot := m.snapshot(entry)
			return func(got result[any]) error {
				if !got.ok {
					return fmt.Errorf("does not find %v", entry.key)
				}
				return m.compareAll(o, got.parked, []string{snapshot})
			}
		}
	}
	return func(got result[any]) error {
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("returned %+v, want %+v", got, want)
		}
		return nil
	}
}

// refuses tells why an Add or a Wait is refused, and whether for a reason that needs no look at the key.
func (m *waitingModel) refuses(r *registration[any]) (refusal []error, early bool) {
	switch {
	case r.kind == opWait && r.n == 2:
		return []error{context.Canceled, errGivenUp}, true
	case r.kind == opAdd && r.err > 0:
		return []error{ErrNilCallback}, true
	case rulings[r.rule].invalid:
		return []error{ErrInvalidQuorum}, true
	}
	refusal = m.refusal(r)
	switch {
	case refusal != nil:
	case m.timeoutOf(r.op) <= 0:
		refusal = []error{ErrTimeout}
	case r.op.key != len(keys)-1 && m.find(r.key) != nil:
		refusal = []error{ErrDuplicateKey}
	case m.full():
		refusal = []error{ErrFull}
	}
	return refusal, false
}

func (m *waitingModel) asked(o op, key any) {
	asks := m.predicates[m.frames[len(m.frames)-1]]
	i := slices.IndexFunc(asks.asking, func(r *registration[any]) bool {
		return r.key == key || r.key != r.key && key != key
	})
	if i < 0 {
		m.failf("asked about %v, which was not parked at the call, or was asked about before", key)
		return
	}
	if r := asks.asking[i]; matches(o, key) {
		asks.matching = append(asks.matching, r)
	}
	asks.asking = slices.Delete(asks.asking, i, i+1)
	if len(asks.asking) > 0 {
		return
	}
	for _, r := range asks.matching {
		if m.isParked(r) {
			err := orNone(reasons[o.err])
			m.claim(r, EndFailed, err).exact = err
			asks.ended++
		}
	}
}

func checkWaiting(p plan, met *Stats) error {
	return guarded(func() error {
		m := newWaitingModel(p)
		err := m.run(p)
		met.add(m.books)
		return err
	})
}

func TestWaitingListDoesWhatTheOracleForesees(t *testing.T) {
	t.Parallel()
	met := checkPlans(t, trials(1000), waitingKinds, checkWaiting)
	met.Truncated = 1 // ends of the other list
	requireAll(t, met)
}

func FuzzOperations(f *testing.F) {
	for round := range uint64(30) {
		f.Add(randomBytes(1, round))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		checkBytes(t, data[:min(len(data), 800)], waitingKinds, checkWaiting, new(Stats))
	})
}

func TestWaitingListUnderConcurrentOperations(t *testing.T) {
	t.Parallel()
	checkRaces(t, waitingKinds, func(s setup) (*racer[any], func() error) {
		r := newRacer[any](s)
		r.poison = poison[any]("poison")
		return r, waitingList(&r.world).checkInvariants
	})
}
