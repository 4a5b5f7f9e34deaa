package waitlist

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOptions_ThatMakeNoSenseNameTheirField(t *testing.T) {
	for field, opts := range map[string]Options{
		"Timeout":       {Timeout: -1},
		"SweepInterval": {SweepInterval: -time.Hour},
		"Capacity":      {Capacity: -1},
	} {
		for name, build := range map[string]func(){
			"New":              func() { New[int](opts) },
			"NewWatermarkList": func() { NewWatermarkList[int](0, opts) },
		} {
			func() {
				defer func() { require.Contains(t, recover(), field, name) }()
				build()
				t.Errorf("%s took a negative %s", name, field)
			}()
		}
	}
}

func TestOptions_ZeroIsReadyToUse(t *testing.T) {
	l := New[int](Options{})
	defer l.Close()
	before := time.Now()
	require.NoError(t, l.Add(1, ofThree, ignore))
	p, _ := l.Get(1)
	require.Equal(t, 10*time.Second, p.Deadline.Sub(p.Since), "the default timeout")
	require.WithinRange(t, p.Since, before, time.Now())
}

func TestAddOptions_TheLastOfAKindCounts(t *testing.T) {
	var a, b Session
	l := New[int](Options{Timeout: time.Minute})
	defer l.Close()
	timeout := func(key int, opts ...AddOption) time.Duration {
		require.NoError(t, l.Add(key, ofThree, ignore, opts...))
		p, _ := l.Get(key)
		return p.Deadline.Sub(p.Since)
	}
	require.Equal(t, time.Minute, timeout(1, InSession(&a)))
	require.Equal(t, time.Hour, timeout(2, Timeout(time.Second), InSession(&a), Timeout(time.Hour), InSession(&b)))
	require.Equal(t, time.Second, timeout(3, Timeout(-1), InSession(&b), Timeout(time.Second), InSession(nil)))
	require.Equal(t, 1, a.Len())
	require.Equal(t, 1, b.Len())
}

// Everything that a callback may call, called from a callback of every end.
func TestReentrancy_EveryEndMayCallEverything(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	calls := map[string]func(s *stage){
		"Add same key": func(s *stage) { _ = s.Add("k", ofThree, ignore) },
		"Ack":          func(s *stage) { s.Ack("k", 1); s.Ack("other", 1); s.Ack("other", 2) },
		"AckBatch":     func(s *stage) { s.AckBatch([]string{"k", "other"}, 1) },
		"Nack":         func(s *stage) { s.Nack("other", 1, nil); s.Nack("other", 2, nil) },
		"PeerDown":     func(s *stage) { s.PeerDown(1, nil); s.PeerDown(2, nil) },
		"Complete":     func(s *stage) { s.Complete("other", 1) },
		"Fail":         func(s *stage) { s.Fail("other", nil) },
		"FailFunc":     func(s *stage) { s.FailFunc(func(string) bool { return s.Len() >= 0 }, nil) },
		"FailAll":      func(s *stage) { s.FailAll(nil) },
		"Sweep":        func(s *stage) { s.Sweep() },
		"Advance":      func(s *stage) { s.clock.Advance(2 * time.Hour) },
		"Session.End":  func(s *stage) { s.session.End(nil); s.session.Len() },
		"looks": func(s *stage) {
			for p := range s.All() {
				s.Get(p.Key)
				s.Fail(p.Key, nil)
			}
			s.Len()
			s.Stats()
		},
		"Wait": func(s *stage) { _, _ = s.Wait(canceled, "w", ofThree, nil) },
		"Wait with a send": func(s *stage) {
			_, _ = s.Wait(context.Background(), "w", ofThree, func() error { s.Fail("w", nil); return nil })
		},
		"Shutdown": func(s *stage) { _ = s.Shutdown(canceled) },
		"Close":    func(s *stage) { _ = s.Close(); s.Done() },
	}
	for _, ending := range endings {
		for name, call := range calls {
			for _, executor := range []func(func()){nil, func(run func()) { run() }} {
				called := map[string]int{}
				s := newStage(Options{Executor: executor})
				s.park(t, "k", func(Outcome[string]) { called["k"]++; call(s); call(s) })
				require.NoError(t, s.Add("other", ofThree, func(Outcome[string]) { called["other"]++; call(s) }))
				ending.run(s, "k")
				require.Equal(t, 1, called["k"], "%s, then %s", ending.name, name)
				require.NoError(t, s.Close())
				require.Equal(t, 1, called["other"], "%s, then %s", ending.name, name)
				<-s.Done()
				audit(t, s.WaitingList)
			}
		}
	}
}

func TestReentrancy_ShutdownInACallbackWaitsForTheOthersOnly(t *testing.T) {
	for _, ending := range endings {
		s := newStage(Options{})
		var err error = errTest
		s.park(t, "k", func(Outcome[string]) { err = s.Shutdown(context.Background()) })
		ending.run(s, "k")
		require.NoError(t, err, ending.name)
		<-s.Done()
	}
}

func TestReentrancy_CallbacksThatAckEachOther(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	same := sameShard(l, 2)
	for name, keys := range map[string][2]int{
		"same shard":   {same[0], same[1]},
		"other shards": {0, otherShard(l, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := keys[0], keys[1]
			var calls atomic.Int32
			both := Majority(1, 2)
			collide(rounds(20_000), func() {
				calls.Store(0)
				// Each needs an ack from its own reader and one from the other's callback, or
				// from its reader twice.
				rule := AtLeastOf(1, both, All(3))
				require.NoError(t, l.Add(a, rule, func(Outcome[int]) { l.Ack(b, 3); calls.Add(1) }))
				require.NoError(t, l.Add(b, rule, func(Outcome[int]) { l.Ack(a, 3); calls.Add(1) }))
			}, func() {
				require.EqualValues(t, 2, calls.Load())
				require.Zero(t, l.Len())
			},
				func() { l.Ack(a, 1); l.Ack(a, 2) },
				func() { l.Ack(b, 1); l.Ack(b, 2) },
			)
		})
	}
}

func TestReentrancy_TwoListsThatAckEachOther(t *testing.T) {
	a, b := New[int](Options{ManualSweep: true}), New[string](Options{ManualSweep: true})
	var calls atomic.Int32
	collide(rounds(10_000), func() {
		calls.Store(0)
		require.NoError(t, a.Add(1, Majority(1), func(Outcome[int]) { b.Ack("x", 1); calls.Add(1) }))
		require.NoError(t, b.Add("x", Majority(1), func(Outcome[string]) { a.Ack(1, 1); calls.Add(1) }))
	}, func() { require.EqualValues(t, 2, calls.Load()) },
		func() { a.Ack(1, 1) }, func() { b.Ack("x", 1) })
}

// A chain of callbacks, each ending the next, is as deep as the caller makes it.
func TestReentrancy_LongChain(t *testing.T) {
	const n = 10_000
	l := New[int](Options{ManualSweep: true})
	called := 0
	for i := range n {
		require.NoError(t, l.Add(i, Majority(1), func(out Outcome[int]) { called++; l.Ack(out.Key+1, 1) }))
	}
	l.Ack(0, 1)
	require.Equal(t, n, called)
}

func TestOwnLock_CallbackThatTakesTheCallersReadLockNeedsAnExecutor(t *testing.T) {
	for _, ending := range endings {
		t.Run(ending.name, func(t *testing.T) {
			var mu sync.RWMutex
			var ran sync.WaitGroup
			s := newStage(Options{Executor: func(run func()) { ran.Go(run) }})
			s.park(t, "k", func(Outcome[string]) {
				mu.RLock()
				defer mu.RUnlock()
			})

			mu.RLock()
			ran.Go(func() {
				mu.Lock() // with a writer waiting, no new reader gets in
				defer mu.Unlock()
			})
			for mu.TryRLock() {
				mu.RUnlock()
				runtime.Gosched()
			}
			ending.run(s, "k")
			mu.RUnlock()
			ran.Wait()
			require.NoError(t, s.Close())
			<-s.Done()
		})
	}
}

func TestCapacity_EveryRefusalLeavesItAsItWas(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var ended Session
	ended.End(nil)
	clock := NewFakeClock(fakeStart)
	l := New[int](Options{Capacity: 3, Clock: clock})
	require.NoError(t, l.Add(0, ofThree, ignore))
	exits := func(f func()) {
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		<-done
	}
	refusals := map[string]func(){
		"duplicate":       func() { require.ErrorIs(t, l.Add(0, ofThree, ignore), ErrDuplicateKey) },
		"invalid":         func() { require.ErrorIs(t, l.Add(9, Quorum{}, ignore), ErrInvalidQuorum) },
		"nil callback":    func() { require.ErrorIs(t, l.Add(9, ofThree, nil), ErrNilCallback) },
		"no time left":    func() { require.ErrorIs(t, l.Add(9, ofThree, ignore, Timeout(0)), ErrTimeout) },
		"session ended":   func() { require.ErrorIs(t, l.Add(9, ofThree, ignore, InSession(&ended)), ErrSessionEnded) },
		"wide, duplicate": func() { require.ErrorIs(t, l.Add(0, All(span(0, 100)...), ignore), ErrDuplicateKey) },
		"context over": func() {
			_, err := l.Wait(over, 9, ofThree, nil)
			require.ErrorIs(t, err, context.Canceled)
		},
	}
	canceled := map[string]func(){
		"failing send": func() {
			_, err := l.Wait(context.Background(), 9, ofThree, func() error { return errTest })
			require.ErrorIs(t, err, errTest)
		},
		"panicking send": func() {
			require.PanicsWithValue(t, "send", func() {
				_, _ = l.Wait(context.Background(), 9, ofThree, func() error { panic("send") })
			})
		},
		"exiting send": func() {
			exits(func() {
				_, _ = l.Wait(context.Background(), 9, ofThree, func() error { runtime.Goexit(); return nil })
			})
		},
	}
	for name, refused := range refusals {
		before := l.Stats()
		refused()
		after := l.Stats()
		before.Refused++
		require.Equal(t, before, after, name)
		requireRoom(t, l, 2)
	}
	for name, cancel := range canceled {
		before := l.Stats()
		cancel()
		after := l.Stats()
		before.Added++
		before.Canceled++
		require.Equal(t, before, after, name)
		requireRoom(t, l, 2)
	}
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Add(9, ofThree, ignore), ErrClosed)
	require.Zero(t, l.parked.Load())
	audit(t, l)
}

// requireRoom checks that exactly n more fit in.
func requireRoom(t *testing.T, l *WaitingList[int], n int) {
	t.Helper()
	for i := range n {
		require.NoError(t, l.Add(1000+i, ofThree, ignore))
	}
	require.ErrorIs(t, l.Add(2000, ofThree, ignore), ErrFull)
	_, err := l.Wait(t.Context(), 2001, ofThree, func() error { t.Error("sent"); return nil })
	require.ErrorIs(t, err, ErrFull)
	audit(t, l)
	for i := range n {
		require.True(t, l.Complete(1000+i, nil))
	}
}

func TestCapacity_EveryEndGivesItBackBeforeTheCallback(t *testing.T) {
	for _, ending := range endings {
		s := newStage(Options{Capacity: 1})
		var err error = errTest
		s.park(t, "k", func(Outcome[string]) { err = s.Add("next", ofThree, ignore) })
		require.ErrorIs(t, s.Add("other", ofThree, ignore), ErrFull)
		ending.run(s, "k")
		if ending.end == EndClosed {
			require.ErrorIs(t, err, ErrClosed, ending.name)
		} else {
			require.NoError(t, err, ending.name)
		}
		audit(t, s.WaitingList)
	}
}

func TestCapacity_IsExactUnderConcurrency(t *testing.T) {
	l := New[int64](Options{Capacity: 5, ManualSweep: true})
	var key, added atomic.Int64
	racer := func() {
		for range 3 {
			if l.Add(key.Add(1), ofThree, ignore) == nil {
				added.Add(1)
			}
		}
	}
	collide(rounds(5_000), func() { added.Store(0) }, func() {
		require.EqualValues(t, 5, added.Load(), "twelve tried, five fit, and none of the five was turned away")
		require.Equal(t, 5, l.FailAll(nil))
	}, racer, racer, racer, racer)
	audit(t, l)
}

func TestAll_BodyMayDoAnything(t *testing.T) {
	l := New[int](Options{})
	defer l.Close()
	for i := range 1000 {
		require.NoError(t, l.Add(i, ofThree, ignore))
		l.Ack(i, PeerID(i%3+1))
	}
	seen := map[int]bool{}
	for p := range l.All() {
		if p.Key >= 10_000 {
			continue // the body has added it to a shard that came later
		}
		require.False(t, seen[p.Key], "twice")
		seen[p.Key] = true
		require.Equal(t, []PeerID{PeerID(p.Key%3 + 1)}, slices.Collect(p.Tally.Acked()))
		require.Equal(t, 10*time.Second, p.Deadline.Sub(p.Since))
		l.Fail(p.Key, nil)
		require.NoError(t, l.Add(p.Key+10_000, ofThree, ignore))
	}
	for i := range 1000 {
		require.True(t, seen[i], "skipped")
	}
	require.Equal(t, 1000, l.Len())
	n := 0
	for range l.All() {
		if n++; n == 10 {
			break
		}
	}
	require.Equal(t, 10, n)
	l.FailAll(nil)
	for range l.All() {
		t.Fatal("an empty list yields nothing")
	}
}

func TestAll_PanickingBodyLocksNothing(t *testing.T) {
	l := New[int](Options{})
	defer l.Close()
	require.NoError(t, l.Add(1, ofThree, ignore))
	require.Panics(t, func() {
		for range l.All() {
			panic("body")
		}
	})
	require.Equal(t, AckCounted, l.Ack(1, 1))
}

func TestHappensBefore_WhatPrecedesTheDecidingAnswer(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	var first, second int // written without a lock: the race detector judges
	sum := 0
	collide(rounds(20_000), func() {
		require.NoError(t, l.Add(1, All(1, 2), func(Outcome[int]) { sum = first + second }))
	}, func() { require.Equal(t, first+second, sum) },
		func() { first++; l.Ack(1, 1) },
		func() { second++; l.Ack(1, 2) },
	)
}
