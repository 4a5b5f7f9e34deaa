package waitlist

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Tally tells who has answered an entry, and what. It is an immutable snapshot
// and may be kept for ever, by any number of goroutines.
type Tally struct {
	rule    *rule
	acked   uint64   // members that acked, by bit; unused for rules of more than 64
	answers *answers // nil if no answer carried anything
	decider PeerID
	decided bool
}

// answers is what an entry knows of its peers' answers beyond the acks of its
// first 64 members.
type answers struct {
	refused [1]uint64 // members that refused and have not acked since, by bit
	wide    []uint64  // rules of more than 64 members: the words of acked, then those of refused
	log     []answer  // what answers carried, in order of arrival
}

// answer is what one answer carried: a reason if the peer refused, else a payload.
type answer struct {
	peer    PeerID
	payload any
	reason  error
}

// Acked yields the members that have acknowledged, in ascending order. On a
// WatermarkList they are the members known to hold everything up to the key.
func (t Tally) Acked() iter.Seq[PeerID] {
	return t.members(func(i int) bool { return t.hasAcked(i) })
}

// Missing yields the members that have not answered, in ascending order: the
// ones to send a hint to, or to blame. In a successful outcome they have only not
// answered yet.
func (t Tally) Missing() iter.Seq[PeerID] {
	return t.members(func(i int) bool { return !t.hasAcked(i) && !t.hasRefused(i) })
}

// Refused yields the members whose answer is a refusal, with their reasons, in
// order of arrival. A peer that acked after refusing is not among them.
func (t Tally) Refused() iter.Seq2[PeerID, error] {
	return func(yield func(PeerID, error) bool) {
		if t.answers == nil {
			return
		}
		for _, a := range t.answers.log {
			if a.reason != nil && t.hasRefused(t.rule.index(a.peer)) && !yield(a.peer, a.reason) {
				return
			}
		}
	}
}

// Responses yields the payloads given with AckWith, in order of arrival.
func (t Tally) Responses() iter.Seq2[PeerID, any] {
	return func(yield func(PeerID, any) bool) {
		if t.answers == nil {
			return
		}
		for _, a := range t.answers.log {
			if a.payload != nil && !yield(a.peer, a.payload) {
				return
			}
		}
	}
}

// Decider returns the peer whose answer ended the entry, if an answer did.
func (t Tally) Decider() (PeerID, bool) { return t.decider, t.decided }

// Quorum returns the rule that the answers are counted under. On a WatermarkList
// without one, and in an outcome of a request that was never parked, it is the
// zero Quorum.
func (t Tally) Quorum() Quorum { return Quorum{rule: t.rule} }

// String returns the tally on one line, for logs: the rule, who acked and who refused.
func (t Tally) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%v: acked %d", t.Quorum(), slices.Collect(t.Acked()))
	for peer, reason := range t.Refused() {
		fmt.Fprintf(&text, ", %d refused (%v)", peer, reason)
	}
	return text.String()
}

// members yields the members that pass the test.
func (t Tally) members(test func(i int) bool) iter.Seq[PeerID] {
	return func(yield func(PeerID) bool) {
		if t.rule == nil {
			return
		}
		for i, peer := range t.rule.members {
			if test(i) && !yield(peer) {
				return
			}
		}
	}
}

func (t Tally) hasAcked(i int) bool {
	if t.answers != nil && t.answers.wide != nil {
		return has(t.answers.wide, i)
	}
	return t.acked>>i&1 != 0
}

func (t Tally) hasRefused(i int) bool {
	switch {
	case t.answers == nil:
		return false
	case t.answers.wide != nil:
		return has(t.answers.wide[len(t.answers.wide)/2:], i)
	}
	return has(t.answers.refused[:], i)
}

// clone returns a copy that later answers to the entry do not change. The log is
// only ever appended to, so the copy can share what is there.
func (a *answers) clone() *answers {
	return &answers{refused: a.refused, wide: slices.Clone(a.wide), log: slices.Clip(a.log)}
}

// words returns the sets of members that acked and that refused. The second is nil
// if nobody can have refused yet.
func (e *entry[K]) words() (acked, refused []uint64) {
	switch {
	case e.tie == nil:
		return e.acked[:], nil
	case e.tie.wide == nil:
		return e.acked[:], e.tie.refused[:]
	}
	n := len(e.tie.wide) / 2
	return e.tie.wide[:n], e.tie.wide[n:]
}
