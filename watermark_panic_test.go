package waitlist

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wmStage is a list whose mark is 10, on a fake clock, under All(1), with a session.
type wmStage struct {
	*WatermarkList[int]
	clock   *FakeClock
	session *Session
}

func newWmStage(opts Options) *wmStage {
	clock := NewFakeClock(fakeStart)
	opts.Clock = clock
	s := &wmStage{NewWatermarkList(10, opts), clock, new(Session)}
	_, _ = s.SetQuorum(All(1, 2))
	s.Ack(1000, 1)
	return s
}

// park adds an entry at 11 or above that every one of the endings can end.
func (s *wmStage) park(t testing.TB, index int, done Callback[int]) {
	t.Helper()
	require.NoError(t, s.Add(index, done, InSession(s.session), Timeout(time.Hour)))
}

// wmEndings are the ways in which what was added to a stage ends: all of it.
var wmEndings = []struct {
	name string
	end  End
	run  func(s *wmStage) (ended int)
}{
	{"Advance", EndReached, func(s *wmStage) int { return s.Advance(1000) }},
	{"Ack", EndReached, func(s *wmStage) int { s.Ack(1000, 2); return -1 }},
	{"SetQuorum", EndReached, func(s *wmStage) int { n, _ := s.SetQuorum(All(1)); return n }},
	{"Truncate", EndTruncated, func(s *wmStage) int { n, _ := s.Truncate(11, errTest); return n }},
	{"FailAll", EndFailed, func(s *wmStage) int { return s.FailAll(errTest) }},
	{"deadline", EndTimedOut, func(s *wmStage) int { s.clock.Advance(time.Hour); return -1 }},
	{"Session.End", EndSession, func(s *wmStage) int { return s.session.End(errTest) }},
	{"Close", EndClosed, func(s *wmStage) int { _ = s.Close(); return -1 }},
	{"Shutdown", EndClosed, func(s *wmStage) int { _ = s.Shutdown(wmOver()); return -1 }},
}

func TestWatermarkReentrancy_CallbacksMayCallAnything(t *testing.T) {
	closers := []int{9, 10} // places in actions of what closes the list
	for _, ending := range wmEndings {
		s := newWmStage(Options{})
		var again, other outcomes[int]
		actions := []func(){
			func() { _ = s.Add(20, again.note) }, // the same index
			func() { s.Ack(20, 2) },
			func() { _, _ = s.Truncate(30, nil) },
			func() { s.FailAll(nil) },
			func() { s.Sweep() },
			func() { _, _, _ = s.Len(), s.Stats(), slices.Collect(s.All()) },
			func() { s.Advance(40) },
			func() { _, _ = s.SetQuorum(ofThree); s.BeginTerm(12); s.Match(1); s.Watermark() },
			func() { s.session.End(nil); s.session.Len(); s.clock.Advance(time.Hour) },
			func() { _ = s.Shutdown(wmOver()) },
			func() { _ = s.Close() },
			func() { _, _ = s.Wait(wmOver(), 99); _ = s.Add(99, again.note) },
			func() {
				for range s.All() {
					s.FailAll(nil)
				}
			},
		}
		for i, action := range actions {
			t.Run(fmt.Sprint(ending.name, " calls ", i), func(t *testing.T) {
				s = newWmStage(Options{})
				calls := 0
				s.park(t, 20, func(out Outcome[int]) {
					calls++
					assert.Equal(t, ending.end, out.End)
					assert.Equal(t, 20, out.Key)
					action()
				})
				s.park(t, 21, other.note)
				ending.run(s)
				assert.Equal(t, 1, calls)
				assert.Equal(t, ending.end, other.one(t).End, "it was claimed before the first was called")
				closed := ending.end == EndClosed || slices.Contains(closers, i)
				require.Equal(t, closed, s.Add(500, ignore) != nil)
				require.NoError(t, s.Close())
				<-s.Done()
				again.take()
				wmAudit(t, s.WatermarkList)
			})
		}
	}
}

func TestWatermarkPasses_NoneSkippedNoneTwiceNewOnesNotVisited(t *testing.T) {
	for _, ending := range wmEndings {
		t.Run(ending.name, func(t *testing.T) {
			s := newWmStage(Options{})
			calls := map[int]int{}
			added := 0
			const n = 40
			for i := range n {
				index := 11 + (i*7)%n
				s.park(t, index, func(out Outcome[int]) {
					calls[out.Key]++
					assert.Equal(t, ending.end, out.End)
					assert.Zero(t, s.Len()-added, "all are claimed before the first is called")
					if i%10 == 0 {
						// End the next ones, and add some that this pass must not touch.
						_, _ = s.Truncate(11, nil)
						s.FailAll(nil)
						s.Sweep()
						added = 0
						if s.Add(2000+index, ignore) == nil {
							added = 1
						}
					}
				})
			}
			if ended := ending.run(s); ended >= 0 {
				assert.Equal(t, n, ended)
			}
			require.Len(t, calls, n)
			for index, times := range calls {
				assert.Equal(t, 1, times, "calls of %d", index)
			}
			assert.Equal(t, added, s.Len())
			assert.Zero(t, s.session.Len())
			assert.Equal(t, ending.end != EndClosed, added == 1)
			wmAudit(t, s.WatermarkList)
		})
	}
}

func TestWatermarkPanic_AllOthersRunAndTheFirstGoesOn(t *testing.T) {
	for _, ending := range wmEndings {
		for bad := range 3 {
			s := newWmStage(Options{Timeout: time.Hour})
			var outs outcomes[int]
			for i := range 10 {
				s.park(t, 11+i, func(out Outcome[int]) {
					outs.note(out)
					if i%3 == bad {
						panic(out.Key)
					}
				})
			}
			value := wmUnwound(func() { ending.run(s) })
			require.Contains(t, []int{11, 12, 13, 17, 18, 19, 20}, value, "%s: one of those that panicked", ending.name)
			if ending.end == EndReached {
				require.Equal(t, 11+bad, value, "the first in order")
			}
			require.Len(t, outs.take(), 10, ending.name)
			require.EqualValues(t, []uint64{4, 3, 3}[bad], s.Stats().CallbackPanics)
			wmAudit(t, s.WatermarkList)

			if ending.end == EndClosed { // the list and its sweeper go on
				<-s.Done()
				continue
			}
			for i := range 10 {
				require.NoError(t, s.Add(2000+i, outs.note, Timeout(time.Minute)))
			}
			s.clock.Advance(time.Minute)
			require.Len(t, outs.take(), 10, ending.name)
		}
	}
}

func TestWatermarkPanic_OnPanicIsToldOfEachAndItEndsThere(t *testing.T) {
	for _, ending := range wmEndings {
		var told [][2]any
		s := newWmStage(Options{OnPanic: func(key, value any, stack []byte) {
			assert.Contains(t, string(stack), "wmPanics")
			told = append(told, [2]any{key, value})
		}})
		var outs outcomes[int]
		for i := range 10 {
			if i == 0 || i == 7 {
				s.park(t, 11+i, wmPanics)
			} else {
				s.park(t, 11+i, outs.note)
			}
		}
		require.Nil(t, wmUnwound(func() { ending.run(s) }))
		require.ElementsMatch(t, [][2]any{{11, "wm 11"}, {18, "wm 18"}}, told, ending.name)
		require.Len(t, outs.take(), 8)
		require.EqualValues(t, 2, s.Stats().CallbackPanics)
		wmAudit(t, s.WatermarkList)
	}
}

func wmPanics(out Outcome[int]) { panic(fmt.Sprint("wm ", out.Key)) }

func TestWatermarkPanic_InsideAddLeavesNothingLocked(t *testing.T) {
	s := newWmStage(Options{Capacity: 1})
	require.Equal(t, "wm 5", wmUnwound(func() { _ = s.Add(5, wmPanics, InSession(s.session)) }))
	require.Equal(t, errWmExited, wmUnwound(func() {
		_ = s.Add(10, func(Outcome[int]) { runtime.Goexit() }, InSession(s.session))
	}))
	assert.Zero(t, s.session.Len())
	assert.Zero(t, s.Len())
	assert.EqualValues(t, 1, s.Stats().CallbackPanics)
	assert.EqualValues(t, 2, s.Stats().Reached)
	s.park(t, 11, ignore)
	wmAudit(t, s.WatermarkList)
	s.Close()
	<-s.Done()
}

func TestWatermarkGoexit_TakesEffectAfterThePass(t *testing.T) {
	for _, ending := range wmEndings {
		s := newWmStage(Options{Timeout: time.Hour, OnPanic: func(any, any, []byte) { t.Error("a Goexit is not reported") }})
		var outs outcomes[int]
		for i := range 10 {
			s.park(t, 11+i, func(out Outcome[int]) {
				outs.note(out)
				if i%4 == 0 {
					runtime.Goexit()
				}
			})
		}
		require.Equal(t, errWmExited, wmUnwound(func() { ending.run(s) }), ending.name)
		require.Len(t, outs.take(), 10, ending.name)
		require.Zero(t, s.Stats().CallbackPanics)
		wmAudit(t, s.WatermarkList)
		if ending.end == EndClosed {
			<-s.Done()
			continue
		}
		wmPark(t, s.WatermarkList, outs.note, 1000, 1001, 1002)
		s.Advance(1001)
		s.clock.Advance(time.Hour)
		require.Len(t, outs.take(), 3)
		require.NoError(t, s.Close())
		<-s.Done()
	}
}

func TestWatermarkPanic_GoesOnOnlyWhenTheQueueIsEmpty(t *testing.T) {
	// Callbacks append to the queue, from the stack of the drain and from other
	// goroutines, and then unwind: what they appended runs before the unwinding
	// goes on, and the first panic is the one that does.
	type how = func(int)
	panics, exits, returns := func(i int) { panic(i) }, func(int) { runtime.Goexit() }, func(int) {}
	for name, c := range map[string]struct {
		hows []how
		want any
	}{
		"panic":                      {[]how{panics, returns, returns}, 0},
		"panics":                     {[]how{panics, panics, panics}, 0},
		"later panic":                {[]how{returns, panics, returns, panics}, 1},
		"exit":                       {[]how{exits, returns}, errWmExited},
		"exits":                      {[]how{exits, exits, exits}, errWmExited},
		"exit at the end":            {[]how{returns, returns, exits}, errWmExited},
		"panic then exit":            {[]how{panics, exits}, 0},
		"panic then exit and return": {[]how{panics, exits, returns}, 0},
		"exit then panic":            {[]how{exits, panics}, 1},
		"all":                        {[]how{returns, exits, panics, exits, panics, returns}, 2},
	} {
		for _, elsewhere := range []bool{false, true} {
			for _, together := range []bool{false, true} { // all appended by one mover
				if elsewhere && together {
					continue
				}
				t.Run(fmt.Sprint(name, elsewhere, together), func(t *testing.T) {
					w := NewWatermarkList[int](0, wmManual)
					var got []int
					var link func(i int) Callback[int]
					link = func(i int) Callback[int] {
						return func(Outcome[int]) {
							got = append(got, i)
							if i+1 < len(c.hows) && !together {
								wmPark(t, w, link(i+1), i+2)
								move := func() { assert.Equal(t, 1, w.Advance(i+2)) }
								if elsewhere {
									var wg sync.WaitGroup
									wg.Go(move)
									wg.Wait()
								} else {
									move()
								}
							}
							c.hows[i](i)
						}
					}
					for i := range c.hows {
						if i == 0 || together {
							wmPark(t, w, link(i), i+1)
						}
					}
					to := 1
					if together {
						to = len(c.hows)
					}
					value := wmUnwound(func() { w.Advance(to) })
					assert.Equal(t, c.want, value)
					assert.Len(t, got, len(c.hows))
					assert.True(t, slices.IsSorted(got), "%v", got)
					wmAudit(t, w)
					wmPark(t, w, func(Outcome[int]) { got = nil }, 100)
					assert.Equal(t, 1, w.Advance(100), "nobody is draining any more")
					assert.Nil(t, got)
				})
			}
		}
	}
}

func TestWatermarkPanic_ManyInARowWithOnPanicDoNotGrowTheStack(t *testing.T) {
	told := 0
	w := NewWatermarkList[int](0, Options{OnPanic: func(any, any, []byte) { told++ }})
	depths := map[int]int{}
	var link Callback[int]
	link = func(out Outcome[int]) {
		depths[wmDepth()]++
		if out.Key < 2000 {
			_ = w.Add(out.Key+1, link)
			w.Advance(out.Key + 1)
		}
		panic(out.Key)
	}
	wmPark(t, w, link, 1)
	w.Advance(1)
	assert.Equal(t, 2000, told)
	assert.Len(t, depths, 1, "frames and how often")
}
