package waitlist

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSession_EndGivesBackItsPermits(t *testing.T) {
	var outs outcomes[int]
	var s Session
	l := New[int](Options{Capacity: 60})
	defer l.Close()
	for i := range 50 {
		require.NoError(t, l.Add(i, ofThree, outs.note, InSession(&s)))
	}
	for i := range 10 {
		require.NoError(t, l.Add(100+i, ofThree, outs.note))
	}
	require.Equal(t, 50, s.Len())
	require.ErrorIs(t, l.Add(999, ofThree, ignore), ErrFull)

	require.Equal(t, 50, s.End(errTest))

	require.Zero(t, s.Len())
	require.Equal(t, 10, l.Len())
	for _, out := range outs.take() {
		require.Less(t, out.Key, 50)
		require.Equal(t, EndSession, out.End)
		require.ErrorIs(t, out.Err, ErrSessionEnded)
		require.ErrorIs(t, out.Err, errTest)
		require.NotErrorIs(t, out.Err, ErrNotParked)
	}
	requireRoom(t, l, 50)
	require.EqualValues(t, 50, l.Stats().SessionEnded)
}

func TestSession_SecondEndKeepsTheFirstCause(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	for _, cause := range []error{first, nil} {
		want := cause
		if cause == nil {
			want = ErrNoReason
		}
		var s Session
		l := New[int](Options{})
		require.Zero(t, s.End(cause))
		require.Zero(t, s.End(second))
		err := l.Add(1, ofThree, func(Outcome[int]) { t.Error("called") }, InSession(&s))
		require.ErrorIs(t, err, ErrNotParked)
		require.ErrorIs(t, err, ErrSessionEnded)
		require.ErrorIs(t, err, want)
		require.NotErrorIs(t, err, second)
		out, err := l.Wait(t.Context(), 1, ofThree, func() error { t.Error("sent"); return nil }, InSession(&s))
		require.ErrorIs(t, err, ErrSessionEnded)
		require.Zero(t, out.End)
		require.Zero(t, s.Len())
		require.NoError(t, l.Add(1, ofThree, ignore, InSession(nil)), "the list is not harmed")
		require.NoError(t, l.Close())
	}
}

func TestSession_NilCauseIsNeverASuccess(t *testing.T) {
	var outs outcomes[int]
	var s Session
	l := New[int](Options{})
	require.NoError(t, l.Add(1, ofThree, outs.note, InSession(&s)))
	require.Equal(t, 1, s.End(nil))
	out := outs.one(t)
	require.ErrorIs(t, out.Err, ErrSessionEnded)
	require.ErrorIs(t, out.Err, ErrNoReason)
}

func TestSession_EntryThatEndedOtherwiseHasLeftIt(t *testing.T) {
	for _, ending := range endings {
		if ending.end == EndSession {
			continue
		}
		var outs outcomes[string]
		s := newStage(Options{})
		require.NoError(t, s.Add("neighbour", External(), ignore, InSession(s.session), Timeout(10*time.Hour)))
		s.park(t, "k", func(out Outcome[string]) {
			require.NotContains(t, []int{2}, s.session.Len(), "it leaves before its callback")
			outs.note(out)
		})
		require.Equal(t, 2, s.session.Len())
		ending.run(s, "k")
		require.Equal(t, ending.end, outs.one(t).End)
		left := s.Len()
		require.Equal(t, left, s.session.Len(), ending.name)
		require.Equal(t, left, s.session.End(nil), ending.name)
		require.Empty(t, outs.take())
		audit(t, s.WaitingList)
	}
}

func TestStaleSession_LateEndOfTheOldConnection(t *testing.T) {
	var outs outcomes[int]
	before, after := new(Session), new(Session)
	l := New[int](Options{})
	for i := range 20 {
		require.NoError(t, l.Add(i, ofThree, outs.note, InSession(before)))
	}
	for i := range 20 { // the connection is back before anybody noticed that it was gone
		require.NoError(t, l.Add(100+i, ofThree, outs.note, InSession(after)))
	}
	for i := range 10 { // and has some of its requests answered and made again
		l.Complete(i, nil)
		require.NoError(t, l.Add(i, ofThree, outs.note, InSession(after)))
	}
	outs.take()
	require.Equal(t, 10, before.End(errTest))
	for _, out := range outs.take() {
		require.GreaterOrEqual(t, out.Key, 10)
		require.Less(t, out.Key, 20)
	}
	require.Equal(t, 30, after.Len())
	require.Equal(t, 30, l.Len())
	require.Equal(t, 30, after.End(errTest))
	audit(t, l)
}

func TestSession_HoldsEntriesOfSeveralLists(t *testing.T) {
	var s Session
	ints, names, marks := New[int](Options{}), New[string](Options{}), NewWatermarkList[int](0, Options{})
	called := map[string]int{}
	all := func(key any) { // whatever is called first: all is over by then
		called[fmt.Sprint(key)]++
		require.Zero(t, s.Len())
		require.Zero(t, ints.Len()+names.Len()+marks.Len())
		require.Equal(t, AckUnknown, ints.Ack(1, 1))
		require.Equal(t, AckUnknown, names.Ack("a", 1))
		require.Zero(t, marks.Advance(0))
	}
	for i := range 20 {
		require.NoError(t, ints.Add(i, Majority(1), func(out Outcome[int]) { all(out.Key) }, InSession(&s)))
		require.NoError(t, names.Add(string(rune('a'+i)), Majority(1), func(out Outcome[string]) { all(out.Key) }, InSession(&s)))
		require.NoError(t, marks.Add(100+i, func(out Outcome[int]) { all(out.Key) }, InSession(&s)))
	}
	require.Equal(t, 60, s.Len())
	require.Equal(t, 60, s.End(nil))
	require.Len(t, called, 60)
	for key, n := range called {
		require.Equal(t, 1, n, key)
	}
	audit(t, ints)
	audit(t, names)
}

func TestSession_EndClaimsAllBeforeItCalls(t *testing.T) {
	var s, next Session
	l := New[int](Options{})
	ended := map[int]int{}
	for i := range 200 {
		require.NoError(t, l.Add(i, Majority(1), func(out Outcome[int]) {
			ended[out.Key]++
			for j := range 200 {
				require.Equal(t, AckUnknown, l.Ack(j, 1), "it is not claimed yet")
			}
			require.ErrorIs(t, l.Add(out.Key, Majority(1), ignore, InSession(&s)), ErrSessionEnded)
			require.NoError(t, l.Add(1000+out.Key, Majority(1), ignore, InSession(&next)))
			require.Zero(t, s.End(errTest))
		}, InSession(&s)))
	}
	require.Equal(t, 200, s.End(nil))
	require.Len(t, ended, 200)
	require.Equal(t, 200, next.Len())
	require.Equal(t, 200, next.End(nil))
}

func TestSession_EndWakesAWait(t *testing.T) {
	var s Session
	l := New[int](Options{})
	// The callback would wait for ever if the waiter were not woken before it.
	woken := make(chan struct{})
	for i := range 50 {
		require.NoError(t, l.Add(i, ofThree, func(Outcome[int]) { <-woken }, InSession(&s)))
	}
	done := make(chan struct{})
	out, err := l.Wait(t.Context(), 99, ofThree, func() error {
		go func() { defer close(done); s.End(errTest) }()
		return nil
	}, InSession(&s))
	close(woken)
	<-done
	require.Equal(t, EndSession, out.End)
	require.ErrorIs(t, err, ErrSessionEnded)
	require.ErrorIs(t, err, errTest)
}

func TestSession_AddRacingEndIsRefusedOrEnded(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	var s *Session
	var errs [2]error
	var called [2]atomic.Int32
	var ended int
	add := func(i int) func() {
		return func() { errs[i] = l.Add(i, ofThree, func(Outcome[int]) { called[i].Add(1) }, InSession(s)) }
	}
	collide(rounds(50_000), func() {
		s = new(Session)
		called[0].Store(0)
		called[1].Store(0)
	}, func() {
		parked := 0
		for i, err := range errs {
			if err == nil {
				parked++
				require.EqualValues(t, 1, called[i].Load())
			} else {
				require.ErrorIs(t, err, ErrSessionEnded)
				require.Zero(t, called[i].Load())
			}
		}
		require.Equal(t, parked, ended)
		require.Zero(t, l.Len())
		require.Zero(t, s.Len())
	}, add(0), add(1), func() { ended = s.End(nil) })
}

func TestSession_EndRacingOtherEndsCallsOnce(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	var s *Session
	var called atomic.Int32
	var bySession int
	var byAck AckResult
	collide(rounds(50_000), func() {
		s = new(Session)
		called.Store(0)
		for i := range 3 {
			require.NoError(t, l.Add(i, Majority(1), func(Outcome[int]) { called.Add(1) }, InSession(s)))
		}
	}, func() {
		require.EqualValues(t, 3, called.Load())
		require.Equal(t, byAck == AckDecided, bySession == 2, "%d ended with the session, the ack was %v", bySession, byAck)
		require.Zero(t, s.Len())
		require.Zero(t, l.Len())
	}, func() { bySession = s.End(nil) }, func() { byAck = l.Ack(1, 1) })
	audit(t, l)
}
