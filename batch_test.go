package waitlist

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAckBatch_RepeatedAndUnknownKeys(t *testing.T) {
	var outs outcomes[int]
	l := New[int](Options{})
	defer l.Close()
	for i := range 10 {
		require.NoError(t, l.Add(i, ofThree, outs.note))
		l.Ack(i, 1)
	}
	require.NoError(t, l.Add(50, All(1, 2), outs.note))
	require.NoError(t, l.Add(51, All(8, 9), outs.note))
	before := l.Stats()

	require.Equal(t, 3, l.AckBatch([]int{0, 1, 0, 50, 99, 2, 99, 0, 50, 51, 1}, 2))

	st := l.Stats()
	require.EqualValues(t, 4, st.DuplicateAcks-before.DuplicateAcks, "0 twice, 50 and 1")
	require.EqualValues(t, 2, st.LateAcks-before.LateAcks, "99 twice")
	require.EqualValues(t, 1, st.ForeignAcks-before.ForeignAcks, "51")
	require.Equal(t, []int{0, 1, 2}, slices.Sorted(slices.Values(outs.keys())))
	for _, out := range outs.take() {
		require.Equal(t, EndReached, out.End)
		peer, ok := out.Tally.Decider()
		require.True(t, ok)
		require.Equal(t, PeerID(2), peer)
	}
	require.Zero(t, l.AckBatch(nil, 2))
	require.Zero(t, l.AckBatch([]int{0}, 2), "late by now")
	require.EqualValues(t, 3, l.Stats().LateAcks)
}

func TestAckBatch_OfAnySize(t *testing.T) {
	for _, n := range []int{1, 2, 63, 64, 65, 127, 128, 129, 1000, 5000} {
		l := New[int](Options{})
		called, keys := map[int]int{}, make([]int, 0, 3*n)
		for i := range n {
			require.NoError(t, l.Add(i, Majority(1), func(out Outcome[int]) { called[out.Key]++ }))
			keys = append(keys, i, i, n+i) // each repeated, and an unknown one
		}
		rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		given := slices.Clone(keys)
		require.Equal(t, n, l.AckBatch(keys, 1))
		require.Equal(t, given, keys, "the slice is the caller's")
		require.Len(t, called, n)
		st := l.Stats()
		require.EqualValues(t, n, st.DuplicateAcks)
		require.EqualValues(t, n, st.LateAcks)
		audit(t, l)
	}
}

func TestAckBatch_RepeatedKeyDoesNotAckTheEntryThatACallbackAdds(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	require.NoError(t, l.Add(1, Majority(1), func(Outcome[int]) {
		require.NoError(t, l.Add(1, Majority(1), func(Outcome[int]) { t.Error("acked by the same batch") }))
	}))
	require.Equal(t, 1, l.AckBatch([]int{1, 1, 1}, 1))
	require.Equal(t, 1, l.Len())
	audit(t, l)
}

func TestFailFunc_AsksOnceForEachEntryParkedAtTheCall(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	var outs outcomes[int]
	for i := range 200 {
		require.NoError(t, l.Add(i, Majority(1), outs.note))
	}
	asked := map[int]int{}
	n := l.FailFunc(func(key int) bool {
		asked[key]++
		if key%10 == 0 {
			l.Ack(key, 1) // ends it: it is not there to be failed any more
			require.NoError(t, l.Add(key, Majority(1), func(Outcome[int]) { t.Error("added after the question") }))
			require.NoError(t, l.Add(1000+key, Majority(1), ignore))
		}
		return key%2 == 0
	}, nil)
	require.Equal(t, 80, n, "the even ones but for the twenty that had ended")
	require.Len(t, asked, 200)
	for key, times := range asked {
		require.Less(t, key, 200)
		require.Equal(t, 1, times)
	}
	ends := map[End]int{}
	for _, out := range outs.take() {
		ends[out.End]++
		if out.End == EndFailed {
			require.ErrorIs(t, out.Err, ErrNoReason)
		}
	}
	require.Equal(t, map[End]int{EndReached: 20, EndFailed: 80}, ends)
	require.Equal(t, 100+20+20, l.Len())
	audit(t, l)
}

func TestFailFunc_PredicateThatDoesNotReturnEndsNothing(t *testing.T) {
	l := New[int](Options{})
	defer l.Close()
	for i := range 100 {
		require.NoError(t, l.Add(i, ofThree, ignore))
	}
	for name, leave := range map[string]func(){"panic": func() { panic("predicate") }, "exit": runtime.Goexit} {
		asked := 0
		how, _ := outcomeOf(func() {
			l.FailFunc(func(int) bool {
				if asked++; asked == 60 {
					leave()
				}
				return true
			}, nil)
		})
		require.NotEqual(t, returns, how)
		require.Equal(t, 100, l.Len(), name)
		require.Zero(t, l.Stats().CallbackPanics, "a predicate is no callback")
		audit(t, l)
	}
	require.Zero(t, l.FailFunc(func(int) bool { return false }, nil))
	require.Equal(t, 100, l.FailFunc(func(int) bool { return true }, nil))
}

func TestPeerDown_IsAnEventAndNotAState(t *testing.T) {
	var outs outcomes[int]
	l := New[int](Options{})
	defer l.Close()
	reasonBefore, down := errors.New("before"), errors.New("down")
	require.NoError(t, l.Add(1, All(1, 2), outs.note))        // names it: ended
	require.NoError(t, l.Add(2, ofThree, outs.note))          // goes on without it
	require.NoError(t, l.Add(3, All(2, 3), outs.note))        // does not name it
	require.NoError(t, l.Add(4, All(1, 2), outs.note))        // has an answer from it
	require.NoError(t, l.Add(5, ofThree, outs.note))          // has a refusal from it
	require.NoError(t, l.Add(6, External(), outs.note))       // asks nobody
	require.NoError(t, l.Add(7, AtLeast(1, 1), outs.note))    // nobody else: ended
	require.NoError(t, l.Add(8, AtLeast(2, 1, 2), outs.note)) // 2 has refused, and acked again
	l.Ack(4, 1)
	l.Nack(5, 1, reasonBefore)
	before := l.Stats()

	require.Equal(t, 3, l.PeerDown(1, down))

	after := l.Stats()
	require.Equal(t, before.DuplicateAcks, after.DuplicateAcks)
	require.Equal(t, before.ForeignAcks, after.ForeignAcks)
	require.Equal(t, []int{1, 7, 8}, slices.Sorted(slices.Values(outs.keys())))
	for _, out := range outs.take() {
		require.Equal(t, EndUnreachable, out.End)
		require.ErrorIs(t, out.Err, down)
		peer, ok := out.Tally.Decider()
		require.True(t, ok)
		require.Equal(t, PeerID(1), peer)
	}
	p, _ := l.Get(2)
	require.Equal(t, []PeerID{2, 3}, slices.Collect(p.Tally.Missing()))
	require.Zero(t, l.PeerDown(1, down), "told once")
	require.NoError(t, l.Add(1, All(1, 2), outs.note))
	require.Equal(t, AckCounted, l.Ack(1, 1), "later entries know nothing of it")
	require.Equal(t, AckCounted, l.Ack(2, 1), "and it may come back")

	require.Equal(t, 2, l.PeerDown(3, nil), "3, and 5, which had lost 1")
	for _, out := range outs.take() {
		require.ErrorIs(t, out.Err, ErrNoReason)
		require.Equal(t, out.Key == 5, errors.Is(out.Err, reasonBefore))
	}
	audit(t, l)
}
