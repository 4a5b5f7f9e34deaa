package waitlist

import (
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStats_OneCounterPerEnd(t *testing.T) {
	counters := map[End]string{
		EndReached: "Reached", EndCompleted: "Completed", EndTimedOut: "TimedOut", EndUnreachable: "Unreachable",
		EndFailed: "Failed", EndTruncated: "Truncated", EndSession: "SessionEnded", EndCanceled: "Canceled", EndClosed: "Closed",
	}
	require.Len(t, counters, int(numEnds)-1)
	for _, ending := range endings {
		s := newStage(Options{})
		s.park(t, "k", func(Outcome[string]) { require.Equal(t, 1, s.Stats().Running) })
		require.Equal(t, Stats{Parked: 1, Added: 1}, s.Stats())
		ending.run(s, "k")
		st := reflect.ValueOf(s.Stats())
		for end, name := range counters {
			want := uint64(0)
			if end == ending.end {
				want = 1
			}
			require.Equal(t, want, st.FieldByName(name).Uint(), "%s: %s", ending.name, name)
		}
		require.Zero(t, s.Stats().Parked+s.Stats().Running)
		require.EqualValues(t, 1, s.Stats().Added)
	}
}

func TestStats_CountsWhatWasNotTaken(t *testing.T) {
	l := New[int](Options{OnPanic: func(any, any, []byte) {}})
	require.Equal(t, Stats{}, l.Stats())
	require.NoError(t, l.Add(1, ofThree, ignore))
	require.Error(t, l.Add(1, ofThree, ignore))
	_, err := l.Wait(t.Context(), 1, ofThree, nil)
	require.Error(t, err)
	l.Ack(1, 1)
	l.Ack(1, 1)
	l.Nack(1, 1, nil)
	l.Ack(1, 4)
	l.Ack(2, 1)
	l.Nack(2, 1, nil)
	l.AckWith(2, 9, 1)
	require.NoError(t, l.Add(3, Majority(1), func(Outcome[int]) { panic("x") }))
	l.Ack(3, 1)
	require.Equal(t, Stats{
		Parked: 1, Added: 2, Reached: 1, Refused: 2,
		DuplicateAcks: 2, ForeignAcks: 1, LateAcks: 3, CallbackPanics: 1,
	}, l.Stats())
	require.False(t, l.Complete(9, nil))
	require.False(t, l.Fail(9, nil))
	require.EqualValues(t, 3, l.Stats().LateAcks, "Complete and Fail are no answers")
	require.NoError(t, l.Close())
}

// A snapshot that is taken amid traffic balances as well.
func TestStats_BalanceAtEveryMoment(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	var st Stats
	key := 0
	collide(rounds(20_000), func() { key += 2 }, func() {
		require.Equal(t, st.Added, uint64(st.Parked)+st.sumOfEnds())
		require.LessOrEqual(t, st.Running, 1)
	},
		func() { _ = l.Add(key, Majority(1), ignore); l.Ack(key, 1); _ = l.Add(key, Majority(1), ignore) },
		func() { st = l.Stats() },
	)
	audit(t, l)
	require.NoError(t, l.Close())
}

func TestStats_RunningCountsCallbacksThatAreNotBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{})
		release := make(chan struct{})
		for i := range 10 {
			require.NoError(t, l.Add(i, Majority(1), func(Outcome[int]) { <-release }))
			go l.Ack(i, 1)
		}
		synctest.Wait()
		require.Equal(t, 10, l.Stats().Running)
		require.Zero(t, l.Len())
		release <- struct{}{}
		synctest.Wait()
		require.Equal(t, 9, l.Stats().Running)
		close(release)
		synctest.Wait()
		require.Zero(t, l.Stats().Running)

		// In a pass all are claimed at once and called one after the other.
		hold := make(chan struct{})
		for i := range 5 {
			require.NoError(t, l.Add(i, Majority(1), func(Outcome[int]) { <-hold }, Timeout(time.Second)))
		}
		time.Sleep(2 * time.Second)
		require.Equal(t, 5, l.Stats().Running)
		close(hold)
		require.NoError(t, l.Close())
		<-l.Done()
	})
}

func TestStats_EveryEndHasAFieldOfTheSameName(t *testing.T) {
	fields := reflect.VisibleFields(reflect.TypeFor[Stats]())
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		names = append(names, f.Name)
	}
	require.Equal(t, "Parked Running Added Reached Completed TimedOut Unreachable Failed Truncated SessionEnded Canceled Closed "+
		"Refused DuplicateAcks ForeignAcks LateAcks CallbackPanics", strings.Join(names, " "))
}
