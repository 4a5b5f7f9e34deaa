package waitlist

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Three members, of which one is dead: a million requests complete on the others.
func TestGrowth_MemoryFollowsWhatIsParked(t *testing.T) {
	for name, request := range map[string]func(l *WaitingList[int], s *Session, key int){
		"acks": func(l *WaitingList[int], _ *Session, key int) {
			_ = l.Add(key, ofThree, ignore, Timeout(time.Hour))
			l.Ack(key-50, 1)
			l.Ack(key-100, 2)
		},
		"responses, reasons and a session": func(l *WaitingList[int], s *Session, key int) {
			_ = l.Add(key, ofThree, ignore, InSession(s))
			l.AckWith(key-50, 1, key)
			l.Nack(key-60, 3, errTest)
			l.AckWith(key-100, 2, key)
		},
		"random timeouts": func(l *WaitingList[int], _ *Session, key int) {
			_ = l.Add(key, ofThree, ignore, Timeout(time.Hour+time.Duration(rand.Int64N(1e12))))
			l.Ack(key-50, 1)
			l.Ack(key-100, 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := New[int](Options{}), new(Session)
			before := heapInUse()
			for key := range rounds(1_000_000) {
				request(l, s, key)
			}
			require.Equal(t, 100, l.Len())
			assert.Less(t, heapInUse()-before, int64(256<<10))
			audit(t, l)
			require.NoError(t, l.Close())
			runtime.KeepAlive(s)
		})
	}
}

func TestGrowth_MemoryIsGivenBackAsTheListDrains(t *testing.T) {
	const n = 30_000
	for name, survives := range map[string]func(i int) bool{
		"none":                 func(int) bool { return false },
		"one of ten, random":   func(int) bool { return rand.IntN(10) == 0 },
		"the first tenth":      func(i int) bool { return i < n/10 },
		"the last tenth":       func(i int) bool { return i >= n-n/10 },
		"one of a thousand":    func(i int) bool { return i%1000 == 0 },
		"every other":          func(i int) bool { return i%2 == 0 },
		"all but one of seven": func(i int) bool { return i%7 != 0 },
	} {
		for _, random := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				l := New[uint64](Options{})
				before := heapInUse()
				for i := range n {
					timeout := time.Hour
					if random {
						timeout += time.Duration(rand.Int64N(1e12))
					}
					require.NoError(t, l.Add(uint64(i), ofThree, ignore, Timeout(timeout)))
				}
				left := int64(0)
				for i := range n {
					if survives(i) {
						left++
					} else {
						l.Fail(uint64(i), nil)
					}
				}
				assert.Less(t, heapInUse()-before, 200*left+256<<10, "for %d of %d", left, n)
				audit(t, l)
				require.NoError(t, l.Close())
			})
		}
	}
}

// One goroutine ends an entry, whose slot is filled by a second entry, whose old
// slot a third one takes, while others hold references to each of them.
func TestRecycledSlot_AnOlderReferenceReachesNobody(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	keys := sameShard(l, 4)
	a, b, c, d := keys[0], keys[1], keys[2], keys[3]
	var ends [4]atomic.Uint32
	note := func(i int) Callback[int] {
		return func(out Outcome[int]) {
			if !ends[i].CompareAndSwap(0, uint32(out.End)) {
				t.Error("called twice")
			}
			if out.Key != keys[i] {
				t.Error("called for another entry's key")
			}
		}
	}
	var sessionA, sessionB *Session
	collide(rounds(50_000), func() {
		for i := range ends {
			ends[i].Store(0)
		}
		sessionA, sessionB = new(Session), new(Session)
		require.NoError(t, l.Add(a, Majority(1), note(0), InSession(sessionA)))
		require.NoError(t, l.Add(b, Majority(1), note(1), InSession(sessionB)))
		require.NoError(t, l.Add(c, ofThree, note(2)))
	}, func() {
		require.Contains(t, []End{EndReached, EndSession}, End(ends[0].Load()))
		require.Contains(t, []End{EndReached, EndSession}, End(ends[1].Load()))
		require.Zero(t, ends[2].Load(), "c is a bystander")
		require.Zero(t, ends[3].Load(), "d too")
		require.Equal(t, AckCounted, l.Ack(c, 1), "nobody has answered it by mistake")
		require.Equal(t, AckCounted, l.Ack(d, 1))
		require.Equal(t, 2, l.FailAll(nil))
	},
		func() { l.Ack(a, 1); l.Ack(b, 1) },
		func() { sessionA.End(nil) },
		func() { sessionB.End(nil); assert.NoError(t, l.Add(d, ofThree, note(3))) },
	)
	audit(t, l)
}

// The key is used again while references to its first use are still about.
func TestIDReuse_TheSecondUseIsUntouched(t *testing.T) {
	for _, ending := range endings {
		if ending.all && ending.end != EndTimedOut && ending.end != EndSession {
			continue // these end the second one too, rightly
		}
		var outs outcomes[string]
		s := newStage(Options{})
		s.park(t, "k", outs.note)
		for p := range s.All() { // somebody has seen the first and goes on later
			ending.run(s, p.Key)
			require.Equal(t, ending.end, outs.one(t).End)
			require.NoError(t, s.Add("k", ofThree, outs.note, Timeout(2*time.Hour)))
		}
		s.session.End(errTest)
		s.Sweep()
		s.clock.Advance(time.Hour)
		s.session.End(errTest)
		require.Empty(t, outs.take(), ending.name)
		p, ok := s.Get("k")
		require.True(t, ok)
		require.Empty(t, slices.Collect(p.Tally.Acked()), "a new entry begins without answers")
		require.Zero(t, s.session.Len())
		s.clock.Advance(time.Hour)
		require.Equal(t, EndTimedOut, outs.one(t).End)
	}
}

// A shard that wavers around the limit is not indexed over and over.
func TestSlots_FewEntriesAreNotIndexed(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	keys := sameShard(l, fewEntries+1)
	s, _ := l.locate(keys[0])
	for i, key := range keys {
		require.NoError(t, l.Add(key, ofThree, ignore))
		require.Equal(t, i+1 > fewEntries, s.indexed, "%d entries", i+1)
	}
	for left := fewEntries; left >= 0; left-- {
		require.True(t, l.Fail(keys[left], nil))
		require.Equal(t, left >= fewEntries/2, s.indexed, "%d entries", left)
		audit(t, l)
	}
	for range 3 {
		for _, key := range keys {
			require.NoError(t, l.Add(key, ofThree, ignore))
		}
		require.Equal(t, len(keys), l.FailAll(nil))
		require.False(t, s.indexed)
		audit(t, l)
	}
}

// A model of the slots: whatever is added and ended in whatever order, each entry
// keeps its own answers, deadline and session.
func TestSlots_EntriesKeepTheirOwnWhileOthersComeAndGo(t *testing.T) {
	type want struct {
		acked    int
		deadline time.Time
		session  int
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	clock := NewFakeClock(fakeStart)
	l := New[int](Options{Clock: clock, ManualSweep: true})
	var sessions [3]Session
	model := map[int]want{}
	keys := sameShard(l, 200)
	rule := AtLeast(4, 1, 2, 3, 4)
	for range rounds(20_000) {
		key := keys[dice.IntN(len(keys))]
		w, parked := model[key]
		switch op := dice.IntN(10); {
		case op < 5 && !parked:
			timeout := time.Duration(1 + dice.IntN(1000))
			w = want{deadline: clock.Now().Add(timeout), session: dice.IntN(4)}
			opts := []AddOption{Timeout(timeout)}
			if w.session < 3 {
				opts = append(opts, InSession(&sessions[w.session]))
			}
			require.NoError(t, l.Add(key, rule, ignore, opts...))
			model[key] = w
		case op < 5:
			require.ErrorIs(t, l.Add(key, rule, ignore), ErrDuplicateKey)
		case op < 8 && parked:
			w.acked++
			model[key] = w
			got := l.AckWith(key, PeerID(w.acked), w.acked)
			if w.acked < 4 {
				require.Equal(t, AckCounted, got)
				break
			}
			require.Equal(t, AckDecided, got)
			delete(model, key)
		case op < 9:
			require.Equal(t, parked, l.Fail(key, nil))
			delete(model, key)
		default:
			clock.Advance(time.Duration(dice.IntN(50)))
			due := 0
			for key, w := range model {
				if !w.deadline.After(clock.Now()) {
					due++
					delete(model, key)
				}
			}
			require.Equal(t, due, l.Sweep())
		}
	}
	held := [4]int{}
	for p := range l.All() {
		w := model[p.Key]
		require.True(t, p.Deadline.Equal(w.deadline))
		require.Len(t, slices.Collect(p.Tally.Acked()), w.acked)
		held[w.session]++
	}
	require.Equal(t, len(model), l.Len())
	for i := range sessions {
		require.Equal(t, held[i], sessions[i].Len())
		require.Equal(t, held[i], sessions[i].End(nil))
	}
	require.Equal(t, held[3], l.Len())
	audit(t, l)
}
