package raftcheck

import (
	"errors"
	"flag"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/waitlist-go/waitlist"
	"go.etcd.io/raft/v3/quorum"
)

var (
	cases = flag.Int("cases", 200_000, "how many random cases to compare")
	seed  = flag.Uint64("seed", 1, "of the random cases")
)

// acked tells etcd what the voters hold.
type acked map[uint64]quorum.Index

func (a acked) AckedIndex(id uint64) (quorum.Index, bool) {
	index, ok := a[id]
	return index, ok
}

// match tells waitlist the same.
func (a acked) match(id waitlist.PeerID) uint64 { return uint64(a[uint64(id)]) }

// half makes up one half of a configuration, the ids from a small range so that the
// halves overlap.
func half(rng *rand.Rand, atLeast int) quorum.MajorityConfig {
	size := atLeast + rng.IntN(8)
	if rng.IntN(200) == 0 {
		size = 60 + rng.IntN(20) // about as many as there are bits in a word
	}
	c := quorum.MajorityConfig{}
	for len(c) < size {
		c[rng.Uint64N(uint64(size)+5)] = struct{}{}
	}
	return c
}

// rule is the same half for waitlist.
func rule(c quorum.MajorityConfig) waitlist.Quorum {
	var peers []waitlist.PeerID
	for id := range c {
		peers = append(peers, waitlist.PeerID(id))
	}
	return waitlist.Majority(peers...)
}

// joint is the same configuration for waitlist. Not both halves are empty.
func joint(c quorum.JointConfig) waitlist.Quorum {
	switch {
	case len(c[0]) == 0:
		return rule(c[1])
	case len(c[1]) == 0:
		return rule(c[0])
	}
	return waitlist.AllOf(rule(c[0]), rule(c[1]))
}

// answers makes up what the voters hold and how they vote; voters that are left out
// hold nothing known and have not voted.
func answers(rng *rand.Rand, voters map[uint64]struct{}) (holds acked, votes map[uint64]bool) {
	holds, votes = acked{}, map[uint64]bool{}
	highest := []uint64{1, 3, 20, math.MaxUint64}[rng.IntN(4)]
	silent, yes := rng.Float64(), rng.Float64()
	for _, id := range slices.Sorted(maps.Keys(voters)) {
		if rng.Float64() >= silent {
			holds[id] = quorum.Index(rng.Uint64N(highest))
			if rng.IntN(20) == 0 {
				holds[id] = quorum.Index(highest)
			}
		}
		if rng.Float64() >= silent {
			votes[id] = rng.Float64() < yes
		}
	}
	stranger := uint64(1000 + rng.IntN(3)) // has no say
	holds[stranger], votes[stranger] = math.MaxUint64, rng.IntN(2) == 0
	return holds, votes
}

func verdict(r quorum.VoteResult) waitlist.Verdict {
	switch r {
	case quorum.VoteWon:
		return waitlist.Reached
	case quorum.VoteLost:
		return waitlist.Unreachable
	}
	return waitlist.Undecided
}

func TestVerdictsAndCommitIndexesAreThoseOfRaft(t *testing.T) {
	t.Logf("-seed=%d -cases=%d", *seed, *cases)
	rng := rand.New(rand.NewPCG(*seed, 0))
	seen := map[waitlist.Verdict]int{}
	singles, joints, committed := 0, 0, 0
	for i := range *cases {
		var config quorum.JointConfig
		switch i % 4 {
		case 0:
			config = quorum.JointConfig{half(rng, 1), {}}
		case 1:
			config = quorum.JointConfig{{}, half(rng, 1)}
		default:
			config = quorum.JointConfig{half(rng, 1), half(rng, 1)}
		}
		if len(config[0]) == 0 || len(config[1]) == 0 {
			singles++
		} else {
			joints++
		}
		holds, votes := answers(rng, config.IDs())
		q := joint(config)
		if err := q.Err(); err != nil {
			t.Fatalf("case %d, %v: %v", i, config, err)
		}

		want := uint64(config.CommittedIndex(holds))
		if got := q.CommittedIndex(holds.match); got != want {
			t.Fatalf("case %d, %v, holding %v: commit index %d, want %d", i, config, holds, got, want)
		}
		if want > 0 {
			committed++
		}

		var yes, no []waitlist.PeerID
		for id, vote := range votes {
			if vote {
				yes = append(yes, waitlist.PeerID(id))
			} else {
				no = append(no, waitlist.PeerID(id))
			}
		}
		result := verdict(config.VoteResult(votes))
		if got := q.Verdict(yes, no); got != result {
			t.Fatalf("case %d, %v, votes %v: %v, want %v", i, config, votes, got, result)
		}
		seen[result]++
	}
	t.Logf("%d single, %d joint, %d committed something, verdicts %v", singles, joints, committed, seen)
	for _, n := range []int{singles, joints, committed, seen[waitlist.Reached], seen[waitlist.Undecided], seen[waitlist.Unreachable]} {
		if n < *cases/20 {
			t.Error("the cases are one-sided")
		}
	}
}

// The watermark follows the commit index while voters acknowledge and the
// configuration changes through a joint one.
func TestWatermarkIsTheHighestCommitIndexOfRaft(t *testing.T) {
	rng := rand.New(rand.NewPCG(*seed, 1))
	for i := range max(1, *cases/200) {
		var config quorum.JointConfig
		w := waitlist.NewWatermarkList[uint64](0, waitlist.Options{ManualSweep: true})
		holds := acked{}
		mark := quorum.Index(0)
		parked := 0
		for step := range 100 {
			if step%25 == 0 {
				next := half(rng, 1)
				switch {
				case step == 0 || rng.IntN(2) == 0:
					config = quorum.JointConfig{next, {}}
				default:
					config = quorum.JointConfig{config[0], next}
				}
				maps.DeleteFunc(holds, func(id uint64, _ quorum.Index) bool {
					_, stays := config.IDs()[id]
					return !stays
				})
				if _, err := w.SetQuorum(joint(config)); err != nil {
					t.Fatal(err)
				}
			} else {
				voters := slices.Sorted(maps.Keys(config.IDs()))
				id := voters[rng.IntN(len(voters))]
				index := mark + quorum.Index(rng.IntN(20))
				if w.Ack(uint64(index), waitlist.PeerID(id)) == waitlist.AckNotMember {
					t.Fatalf("case %d: %d is a voter of %v", i, id, config)
				}
				holds[id] = max(holds[id], index)
			}
			mark = max(mark, config.CommittedIndex(holds))
			if got := w.Watermark(); got != uint64(mark) {
				t.Fatalf("case %d, step %d, %v, holding %v: mark %d, want %d", i, step, config, holds, got, mark)
			}
			index := uint64(mark) + rng.Uint64N(30) + 1
			parked++
			if err := w.Add(index, func(out waitlist.Outcome[uint64]) {
				parked--
				if out.Key > w.Watermark() {
					t.Errorf("%d completed at %d", out.Key, w.Watermark())
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if parked != w.Len() {
			t.Fatalf("case %d: %d parked, want %d", i, w.Len(), parked)
		}
	}
}

func TestAnEmptyHalfIsWonForRaftAndInvalidHere(t *testing.T) {
	var nobody quorum.JointConfig
	if r := nobody.VoteResult(nil); r != quorum.VoteWon {
		t.Errorf("raft says %v", r)
	}
	for _, q := range []waitlist.Quorum{
		waitlist.Majority(),
		waitlist.AllOf(waitlist.Majority(1, 2, 3), waitlist.Majority()),
	} {
		if !errors.Is(q.Err(), waitlist.ErrInvalidQuorum) || q.Verdict([]waitlist.PeerID{1, 2, 3}, nil) != waitlist.Unreachable {
			t.Errorf("%v: must be invalid, and never met", q)
		}
	}
}
