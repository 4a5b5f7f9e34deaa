package waitlist

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWatermarkAckTellsWhatItDid(t *testing.T) {
	w := NewWatermarkList[uint64](100, wmManual)
	assert.Equal(t, AckNotMember, w.Ack(200, 1), "there is no rule")
	wmQuorum(t, w, External())
	assert.Equal(t, AckNotMember, w.Ack(200, 1), "an external rule has no members")
	wmQuorum(t, w, ofThree)
	assert.EqualValues(t, 2, w.Stats().ForeignAcks)

	steps := []struct {
		index uint64
		peer  PeerID
		want  AckResult
		mark  uint64
		why   string
	}{
		{50, 1, AckCounted, 100, "a first ack below the mark is counted"},
		{50, 1, AckDuplicate, 100, "known"},
		{49, 1, AckDuplicate, 100, "known, since acks are cumulative"},
		{0, 2, AckCounted, 100, "a first ack of 0 is an ack"},
		{0, 2, AckDuplicate, 100, "the second ack of 0"},
		{90, 1, AckCounted, 100, "more, though below the mark"},
		{100, 2, AckCounted, 100, "the mark itself"},
		{120, 1, AckCounted, 100, "the second highest is still the mark"},
		{120, 4, AckNotMember, 100, "a learner"},
		{math.MaxUint64, 0, AckNotMember, 100, "0 is a peer like others"},
		{110, 2, AckDecided, 110, "it moved the mark, with nothing parked"},
		{110, 2, AckDuplicate, 110, "again"},
		{110, 3, AckCounted, 110, "a first ack at the mark moves nothing"},
		{111, 3, AckDecided, 111, "two have 111"},
		{111, 2, AckCounted, 111, "the third to have 111"},
		{120, 2, AckDecided, 120, ""},
		{119, 3, AckCounted, 120, ""},
		{120, 1, AckDuplicate, 120, ""},
	}
	for _, s := range steps {
		assert.Equal(t, s.want, w.Ack(s.index, s.peer), "ack of %d by %d: %s", s.index, s.peer, s.why)
		assert.Equal(t, s.mark, w.Watermark(), "after ack of %d by %d", s.index, s.peer)
	}
	st := w.Stats()
	assert.EqualValues(t, 5, st.DuplicateAcks)
	assert.EqualValues(t, 4, st.ForeignAcks)
	assert.Zero(t, st.LateAcks)
	for peer, want := range map[PeerID]uint64{1: 120, 2: 120, 3: 119} {
		match, ok := w.Match(peer)
		assert.True(t, ok)
		assert.Equal(t, want, match)
	}
	for _, stranger := range []PeerID{0, 4, math.MaxUint64} {
		match, ok := w.Match(stranger)
		assert.False(t, ok)
		assert.Zero(t, match)
	}
}

func TestWatermarkAcksCountInEveryKindOfRule(t *testing.T) {
	// The mark must be the commit index of the rule, counted from start, for any
	// history of acks. Quorum.CommittedIndex has tests of its own.
	rules := []Quorum{
		ofThree, All(1, 2, 3), AtLeast(1, 1, 2, 3), Majority(0), AtLeast(2, 1, 2, 3, 4, 5),
		Weighted(3, map[PeerID]uint64{1: 1, 2: 1, 3: 2, 4: 0}),
		AllOf(ofThree, Majority(4)), AllOf(ofThree, Majority(3, 4, 5)),
		AtLeastOf(2, Majority(1, 2), Majority(3, 4), All(5)),
	}
	for _, q := range rules {
		for _, start := range []int32{0, -40, 7, math.MinInt32, math.MaxInt32 - 60} {
			rng := rand.New(rand.NewPCG(uint64(start), 1))
			w := NewWatermarkList(start, wmManual)
			wmQuorum(t, w, q)
			var outs outcomes[int32]
			for i := int32(60); i > 0; i-- {
				wmPark(t, w, outs.note, start+i)
			}
			match := map[PeerID]int32{}
			for range 300 {
				peer, at := q.Members()[rng.IntN(len(q.Members()))], rng.Int32N(61)
				was, mark := match[peer], w.Watermark()
				result := w.Ack(start+at, peer)
				match[peer] = max(was, at)
				committed := start + int32(q.CommittedIndex(func(p PeerID) uint64 { return uint64(match[p]) }))
				if committed != w.Watermark() || committed > mark != (result == AckDecided) {
					t.Fatalf("%v from %d: %v: %v, mark %d", q, start, match, result, w.Watermark())
				}
			}
			for i, key := range outs.keys() {
				require.Equal(t, start+1+int32(i), key)
			}
			require.Len(t, outs.keys(), int(w.Watermark()-start))
		}
	}
}

func TestWatermarkOnlyAdvanceMovesWithoutARuleOrUnderExternal(t *testing.T) {
	for name, prepare := range map[string]func(w *WatermarkList[int]){
		"no rule":  func(*WatermarkList[int]) {},
		"External": func(w *WatermarkList[int]) { wmQuorum(t, w, External()) },
		"External after a majority": func(w *WatermarkList[int]) {
			wmQuorum(t, w, ofThree)
			w.Ack(11, 1)
			assert.Zero(t, wmQuorum(t, w, External()))
		},
		"only a refused rule": func(w *WatermarkList[int]) {
			_, err := w.SetQuorum(Majority(1, 1))
			require.Error(t, err)
		},
		"no rule, in a term": func(w *WatermarkList[int]) { w.BeginTerm(1) },
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWatermarkList(10, wmManual)
			var outs outcomes[int]
			wmPark(t, w, outs.note, 11)
			prepare(w)
			for peer := range PeerID(5) {
				assert.Equal(t, AckNotMember, w.Ack(20, peer))
				_, ok := w.Match(peer)
				assert.False(t, ok)
			}
			assert.Empty(t, outs.keys())
			assert.Equal(t, 10, w.Watermark())
			assert.Equal(t, 1, w.Advance(11))
			out := outs.one(t)
			assert.Empty(t, slices.Collect(out.Tally.Acked()))
			assert.Empty(t, slices.Collect(out.Tally.Missing()))
			_, decided := out.Tally.Decider()
			assert.False(t, decided)
			if name == "no rule" {
				require.Error(t, out.Tally.Quorum().Err(), "the zero Quorum")
			}
			// A rule that is set now starts from what is acked from now on.
			wmQuorum(t, w, ofThree)
			assert.Equal(t, AckCounted, w.Ack(20, 2))
			assert.Equal(t, 11, w.Watermark())
			assert.Equal(t, AckDecided, w.Ack(20, 3))
		})
	}
}

func TestWatermarkNonMembers_RemovedPeersAreForgottenAndStrangersNotStored(t *testing.T) {
	w := NewWatermarkList[int64](0, wmManual)
	var outs outcomes[int64]
	wmPark(t, w, outs.note, 5, 6, 7)
	wmQuorum(t, w, All(1, 2, 3))
	assert.Equal(t, AckNotMember, w.Ack(7, 4), "a learner")
	w.Ack(6, 1)
	w.Ack(7, 3)
	assert.Equal(t, AckDecided, w.Ack(5, 2))
	assert.Equal(t, []int64{5}, outs.keys())

	assert.Equal(t, 1, wmQuorum(t, w, All(1, 3)), "2 held up 6")
	assert.Equal(t, []int64{5, 6}, outs.keys())
	assert.Equal(t, AckNotMember, w.Ack(7, 2), "a removed peer")
	assert.EqualValues(t, 6, w.Watermark())

	assert.Zero(t, wmQuorum(t, w, All(1, 2, 3, 4)))
	match, ok := w.Match(1)
	assert.True(t, ok, "a peer that stays keeps its match")
	assert.EqualValues(t, 6, match)
	for _, peer := range []PeerID{2, 4} {
		_, ok = w.Match(peer)
		assert.False(t, ok, "peer %d joins with nothing", peer)
	}
	w.Ack(7, 1)
	assert.Equal(t, AckCounted, w.Ack(7, 2), "its first, since it was forgotten")
	assert.Equal(t, []int64{5, 6}, outs.keys())
	assert.Equal(t, AckDecided, w.Ack(7, 4))
	assert.Equal(t, []int64{5, 6, 7}, outs.keys())

	// Through External everybody leaves.
	wmQuorum(t, w, External())
	wmQuorum(t, w, All(1, 2))
	_, ok = w.Match(1)
	assert.False(t, ok)
}

func TestWatermarkInvalidQuorumLeavesTheOldOneInForce(t *testing.T) {
	var zero Quorum
	for name, bad := range map[string]Quorum{
		"zero": zero, "no peers": Majority(), "repeated": All(1, 1), "too many": AtLeast(4, 1, 2, 3),
		"none needed": AtLeast(0, 1), "no votes": Weighted(0, map[PeerID]uint64{1: 1}),
		"overflow":   Weighted(1, map[PeerID]uint64{1: math.MaxUint64, 2: 1}),
		"empty side": AllOf(ofThree, Majority()), "external part": AllOf(ofThree, External()), "no parts": AllOf(),
	} {
		w := NewWatermarkList[int](0, wmManual)
		var outs outcomes[int]
		wmPark(t, w, outs.note, 1, 2)
		wmQuorum(t, w, All(1, 2))
		w.Ack(2, 1)
		completed, err := w.SetQuorum(bad)
		require.ErrorIs(t, err, ErrInvalidQuorum, name)
		require.Zero(t, completed)
		match, ok := w.Match(1)
		require.True(t, ok && match == 2, "the matches are kept")
		require.Zero(t, w.Watermark())
		require.Equal(t, AckDecided, w.Ack(1, 2))
		require.Equal(t, []PeerID{1, 2}, outs.one(t).Tally.Quorum().Members())
	}
}

func TestWatermarkJoint_NeitherHalfDecidesAlone(t *testing.T) {
	w := NewWatermarkList[uint32](0, wmManual)
	var outs outcomes[uint32]
	wmPark(t, w, outs.note, 1, 2)
	wmQuorum(t, w, AllOf(ofThree, Majority(4)))
	assert.Equal(t, AckCounted, wmAcks(w, 2, 1, 2))
	assert.Equal(t, AckCounted, w.Ack(2, 3))
	assert.Empty(t, outs.keys())
	assert.Equal(t, AckDecided, w.Ack(1, 4))
	assert.Equal(t, []uint32{1}, outs.keys())
	assert.Equal(t, 1, wmQuorum(t, w, All(1)), "with the new half gone")

	w = NewWatermarkList[uint32](0, wmManual)
	wmQuorum(t, w, AllOf(ofThree, Majority(3, 4, 5)))
	assert.Equal(t, AckCounted, wmAcks(w, 9, 4, 5))
	assert.Equal(t, AckCounted, w.Ack(9, 1))
	assert.Equal(t, AckDecided, w.Ack(8, 3), "one answer, counted in both halves")
	assert.EqualValues(t, 8, w.Watermark())
}

func TestWatermarkCumulativeAcks_AnyInterleaving(t *testing.T) {
	// Each of three peers acks 3, 2, 5, 4, in every interleaving.
	acks := []uint64{3, 2, 5, 4}
	for _, q := range []Quorum{ofThree, All(1, 2, 3), AtLeast(1, 1, 2, 3), Weighted(3, map[PeerID]uint64{1: 2, 2: 1, 3: 1})} {
		var order []PeerID
		var walk func(left [4]int)
		rng := rand.New(rand.NewPCG(1, 2))
		walk = func(left [4]int) {
			if len(order) == 12 {
				if !underRace() || rng.IntN(30) == 0 {
					wmInterleaving(t, q, acks, order)
				}
				return
			}
			for peer := PeerID(1); peer <= 3; peer++ {
				if left[peer] > 0 {
					left[peer]--
					order = append(order, peer)
					walk(left)
					order = order[:len(order)-1]
					left[peer]++
				}
			}
		}
		walk([4]int{0, 4, 4, 4})
	}
}

func wmInterleaving(t *testing.T, q Quorum, acks []uint64, order []PeerID) {
	w := NewWatermarkList[uint64](0, Options{ManualSweep: true})
	_, _ = w.SetQuorum(q)
	var done []uint64
	note := func(out Outcome[uint64]) { done = append(done, out.Key) }
	for i := range uint64(6) {
		_ = w.Add(6-i, note)
	}
	var sent [4]int
	match := map[PeerID]uint64{}
	for _, peer := range order {
		index := acks[sent[peer]]
		sent[peer]++
		known, mark := match[peer], w.Watermark()
		match[peer] = max(known, index)
		committed := q.CommittedIndex(func(p PeerID) uint64 { return match[p] })
		want := AckCounted
		switch {
		case index <= known:
			want = AckDuplicate
		case committed > mark:
			want = AckDecided
		}
		if got := w.Ack(index, peer); got != want || w.Watermark() != committed {
			t.Fatalf("%v, acks by %v: ack %d of %d is %v, want %v; mark %d, want %d", q, order, index, peer, got, want, w.Watermark(), committed)
		}
	}
	if !slices.Equal(done, []uint64{1, 2, 3, 4, 5}) || w.Len() != 1 {
		t.Fatalf("%v, acks by %v: completed %v", q, order, done)
	}
}

func TestWatermarkStaleTerm_OldAcksNeverAddUpWithNewOnes(t *testing.T) {
	w := NewWatermarkList[int](10, wmManual)
	var outs outcomes[int]
	wmPark(t, w, outs.note, 12, 15, 20)
	wmQuorum(t, w, ofThree)
	w.Ack(20, 1)
	w.BeginTerm(15)
	_, ok := w.Match(1)
	assert.False(t, ok, "forgotten")
	assert.Equal(t, 3, w.Len(), "what is parked stays")
	assert.Equal(t, AckCounted, w.Ack(20, 2))
	assert.Equal(t, AckCounted, w.Ack(14, 1), "counted as a first ack; two hold 14, but that is of an older term")
	assert.Equal(t, 10, w.Watermark())
	assert.Empty(t, outs.keys())
	assert.Equal(t, AckDecided, w.Ack(15, 3), "two hold 15, which is of this term, and all below with it")
	assert.Equal(t, []int{12, 15}, outs.keys())

	// SetQuorum does not bring back what was forgotten, nor does it commit below first.
	w.BeginTerm(20)
	assert.Zero(t, wmQuorum(t, w, All(2)))
	assert.Equal(t, AckCounted, w.Ack(19, 2))
	assert.Zero(t, wmQuorum(t, w, AtLeast(1, 1, 2)))
	assert.Equal(t, 15, w.Watermark())

	// The last call counts, also with a lower first.
	w.BeginTerm(17)
	assert.Equal(t, AckCounted, w.Ack(16, 2))
	assert.Equal(t, AckDecided, w.Ack(17, 2))
	w.BeginTerm(math.MinInt)
	assert.Equal(t, AckDecided, w.Ack(18, 2))

	// Advance is not restricted.
	w.BeginTerm(1000)
	assert.Equal(t, 1, w.Advance(20))
	assert.Equal(t, []int{12, 15, 20}, outs.keys())
	wmAudit(t, w)
}

func TestWatermarkStaleTerm_BeginTermBeforeTheFirstRule(t *testing.T) {
	w := NewWatermarkList[int](0, wmManual)
	w.BeginTerm(5)
	wmQuorum(t, w, All(1))
	assert.Equal(t, AckCounted, w.Ack(4, 1))
	assert.Zero(t, w.Watermark())
	assert.Equal(t, AckDecided, w.Ack(5, 1))
	assert.Equal(t, 5, w.Watermark())
}
