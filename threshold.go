package waitlist

import (
	"math/bits"
	"slices"
	"sort"
	"strconv"
)

const (
	wordBits   = 64 // members whose bits fit one word
	fewMembers = 32 // members up to which a scan is faster than a search
)

// rule is what a Quorum points to. Written once, before it is shared.
type rule struct {
	err      error // why invalid (wraps ErrInvalidQuorum); nil if sound
	external bool
	members  []PeerID // sorted, unique; a peer's position here is its bit in the word sets below
	need     int      // > 0: need of all the members, each one vote, at most 64 of them: one popcount decides
	root     node     // the whole rule, also if need > 0
}

// node is met if what its children bring comes to need: the set bits under mask one each, a leaf its
// votes, a part that is met one. Invariant: it has children of one kind only, need is at least 1 (so
// nothing is met by an empty set), and all children together bring at least need without overflow.
// The exception is nobody.
type node struct {
	need   uint64
	mask   []uint64 // one bit for each member with one vote; len is the rule's words
	leaves []leaf
	parts  []node
}

type leaf struct {
	at    int // position in the rule's members
	votes uint64
}

// nobody is the tree of rules that peers cannot meet: it has no children.
var nobody = node{need: 1}

// counted returns the rule that n of the members, sorted and unique, meet.
func counted(n int, members []PeerID) Quorum {
	r := &rule{members: members}
	r.root = node{need: uint64(n), mask: make([]uint64, r.words())}
	r.mark(r.root.mask, members)
	if len(members) <= wordBits {
		r.need = n
	}
	return Quorum{rule: r}
}

// index returns p's position in members, or -1.
func (r *rule) index(p PeerID) int {
	if len(r.members) > fewMembers {
		if i, ok := slices.BinarySearch(r.members, p); ok {
			return i
		}
		return -1
	}
	for i, m := range r.members {
		if m == p {
			return i
		}
	}
	return -1
}

// bit returns p's bit in the only word of a set, or 0 if p is not among the members, of which
// there are at most wordBits.
func (r *rule) bit(p PeerID) uint64 {
	for i, m := range r.members {
		if m == p {
			return 1 << i
		}
	}
	return 0
}

// words returns how many words a set of members takes.
func (r *rule) words() int { return (len(r.members) + wordBits - 1) / wordBits }

// mark adds those of the peers that are members to set.
func (r *rule) mark(set []uint64, peers []PeerID) {
	for _, p := range peers {
		if i := r.index(p); i >= 0 {
			put(set, i)
		}
	}
}

// reached reports whether the members in set meet the rule; set has words() words and no other bits.
func (r *rule) reached(set []uint64) bool {
	if r.need > 0 {
		return bits.OnesCount64(set[0]) >= r.need
	}
	return r.root.met(set, 0)
}

// possible reports whether the members that are not in refused could still meet the rule. Since rules
// are monotone, asking for all of them at once answers for all their subsets.
func (r *rule) possible(refused []uint64) bool {
	if r.need > 0 {
		return len(r.members)-bits.OnesCount64(refused[0]) >= r.need
	}
	return r.external || r.root.met(refused, ^uint64(0))
}

// met evaluates the tree over set, or over its complement if flip is all ones: that spares possible a
// copy. Bits that the complement sets beyond the last member are under no mask.
func (n *node) met(set []uint64, flip uint64) bool {
	var got uint64
	for i, m := range n.mask {
		got += uint64(bits.OnesCount64((set[i] ^ flip) & m))
	}
	for _, l := range n.leaves {
		got += l.votes * ((set[l.at/wordBits] ^ flip) >> (l.at % wordBits) & 1)
	}
	for i := range n.parts {
		if got+uint64(len(n.parts)-i) < n.need {
			return false // not even if all the others are met
		}
		if n.parts[i].met(set, flip) {
			got++
		}
		if got >= n.need {
			return true
		}
	}
	return got >= n.need
}

// committed returns the largest v > 0 such that the members whose match is v or more meet the rule, else
// 0; match[i] belongs to members[i]. Members join the set from the furthest ahead downwards, those with
// equal matches together. Measured against sorting and bisecting, a scan for each distinct match costs a
// third for 3 members, half for 64, and about as much in between.
func (r *rule) committed(match []uint64) uint64 {
	if len(match) == 0 {
		return 0 // invalid or external
	}
	if len(match) > wordBits {
		return r.committedMany(match)
	}
	var set [1]uint64
	for v := slices.Max(match); v > 0; {
		var next uint64
		for i, m := range match {
			if m == v {
				set[0] |= 1 << i
			} else if m < v {
				next = max(next, m)
			}
		}
		if r.reached(set[:]) {
			return v
		}
		v = next
	}
	return 0
}

// committedMany is committed by bisection, which with many members needs far fewer scans: the lower v
// is, the more members hold it, so the matches that are committed come first in ascending order.
func (r *rule) committedMany(match []uint64) uint64 {
	sorted := slices.Clone(match)
	slices.Sort(sorted)
	set := make([]uint64, r.words())
	n := sort.Search(len(sorted), func(i int) bool {
		clear(set)
		for at, m := range match {
			if m >= sorted[i] {
				put(set, at)
			}
		}
		return !r.reached(set)
	})
	return sorted[n-1] // n > 0: all members together meet any sound rule
}

// moved returns a copy of the tree for a rule of the given words in which position i has become to[i].
func (n *node) moved(to []int, words int) node {
	m := node{need: n.need}
	if n.mask != nil {
		m.mask = make([]uint64, words)
	}
	for at, t := range to {
		if has(n.mask, at) {
			put(m.mask, t)
		}
	}
	for _, l := range n.leaves {
		m.leaves = append(m.leaves, leaf{at: to[l.at], votes: l.votes})
	}
	for i := range n.parts {
		m.parts = append(m.parts, n.parts[i].moved(to, words))
	}
	return m
}

// append adds the tree to b as String draws it.
func (n *node) append(b []byte, members []PeerID) []byte {
	if n.need == uint64(len(n.parts)) {
		b = append(b, "all of "...)
	} else {
		b = append(strconv.AppendUint(b, n.need, 10), " of "...)
	}
	sep := "("
	for i := range n.parts {
		b = n.parts[i].append(append(b, sep...), members)
		sep = ", "
	}
	if n.parts != nil {
		return append(b, ')')
	}
	sep = "{"
	for at, p := range members {
		if has(n.mask, at) {
			b = strconv.AppendUint(append(b, sep...), uint64(p), 10)
			sep = " "
		}
	}
	for _, l := range n.leaves {
		b = strconv.AppendUint(append(b, sep...), uint64(members[l.at]), 10)
		b = strconv.AppendUint(append(b, ':'), l.votes, 10)
		sep = " "
	}
	return append(b, '}')
}

// Sets of members are words of bits. A nil set is empty and stays so.

func has(set []uint64, at int) bool {
	return set != nil && set[at/wordBits]>>(at%wordBits)&1 != 0
}

func put(set []uint64, at int) { set[at/wordBits] |= 1 << (at % wordBits) }

func drop(set []uint64, at int) {
	if set != nil {
		set[at/wordBits] &^= 1 << (at % wordBits)
	}
}
