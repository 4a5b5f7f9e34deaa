package waitlist

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// These races have windows of a few nanoseconds, which random operations rarely meet: two calls at a time, again and
// again.

// closely makes two racers meet more closely than the barrier alone, each a little earlier or later every time.
func closely(a, b func()) (func(), func()) {
	var arrived, idle atomic.Int64
	meet := func(racer func(), early int64) func() {
		return func() {
			n := arrived.Add(1)
			for spins := 0; arrived.Load() < n+n%2 && spins < 10_000; spins++ {
			}
			for range max(0, early*(n/2%128-64)) {
				idle.Load()
			}
			racer()
		}
	}
	return meet(a, 1), meet(b, -1)
}

func TestLastPlaceIsTakenByOneOfTwo(t *testing.T) {
	list := New[int](Options{ManualSweep: true, Capacity: 1})
	var accepted atomic.Int32
	add := func(key int) func() {
		return func() {
			if list.Add(key, ofThree, ignore[int]) == nil {
				accepted.Add(1)
			}
		}
	}
	first, second := closely(add(1), add(2))
	collide(rounds(40_000), func() { accepted.Store(0) }, func() {
		require.EqualValues(t, 1, accepted.Load(), "accepted, with one place free")
		require.Equal(t, 1, list.FailAll(nil))
	}, first, second)
	audit(t, list)
}

// When an entry ends, another moves into its slot: an answer on its way to the first must not reach the second.
func TestAnswerToAnEntryThatEndsReachesNobodyElse(t *testing.T) {
	list := New[int](Options{ManualSweep: true})
	keys := sameShard(list, 2)
	one := AtLeast(1, 1, 2)
	var acked AckResult
	var failed bool
	first, second := closely(func() { acked = list.Ack(keys[0], 1) }, func() { failed = list.Fail(keys[0], nil) })
	collide(rounds(40_000), func() {
		require.NoError(t, list.Add(keys[0], one, ignore[int]))
		require.NoError(t, list.Add(keys[1], one, ignore[int]))
	}, func() {
		require.True(t, failed && acked == AckUnknown || !failed && acked == AckDecided, "%v, %v", failed, acked)
		require.Equal(t, 1, list.Len())
		require.True(t, list.Fail(keys[1], nil), "the other is still parked")
	}, first, second)
	audit(t, list)
}

func TestRunCalledByTwoGoroutinesCallsOnce(t *testing.T) {
	var run func()
	list := New[int](Options{ManualSweep: true, Executor: func(r func()) { run = r }})
	var calls atomic.Int32
	first, second := closely(func() { run() }, func() { run() })
	collide(rounds(100_000), func() {
		calls.Store(0)
		require.NoError(t, list.Add(1, ofThree, func(Outcome[int]) { calls.Add(1) }))
		require.True(t, list.Fail(1, nil))
	}, func() {
		require.EqualValues(t, 1, calls.Load())
	}, first, second)
	require.Zero(t, list.Stats().Running)
}

// A mover that finds the queue being drained leaves its completions there: nobody must have looked for the last time.
func TestCompletionIsNotLeftInTheQueue(t *testing.T) {
	list := NewWatermarkList(0, Options{ManualSweep: true})
	index := 0
	var calls atomic.Int32
	first, second := closely(func() { list.Advance(index + 1) }, func() { list.Advance(index + 2) })
	collide(rounds(40_000), func() {
		calls.Store(0)
		for i := range 2 {
			require.NoError(t, list.Add(index+1+i, func(Outcome[int]) { calls.Add(1) }))
		}
	}, func() {
		require.EqualValues(t, 2, calls.Load())
		index += 2
	}, first, second)
	require.Zero(t, list.Stats().Running)
}
