package waitlist

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// checkInvariants tells what is wrong with an agenda of a shard.
func (a *agenda[K]) checkInvariants(s *shard[K]) error {
	if !s.indexed {
		switch {
		case a == nil:
		case a.head != 0 || a.tail != 0 || len(a.heap) != 0:
			return fmt.Errorf("%d entries are not indexed, but %+v", s.live, a)
		case len(a.links) > 2 || cap(a.heap) > 2*chunk:
			return fmt.Errorf("the agenda is empty and keeps %d chunks of links, %d of the heap", len(a.links), cap(a.heap))
		}
		return nil
	}
	if held := uint32(len(a.links)) * chunk; held < s.live || len(a.links) > len(s.entries)+1 {
		return fmt.Errorf("links for %d slots, of which %d are in use", held, s.live)
	}
	seen := make([]bool, s.live)
	see := func(slot uint32) error {
		if slot >= s.live || seen[slot] {
			return fmt.Errorf("slot %d of %d is not in use, or met twice", slot, s.live)
		}
		seen[slot] = true
		return nil
	}
	last := uint32(0)
	for next := a.head; next != 0; next = a.link(next - 1).next {
		slot := next - 1
		if err := see(slot); err != nil {
			return fmt.Errorf("list: %w", err)
		}
		switch n := a.link(slot); {
		case n.prev != last:
			return fmt.Errorf("slot %d in the list: prev is %d, want %d", slot, n.prev, last)
		case last != 0 && !a.before(s, last-1, slot):
			return fmt.Errorf("slot %d in the list is not after slot %d", slot, last-1)
		}
		last = next
	}
	if a.tail != last {
		return fmt.Errorf("tail is %d, want %d", a.tail, last)
	}
	for i, slot := range a.heap {
		if err := see(slot); err != nil {
			return fmt.Errorf("heap: %w", err)
		}
		if n := *a.link(slot); n != (link{prev: uint32(i), next: heaped}) {
			return fmt.Errorf("slot %d is at %d of the heap, but says %+v", slot, i, n)
		}
		if i > 0 && a.before(s, slot, a.heap[(i-1)/4]) {
			return fmt.Errorf("heap: slot %d at %d is before its parent", slot, i)
		}
	}
	if missing := slices.Index(seen, false); missing >= 0 {
		return fmt.Errorf("slot %d of %d is nowhere", missing, s.live)
	}
	return nil
}

// scheduled is what the model knows of a slot.
type scheduled struct {
	at           uint64
	registration int // which registration it was, counted without wrapping
}

// agendaModel is a shard with two agendas, of which one is tested, and a plain slice, by slot, that must
// say the same.
type agendaModel struct {
	ordered[int]
	byIndex  bool
	slots    []scheduled
	inserted int
}

// newAgendaModel makes a model in which so many registrations have come and gone.
func newAgendaModel(registrations uint64, unindexed uint32, byIndex bool) *agendaModel {
	m := &agendaModel{byIndex: byIndex}
	m.unindexed = unindexed
	m.added, m.find, m.list = registrations, &m.ordered, new(core[int])
	return m
}

func (m *agendaModel) agenda() *agenda[int] {
	if m.byIndex {
		return m.order
	}
	return &m.due
}

func (m *agendaModel) add(at uint64) {
	m.inserted++
	m.slots = append(m.slots, scheduled{at, m.inserted})
	if m.needsRoomLocked() {
		_ = m.makeRoomLocked() // there is no limit
	}
	e := m.takeSlotLocked()
	e.deadline, e.acked[0] = int64(at), ^at
	if m.byIndex {
		e.deadline, e.acked[0] = int64(^at), at
	}
	m.parkLocked(e, nil)
}

// end takes a slot out. The last takes its place.
func (m *agendaModel) end(slot int) {
	var c claim[int]
	m.claimLocked(&c, uint32(slot), EndFailed, errTest)
	last := len(m.slots) - 1
	m.slots[slot] = m.slots[last]
	m.slots = m.slots[:last]
}

func (m *agendaModel) earliest() (slot int) {
	for i, s := range m.slots {
		if e := m.slots[slot]; s.at < e.at || s.at == e.at && s.registration < e.registration {
			slot = i
		}
	}
	return slot
}

// check compares what the agenda says with a full scan.
func (m *agendaModel) check(from uint64) error {
	for _, a := range []*agenda[int]{&m.due, m.order} {
		if err := a.checkInvariants(&m.shard); err != nil {
			return err
		}
	}
	a := m.agenda()
	slot, at, ok := a.first(&m.shard)
	switch want := m.earliest(); {
	case ok != (len(m.slots) > 0):
		return fmt.Errorf("first: %v with %d in use", ok, len(m.slots))
	case ok && (int(slot) != want || at != m.slots[want].at):
		return fmt.Errorf("first is slot %d at %d, want slot %d at %d", slot, at, want, m.slots[want].at)
	}
	got := a.from(&m.shard, from)
	slices.Sort(got)
	var want []uint32
	for i, s := range m.slots {
		if s.at >= from {
			want = append(want, uint32(i))
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("from %d: slots %v, want %v", from, got, want)
	}
	return nil
}

// playAgenda does what bytes say: mostly insertions at rising positions, equal ones, outliers far ahead and
// stragglers among them, and removals of the first, the last and any.
func playAgenda(data []byte) error {
	d := &dice{data: data}
	registrations := []uint64{0, math.MaxUint32 - 3, math.MaxInt32 - 3}[d.roll(3)]
	m := newAgendaModel(registrations, uint32(fewEntries*d.roll(2)), d.roll(2) == 0)
	now := uint64(1000)
	for len(d.data) > 0 {
		n := len(m.slots)
		switch action := d.roll(16); {
		case n == 0 || action < 6:
			now += uint64(d.roll(3))
			m.add(now)
		case action == 6:
			m.add(now + []uint64{100, 3, math.MaxInt64, math.MaxUint64 - 2000}[d.roll(4)])
		case action <= 8:
			m.add(now - uint64(d.roll(200)))
		case action == 9:
			m.add(m.slots[d.roll(n)].at)
		case action <= 12:
			m.end(m.earliest())
		case action == 13:
			m.end(n - 1)
		default:
			m.end(d.roll(n))
		}
		if err := m.check(now - uint64(d.roll(20))); err != nil {
			return err
		}
	}
	for previous := (scheduled{}); len(m.slots) > 0; {
		first := m.slots[m.earliest()]
		if slot, at, _ := m.agenda().first(&m.shard); at < previous.at || m.slots[slot] != first {
			return fmt.Errorf("drained out of order: %v at %d after %v", m.slots[slot], at, previous)
		}
		previous = first
		m.end(m.earliest())
	}
	return m.check(0)
}

func TestAgendaKeepsTheOrderOfASortedSlice(t *testing.T) {
	t.Parallel()
	seed := seeded(t)
	for round := range uint64(300) {
		require.NoError(t, playAgenda(randomBytes(seed, round)), "round %d", round)
	}
}

// What has equal positions comes in order of registration, in the list, in the heap, and across both,
// also when the registrations' numbers wrap in between.
func TestEqualPositionsComeInOrderOfRegistration(t *testing.T) {
	t.Parallel()
	for _, registrations := range []uint64{0, math.MaxUint32 - 20, math.MaxInt32 - 20} {
		m := newAgendaModel(registrations, 0, false)
		for range 10 {
			m.add(7)  // in the list
			m.add(90) // stragglers follow
			m.add(91)
			m.add(7)
		}
		require.NotEmpty(t, m.due.heap)
		require.NoError(t, m.check(8))
		for last := 0; len(m.slots) > 0 && m.slots[m.earliest()].at == 7; {
			slot, _, _ := m.due.first(&m.shard)
			require.Greater(t, m.slots[slot].registration, last)
			last = m.slots[slot].registration
			m.end(int(slot))
			require.NoError(t, m.check(7))
		}
		require.Len(t, m.slots, 20)
	}
}

// Two entries at one position may be told apart while others, at other positions, were registered so long
// ago that their numbers cannot be compared.
func TestEqualPositionsComeInOrderBesideMuchOlderEntries(t *testing.T) {
	t.Parallel()
	for _, age := range []uint64{1<<31 - 10, 1 << 31, 1<<31 + 10, 1<<32 - 10, 1 << 32} {
		m := newAgendaModel(0, fewEntries, false)
		m.add(1)
		m.add(1000)
		m.added += age - 20
		for range 3 {
			m.add(500)
			m.added += 4
		}
		m.end(0) // now the slots are in another order
		for range fewEntries {
			m.add(2000)
		}
		require.True(t, m.indexed)
		for last := 0; len(m.slots) > 0; {
			slot, at, _ := m.due.first(&m.shard)
			require.Equal(t, at, m.slots[slot].at)
			if at == 500 {
				require.Greater(t, m.slots[slot].registration, last, "age %d", age)
				last = m.slots[slot].registration
			}
			require.EqualValues(t, m.earliest(), slot)
			m.end(int(slot))
			require.NoError(t, m.check(0))
		}
	}
}

// One long timeout among short ones must not push every short one into the heap.
func TestOneOutlierIsTheOneThatGoesIntoTheHeap(t *testing.T) {
	t.Parallel()
	m := newAgendaModel(0, fewEntries, false)
	for i := range uint64(500) {
		m.add(10 + i)
		if i%100 == 50 {
			m.add(3600 + i)
		}
		require.NoError(t, m.due.checkInvariants(&m.shard))
	}
	assert.Len(t, m.due.heap, 5)
	assert.NoError(t, m.check(500))
}

// After a peak the memory is given back.
func TestAgendaGivesItsMemoryBack(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 9))
	m := newAgendaModel(0, fewEntries, false)
	for range 5000 {
		m.add(rng.Uint64N(1000))
	}
	assert.Greater(t, cap(m.due.heap), 1000)
	for len(m.slots) > 0 {
		m.end(rng.IntN(len(m.slots)))
	}
	assert.NoError(t, m.check(0))
	for _, a := range []*agenda[int]{&m.due, m.order} {
		assert.LessOrEqual(t, cap(a.heap), 2*chunk)
		assert.LessOrEqual(t, len(a.links), 2)
		assert.Less(t, cap(a.links), 64)
	}
}

func FuzzAgenda(f *testing.F) {
	for round := range uint64(5) {
		f.Add(randomBytes(1, round))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, playAgenda(data[:min(len(data), 500)]))
	})
}
