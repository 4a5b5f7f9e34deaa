package waitlist

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWatermarkSteadyStateAllocatesNothing(t *testing.T) {
	wmMeasured(t)
	for _, parked := range []int{0, 1, 1000, 100_000} {
		w := NewWatermarkList[uint64](0, Options{Timeout: time.Hour, Capacity: 1_000_000})
		wmQuorum(t, w, ofThree)
		done := ignore[uint64]
		next, mark := uint64(1), uint64(0)
		for range parked {
			wmPark(t, w, done, next)
			next++
		}
		cycle := func(name string, f func()) {
			t.Helper()
			for range 100 { // until its memory is there
				f()
			}
			assert.Zero(t, testing.AllocsPerRun(1000, f), "%s with %d parked", name, parked)
			require.Equal(t, parked, w.Len(), name)
		}
		add := func() {
			if err := w.Add(next, done); err != nil {
				t.Fatal(err)
			}
			next++
			mark++
		}
		cycle("Add, Advance", func() { add(); w.Advance(mark) })
		cycle("Add with a timeout, Advance", func() {
			if err := w.Add(next, done, Timeout(time.Minute), InSession(nil)); err != nil {
				t.Fatal(err)
			}
			next++
			mark++
			w.Advance(mark)
		})
		cycle("Add, two acks and a late third", func() {
			add()
			wmAcks(w, mark, 1, 2, 3)
		})
		cycle("Add 12, Ack", func() {
			for range 12 {
				add()
			}
			wmAcks(w, mark, 1, 3)
		})
		cycle("Advance to what is reached", func() { w.Advance(mark); w.Advance(0) })
		cycle("Ack that changes nothing", func() { w.Ack(mark, 1); w.Ack(mark, 9) })
		cycle("Ack of nothing parked, reads", func() { w.Watermark(); w.Match(1); w.Len(); w.Stats(); w.Sweep() })
		cycle("Add of what is reached", func() {
			if err := w.Add(mark, done); err != nil {
				t.Fatal(err)
			}
		})
		cycle("Add out of order, Advance", func() {
			next += 2
			for _, index := range []uint64{next - 1, next - 2} {
				if err := w.Add(index, done); err != nil {
					t.Fatal(err)
				}
			}
			mark += 2
			w.Advance(mark)
		})
		cycle("refused Add", func() {
			if w.Add(next, nil) == nil || w.Add(next, done, Timeout(-1)) == nil {
				t.Fatal("not refused")
			}
		})
		_ = w.Close()
	}
}

// wmMeasured skips a test under the race detector, which has memory of its own and
// finds nothing here that the other tests do not show it.
func wmMeasured(t *testing.T) {
	if underRace() {
		t.Skip("measured without the race detector")
	}
}

func TestWatermarkEmptyListIsSmall(t *testing.T) {
	wmMeasured(t)
	const lists, limit = 10_000, 512
	least := int64(math.MaxInt64) // of three: the rest of the process may allocate too
	for range 3 {
		kept := make([]*WatermarkList[int64], lists)
		before := heapInUse()
		for i := range kept {
			kept[i] = NewWatermarkList[int64](0, Options{})
		}
		least = min(least, (heapInUse()-before)/lists)
		runtime.KeepAlive(kept)
	}
	t.Log("bytes per empty list:", least)
	assert.LessOrEqual(t, least, int64(limit))
}

// wmFill parks n entries at the given indexes, all above the mark.
func wmFill(t *testing.T, w *WatermarkList[uint64], n int, index func(i int) uint64, opts ...AddOption) {
	t.Helper()
	done := ignore[uint64]
	for i := range n {
		if err := w.Add(index(i), done, opts...); err != nil {
			t.Fatal(err)
		}
	}
}

func wmInOrder(i int) uint64 { return uint64(i + 1) }

// wmShuffled gives each of 1 to n once.
func wmShuffled(n int) func(i int) uint64 {
	perm := rand.New(rand.NewPCG(1, 1)).Perm(n)
	return func(i int) uint64 { return uint64(perm[i] + 1) }
}

func TestWatermarkParkedEntriesAreSmallAndTheirMemoryComesBack(t *testing.T) {
	wmMeasured(t)
	const n = 50_000
	type list = *WatermarkList[uint64]
	ends := map[string]func(w list, clock *FakeClock){
		"Advance":        func(w list, _ *FakeClock) { w.Advance(n) },
		"Advance by one": func(w list, _ *FakeClock) { wmStep(w, n) },
		"FailAll":        func(w list, _ *FakeClock) { w.FailAll(nil) },
		"deadline":       func(_ list, clock *FakeClock) { clock.Advance(time.Hour) },
		"Truncate":       func(w list, _ *FakeClock) { _, _ = w.Truncate(1, nil) },
	}
	for name, c := range map[string]struct {
		index func(i int) uint64
		limit int64 // bytes per entry
	}{
		"in order":    {wmInOrder, 112},
		"one index":   {func(int) uint64 { return 1 }, 112},
		"backwards":   {func(i int) uint64 { return uint64(n - i) }, 120},
		"shuffled":    {wmShuffled(n), 120},
		"interleaved": {func(i int) uint64 { return uint64(i/2 + 1 + i%2*n/2) }, 120},
	} {
		for leave, end := range ends {
			if leave != "Advance by one" && name != "shuffled" {
				continue // the same numbers
			}
			t.Run(name+"/"+leave, func(t *testing.T) {
				clock := NewFakeClock(fakeStart)
				w := NewWatermarkList[uint64](0, Options{Clock: clock, Timeout: time.Hour})
				before := heapInUse()
				wmFill(t, w, n, c.index)
				each := (heapInUse() - before) / n
				assert.LessOrEqual(t, each, c.limit, "bytes per entry")
				end(w, clock)
				require.Zero(t, w.Len())
				assert.Less(t, heapInUse()-before, int64(32<<10), "left over")
				runtime.KeepAlive(w)
				runtime.KeepAlive(c.index)
			})
		}
	}
}

func wmStep(w *WatermarkList[uint64], to uint64) {
	for i := range to {
		w.Advance(i + 1)
	}
}

func TestWatermarkMemory_EntriesThatLeaveFromTheMiddleGiveItBack(t *testing.T) {
	wmMeasured(t)
	const n, stay = 50_000, 100
	for name, index := range map[string]func(i int) uint64{"in order": wmInOrder, "shuffled": wmShuffled(n)} {
		for leave, c := range map[string]struct {
			opt func(session *Session) AddOption
			end func(clock *FakeClock, session *Session)
		}{
			"deadline": {
				func(*Session) AddOption { return Timeout(time.Second) },
				func(clock *FakeClock, _ *Session) { clock.Advance(time.Second) },
			},
			"session": {InSession, func(_ *FakeClock, session *Session) { session.End(nil) }},
		} {
			t.Run(name+"/"+leave, func(t *testing.T) {
				clock := NewFakeClock(fakeStart)
				w := NewWatermarkList[uint64](0, Options{Clock: clock, Timeout: time.Hour})
				session := new(Session)
				before := heapInUse()
				var outs []uint64
				done := func(out Outcome[uint64]) { outs = append(outs, out.Key) }
				for i := range n {
					at := index(i)
					switch {
					case at%(n/stay) == 0:
						require.NoError(t, w.Add(at, done))
					default:
						if err := w.Add(at, ignore[uint64], c.opt(session)); err != nil {
							t.Fatal(err)
						}
					}
				}
				c.end(clock, session)
				require.Equal(t, stay, w.Len())
				assert.Less(t, heapInUse()-before, int64(64<<10), "with %d of %d left", stay, n)
				require.Equal(t, stay, w.Advance(n))
				for i, key := range outs {
					require.EqualValues(t, (i+1)*n/stay, key)
				}
				runtime.KeepAlive(session)
				runtime.KeepAlive(index)
			})
		}
	}
}

func TestWatermarkGrowth_OnlyWhatIsParkedTakesMemory(t *testing.T) {
	w := NewWatermarkList[uint64](0, Options{Timeout: time.Hour})
	wmQuorum(t, w, ofThree) // 3 is dead
	wmFill(t, w, 1, func(int) uint64 { return 1 << 60 })
	before := heapInUse()
	for i := range uint64(rounds(500_000)) {
		if w.Add(i+1, ignore) != nil || w.Ack(i+1, 1) != AckCounted || w.Ack(i+1, 2) != AckDecided {
			t.Fatal(i)
		}
	}
	assert.Less(t, heapInUse()-before, int64(16<<10))
	assert.Equal(t, 1, w.Len())
	require.NoError(t, w.Close())
}

func TestWatermarkPayload_CollectableOnceItsEntryHasEnded(t *testing.T) {
	type payload = [1 << 20]byte
	park := func(t *testing.T, s *wmStage, index int) weak.Pointer[payload] {
		p := new(payload)
		s.park(t, index, func(Outcome[int]) { p[0]++ })
		return weak.Make(p)
	}
	for _, ending := range wmEndings {
		t.Run(ending.name, func(t *testing.T) {
			s := newWmStage(Options{})
			others := 0
			for i := range 40 {
				require.NoError(t, s.Add(2000+i, func(Outcome[int]) { others++ }, Timeout(100*time.Hour)))
			}
			held := []weak.Pointer[payload]{park(t, s, 30), park(t, s, 20), park(t, s, 10), park(t, s, 40)}
			runtime.GC()
			require.NotNil(t, held[0].Value(), "parked")
			ending.run(s)
			runtime.GC()
			for _, p := range held {
				assert.Nil(t, p.Value(), "the list, its pools, the session or the clock still hold it")
			}
			assert.Zero(t, s.session.Len())
			if ending.end != EndClosed && ending.end != EndFailed && ending.end != EndTruncated {
				assert.Equal(t, 40, s.Len())
			}
			require.NoError(t, s.Close())
			assert.Equal(t, 40, others)
			runtime.KeepAlive(s)
		})
	}
}
