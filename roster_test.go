package waitlist

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRosterNumbersNamesFromOneWithoutGaps(t *testing.T) {
	roster := NewRoster("a", "b", "a", "c")
	assert.Equal(t, []PeerID{1, 2, 1, 3}, roster.IDs("a", "b", "a", "c"))
	assert.Equal(t, PeerID(4), roster.ID("d"))
	assert.Equal(t, PeerID(4), roster.ID("d"))
	assert.Equal(t, []PeerID{6, 5, 1, 5}, NewRoster("1", "2", "3", "4", "x", "y", "x").IDs("y", "x", "1", "x"))
	assert.Equal(t, []PeerID{5, 5, 2, 6}, roster.IDs("e", "e", "b", "f"))
	assert.Empty(t, roster.IDs())
}

func TestRosterLookupNeverEnrols(t *testing.T) {
	roster := NewRoster("a")
	id, known := roster.Lookup("stranger")
	assert.False(t, known)
	assert.Zero(t, id)
	assert.Equal(t, PeerID(2), roster.ID("b"), "the stranger took no id")
	id, known = roster.Lookup("a")
	assert.True(t, known)
	assert.Equal(t, PeerID(1), id)
}

func TestRosterNameIsTheInverseOfID(t *testing.T) {
	roster := NewRoster("a", "b")
	for _, name := range []string{"a", "b", "c"} {
		got, known := roster.Name(roster.ID(name))
		assert.True(t, known)
		assert.Equal(t, name, got)
	}
	for _, id := range []PeerID{0, 4, math.MaxInt64, math.MaxUint64} {
		name, known := roster.Name(id)
		assert.False(t, known, id)
		assert.Empty(t, name)
	}
}

func TestRosterZeroValueIsEmpty(t *testing.T) {
	var roster Roster[int]
	_, known := roster.Lookup(7)
	assert.False(t, known)
	_, known = roster.Name(1)
	assert.False(t, known)
	assert.Empty(t, roster.IDs())
	assert.Equal(t, PeerID(1), roster.ID(7))
}

func TestRosterEnrolsANameUnequalToItselfEachTime(t *testing.T) {
	roster := NewRoster(math.NaN(), 1)
	assert.Equal(t, []PeerID{3, 4, 2}, roster.IDs(math.NaN(), math.NaN(), 1))
	assert.Equal(t, PeerID(5), roster.ID(math.NaN()))
	_, known := roster.Lookup(math.NaN())
	assert.False(t, known)
	name, known := roster.Name(5)
	assert.True(t, known)
	assert.True(t, math.IsNaN(name))
}

func TestRosterChangesAndLocksNothingWhenANameCannotBeHashed(t *testing.T) {
	bad := any([]int{1})
	assert.Panics(t, func() { NewRoster[any]("a", bad) })
	for _, roster := range []*Roster[any]{new(Roster[any]), NewRoster[any]("a")} {
		size := len(roster.snapshot().names)
		assert.Panics(t, func() { roster.ID(bad) })
		assert.Panics(t, func() { roster.IDs("new", bad) })
		assert.Panics(t, func() { roster.Lookup(bad) })
		_, known := roster.Lookup("new")
		assert.False(t, known)
		assert.Equal(t, PeerID(size+1), roster.ID("other"), "unlocked, and without a gap")
	}
}

func TestRosterSnapshotsDoNotShareWhatChanges(t *testing.T) {
	roster := NewRoster("a")
	before := roster.snapshot()
	for i := range 100 {
		roster.ID(fmt.Sprint(i))
	}
	assert.Equal(t, map[string]PeerID{"a": 1}, before.ids)
	assert.Equal(t, []string{"a"}, before.names)
}

func TestRosterGivesOneIDPerNameUnderConcurrency(t *testing.T) {
	const names = 100
	var roster Roster[int]
	var users sync.WaitGroup
	got := make([][names]PeerID, 8)
	for user := range got {
		users.Go(func() {
			for i := range names {
				name := (i*(2*user+1) + user) % names // each in another order
				if i%10 == 0 {
					got[user][name] = roster.IDs(name, (name+1)%names)[0]
				} else {
					got[user][name] = roster.ID(name)
				}
				id, known := roster.Lookup(name)
				if !known || id != got[user][name] {
					t.Errorf("Lookup(%d) = %d, %v after ID gave %d", name, id, known, got[user][name])
				}
				if back, known := roster.Name(id); !known || back != name {
					t.Errorf("Name(%d) = %d, %v, want %d", id, back, known, name)
				}
			}
		})
	}
	users.Wait()
	require.Len(t, roster.snapshot().names, names, "no gaps, and no name twice")
	for user := range got {
		for name := range names {
			if got[user][name] != 0 { // some orders leave names out
				assert.Equal(t, roster.ID(name), got[user][name])
			}
		}
	}
}

func TestRosterFindsKnownNamesWithoutAllocating(t *testing.T) {
	roster := NewRoster("a", "b")
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		roster.ID("b")
		roster.Lookup("stranger")
		roster.Name(1)
	}))
}
