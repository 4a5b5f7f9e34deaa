package waitlist

import (
	"strconv"
	"time"
)

// Callback is told, exactly once, how its entry ended. It runs when the entry is
// out of the list and no lock is held, so it may call anything, Add with the
// same key and Close included.
//
// It runs on the goroutine that ended the entry (the connection's reader that
// called Ack, the sweeper's timer, whoever closes), or where
// [Options].Executor puts it.
//
// If it panics or exits its goroutine, the other callbacks of the same call still run
// first, while the stack unwinds; each exit takes about 1.5 KiB of stack until the call
// is over.
type Callback[K comparable] func(Outcome[K])

// Outcome is how a parked request ended. It is a plain value that shares nothing
// with the list and may be kept.
type Outcome[K comparable] struct {
	Key   K
	End   End       // how it ended; 0: it was never parked
	Err   error     // nil if and only if End is EndReached or EndCompleted
	Value any       // what Complete was given
	Since time.Time // when it was added, on the list's clock
	Tally Tally     // who answered what
}

// End says how an entry ended. There is one counter in [Stats] for each.
type End uint8

// The ways in which an entry ends. Zero is none of them.
const (
	EndReached     End = 1 + iota // the quorum, or the watermark, was reached
	EndCompleted                  // Complete
	EndTimedOut                   // the deadline came first
	EndUnreachable                // the quorum can no longer be reached
	EndFailed                     // Fail, FailFunc, FailAll
	EndTruncated                  // Truncate
	EndSession                    // its session ended
	EndCanceled                   // its Wait's context ended, or its send failed
	EndClosed                     // given back by Shutdown or Close
	numEnds
)

var endNames = [numEnds]string{
	"never parked", "reached", "completed", "timed out", "unreachable", "failed", "truncated",
	"session ended", "canceled", "closed",
}

// String returns the end in words, such as "timed out"; "never parked" for 0.
func (e End) String() string { return enumName("End", endNames[:], uint8(e)) }

// AckResult says what became of one peer's answer.
type AckResult uint8

// What Ack, AckWith and Nack return.
const (
	AckCounted   AckResult = 1 + iota // counted; the entry is still parked
	AckDecided                        // this answer ended the entry, either way, or moved the watermark
	AckDuplicate                      // the peer had already answered, and its first answer stays; but an ack after a refusal counts
	AckNotMember                      // the peer is not in the quorum; nothing was counted
	AckUnknown                        // nothing is parked under the key: it has ended, or never was
)

var ackResultNames = [...]string{"", "counted", "decided", "duplicate", "not a member", "unknown"}

// String returns the result in words, such as "not a member".
func (r AckResult) String() string { return enumName("AckResult", ackResultNames[:], uint8(r)) }

// enumName falls back to the number for a value that has no name.
func enumName(kind string, names []string, v uint8) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return kind + "(" + strconv.Itoa(int(v)) + ")"
}

// Parked is a snapshot of one parked entry.
type Parked[K comparable] struct {
	Key      K
	Since    time.Time
	Deadline time.Time // Since plus its timeout; centuries away for one that never expires
	Tally    Tally
}

// entry is one parked request. It belongs to its shard and is guarded by the
// shard's mutex. Entries lie by value in the shard's slots and are moved to close
// gaps, so nobody outside the shard refers to one by its slot: a *tie, or the
// serial number together with the hash, are the lasting references.
//
// The fields are ordered so that the eight bytes of a small key and all that an
// ack touches come first.
type entry[K comparable] struct {
	key K
	// On a WatermarkList, whose rule is the list's, rule is nil and acked holds the
	// position of the index.
	rule     *rule
	acked    [1]uint64   // members that have acked, by bit; unused for rules of more than 64
	tie      *tie        // nil for most entries: see there
	done     Callback[K] // what to call
	since    int64       // when it was added, in nanoseconds on the list's clock
	deadline int64       // when it expires, on the same clock
	hash     uint32      // WaitingList: where the table finds it
	serial   uint32      // number of its registration in this shard
}

// tie is the part of an entry that most entries do without: answers that carry
// something, rules of more than 64 members, membership in a session, and the
// identity by which a Wait or a session finds its own entry again. A *tie is
// never reused, so a reference to it can outlive the entry without ever
// reaching another one.
type tie struct {
	answers // frozen once the entry has been claimed: tallies share it from then on

	wake bool   // the callback is a Wait's: call it before any other, outside Executor
	slot uint32 // where the entry is, or gone; guarded by the shard's mutex

	// Guarded by session.mu; all nil once out of the session. session itself is
	// written before the entry is published and cleared when it is claimed.
	session    *Session
	holder     holder
	prev, next *tie
}

// tied returns the entry's tie, made if there is none.
func (e *entry[K]) tied() *tie {
	if e.tie == nil {
		e.tie = &tie{}
	}
	return e.tie
}

// gone is the slot of an entry that has been claimed.
const gone = ^uint32(0)

// claim is an entry that somebody took out of its shard: the claimer owns it and
// must call it exactly once. The outcome is made when the entry is claimed (or taken out
// of a lot, which nobody else can reach), well before the callback gets a copy: a processor
// that copies what it has only just written, in pieces of another size, waits for its own
// stores.
type claim[K comparable] struct {
	out   Outcome[K]
	done  Callback[K]
	shard *shard[K]
	wake  bool // see tie
	last  bool // it was the last one in a shard that takes no more
}

// decidedBy notes whose answer ended the entry.
func (c *claim[K]) decidedBy(peer PeerID) {
	c.out.Tally.decider, c.out.Tally.decided = peer, true
	if c.out.End == EndUnreachable {
		c.out.Err = unreachable(c.out.Tally)
	}
}
