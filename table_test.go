package waitlist

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// checkInvariants tells what is wrong with a table that holds that many pairs.
func (t *table) checkInvariants(used int) error {
	n := len(t.pairs)
	if n != 0 && (n < minTable || n&(n-1) != 0 && n/3&(n/3-1) != 0) {
		return fmt.Errorf("%d pairs: neither none nor a power of two nor three times one", n)
	}
	if 4*used > 3*n {
		return fmt.Errorf("%d of %d pairs in use: too full", used, n)
	}
	if n > minTable && 8*used < n {
		return fmt.Errorf("%d of %d pairs in use: too empty", used, n)
	}
	found := 0
	for at, pair := range t.pairs {
		if pair == 0 {
			continue
		}
		found++
		if uint32(pair) == 0 {
			return fmt.Errorf("pair %d has a hash and no slot", at)
		}
		for i := int(pair >> 32 * uint64(n) >> 32); i != at; i = (i + 1) % n {
			if t.pairs[i] == 0 {
				return fmt.Errorf("pair %d is behind a gap at %d: nobody finds it", at, i)
			}
		}
	}
	if found != used {
		return fmt.Errorf("%d pairs, want %d", found, used)
	}
	return nil
}

// all returns the slots of the pairs with a hash.
func (t *table) all(hash uint32) (slots []uint32) {
	if len(t.pairs) == 0 {
		return nil
	}
	for slot, i := t.probe(hash, t.home(hash)); slot != gone; slot, i = t.probe(hash, t.after(i)) {
		slots = append(slots, slot)
	}
	return slots
}

// tableModel is a table and a map that must say the same.
type tableModel struct {
	table
	slots map[uint32]uint32 // by slot: the hash
}

func (m *tableModel) add(hash, slot uint32) {
	m.slots[slot] = hash
	m.put(hash, slot, uint32(len(m.slots)))
}

func (m *tableModel) end(slot uint32) {
	hash := m.slots[slot]
	delete(m.slots, slot)
	m.remove(hash, slot, uint32(len(m.slots)))
}

func (m *tableModel) check() error {
	if err := m.checkInvariants(len(m.slots)); err != nil {
		return err
	}
	for slot, hash := range m.slots {
		found := 0
		for _, candidate := range m.all(hash) {
			if h, ok := m.slots[candidate]; !ok || h != hash {
				return fmt.Errorf("hash %#x yields slot %d, which has hash %#x (%v)", hash, candidate, h, ok)
			}
			if candidate == slot {
				found++
			}
		}
		if found != 1 {
			return fmt.Errorf("slot %d under hash %#x was found %d times", slot, hash, found)
		}
	}
	return nil
}

// play fills and drains a table as bytes say. Hashes come in few homes, the last ones of the table among
// them, so that runs are long and wrap around, and some are equal in full.
func (m *tableModel) play(data []byte) error {
	d := &dice{data: data}
	m.slots = map[uint32]uint32{}
	any := func() (slot uint32) {
		all := make([]uint32, 0, len(m.slots))
		for slot := range m.slots {
			all = append(all, slot)
		}
		slices.Sort(all)
		return all[d.roll(len(all))]
	}
	for next := uint32(0); len(d.data) > 0; {
		switch action := d.roll(8); {
		case len(m.slots) == 0 || action < 4:
			hash := []uint32{0, 1, 1 << 28, 1 << 31, 15 << 28, math.MaxUint32 - 2<<25, math.MaxUint32 - 1, math.MaxUint32}[d.roll(8)] ^ uint32(d.roll(2))<<6
			m.add(hash, next)
			next++
		case action == 4:
			from, to := any(), next+100
			m.move(m.slots[from], from, to)
			m.slots[to] = m.slots[from]
			delete(m.slots, from)
			next = to + 1
		default:
			m.end(any())
		}
		if err := m.check(); err != nil {
			return err
		}
		if len(m.all(0xdead0000)) > 0 {
			return errors.New("an absent hash was found")
		}
	}
	return nil
}

func TestTableFindsWhatAMapFinds(t *testing.T) {
	t.Parallel()
	seed := seeded(t)
	for round := range uint64(200) {
		data := randomBytes(seed, round)
		require.NoError(t, new(tableModel).play(data), "round %d", round)
	}
}

// Memory follows what is in use, up and down.
func TestTableGrowsAndShrinks(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 5))
	m := tableModel{slots: map[uint32]uint32{}}
	require.NoError(t, m.check(), "an empty table has no pairs")
	const n = 3000
	for slot := range uint32(n) {
		m.add(rng.Uint32()>>(slot%32), slot)
	}
	require.NoError(t, m.check())
	assert.Len(t, m.pairs, 4096)
	for slot := range uint32(n) {
		m.end(slot)
		if slot%500 == 0 {
			require.NoError(t, m.check())
		}
	}
	assert.Len(t, m.pairs, minTable)
	assert.Equal(t, make([]uint64, minTable), m.pairs)
}

// Two keys may have one hash of 32 bits: each must find its own entry, also after the other has ended, with few
// entries in the shard and with many.
func TestKeysOfEqualHashAreToldApart(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 100} {
		list := New[string](Options{ManualSweep: true})
		home, _ := list.locate("0")
		var names []string
		for i := 0; len(names) < n; i++ {
			name := fmt.Sprint(i)
			if s, _ := list.locate(name); s == home {
				names = append(names, name)
				require.NoError(t, list.Add(name, Majority(1), func(Outcome[string]) {}))
			}
		}
		for slot := range home.live { // as if their hashes were one
			home.entry(slot).hash = 7
		}
		if len(home.table.pairs) > 0 {
			home.table = table{}
			for slot := range home.live {
				home.table.put(7, slot, slot+1)
			}
		}
		for i, ended := range names {
			require.Equal(t, 1, list.FailFunc(func(key string) bool { return key == ended }, nil))
			require.NoError(t, list.core.checkInvariants())
			slot, _ := home.lookup(7, ended)
			require.Equal(t, gone, slot)
			for _, parked := range names[i+1:] {
				slot, _ = home.lookup(7, parked)
				require.Equal(t, parked, home.entry(slot).key)
			}
		}
	}
}

func FuzzTable(f *testing.F) {
	for round := range uint64(5) {
		f.Add(randomBytes(1, round))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, new(tableModel).play(data[:min(len(data), 500)]))
	})
}
