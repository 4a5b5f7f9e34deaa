package waitlist

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
)

// checkInvariants tells what is wrong with the parts that both lists share. Nobody may use the list
// meanwhile.
func (l *core[K]) checkInvariants() error {
	live, undrained := 0, int32(0)
	for i, s := range l.shards {
		if err := s.checkInvariants(); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
		live += int(s.live)
		if s.live > 0 || !s.closed.Load() {
			undrained++
		}
	}
	switch {
	case l.capacity > 0 && l.parked.Load() != int64(live):
		return fmt.Errorf("%d parked, but %d places are taken", live, l.parked.Load())
	case l.capacity == 0 && l.parked.Load() != 0:
		return errors.New("a list without a limit counts what is parked")
	case l.undrained.Load() != undrained:
		return fmt.Errorf("%d shards not drained, but %d are counted", undrained, l.undrained.Load())
	}
	return l.blocksAreClean()
}

func (s *shard[K]) checkInvariants() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	chunks := uint32(len(s.entries))
	if chunks > s.live/chunk+2 || chunks*chunk < s.live {
		return fmt.Errorf("%d chunks of entries for %d", chunks, s.live)
	}
	for slot := range chunks * chunk {
		e := s.entry(slot)
		if slot < s.live {
			if err := s.checkEntry(slot, e); err != nil {
				return fmt.Errorf("slot %d of %d: %w", slot, s.live, err)
			}
		} else if e.serial != poisonSerial && !reflect.ValueOf(e).Elem().IsZero() {
			return fmt.Errorf("free slot %d beyond %d still holds %+v", slot, s.live, *e)
		}
	}
	switch live := s.live; {
	case !s.indexed && live > s.unindexed:
		return fmt.Errorf("%d entries are not indexed", live)
	case s.indexed && live < s.unindexed/2:
		return fmt.Errorf("%d entries are indexed", live)
	}
	if err := s.due.checkInvariants(s); err != nil {
		return fmt.Errorf("deadlines: %w", err)
	}
	if running := s.runningLocked(); running < 0 {
		return fmt.Errorf("%d callbacks are running", running)
	}
	switch find := s.find.(type) {
	case *hashed[K]:
		return find.checkTable()
	case interface{ checkOrder() error }:
		return find.checkOrder()
	}
	return errors.New("unknown kind of shard")
}

func (s *shard[K]) checkEntry(slot uint32, e *entry[K]) error {
	if e.done == nil || e.serial == poisonSerial {
		return errors.New("in use, but empty")
	}
	t := e.tie
	if t == nil {
		return nil
	}
	if (t.wake || t.session != nil) && t.slot != slot { // of the others nobody has a reference
		return fmt.Errorf("its tie says slot %d", t.slot)
	}
	if t.session == nil {
		if t.holder != nil || t.prev != nil || t.next != nil {
			return errors.New("in no session, but linked")
		}
		return nil
	}
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	if t.holder != holder(s) {
		return errors.New("its session thinks that another list holds it")
	}
	if t.prev == nil && t.session.first != t || t.prev != nil && t.prev.next != t || t.next != nil && t.next.prev != t {
		return errors.New("its session does not know it")
	}
	return nil
}

// checkInvariants tells what is wrong with what a session holds. Nobody may use its lists meanwhile.
func (s *Session) checkInvariants() error {
	n := 0
	for last, t := (*tie)(nil), s.first; t != nil; last, t = t, t.next {
		if t.prev != last || t.session != s || t.holder == nil || t.slot == gone {
			return fmt.Errorf("session: entry %d is badly linked", n)
		}
		n++
	}
	if n != s.held {
		return fmt.Errorf("session: holds %d, but counts %d", n, s.held)
	}
	return nil
}

// checkTable tells whether the table, if there is one, holds exactly what is parked.
func (s *hashed[K]) checkTable() error {
	if !s.indexed {
		if i := slices.IndexFunc(s.table.pairs, func(pair uint64) bool { return pair != 0 }); i >= 0 {
			return fmt.Errorf("%d entries are not indexed, but the table has %#x", s.live, s.table.pairs[i])
		}
		return nil
	}
	if err := s.table.checkInvariants(int(s.live)); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	for slot := range s.live {
		if hash := s.entry(slot).hash; !slices.Contains(s.table.pairs, uint64(hash)<<32|uint64(slot+1)) {
			return fmt.Errorf("slot %d is not in the table under its hash %#x", slot, hash)
		}
	}
	return nil
}

// checkInvariants tells what is wrong with the whole list.
func (l *WaitingList[K]) checkInvariants() error {
	for i := range l.hashed {
		s := l.hashed[i]
		for slot := range s.live {
			e := s.entry(slot)
			if e.key != e.key {
				continue
			}
			if at, hash := l.locate(e.key); at != s || hash != e.hash {
				return fmt.Errorf("key %v is in shard %d, where nobody looks for it", e.key, i)
			}
			if _, ok := l.Get(e.key); !ok {
				return fmt.Errorf("key %v is parked in slot %d, and not found", e.key, slot)
			}
		}
	}
	return l.core.checkInvariants()
}

// Poison is what the tests put into memory that the list has taken back, between operations, in place of
// all that is written anew before it is used. (The rest is zero and has to stay so: that is checked
// first.) Whoever still uses such memory calls a function that panics, or follows a link to nowhere.
const (
	poisonSerial = 0xdeadbeef
	poisonEnd    = End(0xde)
)

type poisoned[K comparable] struct {
	key  K
	done Callback[K]
	tie  *tie
	rule *rule
}

func poison[K comparable](key K) poisoned[K] {
	nowhere := &Session{held: math.MinInt32, ended: errors.New("poison")}
	return poisoned[K]{
		key:  key,
		done: func(Outcome[K]) { panic("freed memory was called") },
		tie:  &tie{slot: math.MaxInt32, session: nowhere},
		rule: &rule{root: node{need: math.MaxUint64}},
	}
}

func (p poisoned[K]) spread(l *core[K]) {
	for _, s := range l.shards {
		s.mu.Lock()
		e := entry[K]{key: p.key, tie: p.tie, done: p.done, since: math.MinInt64, deadline: math.MinInt64, serial: poisonSerial}
		if _, ok := s.find.(*hashed[K]); ok {
			e.rule, e.hash = p.rule, poisonSerial
		} else {
			e.acked[0] = poisonSerial
		}
		for slot := s.live; slot < uint32(len(s.entries))*chunk; slot++ {
			if free := s.entry(slot); free.serial != poisonSerial {
				*free = e
			}
		}
		p.agenda(&s.due, s)
		if find, ok := s.find.(interface{ agenda() *agenda[K] }); ok && find.agenda() != nil {
			p.agenda(find.agenda(), s)
		}
		s.mu.Unlock()
	}
	if b, ok := l.blocks.Get().(*block[K]); ok {
		for i := range b.claims {
			b.claims[i] = claim[K]{out: Outcome[K]{Key: p.key, End: poisonEnd}, done: p.done}
		}
		l.blocks.Put(b)
	}
}

func (p poisoned[K]) agenda(a *agenda[K], s *shard[K]) {
	free := s.live
	if !s.indexed {
		free = 0
	}
	for slot := free; slot < uint32(len(a.links))*chunk; slot++ {
		*a.link(slot) = link{poisonSerial, poisonSerial}
	}
	rest := a.heap[len(a.heap):cap(a.heap)]
	for i := range rest {
		rest[i] = poisonSerial
	}
}

// blocksAreClean tells whether a block of a pass that is over still holds something.
func (l *core[K]) blocksAreClean() error {
	b, ok := l.blocks.Get().(*block[K])
	if !ok {
		return nil
	}
	defer l.blocks.Put(b)
	if b.next != nil || b.start != 0 || b.end != 0 {
		return errors.New("a free block has a place in a queue")
	}
	if i := slices.IndexFunc(b.claims[:], func(c claim[K]) bool {
		return c.out.End != poisonEnd && !reflect.ValueOf(c).IsZero()
	}); i >= 0 {
		return fmt.Errorf("a free block still holds %+v", b.claims[i])
	}
	return nil
}

// An outcome that is kept must not keep alive what else was in its session.
func TestKeptTallyHoldsNothingOfItsSession(t *testing.T) {
	list := New[int](Options{ManualSweep: true})
	var session Session
	var kept []Tally
	var others []weak.Pointer[[64]byte]
	for key := range 3 {
		require.NoError(t, list.Add(key, All(1, 2), func(out Outcome[int]) {
			if out.Key == 1 {
				kept = append(kept, out.Tally)
			}
		}, InSession(&session)))
		payload := new([64]byte)
		others = append(others, weak.Make(payload))
		require.Equal(t, AckCounted, list.AckWith(key, 1, payload))
	}
	for _, key := range []int{1, 0, 2} {
		require.True(t, list.Fail(key, nil))
	}
	for _, key := range []int{0, 2} {
		for range 100 { // a collection may be under way
			if runtime.GC(); others[key].Value() == nil {
				break
			}
		}
		require.Nil(t, others[key].Value(), "the payload of key %d", key)
	}
	require.Len(t, kept, 1)
	runtime.KeepAlive(kept)
}
