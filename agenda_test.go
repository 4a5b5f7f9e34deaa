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

// checkInvariants tells what is wrong with an agenda that holds the slots below live.
func (a *agenda) checkInvariants(live uint32) error {
	if held := uint32(len(a.places)) * chunk; held < live {
		return fmt.Errorf("places for %d slots of %d", held, live)
	}
	seen := make([]bool, live)
	see := func(slot uint32) error {
		if slot >= live || seen[slot] {
			return fmt.Errorf("slot %d of %d is not in use, or met twice", slot, live)
		}
		seen[slot] = true
		return nil
	}
	last := uint32(0)
	for s := a.head; s != 0; s = a.place(s - 1).next {
		if err := see(s - 1); err != nil {
			return fmt.Errorf("list: %w", err)
		}
		switch n := a.place(s - 1); {
		case n.heaped != 0:
			return fmt.Errorf("slot %d in the list has a place in the heap", s-1)
		case n.prev != last:
			return fmt.Errorf("slot %d in the list: prev is %d, want %d", s-1, n.prev, last)
		case last != 0 && !a.before(last-1, s-1):
			return fmt.Errorf("slot %d in the list is not after slot %d", s-1, last-1)
		}
		last = s
	}
	if a.tail != last {
		return fmt.Errorf("tail is %d, want %d", a.tail, last)
	}
	for i, slot := range a.heap {
		if err := see(slot); err != nil {
			return fmt.Errorf("heap: %w", err)
		}
		if at := a.place(slot).heaped; at != uint32(i)+1 {
			return fmt.Errorf("slot %d is at %d of the heap, but says %d", slot, i, at)
		}
		if i > 0 && a.before(slot, a.heap[(i-1)/4]) {
			return fmt.Errorf("heap: slot %d at %d is before its parent", slot, i)
		}
	}
	if missing := slices.Index(seen, false); missing >= 0 {
		return fmt.Errorf("slot %d of %d is nowhere", missing, live)
	}
	return nil
}

// scheduled is what the model knows of a slot.
type scheduled struct {
	at           uint64
	registration int // which registration it was, counted without wrapping
}

// agendaModel is an agenda, driven as a shard does, and a plain slice, by slot, that must say the same.
type agendaModel struct {
	agenda
	slots    []scheduled
	seq      uint32 // wraps
	inserted int
}

func (m *agendaModel) add(at uint64) {
	m.seq++
	m.inserted++
	m.insert(uint32(len(m.slots)), at, m.seq)
	m.slots = append(m.slots, scheduled{at, m.inserted})
}

// end takes a slot out as a shard does: the last takes its place.
func (m *agendaModel) end(slot int) {
	m.remove(uint32(slot))
	last := len(m.slots) - 1
	if slot != last {
		m.slots[slot] = m.slots[last]
		m.move(uint32(last), uint32(slot))
	}
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
	if err := m.checkInvariants(uint32(len(m.slots))); err != nil {
		return err
	}
	slot, at, ok := m.first()
	switch want := m.earliest(); {
	case ok != (len(m.slots) > 0):
		return fmt.Errorf("first: %v with %d in use", ok, len(m.slots))
	case ok && (int(slot) != want || at != m.slots[want].at):
		return fmt.Errorf("first is slot %d at %d, want slot %d at %d", slot, at, want, m.slots[want].at)
	}
	got := m.from(from)
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

// play does what bytes say: mostly insertions at rising positions, equal ones, outliers far ahead and
// stragglers among them, and removals of the first, the last and any.
func (m *agendaModel) play(data []byte) error {
	d := &dice{data: data}
	m.seq = []uint32{0, math.MaxUint32 - 3, math.MaxInt32 - 3}[d.roll(3)]
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
		if slot, at, _ := m.first(); at < previous.at || m.slots[slot] != first {
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
		require.NoError(t, new(agendaModel).play(randomBytes(seed, round)), "round %d", round)
	}
}

// What has equal positions comes in order of registration, in the list, in the heap, and across both,
// also when the registrations' numbers wrap in between.
func TestEqualPositionsComeInOrderOfRegistration(t *testing.T) {
	t.Parallel()
	for _, seq := range []uint32{0, math.MaxUint32 - 20, math.MaxInt32 - 20} {
		m := agendaModel{seq: seq}
		for range 10 {
			m.add(7)  // in the list
			m.add(90) // stragglers follow
			m.add(91)
			m.add(7)
		}
		require.NotEmpty(t, m.heap)
		require.NoError(t, m.check(8))
		for last := 0; len(m.slots) > 0 && m.slots[m.earliest()].at == 7; {
			slot, _, _ := m.first()
			require.Greater(t, m.slots[slot].registration, last)
			last = m.slots[slot].registration
			m.end(int(slot))
			require.NoError(t, m.check(7))
		}
		require.Len(t, m.slots, 20)
	}
}

// One long timeout among short ones must not push every short one into the heap.
func TestOneOutlierIsTheOneThatGoesIntoTheHeap(t *testing.T) {
	t.Parallel()
	var m agendaModel
	for i := range uint64(500) {
		m.add(10 + i)
		if i%100 == 50 {
			m.add(3600 + i)
		}
		require.NoError(t, m.checkInvariants(uint32(len(m.slots))))
	}
	assert.Len(t, m.heap, 5)
	assert.NoError(t, m.check(500))
}

// After a peak the memory is given back.
func TestAgendaGivesItsMemoryBack(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 9))
	var m agendaModel
	for range 5000 {
		m.add(rng.Uint64N(1000))
	}
	assert.Greater(t, cap(m.heap), 1000)
	for len(m.slots) > 0 {
		m.end(rng.IntN(len(m.slots)))
		m.trim(len(m.slots)/chunk + 1)
	}
	assert.NoError(t, m.check(0))
	assert.Less(t, cap(m.heap), 128)
	assert.Len(t, m.places, 1)
}

func FuzzAgenda(f *testing.F) {
	for round := range uint64(5) {
		f.Add(randomBytes(1, round))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, new(agendaModel).play(data[:min(len(data), 500)]))
	})
}
