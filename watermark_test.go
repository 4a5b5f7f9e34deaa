package waitlist

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wmManual keeps what a test leaves parked from expiring in the middle of another.
var wmManual = Options{ManualSweep: true}

func wmPark[I Integer](t testing.TB, w *WatermarkList[I], done Callback[I], indexes ...I) {
	t.Helper()
	for _, index := range indexes {
		require.NoError(t, w.Add(index, done))
	}
}

func wmQuorum[I Integer](t testing.TB, w *WatermarkList[I], q Quorum) (completed int) {
	t.Helper()
	completed, err := w.SetQuorum(q)
	require.NoError(t, err)
	return completed
}

// wmAcks hands in acks of one index and tells the last result.
func wmAcks[I Integer](w *WatermarkList[I], index I, peers ...PeerID) (last AckResult) {
	for _, peer := range peers {
		last = w.Ack(index, peer)
	}
	return last
}

// wmAudit checks the books of a list that nobody is using, and that its parts
// agree about what is parked.
func wmAudit[I Integer](t testing.TB, w *WatermarkList[I]) {
	t.Helper()
	st := w.Stats()
	require.Equal(t, st.Added, uint64(st.Parked)+st.sumOfEnds(), "Added is Parked and the ends: %+v", st)
	require.Equal(t, st.Parked, w.Len())
	require.Zero(t, st.Running)
	require.Zero(t, st.LateAcks, "no ack of a watermark list is late")
	if w.capacity > 0 {
		require.EqualValues(t, st.Parked, w.parked.Load(), "places taken under the capacity")
	}
	n := 0
	for p := range w.All() {
		n++
		require.Greater(t, p.Key, w.Watermark(), "parked, but reached")
	}
	require.Equal(t, st.Parked, n)
}

// wmMovers lists every public way to move the watermark from 10 to 12. What
// prepare does must leave the mark below 12.
var wmMovers = []struct {
	name    string
	prepare func(w *WatermarkList[int64])
	move    func(w *WatermarkList[int64])
}{
	{"Advance", nil, func(w *WatermarkList[int64]) { w.Advance(12) }},
	{"Advance by one", func(w *WatermarkList[int64]) { w.Advance(11) }, func(w *WatermarkList[int64]) { w.Advance(12) }},
	{"Advance under a quorum", func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(ofThree) }, func(w *WatermarkList[int64]) { w.Advance(12) }},
	{"Advance under External", func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(External()) }, func(w *WatermarkList[int64]) { w.Advance(12) }},
	{"Advance below the first of the term", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(ofThree)
		w.BeginTerm(100)
	}, func(w *WatermarkList[int64]) { w.Advance(12) }},
	{"Advance while shutting down", func(w *WatermarkList[int64]) {
		go func() { _ = w.Shutdown(context.Background()) }() // closed after the Adds of the test
	}, func(w *WatermarkList[int64]) { w.Advance(12) }},
	{"Advance by a completed callback", func(w *WatermarkList[int64]) {
		_ = w.Add(11, func(Outcome[int64]) { w.Advance(12) })
	}, func(w *WatermarkList[int64]) { w.Advance(11) }},
	{"Advance by a callback inside Add", nil, func(w *WatermarkList[int64]) {
		_ = w.Add(10, func(Outcome[int64]) { w.Advance(12) })
	}},
	{"Advance by an expired callback", func(w *WatermarkList[int64]) {
		_ = w.Add(99, func(Outcome[int64]) { w.Advance(12) }, Timeout(time.Second))
	}, func(*WatermarkList[int64]) { time.Sleep(2 * time.Second) }},
	{"Ack by the only member, its first", func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(All(7)) },
		func(w *WatermarkList[int64]) { w.Ack(12, 7) }},
	{"Ack that completes a majority", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(ofThree)
		w.Ack(12, 1)
	}, func(w *WatermarkList[int64]) { w.Ack(99, 3) }},
	{"Ack by the slowest of two", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(All(0, math.MaxUint64))
		w.Ack(99, math.MaxUint64)
		w.Ack(11, 0)
	}, func(w *WatermarkList[int64]) { w.Ack(12, 0) }},
	{"Ack by the new half of a joint rule", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(AllOf(ofThree, Majority(4)))
		wmAcks(w, 12, 1, 2)
	}, func(w *WatermarkList[int64]) { w.Ack(12, 4) }},
	{"Ack by weight", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(Weighted(3, map[PeerID]uint64{1: 1, 2: 1, 3: 2}))
		wmAcks(w, 12, 1, 2)
	}, func(w *WatermarkList[int64]) { w.Ack(12, 3) }},
	{"Ack after BeginTerm", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(ofThree)
		w.Ack(12, 1)
		w.BeginTerm(11)
		w.Ack(12, 2)
	}, func(w *WatermarkList[int64]) { w.Ack(12, 3) }},
	{"Ack of the first of the term", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(ofThree)
		w.BeginTerm(12)
		wmAcks(w, 11, 1, 2, 3)
		w.Ack(12, 1)
	}, func(w *WatermarkList[int64]) { w.Ack(12, 2) }},
	{"Ack after Truncate", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(ofThree)
		w.Ack(99, 1)
		_, _ = w.Truncate(14, errTest)
	}, func(w *WatermarkList[int64]) { w.Ack(12, 2) }},
	{"Ack by a callback", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(All(1))
		_ = w.Add(11, func(Outcome[int64]) { w.Ack(12, 1) })
	}, func(w *WatermarkList[int64]) { w.Ack(11, 1) }},
	{"SetQuorum that shrinks", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(All(1, 2, 3))
		wmAcks(w, 12, 1, 2)
	}, func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(All(1, 2)) }},
	{"SetQuorum that drops a laggard", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(All(1, 2, 3))
		wmAcks(w, 12, 1, 3)
		w.Ack(11, 2)
	}, func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(All(3, 1)) }},
	{"SetQuorum from joint to single", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(AllOf(ofThree, Majority(4, 5)))
		wmAcks(w, 12, 1, 2)
	}, func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(ofThree) }},
	{"SetQuorum from the new half of joint", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(AllOf(ofThree, All(3, 4)))
		wmAcks(w, 12, 3, 4)
	}, func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(All(3, 4)) }},
	{"SetQuorum that needs fewer", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(AtLeast(3, 1, 2, 3, 4))
		wmAcks(w, 12, 1, 2)
	}, func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(AtLeast(2, 1, 2, 3, 4, 5)) }},
	{"SetQuorum with other weights", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(Weighted(2, map[PeerID]uint64{1: 1, 2: 1}))
		w.Ack(12, 1)
	}, func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(Weighted(2, map[PeerID]uint64{1: 2, 2: 0})) }},
	{"SetQuorum after BeginTerm", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(All(1, 2, 3))
		w.BeginTerm(12)
		wmAcks(w, 12, 1, 2)
	}, func(w *WatermarkList[int64]) { _, _ = w.SetQuorum(ofThree) }},
	{"SetQuorum by a callback", func(w *WatermarkList[int64]) {
		_, _ = w.SetQuorum(All(1, 2))
		w.Ack(12, 1)
		_ = w.Add(11, func(Outcome[int64]) { _, _ = w.SetQuorum(All(1)) })
	}, func(w *WatermarkList[int64]) { w.Ack(11, 2) }},
}

func TestWatermarkLostWakeup_EveryWayToMoveWakesAlone(t *testing.T) {
	for _, m := range wmMovers {
		for _, parked := range []string{"entry", "wait", "both", "many"} {
			t.Run(m.name+"/"+parked, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := NewWatermarkList[int64](10, Options{Timeout: time.Hour})
					var outs, beyond outcomes[int64]
					want := 0
					if parked != "wait" {
						wmPark(t, w, outs.note, 12)
						want++
					}
					if parked == "many" {
						wmPark(t, w, outs.note, 12, 12, 12)
						want += 3
					}
					if parked == "wait" || parked == "both" {
						want++
						go func() {
							out, err := w.Wait(t.Context(), 12)
							assert.NoError(t, err)
							outs.note(out)
						}()
					}
					synctest.Wait()
					wmPark(t, w, beyond.note, 13)
					if m.prepare != nil {
						m.prepare(w)
						synctest.Wait()
					}
					outs.mu.Lock()
					require.Empty(t, outs.list, "woken too early")
					outs.mu.Unlock()
					require.Less(t, w.Watermark(), int64(12))

					m.move(w)
					synctest.Wait()

					list := outs.take()
					require.Len(t, list, want)
					for _, out := range list {
						assert.Equal(t, EndReached, out.End)
						assert.NoError(t, out.Err)
						assert.EqualValues(t, 12, out.Key)
					}
					assert.EqualValues(t, 12, w.Watermark())
					assert.Empty(t, beyond.take(), "13 is not reached")
					require.NoError(t, w.Close())
					assert.Equal(t, EndClosed, beyond.one(t).End)
					synctest.Wait()
					wmAudit(t, w)
				})
			})
		}
	}
}

func TestWatermarkNeverFalls(t *testing.T) {
	w := NewWatermarkList[int](10, wmManual)
	assert.Zero(t, w.Advance(10))
	assert.Zero(t, w.Advance(-10))
	assert.Equal(t, 10, w.Watermark())
	w.Advance(20)
	wmPark(t, w, ignore, 21)
	for _, lower := range []int{20, 19, 10, 0, math.MinInt} {
		assert.Zero(t, w.Advance(lower))
		assert.Equal(t, 20, w.Watermark())
	}
	wmQuorum(t, w, ofThree)
	wmAcks(w, 30, 1, 2)
	assert.Equal(t, 30, w.Watermark())
	assert.NotEqual(t, AckDecided, w.Ack(25, 3))
	assert.Zero(t, wmQuorum(t, w, All(1, 2, 3, 4)), "the commit index of a rule with laggards is lower")
	assert.Equal(t, 30, w.Watermark())
	assert.Equal(t, AckCounted, w.Ack(29, 4), "all hold 25, but 30 has been reached")
	assert.Equal(t, 30, w.Watermark())
	w.BeginTerm(5)
	wmAcks(w, 12, 1, 2, 3, 4)
	assert.Equal(t, 30, w.Watermark())
}

func TestWatermarkAdvanceCompletesAllUpToAndNothingBeyond(t *testing.T) {
	w := NewWatermarkList[int](0, wmManual)
	var outs outcomes[int]
	wmPark(t, w, outs.note, 1, 3, 3, 4, 5, 5, 9)
	assert.Zero(t, w.Advance(0))
	assert.Equal(t, 1, w.Advance(2))
	assert.Equal(t, 3, w.Advance(4))
	assert.Equal(t, []int{1, 3, 3, 4}, outs.keys())
	assert.Equal(t, 3, w.Len())
	assert.Equal(t, 3, w.Advance(1000))
	assert.Equal(t, []int{1, 3, 3, 4, 5, 5, 9}, outs.keys())
	wmAudit(t, w)
}

// wmBounds runs at the ends of the range of a type of index.
func wmBounds[I Integer](t *testing.T, lowest, highest I) {
	t.Run("from "+strconv.FormatInt(int64(lowest), 10), func(t *testing.T) {
		var outs outcomes[I]
		w := NewWatermarkList(lowest, wmManual)
		require.Equal(t, lowest, w.Watermark())
		wmPark(t, w, outs.note, lowest)
		require.Equal(t, EndReached, outs.one(t).End, "all up to start is reached")

		middle := lowest/2 + highest/2
		wmPark(t, w, outs.note, highest, middle, lowest+1, highest-1, middle+1, highest, lowest+2, 1)
		require.Equal(t, 8, w.Len())
		require.Equal(t, AckNotMember, w.Ack(highest, 0))
		wmQuorum(t, w, All(0))
		_, known := w.Match(0)
		require.False(t, known)
		outs.take()
		wmPark(t, w, outs.note, lowest)
		require.Empty(t, slices.Collect(outs.one(t).Tally.Acked()), "nobody has acked, not even the lowest index")
		require.Equal(t, AckCounted, w.Ack(lowest, 0), "a first ack below the mark is counted")
		match, known := w.Match(0)
		require.True(t, known)
		require.Equal(t, lowest, match)
		require.Equal(t, AckDuplicate, w.Ack(lowest, 0))

		_, err := w.Truncate(lowest, nil)
		require.ErrorIs(t, err, ErrReached)
		require.Equal(t, AckDecided, w.Ack(lowest+1, 0))
		require.Equal(t, lowest+1, w.Watermark())
		cut := len(outs.keys())
		for _, key := range outs.keys() {
			require.LessOrEqual(t, key, lowest+1)
		}
		n, err := w.Truncate(highest, nil)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		wmPark(t, w, outs.note, highest)
		outs.take()

		require.Equal(t, AckDecided, w.Ack(highest, 0))
		require.True(t, slices.IsSorted(outs.keys()), "%v", outs.keys())
		require.Len(t, outs.keys(), 7-cut)
		require.Equal(t, highest, w.Watermark())
		match, _ = w.Match(0)
		require.Equal(t, highest, match)
		require.Zero(t, w.Advance(lowest))
		require.Zero(t, w.Advance(highest))
		_, err = w.Truncate(highest, nil)
		require.ErrorIs(t, err, ErrReached)
		outs.take()
		wmPark(t, w, outs.note, lowest, highest, middle)
		require.Len(t, outs.take(), 3)
		wmAudit(t, w)

		w = NewWatermarkList(highest, Options{Timeout: time.Hour})
		require.Equal(t, highest, w.Watermark())
		wmPark(t, w, outs.note, highest, lowest)
		require.Len(t, outs.take(), 2)
	})
}

type wmOffset int32

func TestWatermarkEndsOfEachIntegerType(t *testing.T) {
	wmBounds[int](t, math.MinInt, math.MaxInt)
	wmBounds[int32](t, math.MinInt32, math.MaxInt32)
	wmBounds[int64](t, math.MinInt64, math.MaxInt64)
	wmBounds[uint](t, 0, math.MaxUint)
	wmBounds[uint32](t, 0, math.MaxUint32)
	wmBounds[uint64](t, 0, math.MaxUint64)
	wmBounds[wmOffset](t, math.MinInt32, math.MaxInt32)
	wmBounds[int](t, -5, 300)
	wmBounds[wmOffset](t, -1, 100)
}

func TestWatermarkNegativeStartIsReached(t *testing.T) {
	w := NewWatermarkList[int32](-3, wmManual)
	var outs outcomes[int32]
	wmPark(t, w, outs.note, -3, -4, math.MinInt32)
	assert.Len(t, outs.take(), 3)
	wmPark(t, w, outs.note, 0, -2, 1, -1)
	assert.Empty(t, outs.keys())
	assert.Equal(t, 2, w.Advance(-1))
	wmQuorum(t, w, All(1))
	assert.Equal(t, AckCounted, w.Ack(-7, 1))
	assert.Equal(t, AckDecided, w.Ack(0, 1))
	w.Advance(7)
	assert.Equal(t, []int32{-2, -1, 0, 1}, outs.keys())
}

func TestWatermarkReusedIndex(t *testing.T) {
	w := NewWatermarkList[uint64](0, wmManual)
	var first, second outcomes[uint64]
	cause := errors.New("another leader")
	wmPark(t, w, first.note, 7)
	n, err := w.Truncate(7, cause)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	out := first.one(t)
	assert.Equal(t, EndTruncated, out.End)
	require.ErrorIs(t, out.Err, ErrTruncated)
	require.ErrorIs(t, out.Err, cause)
	require.NotErrorIs(t, out.Err, ErrNotParked)
	wmPark(t, w, second.note, 7)
	assert.Equal(t, 1, w.Advance(7))
	assert.Equal(t, EndReached, second.one(t).End)
	assert.Empty(t, first.take())
	wmAudit(t, w)
}
