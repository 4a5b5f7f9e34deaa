package waitlist

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files with what the code says now")

// drawn is a rule as a person would draw it, and the oracle of this file: it knows no bits, no order and
// no short cuts.
type drawn struct {
	need  uint64
	peers []PeerID
	votes []uint64 // of the peers; nil: one each
	parts []drawn  // instead of peers
}

// build makes the rule by the most specific constructor there is for it.
func (d drawn) build() Quorum {
	switch {
	case d.parts != nil:
		parts := make([]Quorum, len(d.parts))
		for i, p := range d.parts {
			parts[i] = p.build()
		}
		if d.need == uint64(len(parts)) {
			return AllOf(parts...)
		}
		return AtLeastOf(int(d.need), parts...)
	case d.votes != nil:
		votes := map[PeerID]uint64{}
		for i, p := range d.peers {
			votes[p] = d.votes[i]
		}
		return Weighted(d.need, votes)
	case d.need == uint64(len(d.peers)/2+1):
		return Majority(d.peers...)
	case d.need == uint64(len(d.peers)):
		return All(d.peers...)
	}
	return AtLeast(int(d.need), d.peers...)
}

// met is the definition: enough children are met.
func (d drawn) met(acked func(PeerID) bool) bool {
	var got uint64
	for i, p := range d.peers {
		switch {
		case !acked(p):
		case d.votes == nil:
			got++
		default:
			got += d.votes[i]
		}
	}
	for _, part := range d.parts {
		if part.met(acked) {
			got++
		}
	}
	return got >= d.need
}

func (d drawn) members() []PeerID {
	all := map[PeerID]bool{}
	d.each(func(p PeerID) { all[p] = true })
	return slices.Sorted(maps.Keys(all))
}

func (d drawn) each(visit func(PeerID)) {
	for _, p := range d.peers {
		visit(p)
	}
	for _, part := range d.parts {
		part.each(visit)
	}
}

// sound tells whether the rule keeps to the documented conditions.
func (d drawn) sound() bool {
	children := len(d.peers) + len(d.parts)
	total := big.NewInt(int64(children))
	if d.votes != nil {
		total.SetInt64(0)
		for _, v := range d.votes {
			total.Add(total, new(big.Int).SetUint64(v))
		}
	}
	seen := map[PeerID]bool{}
	for _, p := range d.peers {
		if seen[p] {
			return false
		}
		seen[p] = true
	}
	for _, part := range d.parts {
		if !part.sound() {
			return false
		}
	}
	return children > 0 && d.need > 0 && total.IsUint64() && d.need <= total.Uint64()
}

// reversed is the same rule told backwards.
func (d drawn) reversed() drawn {
	r := drawn{need: d.need, peers: slices.Clone(d.peers), votes: slices.Clone(d.votes)}
	slices.Reverse(r.peers)
	slices.Reverse(r.votes)
	for _, part := range slices.Backward(d.parts) {
		r.parts = append(r.parts, part.reversed())
	}
	return r
}

// verdict asks every completion of the answers, one by one, whether it meets the rule.
func (d drawn) verdict(acked, refused map[PeerID]bool) Verdict {
	if d.met(func(p PeerID) bool { return acked[p] }) {
		return Reached
	}
	var open []PeerID
	for _, p := range d.members() {
		if !acked[p] && !refused[p] {
			open = append(open, p)
		}
	}
	for later := range 1 << len(open) {
		if d.met(func(p PeerID) bool {
			i := slices.Index(open, p)
			return acked[p] || i >= 0 && later>>i&1 == 1
		}) {
			return Undecided
		}
	}
	return Unreachable
}

// commit tries every index that somebody holds.
func (d drawn) commit(match func(PeerID) uint64) (best uint64) {
	for _, p := range d.members() {
		if v := match(p); v > best && d.met(func(p PeerID) bool { return match(p) >= v }) {
			best = v
		}
	}
	return best
}

func counts(need int, peers ...PeerID) drawn { return drawn{need: uint64(need), peers: peers} }
func joins(need int, parts ...drawn) drawn   { return drawn{need: uint64(need), parts: parts} }

// Six ids, out of order and with both extremes, of which small shapes use the first.
var ids = []PeerID{3, 0, math.MaxUint64, 8, 1, 5}

// shapes calls visit with every kind of rule over at most six members. Which peer is which makes no
// difference to a rule, so shapes that differ by a renaming are visited once.
func shapes(visit func(family string, d drawn)) {
	for m := 1; m <= len(ids); m++ {
		for n := 1; n <= m; n++ {
			visit("flat", counts(n, ids[:m]...))
		}
	}

	// Every multiset of votes from 0 to 3, and every need.
	var weigh func(votes []uint64, total uint64)
	weigh = func(votes []uint64, total uint64) {
		for need := uint64(1); need <= total; need++ {
			visit("weighted", drawn{need: need, peers: ids[:len(votes)], votes: slices.Clone(votes)})
		}
		if len(votes) == len(ids) {
			return
		}
		least := uint64(0)
		if len(votes) > 0 {
			least = votes[len(votes)-1]
		}
		for v := least; v <= 3; v++ {
			weigh(append(votes, v), total+v)
		}
	}
	weigh(nil, 0)

	// Two sides with every overlap: the first a members, the last b, of m.
	for m := 1; m <= len(ids); m++ {
		for a := 1; a <= m; a++ {
			for b := max(1, m-a); b <= a; b++ {
				for na := 1; na <= a; na++ {
					for nb := 1; nb <= b; nb++ {
						for n := 1; n <= 2; n++ {
							visit("joint", joins(n, counts(na, ids[:a]...), counts(nb, ids[m-b:m]...)))
						}
					}
				}
			}
		}
	}

	// Every partition into groups, every need of each group, every need of groups; and once more below
	// another node, beside a part with votes that names two of the same peers.
	var group func(groups []drawn, rest []PeerID, largest int)
	group = func(groups []drawn, rest []PeerID, largest int) {
		for n := 1; n <= len(groups); n++ {
			d := joins(n, slices.Clone(groups)...)
			visit("hierarchical", d)
			votes := drawn{need: 3, peers: []PeerID{ids[0], ids[1]}, votes: []uint64{2, 1}}
			visit("deep", joins(1+n%2, d, votes))
		}
		for size := 1; size <= min(largest, len(rest)); size++ {
			for n := 1; n <= size; n++ {
				group(append(groups, counts(n, rest[:size]...)), rest[size:], size)
			}
		}
	}
	group(nil, ids, len(ids))
}

// truth is the oracle's word on every set of members, as a table.
func (d drawn) truth(members []PeerID) []bool {
	table := make([]bool, 1<<len(members))
	for set := range table {
		table[set] = d.met(func(p PeerID) bool { return set>>slices.Index(members, p)&1 == 1 })
	}
	return table
}

// Faults 18 and 19: an answer too early, or one too late, or lost because a nack came before it.
func TestVerdictIsNeverOneAnswerOffInAnyOrder(t *testing.T) {
	t.Parallel()
	rules := map[string]int{}
	answers := 0
	shapes(func(family string, d drawn) {
		rules[family]++
		q := d.build()
		if q.Err() != nil || !slices.Equal(q.Members(), d.members()) {
			require.Failf(t, "not built", "%+v: %v, members %v", d, q.Err(), q.Members())
		}
		members := q.Members()
		met := d.truth(members)
		expect := func(acked, refused int) Verdict {
			if met[acked] {
				return Reached
			}
			for set := acked; set < len(met); set++ { // every set of acks that the open members may still give
				if set&acked == acked && set&refused == 0 && met[set] {
					return Undecided
				}
			}
			return Unreachable
		}

		// Walk every state that answers lead to, along every answer. Orders that lead to one state share
		// what follows; the lists keep the order and the nacks of the path on which it was first met.
		seen := make([]bool, 1<<(2*len(members)))
		var yes, no []PeerID
		var walk func(acked, refused int)
		walk = func(acked, refused int) {
			answers++
			want, got := expect(acked, refused), q.Verdict(yes, no)
			if got != want {
				require.Failf(t, "wrong verdict", "%v after acks %v and nacks %v: %v, want %v", q, yes, no, got, want)
			}
			state := acked<<len(members) | refused
			if seen[state] {
				return
			}
			seen[state] = true
			for i, p := range members {
				bit := 1 << i
				if acked&bit != 0 {
					continue
				}
				yes = append(yes, p)
				walk(acked|bit, refused&^bit) // p may be in both lists now
				yes = yes[:len(yes)-1]
				if refused&bit == 0 {
					no = append(no, p)
					walk(acked, refused|bit)
					no = no[:len(no)-1]
				}
			}
		}
		walk(0, 0)
	})
	for _, family := range []string{"flat", "weighted", "joint", "hierarchical", "deep"} {
		assert.Greater(t, rules[family], 20, family)
	}
	t.Logf("%v rules, %d answers", rules, answers)
}

func TestCommitIndexIsNeitherAheadOfItsMembersNorBehind(t *testing.T) {
	t.Parallel()
	for name, levels := range map[string][]uint64{
		"levels=0,1,2":       {0, 1, 2},
		"levels=0,7,max":     {0, 7, math.MaxUint64},
		"levels=max-1,max,5": {math.MaxUint64 - 1, math.MaxUint64, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shapes(func(_ string, d drawn) {
				r := d.build().rule
				met := d.truth(r.members)
				match := make([]uint64, len(r.members))
				var fill func(i int)
				fill = func(i int) {
					if i < len(match) {
						for _, v := range levels {
							match[i] = v
							fill(i + 1)
						}
						return
					}
					var want uint64
					for _, v := range levels {
						set := 0
						for i, m := range match {
							if m >= v {
								set |= 1 << i
							}
						}
						if met[set] {
							want = max(want, v)
						}
					}
					if got := r.committed(match); got != want {
						require.Failf(t, "wrong commit index", "%v of %v at %v: %d, want %d",
							d.build(), r.members, match, got, want)
					}
				}
				fill(0)
			})
		})
	}
}

// Beyond one word of members other code runs, and sets have bits that no member owns.
func TestManyMembersFollowTheSameDefinition(t *testing.T) {
	t.Parallel()
	peers := func(from, to int) (all []PeerID) {
		for p := from; p <= to; p++ {
			all = append(all, PeerID(p*p))
		}
		return all
	}
	weights := make([]uint64, 130)
	for i := range weights {
		weights[i] = uint64(i % 4)
	}
	rng := rand.New(rand.NewPCG(7, 9))
	for _, d := range []drawn{
		counts(17, peers(1, 33)...), counts(64, peers(1, 64)...), counts(33, peers(1, 64)...),
		counts(33, peers(1, 65)...), counts(65, peers(1, 65)...), counts(1, peers(1, 65)...),
		counts(66, peers(1, 130)...), counts(501, peers(1, 1000)...),
		{need: 98, peers: peers(1, 130), votes: weights},
		{need: 32, peers: peers(1, 64), votes: weights[:64]},
		joins(2, counts(40, peers(1, 65)...), counts(3, peers(60, 64)...)),
		joins(1, counts(2, peers(1, 3)...), counts(65, peers(2, 130)...)),
		joins(2, counts(2, peers(1, 3)...), drawn{need: 60, peers: peers(4, 110), votes: weights[:107]},
			joins(1, counts(4, peers(100, 105)...), counts(1, peers(128, 130)...))),
	} {
		q := d.build()
		require.NoError(t, q.Err())
		members := q.Members()
		require.Equal(t, d.members(), members)
		for round := range 60 {
			acked, refused := map[PeerID]bool{}, map[PeerID]bool{}
			for _, p := range members {
				switch rng.IntN(100) % (2 + round%3*10) {
				case 0:
					acked[p] = true
				case 1:
					refused[p] = true
				}
				if round%2 == 0 && !refused[p] {
					acked[p] = rng.IntN(60) > round
				}
			}
			want := Unreachable
			if d.met(func(p PeerID) bool { return acked[p] }) {
				want = Reached
			} else if d.met(func(p PeerID) bool { return !refused[p] }) { // all completions: too many to list
				want = Undecided
			}
			yes, no := chosen(acked), chosen(refused)
			require.Equal(t, want, q.Verdict(yes, no), "%v\nacks %v\nnacks %v", q, yes, no)

			match := map[PeerID]uint64{}
			for _, p := range members {
				match[p] = rng.Uint64N(1<<(round%20)) * (rng.Uint64N(4) + uint64(round/40)) / 3
			}
			before := maps.Clone(match)
			at := func(p PeerID) uint64 { return match[p] }
			require.Equal(t, d.commit(at), q.CommittedIndex(at), "%v at %v", q, match)
			require.Equal(t, before, match)
		}
		assert.Zero(t, q.CommittedIndex(func(PeerID) uint64 { return 0 }))
		assert.Equal(t, uint64(math.MaxUint64), q.CommittedIndex(func(PeerID) uint64 { return math.MaxUint64 }))
		for i, p := range members {
			require.Equal(t, i, q.rule.index(p))
			require.Equal(t, -1, q.rule.index(p+1<<40))
		}
	}
}

func chosen(set map[PeerID]bool) (list []PeerID) {
	for p, in := range set {
		if in {
			list = append(list, p)
		}
	}
	return list
}

func TestCommitIndexAsksEachMemberOnce(t *testing.T) {
	t.Parallel()
	for _, q := range []Quorum{
		Majority(5, 1, 3), AllOf(Majority(1, 2, 3), Majority(3, 4, 1)), Weighted(2, map[PeerID]uint64{1: 0, 2: 2}),
	} {
		var asked []PeerID
		q.CommittedIndex(func(p PeerID) uint64 { asked = append(asked, p); return uint64(len(asked)) })
		assert.Equal(t, q.Members(), asked)
	}
}

func TestAnswersOfStrangersAndRepeatsDecideNothing(t *testing.T) {
	t.Parallel()
	q := Majority(1, 2, 3)
	assert.Equal(t, Undecided, q.Verdict([]PeerID{1, 1, 1, 9, 10}, nil), "one peer acked five times")
	assert.Equal(t, Undecided, q.Verdict(nil, []PeerID{2, 2, 8, 9}), "one peer refused")
	assert.Equal(t, Reached, q.Verdict([]PeerID{1, 2}, []PeerID{1, 2, 3}), "an ack stands beside a nack")
	assert.Equal(t, Undecided, q.Verdict(nil, nil))
}

// Fault 16: old and new membership.
func TestJointRuleWaitsForItsSmallSide(t *testing.T) {
	t.Parallel()
	q := AllOf(Majority(1, 2, 3), Majority(4))
	assert.Equal(t, Undecided, q.Verdict([]PeerID{1, 2}, nil))
	assert.Equal(t, Undecided, q.Verdict([]PeerID{1, 2, 3}, nil))
	assert.Equal(t, Reached, q.Verdict([]PeerID{1, 2, 4}, nil))
	assert.Equal(t, Unreachable, q.Verdict([]PeerID{1, 2, 3}, []PeerID{4}))
	require.ErrorIs(t, AllOf(Majority(1, 2, 3), Majority()).Err(), ErrInvalidQuorum)
}

func TestMemberWithoutVotesDecidesNothing(t *testing.T) {
	t.Parallel()
	q := Weighted(2, map[PeerID]uint64{1: 1, 2: 1, 9: 0})
	assert.Equal(t, []PeerID{1, 2, 9}, q.Members())
	assert.Equal(t, Undecided, q.Verdict([]PeerID{1, 9}, nil))
	assert.Equal(t, Undecided, q.Verdict([]PeerID{1}, []PeerID{9}))
	assert.Equal(t, Reached, q.Verdict([]PeerID{1, 2}, []PeerID{9}))
	assert.Equal(t, Unreachable, q.Verdict([]PeerID{9, 1}, []PeerID{2}))
	held := map[PeerID]uint64{1: 4, 2: 6, 9: 0}
	assert.Equal(t, uint64(4), q.CommittedIndex(func(p PeerID) uint64 { return held[p] }))
}

func TestExternalRuleIsNeverDecidedByAnswers(t *testing.T) {
	t.Parallel()
	q := External()
	require.NoError(t, q.Err())
	assert.Empty(t, q.Members())
	assert.Equal(t, "external", q.String())
	assert.Equal(t, Undecided, q.Verdict(nil, nil))
	assert.Equal(t, Undecided, q.Verdict([]PeerID{1, 2}, []PeerID{3}))
	assert.Zero(t, q.CommittedIndex(func(PeerID) uint64 { return 9 }))
	assert.False(t, q.rule.reached(nil))
	assert.True(t, q.rule.possible(nil))
}

func TestBadRuleSaysWhatIsWrongAndItsNeighbourPasses(t *testing.T) {
	t.Parallel()
	type votes = map[PeerID]uint64
	sound := Majority(1, 2, 3)
	for _, c := range []struct {
		bad    Quorum
		reason string
		good   Quorum
	}{
		{Quorum{}, "the zero value is not a rule", External()},
		{Majority(), "no peers", Majority(1)},
		{All(), "no peers", All(0)},
		{AtLeast(0), "no peers", AtLeast(1, 1)},
		{AtLeast(0, 1, 2), "needs 0 of 2 peers, but a rule needs at least 1", AtLeast(1, 1, 2)},
		{AtLeast(math.MinInt, 1), fmt.Sprintf("needs %d of 1 peers, but a rule needs at least 1", math.MinInt), AtLeast(1, 1)},
		{AtLeast(3, 1, 2), "needs 3 of only 2 peers", AtLeast(2, 1, 2)},
		{AtLeast(math.MaxInt, 1), fmt.Sprintf("needs %d of only 1 peers", math.MaxInt), AtLeast(1, 1)},
		{Majority(4, 7, 4), "peer 4 is repeated", Majority(4, 7, 5)},
		{All(0, 1, 0), "peer 0 is repeated", All(0, 1)},
		{AtLeast(1, 9, 9), "peer 9 is repeated", AtLeast(1, 9)},
		{Weighted(1, nil), "no peers", Weighted(1, votes{1: 1})},
		{Weighted(0, nil), "no peers", Weighted(1, votes{0: 1})},
		{Weighted(0, votes{1: 1}), "needs 0 votes, but a rule needs at least 1", Weighted(1, votes{1: 1})},
		{Weighted(6, votes{1: 3, 2: 2}), "needs 6 votes, but all peers together have 5", Weighted(5, votes{1: 3, 2: 2})},
		{Weighted(1, votes{1: 0, 2: 0}), "needs 1 votes, but all peers together have 0", Weighted(1, votes{1: 0, 2: 1})},
		{Weighted(3, votes{1: 1, 2: 1}), "needs 3 votes, but all peers together have 2", Weighted(2, votes{1: 1, 2: 1})},
		{
			Weighted(1, votes{1: math.MaxUint64, 2: 1}), "the votes together overflow 64 bits",
			Weighted(math.MaxUint64, votes{1: math.MaxUint64 - 1, 2: 1}),
		},
		{
			Weighted(5, votes{1: 1 << 63, 2: 1 << 63, 3: 7}), "the votes together overflow 64 bits",
			Weighted(1<<63, votes{1: 1 << 63, 2: 1<<63 - 1}),
		},
		{AllOf(), "no parts", AllOf(sound)},
		{AtLeastOf(1), "no parts", AtLeastOf(1, sound)},
		{AtLeastOf(0, sound), "needs 0 of 1 parts, but a rule needs at least 1", AtLeastOf(1, sound)},
		{AtLeastOf(-1, sound, sound), "needs -1 of 2 parts, but a rule needs at least 1", AtLeastOf(1, sound, sound)},
		{AtLeastOf(3, sound, sound), "needs 3 of only 2 parts", AtLeastOf(2, sound, sound)},
		{AllOf(sound, Majority()), "part 2 of 2: no peers", AllOf(sound, Majority(1))},
		{AllOf(Quorum{}), "part 1 of 1: the zero value is not a rule", AllOf(sound)},
		{AtLeastOf(1, sound, Quorum{}), "part 2 of 2: the zero value is not a rule", AtLeastOf(1, sound, All(2))},
		{AllOf(External()), "part 1 of 1 is external, which only a whole rule can be", AllOf(sound)},
		{AtLeastOf(1, sound, External()), "part 2 of 2 is external, which only a whole rule can be", AtLeastOf(1, sound)},
		{
			AllOf(sound, AtLeastOf(1, All(2, 2), sound)), "part 2 of 2: part 1 of 2: peer 2 is repeated",
			AllOf(sound, AtLeastOf(1, All(2), sound)),
		},
	} {
		t.Run(c.reason, func(t *testing.T) {
			err := c.bad.Err()
			require.ErrorIs(t, err, ErrInvalidQuorum)
			assert.EqualError(t, err, ErrInvalidQuorum.Error()+": "+c.reason)
			assert.Equal(t, "invalid: "+c.reason, c.bad.String())
			assert.Equal(t, Unreachable, c.bad.Verdict(nil, nil))
			assert.Equal(t, Unreachable, c.bad.Verdict([]PeerID{0, 1, 2, 3, 4, 7, 9}, nil))
			assert.Zero(t, c.bad.CommittedIndex(func(PeerID) uint64 { return math.MaxUint64 }))
			assert.Empty(t, c.bad.Members())

			require.NoError(t, c.good.Err())
			assert.Equal(t, Undecided, c.good.Verdict(nil, nil))
			if len(c.good.Members()) > 0 {
				assert.Equal(t, Reached, c.good.Verdict(c.good.Members(), nil), "all members meet a sound rule")
				assert.Equal(t, Unreachable, c.good.Verdict(nil, c.good.Members()))
			}
		})
	}
}

func TestRuleKeepsNothingOfItsCaller(t *testing.T) {
	t.Parallel()
	peers, votes := []PeerID{3, 1, 2}, map[PeerID]uint64{1: 3, 2: 2}
	parts := []Quorum{Majority(peers...), Weighted(5, votes)}
	rules := []Quorum{All(peers...), AtLeast(2, peers...), parts[0], parts[1], AllOf(parts...)}
	assert.Equal(t, []PeerID{3, 1, 2}, peers, "building sorted the caller's slice")
	before := fmt.Sprint(rules)
	peers[0], peers[1] = 9, 9
	votes[1], votes[7] = 1, 1
	parts[0] = Quorum{}
	for _, q := range rules {
		q.Members()[0] = 77
	}
	assert.Equal(t, before, fmt.Sprint(rules))

	acked, refused := []PeerID{2, 1}, []PeerID{3, 1}
	assert.Equal(t, Reached, rules[4].Verdict(acked, refused))
	assert.Equal(t, []PeerID{2, 1, 3, 1}, append(acked, refused...), "asking changed the answers")
}

func TestSharedRuleIsNotWrittenByItsUsers(t *testing.T) {
	t.Parallel()
	q := AllOf(Majority(1, 2, 3), Weighted(5, map[PeerID]uint64{3: 3, 4: 2}))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				assert.Equal(t, Reached, q.Verdict([]PeerID{4, 3, 2}, []PeerID{1}))
				assert.Equal(t, uint64(i), q.CommittedIndex(func(p PeerID) uint64 { return uint64(i) + uint64(p)/5 }))
				assert.Equal(t, Undecided, AtLeastOf(1+g%2, q, q).Verdict([]PeerID{4}, nil), "building on it")
				_, _, _ = q.String(), q.Members(), q.Err()
			}
		})
	}
	wg.Wait()
}

func TestUnknownVerdictHasAName(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "undecided reached unreachable", fmt.Sprint(Undecided, " ", Reached, " ", Unreachable))
	assert.Equal(t, "Verdict(0)", Verdict(0).String(), "the zero value is no verdict")
	assert.Equal(t, "Verdict(255)", Verdict(255).String())
}

func TestUsingARuleAllocatesNothingUpTo64Members(t *testing.T) {
	var peers []PeerID
	votes := map[PeerID]uint64{}
	for p := range PeerID(64) {
		peers = append(peers, p)
		votes[p] = uint64(p) % 5
	}
	match := func(p PeerID) uint64 { return uint64(p) * 3 % 17 }
	for _, q := range []Quorum{
		Majority(1, 2, 3), Majority(peers...), Weighted(60, votes), External(), {}, Majority(),
		AllOf(Majority(peers[:40]...), Majority(peers[20:]...)),
		AtLeastOf(2, Majority(peers[:9]...), AllOf(All(1, 2), Weighted(60, votes)), AtLeast(3, peers[50:]...)),
	} {
		held := make([]uint64, len(q.Members()))
		set := make([]uint64, 1)
		assert.Zero(t, testing.AllocsPerRun(50, func() {
			q.Verdict(peers[:30], peers[10:])
			q.CommittedIndex(match)
			if r := q.rule; r != nil {
				r.reached(set)
				r.possible(set)
				r.committed(held)
			}
			_ = q.Err() == nil
		}), q)
	}
}

// dice makes decisions out of a fuzzer's bytes, 0 when there are no more.
type dice struct{ data []byte }

func (d *dice) roll(sides int) int {
	if len(d.data) == 0 {
		return 0
	}
	b := int(d.data[0])
	d.data = d.data[1:]
	return b % sides
}

// tree makes a rule of at most six peers, sound more often than not.
func (d *dice) tree(depth int) drawn {
	kind := d.roll(4)
	size := d.roll(4)
	if d.roll(16) > 0 {
		size++ // seldom no children
	}
	need := d.roll(size + 1)
	if d.roll(16) > 0 {
		need = min(need+1, size)
	}
	t := drawn{need: uint64(need)}
	if kind >= 2 && depth > 0 && size > 0 {
		for range size {
			t.parts = append(t.parts, d.tree(depth-1))
		}
		return t
	}
	first, step := d.roll(len(ids)), 1
	if d.roll(16) == 15 {
		step = 0 // one peer again and again
	}
	for i := range size {
		t.peers = append(t.peers, ids[(first+i*step)%len(ids)])
	}
	if kind == 1 && step == 1 && size > 0 {
		for range size {
			t.votes = append(t.votes, []uint64{0, 1, 2, 3, 5, 1, 1, 1 << 62}[d.roll(8)])
		}
		t.need += uint64(d.roll(5))
	}
	return t
}

// FuzzQuorum builds a rule out of bytes and gives it answers and indexes, strangers and repeats among
// them; whether it is sound, and all that it says, must be what the oracle says.
func FuzzQuorum(f *testing.F) {
	f.Add([]byte{})
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		seed := make([]byte, 80)
		for i := range seed {
			seed[i] = byte(rng.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &dice{data: data}
		d := in.tree(2)
		q := d.build()
		require.Equal(t, d.sound(), q.Err() == nil, "%+v: %v", d, q.Err())
		if q.Err() != nil {
			require.ErrorIs(t, q.Err(), ErrInvalidQuorum)
			require.Equal(t, Unreachable, q.Verdict(ids, nil))
			return
		}
		require.Equal(t, d.members(), q.Members())
		sayers := append([]PeerID{77}, ids...)
		acked, refused := map[PeerID]bool{}, map[PeerID]bool{}
		var yes, no []PeerID
		for len(in.data) > 0 && len(yes)+len(no) < 20 {
			p := sayers[in.roll(len(sayers))]
			if in.roll(2) == 0 {
				yes, acked[p] = append(yes, p), true
			} else {
				no, refused[p] = append(no, p), true
			}
			require.Equal(t, d.verdict(acked, refused), q.Verdict(yes, no), "%v: acks %v, nacks %v", q, yes, no)
		}
		held := map[PeerID]uint64{}
		for _, p := range ids {
			held[p] = uint64(in.roll(5))
		}
		match := func(p PeerID) uint64 { return held[p] }
		require.Equal(t, d.commit(match), q.CommittedIndex(match), "%v at %v", q, held)
	})
}

// The golden files show rules as drawings, what peers answer, and what it means. A case is a block
// without empty lines:
//
//	# Why the case is here.
//	2 of                             the rule, drawn
//	|-- peer 1
//	|-- peer 2 with 3                ... votes
//	`-- all of                       ... or parts
//	    `-- peer 4
//	rule ...                         what String makes of it
//	answers  1 2 4  verdict          begins a new round of answers
//	ack 1    + . .  undecided
//	nack 4   + . -  unreachable
//	peer 1 holds 3 ==-               begins a new set of indexes; = is committed, - is only held
//	commit 2
//
// To write a case give the drawing, "answers" and "commit", and the left side of the other lines; run
// the test with -update for the rest, and read it.
func TestGoldenVerdictsAndCommitIndexes(t *testing.T) {
	files, err := filepath.Glob("testdata/quorum/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var got []string
			for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
				got = append(got, golden(t, strings.Split(block, "\n")))
			}
			now := strings.Join(got, "\n\n") + "\n"
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(now), 0o600))
				return
			}
			assert.Equal(t, string(text), now)
		})
	}
}

// golden returns the block as it should be, and checks on the way what must not change a rule's word.
func golden(t *testing.T, lines []string) string {
	var out []string
	for len(lines) > 0 && strings.HasPrefix(lines[0], "#") {
		out, lines = append(out, lines[0]), lines[1:]
	}
	if len(lines) == 0 {
		return strings.Join(out, "\n")
	}
	d, lines := parse(t, lines, 0)
	q := d.build()
	out = append(d.draw(out, "", ""), "rule "+q.String())
	same := []Quorum{d.reversed().build(), AllOf(q, q), AtLeastOf(1, q, q), AllOf(q)}
	require.NoError(t, q.Err(), "%s", strings.Join(lines, "\n"))

	var yes, no []PeerID
	state := map[PeerID]string{}
	held := map[PeerID]uint64{}
	match := func(p PeerID) uint64 { return held[p] }
	left := len("answers") + 1
	for _, p := range q.Members() {
		left = max(left, len(fmt.Sprint("nack ", p)))
	}
	row := func(what string, cell func(PeerID) string, verdict string) {
		var line strings.Builder
		fmt.Fprintf(&line, "%-*s ", left, what)
		for _, p := range q.Members() {
			fmt.Fprintf(&line, "%-*s ", len(fmt.Sprint(p)), cell(p))
		}
		out = append(out, line.String()+" "+verdict)
	}
	for _, line := range lines {
		var p PeerID
		var v uint64
		switch word, _, _ := strings.Cut(line, " "); word {
		case "rule":
			continue
		case "answers":
			yes, no, state = nil, nil, map[PeerID]string{}
			row("answers", func(p PeerID) string { return fmt.Sprint(p) }, "verdict")
			continue
		case "ack", "nack":
			_, err := fmt.Sscanf(line, word+" %d", &p)
			require.NoError(t, err, line)
			if word == "ack" {
				yes, state[p] = append(yes, p), "+"
			} else {
				no = append(no, p)
				if state[p] == "" {
					state[p] = "-"
				}
			}
			verdict := q.Verdict(yes, no)
			for _, other := range same {
				require.Equal(t, verdict, other.Verdict(yes, no), "%v beside %v: %s", other, q, line)
			}
			row(fmt.Sprintf("%s %d", word, p), func(p PeerID) string {
				if s := state[p]; s != "" {
					return s
				}
				return "."
			}, verdict.String())
		case "peer":
			_, err := fmt.Sscanf(line, "peer %d holds %d", &p, &v)
			require.NoError(t, err, line)
			held[p] = v
		case "commit":
			mark := q.CommittedIndex(match)
			for _, other := range same {
				require.Equal(t, mark, other.CommittedIndex(match), "%v beside %v", other, q)
			}
			holding := func(least uint64) (peers []PeerID) {
				for p, v := range held {
					if v >= least {
						peers = append(peers, p)
					}
				}
				return peers
			}
			if mark > 0 {
				require.Equal(t, Reached, q.Verdict(holding(mark), nil), "not enough peers hold the commit index")
			}
			require.NotEqual(t, Reached, q.Verdict(holding(mark+1), nil), "enough peers hold more")
			for _, p := range slices.Sorted(maps.Keys(held)) {
				bar := strings.Repeat("=", int(min(held[p], mark)))
				bar += strings.Repeat("-", max(0, int(held[p])-int(mark)))
				out = append(out, strings.TrimRight(fmt.Sprintf("peer %d holds %-2d %s", p, held[p], bar), " "))
			}
			out = append(out, fmt.Sprintf("commit %d", mark))
			clear(held)
		default:
			require.Failf(t, "what is this?", "%q", line)
		}
	}
	return strings.Join(out, "\n")
}

const edges = "|-` "

// parse reads the drawing at the head of lines whose root is at depth, and returns the lines after it.
func parse(t *testing.T, lines []string, depth int) (drawn, []string) {
	var d drawn
	text := strings.TrimLeft(lines[0], edges)
	lines = lines[1:]
	all := text == "all of"
	if !all {
		_, err := fmt.Sscanf(text, "%d of", &d.need)
		require.NoError(t, err, text)
	}
	for len(lines) > 0 {
		text := strings.TrimLeft(lines[0], edges)
		if len(lines[0])-len(text) != 4*(depth+1) {
			break
		}
		if !strings.HasPrefix(text, "peer ") {
			var part drawn
			part, lines = parse(t, lines, depth+1)
			d.parts = append(d.parts, part)
			continue
		}
		var p PeerID
		var v uint64
		if n, _ := fmt.Sscanf(text, "peer %d with %d", &p, &v); n == 2 {
			d.votes = append(d.votes, v)
		}
		d.peers = append(d.peers, p)
		lines = lines[1:]
	}
	if all {
		d.need = uint64(len(d.peers) + len(d.parts))
	}
	return d, lines
}

// draw appends the lines of the drawing.
func (d drawn) draw(out []string, first, rest string) []string {
	need := fmt.Sprint(d.need)
	if d.votes == nil && d.need == uint64(len(d.peers)+len(d.parts)) {
		need = "all"
	}
	out = append(out, first+need+" of")
	children := len(d.peers) + len(d.parts)
	for i := range children {
		edge, below := "|-- ", "|   "
		if i == children-1 {
			edge, below = "`-- ", "    "
		}
		switch {
		case d.parts != nil:
			out = d.parts[i].draw(out, rest+edge, rest+below)
		case d.votes != nil:
			out = append(out, fmt.Sprintf("%s%speer %d with %d", rest, edge, d.peers[i], d.votes[i]))
		default:
			out = append(out, fmt.Sprintf("%s%speer %d", rest, edge, d.peers[i]))
		}
	}
	return out
}

// How to read it: one verdict or commit index per op, of a rule built before. The cost of answers is
// their search among the members; the tree itself is a few popcounts.
func BenchmarkQuorum(b *testing.B) {
	var peers []PeerID
	votes := map[PeerID]uint64{}
	for p := range PeerID(130) {
		peers = append(peers, p)
		votes[p] = 1 + uint64(p)%3
	}
	for _, c := range []struct {
		name string
		q    Quorum
	}{
		{"rule=majority/members=3", Majority(peers[:3]...)},
		{"rule=majority/members=7", Majority(peers[:7]...)},
		{"rule=majority/members=64", Majority(peers[:64]...)},
		{"rule=majority/members=130", Majority(peers...)},
		{"rule=weighted/members=130", Weighted(130, votes)},
		{"rule=joint/members=5", AllOf(Majority(peers[:3]...), Majority(peers[2:5]...))},
		{
			"rule=2-of-3-majorities/members=9",
			AtLeastOf(2, Majority(peers[:3]...), Majority(peers[3:6]...), Majority(peers[6:9]...)),
		},
	} {
		members := c.q.Members()
		acked, refused := members[:len(members)/2], members[len(members)-1:]
		b.Run("op=verdict/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.q.Verdict(acked, refused)
			}
		})
		b.Run("op=commit/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			match := func(p PeerID) uint64 { return 1000 + uint64(p)*7%13 }
			for b.Loop() {
				c.q.CommittedIndex(match)
			}
		})
	}
}
