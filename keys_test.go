package waitlist

import (
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTwoAddsOfOneKey_TheFirstStaysIntact(t *testing.T) {
	var outs outcomes[int]
	l := New[int](Options{})
	defer l.Close()
	require.NoError(t, l.Add(1, ofThree, outs.note))
	require.Equal(t, AckCounted, l.Ack(1, 2))
	before, _ := l.Get(1)
	require.ErrorIs(t, l.Add(1, All(7), func(Outcome[int]) { t.Error("called") }, Timeout(time.Nanosecond)), ErrDuplicateKey)
	_, err := l.Wait(t.Context(), 1, All(7), func() error { t.Error("sent"); return nil })
	require.ErrorIs(t, err, ErrDuplicateKey)
	after, _ := l.Get(1)
	require.Equal(t, before, after)
	require.Equal(t, AckNotMember, l.Ack(1, 7))
	require.Equal(t, AckDecided, l.Ack(1, 3))
	require.Equal(t, []PeerID{2, 3}, slices.Collect(outs.one(t).Tally.Acked()))
	require.EqualValues(t, 2, l.Stats().Refused)
}

func TestTwoAddsOfOneKey_AtOnce(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	var errs [2]error
	var called [2]atomic.Int32
	add := func(i int) func() {
		return func() { errs[i] = l.Add(1, ofThree, func(Outcome[int]) { called[i].Add(1) }) }
	}
	collide(rounds(20_000), func() { called[0].Store(0); called[1].Store(0) }, func() {
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		require.NoError(t, errs[winner])
		require.ErrorIs(t, errs[1-winner], ErrDuplicateKey)
		require.True(t, l.Complete(1, nil))
		require.EqualValues(t, 1, called[winner].Load())
		require.Zero(t, called[1-winner].Load())
	}, add(0), add(1))
	audit(t, l)
}

func TestKeys_WhateverComparableAdmits(t *testing.T) {
	t.Run("struct", func(t *testing.T) { parkAndAck(t, struct{ a, b string }{"x", "y"}, struct{ a, b string }{"xy", ""}) })
	t.Run("string", func(t *testing.T) { parkAndAck(t, "", "\x00") })
	t.Run("array", func(t *testing.T) { parkAndAck(t, [16]byte{1}, [16]byte{15: 1}) })
	t.Run("pointer", func(t *testing.T) { parkAndAck(t, new(int), new(int)) })
	t.Run("nil interface", func(t *testing.T) { parkAndAck[any](t, nil, 0) })
	t.Run("types differ", func(t *testing.T) { parkAndAck[any](t, int32(1), int64(1)) })
	t.Run("zeros", func(t *testing.T) { parkAndAck(t, 0.0, 1.0) })
	t.Run("complex", func(t *testing.T) { parkAndAck(t, 1i, 1) })
}

func parkAndAck[K comparable](t *testing.T, a, b K) {
	t.Helper()
	var outs outcomes[K]
	l := New[K](Options{})
	defer l.Close()
	require.NoError(t, l.Add(a, Majority(1), outs.note))
	require.Equal(t, AckUnknown, l.Ack(b, 1))
	require.NoError(t, l.Add(b, Majority(1), outs.note))
	require.ErrorIs(t, l.Add(a, Majority(1), outs.note), ErrDuplicateKey)
	require.Equal(t, AckDecided, l.Ack(b, 1))
	require.True(t, outs.one(t).Key == b)
	require.Equal(t, AckDecided, l.Ack(a, 1))
	require.True(t, outs.one(t).Key == a)
	audit(t, l)
}

func TestNegativeZero_IsTheSameKeyAsZero(t *testing.T) {
	l := New[float64](Options{})
	defer l.Close()
	require.NoError(t, l.Add(0, Majority(1), ignore))
	require.Equal(t, AckDecided, l.Ack(math.Copysign(0, -1), 1))
}

func TestNaN_IsParkedNeverAckedAndLetGo(t *testing.T) {
	type pair struct {
		id int
		f  float64
	}
	nan := pair{1, math.NaN()}
	clock := NewFakeClock(fakeStart)
	for name, end := range map[string]func(l *WaitingList[pair]) int{
		"deadline": func(l *WaitingList[pair]) int { clock.Advance(10 * time.Second); return 3 },
		"FailAll":  func(l *WaitingList[pair]) int { return l.FailAll(nil) },
		"FailFunc": func(l *WaitingList[pair]) int { return l.FailFunc(func(p pair) bool { return math.IsNaN(p.f) }, nil) },
		"PeerDown": func(l *WaitingList[pair]) int { return l.PeerDown(1, nil) + l.PeerDown(2, nil) },
		"Close":    func(l *WaitingList[pair]) int { _ = l.Close(); return 3 },
	} {
		var outs outcomes[pair]
		l := New[pair](Options{Clock: clock})
		for range 3 { // it is no duplicate of itself
			require.NoError(t, l.Add(nan, ofThree, outs.note), name)
		}
		require.Equal(t, AckUnknown, l.Ack(nan, 1))
		require.False(t, l.Complete(nan, nil))
		require.Zero(t, l.AckBatch([]pair{nan, nan}, 1))
		require.EqualValues(t, 3, l.Stats().LateAcks)
		_, ok := l.Get(nan)
		require.False(t, ok)
		require.Equal(t, 3, end(l), name)
		require.Len(t, outs.take(), 3, name)
		audit(t, l)
		require.Zero(t, l.Len())
	}
}

func TestUnhashableKey_PanicsInTheCallerAndChangesNothing(t *testing.T) {
	l := New[any](Options{Capacity: 2})
	defer l.Close()
	var outs outcomes[any]
	require.NoError(t, l.Add("fine", Majority(1), outs.note))
	before := l.Stats()
	for _, bad := range []any{[]int{1}, map[int]int{}, func() {}, struct{ x any }{[]int{}}, [1]any{[]int{}}} {
		for name, call := range map[string]func(){
			"Add":      func() { _ = l.Add(bad, ofThree, outs.note) },
			"Wait":     func() { _, _ = l.Wait(t.Context(), bad, ofThree, func() error { t.Error("sent"); return nil }) },
			"Ack":      func() { l.Ack(bad, 1) },
			"AckWith":  func() { l.AckWith(bad, 1, 1) },
			"Nack":     func() { l.Nack(bad, 1, nil) },
			"Complete": func() { l.Complete(bad, nil) },
			"Fail":     func() { l.Fail(bad, nil) },
			"Get":      func() { l.Get(bad) },
			"AckBatch": func() { l.AckBatch([]any{"fine", bad}, 1) },
		} {
			require.Panics(t, call, "%s(%T)", name, bad)
		}
	}
	require.Equal(t, before, l.Stats())
	audit(t, l) // nothing is locked, and "fine" was not acked by the batch
	require.Equal(t, AckDecided, l.Ack("fine", 1))
	outs.one(t)
}
