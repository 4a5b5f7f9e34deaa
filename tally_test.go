package waitlist

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVisibleTally_CallbackSeesAtLeastTheQuorumAndEveryPayload(t *testing.T) {
	for name, peers := range map[string][]PeerID{"three": {1, 2, 3}, "wide": span(0, 70)} {
		t.Run(name, func(t *testing.T) {
			need := 2
			if name == "wide" {
				need = 5
			}
			rule := AtLeast(need, peers...)
			l := New[int](Options{ManualSweep: true})
			var tally Tally
			var racers []func()
			for _, peer := range peers[:min(need+1, len(peers))] {
				racers = append(racers, func() { l.AckWith(1, peer, peer) })
			}
			collide(rounds(20_000), func() {
				require.NoError(t, l.Add(1, rule, func(out Outcome[int]) { tally = out.Tally }))
			}, func() {
				acked := slices.Collect(tally.Acked())
				require.Len(t, acked, need)
				responses := maps.Collect(tally.Responses())
				require.Len(t, responses, need)
				for _, peer := range acked {
					require.Equal(t, peer, responses[peer])
				}
				decider, ok := tally.Decider()
				require.True(t, ok)
				require.Contains(t, acked, decider)
				require.Len(t, slices.Collect(tally.Missing()), len(peers)-need)
				require.Zero(t, l.Len())
			}, racers...)
		})
	}
}

func TestEarlyFailure_AtTheSecondRefusalOfThree(t *testing.T) {
	first, second := errors.New("disk full"), errors.New("shutting down")
	for name, rule := range map[string]Quorum{"majority": ofThree, "wide": AtLeast(69, span(1, 70)...), "weighted": Weighted(3, map[PeerID]uint64{1: 2, 2: 1, 3: 1})} {
		for _, nils := range []bool{false, true} {
			var outs outcomes[int]
			l := New[int](Options{})
			require.NoError(t, l.Add(1, rule, outs.note))
			reason := second
			if nils {
				reason = nil
			}
			if name == "weighted" {
				require.Equal(t, AckCounted, l.Nack(1, 2, first))
				require.Empty(t, outs.take())
				require.Equal(t, AckDecided, l.Nack(1, 3, reason))
			} else {
				require.Equal(t, AckCounted, l.Nack(1, 3, first))
				require.Empty(t, outs.take())
				require.Equal(t, AckDecided, l.Nack(1, 1, reason))
			}
			if nils {
				reason = ErrNoReason
			}
			out := outs.one(t)
			require.Equal(t, EndUnreachable, out.End)
			require.ErrorIs(t, out.Err, ErrUnreachable)
			require.ErrorIs(t, out.Err, first)
			require.ErrorIs(t, out.Err, reason)
			require.Equal(t, []error{first, reason}, out.Err.(interface{ Unwrap() []error }).Unwrap(), "in order of arrival, nothing else")
			require.ErrorContains(t, out.Err, "disk full")
			require.Equal(t, AckUnknown, l.Nack(1, 2, nil), "a third answer is late")
			require.Equal(t, AckUnknown, l.Ack(1, 2))
			require.EqualValues(t, 2, l.Stats().LateAcks)
			require.NoError(t, l.Close())
		}
	}
}

func TestUnreachable_OnlyTheReasonsOfThoseWhoStillRefuse(t *testing.T) {
	var outs outcomes[int]
	l := New[int](Options{})
	defer l.Close()
	changed, a, b := errors.New("changed its mind"), errors.New("a"), errors.New("b")
	require.NoError(t, l.Add(1, Majority(1, 2, 3, 4), outs.note))
	l.Nack(1, 1, changed)
	l.Ack(1, 1)
	l.Nack(1, 4, a)
	require.Empty(t, outs.take())
	require.Equal(t, AckDecided, l.Nack(1, 2, b))
	out := outs.one(t)
	require.Equal(t, []error{a, b}, out.Err.(interface{ Unwrap() []error }).Unwrap())
	require.NotErrorIs(t, out.Err, changed)
	require.Equal(t, map[PeerID]error{4: a, 2: b}, maps.Collect(out.Tally.Refused()))
	require.Equal(t, []PeerID{1}, slices.Collect(out.Tally.Acked()))
	require.Equal(t, []PeerID{3}, slices.Collect(out.Tally.Missing()))
	peer, ok := out.Tally.Decider()
	require.True(t, ok)
	require.Equal(t, PeerID(2), peer)
}

func TestTally_ResponsesInOrderOfArrivalAndNilIsNone(t *testing.T) {
	for name, rule := range map[string]Quorum{"small": All(1, 2, 3, 4), "wide": AtLeast(4, span(1, 100)...)} {
		var outs outcomes[int]
		var nilPointer *int
		l := New[int](Options{})
		require.NoError(t, l.Add(1, rule, outs.note))
		l.AckWith(1, 3, "three")
		l.AckWith(1, 1, nil)
		l.AckWith(1, 4, nilPointer) // is something
		l.AckWith(1, 2, 2)
		var peers []PeerID
		var payloads []any
		out := outs.one(t)
		for peer, payload := range out.Tally.Responses() {
			peers, payloads = append(peers, peer), append(payloads, payload)
		}
		require.Equal(t, []PeerID{3, 4, 2}, peers, name)
		require.Equal(t, []any{"three", nilPointer, 2}, payloads, name)
		for range out.Tally.Responses() {
			break // leaving a loop is fine
		}
		require.Equal(t, []PeerID{1, 2, 3, 4}, slices.Collect(out.Tally.Acked()))
		require.NoError(t, l.Close())
	}
}

func TestTally_DoesNotChangeUnderItsReader(t *testing.T) {
	for name, rule := range map[string]Quorum{"small": Majority(span(1, 40)...), "wide": Majority(span(1, 80)...)} {
		l := New[int](Options{ManualSweep: true})
		require.NoError(t, l.Add(1, rule, ignore))
		type shot struct{ acked, refused, responses int }
		var tallies []Tally
		var want []shot
		look := func(tally Tally) shot {
			return shot{len(slices.Collect(tally.Acked())), len(maps.Collect(tally.Refused())), len(maps.Collect(tally.Responses()))}
		}
		for i := range PeerID(18) {
			l.AckWith(1, 1+i, i)
			l.Nack(1, 40-i, errTest)
			p, ok := l.Get(1)
			require.True(t, ok)
			tallies, want = append(tallies, p.Tally), append(want, look(p.Tally))
			require.Equal(t, shot{int(i) + 1, int(i) + 1, int(i) + 1}, look(p.Tally), name)
		}
		l.FailAll(nil)
		require.NoError(t, l.Add(1, All(7, 8), ignore)) // takes the slot
		l.AckWith(1, 7, "x")
		for i, tally := range tallies {
			require.Equal(t, want[i], look(tally))
		}
	}
}

func TestTally_ZeroIsEmpty(t *testing.T) {
	var tally Tally
	require.Empty(t, slices.Collect(tally.Acked()))
	require.Empty(t, slices.Collect(tally.Missing()))
	require.Empty(t, maps.Collect(tally.Refused()))
	require.Empty(t, maps.Collect(tally.Responses()))
	_, ok := tally.Decider()
	require.False(t, ok)
	require.ErrorIs(t, tally.Quorum().Err(), ErrInvalidQuorum)
}

func TestJoint_UndecidedUntilTheSmallSideHasSpoken(t *testing.T) {
	var outs outcomes[int]
	l := New[int](Options{})
	defer l.Close()
	require.NoError(t, l.Add(1, AllOf(Majority(1, 2, 3), Majority(4)), outs.note))
	require.Equal(t, AckCounted, l.Ack(1, 1))
	require.Equal(t, AckCounted, l.Ack(1, 2))
	require.Equal(t, AckCounted, l.Ack(1, 3))
	require.Equal(t, AckDecided, l.Ack(1, 4))
	require.Equal(t, EndReached, outs.one(t).End)

	require.NoError(t, l.Add(2, AllOf(Majority(1, 2, 3), Majority(4)), outs.note))
	require.Equal(t, AckCounted, l.Ack(2, 1))
	require.Equal(t, AckDecided, l.Nack(2, 4, errTest), "the new side cannot be met any more")
	require.Equal(t, EndUnreachable, outs.one(t).End)

	// A peer of both sides counts in both.
	require.NoError(t, l.Add(3, AllOf(Majority(1, 2, 3), Majority(3, 4, 5)), outs.note))
	require.Equal(t, AckCounted, l.Ack(3, 3))
	require.Equal(t, AckCounted, l.Ack(3, 1))
	require.Equal(t, AckDecided, l.Ack(3, 5))
	require.Equal(t, EndReached, outs.one(t).End)

	for _, empty := range []Quorum{AllOf(ofThree, Majority()), AllOf(Majority(), ofThree), AllOf(), AtLeastOf(1, ofThree, All())} {
		require.ErrorIs(t, l.Add(4, empty, outs.note), ErrInvalidQuorum)
	}
	require.Empty(t, outs.take())
}

// The rule itself is compared with brute force elsewhere; here the list must apply
// each answer when it comes.
func TestEarlyFailure_NeverOneAnswerTooEarlyOrTooLate(t *testing.T) {
	rules := []Quorum{
		Majority(1), ofThree, Majority(1, 2, 3, 4), All(1, 2, 3), AtLeast(1, 1, 2, 3), AtLeast(2, 1, 2, 3, 4),
		Weighted(3, map[PeerID]uint64{1: 2, 2: 1, 3: 1}), Weighted(1, map[PeerID]uint64{1: 1, 2: 0}),
		AllOf(Majority(1, 2, 3), Majority(4)), AllOf(Majority(1, 2), Majority(2, 3)), AtLeastOf(1, All(1, 2), All(3, 4)),
	}
	l := New[int](Options{})
	defer l.Close()
	key := 0
	for _, rule := range rules {
		members := rule.Members()
		// Every sequence of up to five or six answers, as digits of a number: each is the
		// ack or the nack of one member.
		base, length := 2*len(members), 6
		if len(members) > 3 {
			length = 5
		}
		total := 1
		for range length {
			total *= base
		}
		step := 1
		if underRace() || testing.Short() {
			step = 37
		}
		for n := 0; n < total; n += step {
			key++
			var out Outcome[int]
			require.NoError(t, l.Add(key, rule, func(o Outcome[int]) { out = o }))
			var acked, refused []PeerID
			for digits, i := n, 0; i < length && out.End == 0; digits, i = digits/base, i+1 {
				peer, nack := members[digits%base/2], digits%2 == 1
				var want, got AckResult
				switch was := slices.Contains(acked, peer); {
				case was || nack && slices.Contains(refused, peer):
					want = AckDuplicate
				case nack:
					refused = append(refused, peer)
				default:
					acked = append(acked, peer)
				}
				verdict := rule.Verdict(acked, refused)
				if want == 0 {
					want = AckCounted
					if verdict != Undecided {
						want = AckDecided
					}
				}
				if nack {
					got = l.Nack(key, peer, nil)
				} else {
					got = l.Ack(key, peer)
				}
				if got != want || out.End != map[Verdict]End{Reached: EndReached, Unreachable: EndUnreachable}[verdict] {
					require.Failf(t, "wrong answer", "%v: acked %v, refused %v: result %v, want %v, end %v", rule, acked, refused, got, want, out.End)
				}
			}
			l.Fail(key, nil)
		}
	}
	audit(t, l)
}

func TestManyMembers_CountBeyondOneWord(t *testing.T) {
	for _, n := range []int{63, 64, 65, 130, 200} {
		peers := span(7, n)
		for name, rule := range map[string]Quorum{"majority": Majority(peers...), "all": All(peers...), "any": AtLeast(1, peers...)} {
			var outs outcomes[int]
			l := New[int](Options{Capacity: 1})
			need := map[string]int{"majority": n/2 + 1, "all": n, "any": 1}[name]

			require.NoError(t, l.Add(1, rule, outs.note))
			for i := range need { // from the last word on
				peer := peers[n-1-i]
				if i < need-1 {
					if name != "all" {
						require.Equal(t, AckCounted, l.Nack(1, peer, errTest), "%s of %d", name, n)
					}
					require.Equal(t, AckCounted, l.AckWith(1, peer, i))
					require.Equal(t, AckDuplicate, l.Ack(1, peer))
					p, _ := l.Get(1)
					require.Len(t, slices.Collect(p.Tally.Acked()), i+1)
					require.Len(t, slices.Collect(p.Tally.Missing()), n-i-1)
				} else {
					require.Equal(t, AckDecided, l.Ack(1, peer))
				}
			}
			out := outs.one(t)
			require.Equal(t, EndReached, out.End)
			require.Equal(t, peers[n-need:], slices.Collect(out.Tally.Acked()))
			require.Len(t, slices.Collect(out.Tally.Missing()), n-need)

			require.NoError(t, l.Add(1, rule, outs.note))
			spare := n - need
			for i := range spare {
				require.Equal(t, AckCounted, l.Nack(1, peers[i], errTest))
			}
			require.Equal(t, AckDecided, l.Nack(1, peers[spare], errTest))
			out = outs.one(t)
			require.Equal(t, EndUnreachable, out.End)
			require.Len(t, out.Err.(interface{ Unwrap() []error }).Unwrap(), spare+1)
			audit(t, l)
			require.NoError(t, l.Close())
		}
	}
}

func TestMemberWithoutVotes_AnswersButDecidesNothing(t *testing.T) {
	var outs outcomes[int]
	l := New[int](Options{})
	defer l.Close()
	rule := Weighted(2, map[PeerID]uint64{1: 1, 2: 1, 9: 0})
	require.NoError(t, l.Add(1, rule, outs.note))
	require.Equal(t, AckCounted, l.Ack(1, 1))
	require.Equal(t, AckCounted, l.Ack(1, 9))
	require.Equal(t, AckDuplicate, l.Ack(1, 9))
	require.Equal(t, AckDecided, l.Ack(1, 2))
	require.Equal(t, []PeerID{1, 2, 9}, slices.Collect(outs.one(t).Tally.Acked()))

	require.NoError(t, l.Add(1, rule, outs.note))
	require.Equal(t, AckCounted, l.Nack(1, 9, errTest))
	require.Equal(t, AckDecided, l.Nack(1, 2, errTest))
	require.Equal(t, EndUnreachable, outs.one(t).End)
}
