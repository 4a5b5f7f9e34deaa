package waitlist

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWatermarkTruncate(t *testing.T) {
	cause := errors.New("cause")
	for _, from := range []int{10, 9, 0, -1, math.MinInt} {
		s := newWmStage(Options{})
		s.park(t, 11, ignore)
		before := s.Stats()
		n, err := s.Truncate(from, cause)
		require.ErrorIs(t, err, ErrReached)
		require.Zero(t, n)
		require.Equal(t, before, s.Stats(), "nothing has changed")
		match, ok := s.Match(1)
		require.True(t, ok && match == 1000)
		require.Equal(t, AckDecided, s.Ack(11, 2))
	}
	for from := 31; from <= 61; from++ {
		s := newWmStage(Options{})
		s.Ack(30, 2)
		require.Equal(t, 30, s.Watermark())
		var outs outcomes[int]
		for i := range 30 {
			s.park(t, 31+(i*7)%30, outs.note) // unordered
			s.park(t, 31+(i*7)%30, outs.note)
		}
		n, err := s.Truncate(from, nil)
		require.NoError(t, err)
		require.Equal(t, 2*(61-from), n)
		for _, out := range outs.list {
			require.GreaterOrEqual(t, out.Key, from)
			require.Equal(t, EndTruncated, out.End)
			require.ErrorIs(t, out.Err, ErrTruncated)
			require.ErrorIs(t, out.Err, ErrNoReason)
			require.Equal(t, []PeerID{1}, slices.Collect(out.Tally.Acked()), "as before the cut")
			require.Equal(t, []PeerID{2}, slices.Collect(out.Tally.Missing()))
		}
		require.Len(t, outs.take(), n)
		require.Equal(t, 60-n, s.Len())
		for peer, want := range map[PeerID]int{1: from - 1, 2: 30} {
			match, ok := s.Match(peer)
			require.True(t, ok)
			require.Equal(t, want, match)
		}
		require.Equal(t, AckDuplicate, s.Ack(from-1, 1))
		s.Ack(2000, 2)
		require.Equal(t, from-1, s.Watermark(), "the acks of 1 for the suffix are forgotten")
		require.Len(t, outs.take(), 60-n)
		s.park(t, from, outs.note)
		require.Equal(t, AckDecided, s.Ack(from, 1))
		require.Equal(t, EndReached, outs.one(t).End)
		wmAudit(t, s.WatermarkList)
	}

	// Beyond everything; with acks of nobody known; without a rule.
	w := NewWatermarkList[uint64](0, wmManual)
	n, err := w.Truncate(math.MaxUint64, cause)
	require.NoError(t, err)
	require.Zero(t, n)
	wmPark(t, w, ignore, 5)
	wmQuorum(t, w, ofThree)
	n, err = w.Truncate(6, cause)
	require.NoError(t, err)
	require.Zero(t, n)
	_, ok := w.Match(1)
	require.False(t, ok)
	require.Equal(t, AckCounted, w.Ack(0, 1))
	require.Equal(t, 1, w.Len())
}

func TestWatermarkTally(t *testing.T) {
	var many []PeerID
	for p := range PeerID(70) {
		many = append(many, p)
	}
	for name, c := range map[string]struct {
		q     Quorum
		extra []PeerID // besides 1, 2 and 3; they ack 13
	}{
		"three":   {ofThree, nil},
		"seventy": {AllOf(ofThree, AtLeast(1, many...)), append([]PeerID{0}, many[4:]...)},
		"weights": {Weighted(2, map[PeerID]uint64{1: 1, 2: 1, 3: 1, 9: 0}), []PeerID{9}},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWatermarkList[int](10, wmManual)
			var outs outcomes[int]
			wmPark(t, w, outs.note, 13, 12, 11)
			wmQuorum(t, w, c.q)
			acked := func(tally Tally) []PeerID {
				var members []PeerID
				for p := range tally.Acked() {
					if !slices.Contains(c.extra, p) {
						members = append(members, p)
					}
				}
				all := slices.Sorted(slices.Values(slices.AppendSeq(slices.Collect(tally.Acked()), tally.Missing())))
				require.Equal(t, c.q.Members(), all, "acked or missing")
				for range tally.Refused() {
					t.Error("nobody refuses")
				}
				for range tally.Responses() {
					t.Error("nobody sends anything")
				}
				return members
			}
			for _, p := range c.extra {
				w.Ack(13, p)
			}
			w.Ack(13, 1)
			w.Ack(11, 3)
			require.Equal(t, []PeerID{1, 3}, acked(outs.one(t).Tally))
			parked := map[int]Parked[int]{}
			for p := range w.All() {
				parked[p.Key] = p
			}
			require.Equal(t, []PeerID{1}, acked(parked[12].Tally))
			w.Ack(12, 2)
			first := outs.one(t)
			require.Equal(t, 12, first.Key)
			require.Equal(t, []PeerID{1, 2}, acked(first.Tally), "the one that decided is in it")
			decider, ok := first.Tally.Decider()
			require.True(t, ok)
			require.EqualValues(t, 2, decider)
			require.Equal(t, c.q.Members(), first.Tally.Quorum().Members())

			w.Advance(13)
			last := outs.one(t)
			require.Equal(t, []PeerID{1}, acked(last.Tally))
			_, ok = last.Tally.Decider()
			require.False(t, ok, "Advance is nobody's ack")
			wmAcks(w, 99, 1, 2, 3)
			w.BeginTerm(0)
			require.Equal(t, []PeerID{1}, acked(last.Tally), "a tally never changes")
			require.Equal(t, []PeerID{1}, acked(parked[12].Tally))

			wmQuorum(t, w, AllOf(c.q, All(1, 2, 3)))
			wmAcks(w, 200, 1, 2)
			wmPark(t, w, outs.note, 150, 120, 5)
			require.Equal(t, []PeerID{1, 2}, slices.Collect(outs.one(t).Tally.Acked()), "inside Add")
			wmAcks(w, 200, c.extra...)
			wmQuorum(t, w, c.q)
			list := outs.take()
			require.Len(t, list, 2)
			for _, out := range list {
				_, ok = out.Tally.Decider()
				require.False(t, ok, "SetQuorum is nobody's ack")
				require.Equal(t, []PeerID{1, 2}, acked(out.Tally))
			}
			wmPark(t, w, outs.note, 300)
			w.FailAll(errTest)
			require.Empty(t, acked(outs.one(t).Tally))
		})
	}
}

func TestWatermarkSnapshots(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	w := NewWatermarkList[int32](0, Options{Clock: clock, Timeout: time.Minute})
	wmPark(t, w, ignore, 5)
	clock.Advance(time.Second)
	require.NoError(t, w.Add(4, ignore, Timeout(time.Hour)))
	seen := map[int32]Parked[int32]{}
	for p := range w.All() {
		seen[p.Key] = p
		w.Len() // no lock is held
	}
	require.Len(t, seen, 2)
	assert.True(t, seen[5].Since.Equal(fakeStart))
	assert.True(t, seen[5].Deadline.Equal(fakeStart.Add(time.Minute)))
	assert.True(t, seen[4].Since.Equal(fakeStart.Add(time.Second)))
	assert.True(t, seen[4].Deadline.Equal(fakeStart.Add(time.Second+time.Hour)))
	for range w.All() {
		w.FailAll(nil)
		break
	}
	assert.Zero(t, w.Len())
}

func TestWatermarkStatsHaveOneCounterPerEnd(t *testing.T) {
	for _, ending := range wmEndings {
		s := newWmStage(Options{})
		s.park(t, 11, ignore)
		s.park(t, 11, ignore)
		before := s.Stats()
		ending.run(s)
		st := s.Stats()
		ends := map[End]uint64{
			EndReached: st.Reached, EndTruncated: st.Truncated, EndFailed: st.Failed, EndTimedOut: st.TimedOut,
			EndSession: st.SessionEnded, EndClosed: st.Closed, EndCanceled: st.Canceled,
			EndCompleted: st.Completed, EndUnreachable: st.Unreachable,
		}
		for end, n := range ends {
			want := uint64(0)
			if end == ending.end {
				want = 2
			}
			assert.Equal(t, want, n, "%s: %v", ending.name, end)
		}
		assert.Equal(t, before.Added, st.Added)
		wmAudit(t, s.WatermarkList)
	}
}

func TestWatermarkErrorsOfEnds(t *testing.T) {
	for _, ending := range wmEndings {
		s := newWmStage(Options{})
		var outs outcomes[int]
		s.park(t, 11, outs.note)
		ending.run(s)
		out := outs.one(t)
		want := map[End][]error{
			EndTruncated: {ErrTruncated, errTest}, EndFailed: {errTest}, EndTimedOut: {ErrTimeout},
			EndSession: {ErrSessionEnded, errTest}, EndClosed: {ErrClosed},
		}[out.End]
		if out.End == EndReached {
			require.NoError(t, out.Err)
			continue
		}
		require.NotEmpty(t, want)
		for _, target := range want {
			require.ErrorIs(t, out.Err, target, ending.name)
		}
		require.NotErrorIs(t, out.Err, ErrNotParked)
	}
	// A nil error is never reported as success.
	w := NewWatermarkList[int](0, wmManual)
	var outs outcomes[int]
	var session Session
	wmPark(t, w, outs.note, 1)
	w.FailAll(nil)
	wmPark(t, w, outs.note, 1)
	_, _ = w.Truncate(1, nil)
	require.NoError(t, w.Add(1, outs.note, InSession(&session)))
	session.End(nil)
	require.Len(t, outs.list, 3)
	for _, out := range outs.list {
		require.ErrorIs(t, out.Err, ErrNoReason)
	}
}
