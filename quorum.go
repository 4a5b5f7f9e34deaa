package waitlist

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
)

// PeerID names a peer: a replica, a shard, a worker. Any value serves, 0 included.
// [Roster] gives ids to peers that have names of another type.
type PeerID uint64

// Quorum is a rule that says which peers are enough. Build one with [Majority], [All], [AtLeast] or
// [Weighted], and join rules with [AllOf] or [AtLeastOf]; [External] is the rule that no peer decides.
//
// A rule is a threshold tree: each leaf is a peer, and each node needs some number (or some weight) of
// its children. That covers counted and weighted voting (Gifford 1979), joint consensus (Raft,
// Ongaro 2014) and hierarchical quorums (Kumar 1991) with one evaluator. More answers never undo a
// rule that is met.
//
// A mistake in a rule does not panic: the rule is invalid, [Quorum.Err] tells the reason, and lists
// refuse it. The zero value is invalid.
//
// A Quorum never changes and keeps nothing of its caller's slices and maps, so it may be shared by any
// number of goroutines and lists. Building one sorts and allocates; using one of up to 64 members
// allocates nothing. Quorums cannot be compared with ==.
type Quorum struct {
	_    [0]func() // two equal rules may be built apart: == would answer the wrong question
	rule *rule     // nil: the zero value
}

// Verdict is what the answers so far mean for a rule.
type Verdict uint8

const (
	Undecided   Verdict = 1 + iota // more answers may still decide either way
	Reached                        // those that acked are enough
	Unreachable                    // not enough, even if all that have not refused ack
)

// String returns the verdict in lower case, or its number if it is none of the above.
func (v Verdict) String() string {
	switch v {
	case Undecided:
		return "undecided"
	case Reached:
		return "reached"
	case Unreachable:
		return "unreachable"
	}
	return "Verdict(" + strconv.Itoa(int(v)) + ")"
}

// Majority is met by more than half of the peers. It is invalid if there are none, or one is repeated.
func Majority(peers ...PeerID) Quorum { return AtLeast(len(peers)/2+1, peers...) }

// All is met when every one of the peers has acked. It is invalid if there are none, or one is repeated.
func All(peers ...PeerID) Quorum { return AtLeast(len(peers), peers...) }

// AtLeast is met by any n of the peers. It is invalid if there are no peers, if one is repeated, if n is
// below 1 or if n is more than there are peers.
func AtLeast(n int, peers ...PeerID) Quorum {
	members := slices.Clone(peers) // the caller may reuse its slice
	slices.Sort(members)
	switch {
	case len(members) == 0:
		return invalid("no peers")
	case n < 1:
		return invalid("needs %d of %d peers, but a rule needs at least 1", n, len(members))
	case n > len(members):
		return invalid("needs %d of only %d peers", n, len(members))
	}
	for i, p := range members[1:] {
		if p == members[i] {
			return invalid("peer %d is repeated", p)
		}
	}
	return counted(n, members)
}

// Weighted is met by peers that have at least need votes together (Gifford's weighted voting). A peer
// with no votes is a member, so its answers are in the tally (those of remote replicas under a local
// quorum, say), but it decides nothing. The rule is invalid if need is 0, if there are no peers, if all
// votes together are less than need or overflow a uint64.
func Weighted(need uint64, votes map[PeerID]uint64) Quorum {
	members := slices.Sorted(maps.Keys(votes))
	if len(members) == 0 {
		return invalid("no peers")
	}
	var total, carry uint64
	equal := true
	leaves := make([]leaf, len(members))
	for i, p := range members {
		v := votes[p]
		if total, carry = bits.Add64(total, v, 0); carry != 0 {
			return invalid("the votes together overflow 64 bits")
		}
		leaves[i] = leaf{at: i, votes: v}
		equal = equal && v == 1
	}
	switch {
	case need == 0:
		return invalid("needs 0 votes, but a rule needs at least 1")
	case need > total:
		return invalid("needs %d votes, but all peers together have %d", need, total)
	case equal:
		return counted(int(need), members) // the same rule, evaluated faster
	}
	return Quorum{rule: &rule{members: members, root: node{need: need, leaves: leaves}}}
}

// AllOf is met when every part is. With the old and the new membership as its parts it is Raft's joint
// consensus; with one majority for each data centre it is Cassandra's EACH_QUORUM. A peer may be in
// several parts and its answer counts in each. The rule is invalid if there are no parts, or if a part
// is invalid or external: an empty side is a mistake, never met by default.
func AllOf(parts ...Quorum) Quorum { return AtLeastOf(len(parts), parts...) }

// AtLeastOf is met when any n of the parts are: hierarchical quorums (Kumar), or some of several fault
// domains; with n = 1, any of them. A peer may be in several parts and its answer counts in each. The
// rule is invalid if there are no parts, if n is below 1 or more than there are parts, or if a part is
// invalid or external, also when the others would be enough.
func AtLeastOf(n int, parts ...Quorum) Quorum {
	switch {
	case len(parts) == 0:
		return invalid("no parts")
	case n < 1:
		return invalid("needs %d of %d parts, but a rule needs at least 1", n, len(parts))
	case n > len(parts):
		return invalid("needs %d of only %d parts", n, len(parts))
	}
	var members []PeerID
	for i, q := range parts {
		switch {
		case q.fault() != "":
			return invalid("part %d of %d: %s", i+1, len(parts), q.fault())
		case q.rule.external:
			return invalid("part %d of %d is external, which only a whole rule can be", i+1, len(parts))
		}
		members = append(members, q.rule.members...)
	}
	if len(parts) == 1 {
		return parts[0] // all of one and any of one are that one
	}
	slices.Sort(members)
	r := &rule{members: slices.Clip(slices.Compact(members))}
	r.root = node{need: uint64(n), parts: make([]node, len(parts))}
	for i, q := range parts {
		to := make([]int, len(q.rule.members))
		for at, p := range q.rule.members {
			to[at] = r.index(p)
		}
		r.root.parts[i] = q.rule.root.moved(to, r.words())
	}
	return Quorum{rule: r}
}

// External is the rule of a request that no peer decides: [WaitingList.Complete], [WaitingList.Fail]
// and their kin do, or [WatermarkList.Advance]. It has no members, its verdict is always [Undecided],
// and its commit index is 0. It cannot be part of another rule.
func External() Quorum { return external }

var external = Quorum{rule: &rule{external: true, root: nobody}}

// Err returns nil if the rule is sound. Otherwise the error matches [ErrInvalidQuorum] and says what is
// wrong, and where if the fault is in a part. A sound rule is met if all of its members ack (an external
// one, by other means), so Err also covers rules that could never be met.
func (q Quorum) Err() error {
	if q.rule == nil {
		return faultError("the zero value is not a rule")
	}
	return q.rule.err
}

// Members returns the peers that the rule names, sorted and without repeats, members without a vote
// included. The slice is the caller's. An external or invalid rule has none.
func (q Quorum) Members() []PeerID {
	if q.rule == nil {
		return nil
	}
	return slices.Clone(q.rule.members)
}

// Verdict tells what the answers mean: [Reached] if the peers that acked are enough, [Unreachable] if
// even all peers that have not refused would not be, else [Undecided]. It is exact: neither is ever told
// one answer too early or too late. A peer in both lists has acked; repeats and peers that are not
// members change nothing. An invalid rule is Unreachable, an external one Undecided.
//
// Cost: a search for each answer, then one walk of the tree (one popcount for a counted rule) for each
// list.
func (q Quorum) Verdict(acked, refused []PeerID) Verdict {
	r := q.rule
	if r == nil {
		return Unreachable
	}
	var buf [2]uint64
	yes, no := buf[:1], buf[1:]
	if n := r.words(); n > 1 {
		yes, no = make([]uint64, n), make([]uint64, n)
	}
	r.mark(yes, acked)
	r.mark(no, refused)
	for i := range no {
		no[i] &^= yes[i]
	}
	switch {
	case r.reached(yes):
		return Reached
	case r.possible(no):
		return Undecided
	}
	return Unreachable
}

// CommittedIndex returns the largest index that members enough for the rule hold, where match tells up
// to which index a member holds everything (0: nothing). For a majority that is the median, as in Raft;
// for the parts of a larger rule, the n-th largest of theirs. It is 0 if the rule is invalid or
// external.
//
// It calls match once for each member, in ascending order of id, and keeps it no longer than the call;
// a nil match panics. Cost: one scan of the members for each distinct index above the result and at it;
// beyond 64 members, a sort.
func (q Quorum) CommittedIndex(match func(PeerID) uint64) uint64 {
	if q.rule == nil {
		return 0
	}
	members := q.rule.members
	var buf [wordBits]uint64
	held := buf[:]
	if len(members) > len(buf) {
		held = make([]uint64, len(members))
	}
	for i, p := range members {
		held[i] = match(p)
	}
	return q.rule.committed(held[:len(members)])
}

// String draws the tree on one line, members sorted and parts in the order given: "2 of {1 2 3}",
// "5 of {1:3 2:2}" with votes, "all of (2 of {1 2 3}, 1 of {4})", "external", "invalid: no peers".
func (q Quorum) String() string {
	switch reason := q.fault(); {
	case reason != "":
		return "invalid: " + reason
	case q.rule.external:
		return "external"
	}
	return string(q.rule.root.append(nil, q.rule.members))
}

// fault returns why the rule is invalid, "" if it is not.
func (q Quorum) fault() string {
	reason, _ := q.Err().(faultError)
	return string(reason)
}

// faultError is the reason why a rule is invalid. A part's reason is quoted in the whole's, so the text
// stays without the sentinel's until it is asked for.
type faultError string

func (e faultError) Error() string { return ErrInvalidQuorum.Error() + ": " + string(e) }
func (e faultError) Unwrap() error { return ErrInvalidQuorum }

func invalid(format string, args ...any) Quorum {
	return Quorum{rule: &rule{err: faultError(fmt.Sprintf(format, args...)), root: nobody}}
}
