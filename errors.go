package waitlist

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// The errors of this package. Match them with [errors.Is]; the errors that are
// returned may say more than the sentinel alone.
//
// Every error of Add, and of a Wait whose outcome has no End, matches
// ErrNotParked besides its reason. An error in an [Outcome] whose End is set
// never came from a refusal, whatever else it matches: ask Outcome.End, and not
// the error, how an entry ended.
var (
	// ErrNotParked is matched by every error that says that nothing was parked
	// and that no callback will be called.
	ErrNotParked = errors.New(prefix + "not parked")

	// ErrDuplicateKey refuses an Add whose key is already parked. The entry that
	// is parked is untouched.
	ErrDuplicateKey = errors.New(prefix + "key is already parked")

	// ErrInvalidQuorum refuses a rule that makes no sense or can never be met.
	ErrInvalidQuorum = errors.New(prefix + "invalid quorum")

	// ErrFull refuses an Add beyond Options.Capacity.
	ErrFull = errors.New(prefix + "capacity is used up")

	// ErrNilCallback refuses an Add without a callback.
	ErrNilCallback = errors.New(prefix + "nil callback")

	// ErrClosed refuses an Add to a list that shuts down, and ends the entries
	// that Shutdown or Close gives back.
	ErrClosed = errors.New(prefix + "list is closed")

	// ErrTimeout refuses an Add that has no time left, and ends the entries whose
	// deadline has come; who refused until then is in the outcome's Tally. It has a
	// method Timeout() bool that returns true, as the timeouts of package net do.
	ErrTimeout error = timeoutError{}

	// ErrSessionEnded refuses an Add into an ended Session and ends the entries
	// that a Session still held. Such errors match the cause given to
	// Session.End too.
	ErrSessionEnded = errors.New(prefix + "session ended")

	// ErrUnreachable ends an entry whose quorum can no longer be reached. The
	// error's Unwrap() []error lists the reasons of the peers that refused, in
	// order of arrival, and nothing else.
	ErrUnreachable = errors.New(prefix + "quorum is unreachable")

	// ErrTruncated ends the entries of a WatermarkList that Truncate cuts off.
	// Such errors match the cause given to Truncate too.
	ErrTruncated = errors.New(prefix + "truncated")

	// ErrNoReason stands in for a nil error or reason, in any call: only a met
	// condition gives a nil Outcome.Err.
	ErrNoReason = errors.New(prefix + "no reason given")

	// ErrReached refuses a Truncate at or below the watermark.
	ErrReached = errors.New(prefix + "watermark has already reached the index")
)

// prefix begins the text of every error of this package, once.
const prefix = "waitlist: "

// bare is the text of an error that becomes part of another one.
func bare(err error) string { return strings.TrimPrefix(err.Error(), prefix) }

type timeoutError struct{}

func (timeoutError) Error() string { return prefix + "timed out" }
func (timeoutError) Timeout() bool { return true }

// orNoReason gives an error that a caller left out.
func orNoReason(err error) error {
	if err == nil {
		return ErrNoReason
	}
	return err
}

// refusal is the error of an Add that parked nothing.
type refusal struct{ reason error }

func (r *refusal) Error() string        { return ErrNotParked.Error() + ": " + bare(r.reason) }
func (r *refusal) Unwrap() error        { return r.reason }
func (r *refusal) Is(target error) bool { return target == ErrNotParked }

// The refusals without details are made once, so that a full or closed list
// sheds load without making garbage.
var (
	refusedDuplicate = &refusal{ErrDuplicateKey}
	refusedFull      = &refusal{ErrFull}
	refusedNil       = &refusal{ErrNilCallback}
	refusedClosed    = &refusal{ErrClosed}
	refusedTimeout   = &refusal{ErrTimeout}
)

// causedError is a sentinel of this package together with what the caller gave
// as its cause. It matches both.
type causedError struct{ kind, cause error }

func (e *causedError) Error() string   { return e.kind.Error() + ": " + bare(e.cause) }
func (e *causedError) Unwrap() []error { return []error{e.kind, e.cause} }

func caused(kind, cause error) error { return &causedError{kind, orNoReason(cause)} }

// unreachableError ends an entry whose quorum the refusals have put out of reach. It
// holds the refusals and not the tally: an error that somebody keeps must not keep
// payloads.
type unreachableError struct{ refusals []answer }

func unreachable(t Tally) error {
	e := &unreachableError{}
	for peer, reason := range t.Refused() {
		e.refusals = append(e.refusals, answer{peer: peer, reason: reason})
	}
	return e
}

func (e *unreachableError) Error() string {
	var text strings.Builder
	text.WriteString(ErrUnreachable.Error())
	for _, r := range e.refusals {
		fmt.Fprintf(&text, "; peer %d: %s", r.peer, bare(r.reason))
	}
	return text.String()
}

func (e *unreachableError) Is(target error) bool { return target == ErrUnreachable }

func (e *unreachableError) Unwrap() (reasons []error) {
	for _, r := range e.refusals {
		reasons = append(reasons, r.reason)
	}
	return reasons
}

// contextError matches a finished context's error and its cause.
func contextError(ctx context.Context) error {
	err, cause := orNoReason(ctx.Err()), context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) { // not ==: an error need not be comparable
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
