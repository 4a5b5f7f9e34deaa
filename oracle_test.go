package waitlist

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
)

// oracle is a second implementation of what a list does to its entries, as simple as it can be: a slice that
// every call scans in full. It calls nobody. A call of the real list makes it claim what that call
// has to claim; then each callback that the real list calls must be one that was claimed, once, with the
// outcome that was foreseen.
type oracle[K comparable] struct {
	capacity int
	now      func() time.Duration
	view     func(r *registration[K]) view // who has answered

	parked  []*registration[K]           // in order of registration
	ended   map[*registration[K]]*ending // claimed, and the callback has not begun
	running int                          // claimed, and the callback is not back; Waits have none
	books   Stats                        // without Parked and Running
	closed  bool
	causes  map[*Session]error // of the sessions that have ended
}

// life is what the oracle knows of a registration.
type life struct {
	acked     map[PeerID]bool
	refused   map[PeerID]bool
	reasons   []said // of those that refused, in order of arrival
	responses []said

	since, deadline time.Duration
	in              *Session
}

type said struct {
	peer PeerID
	what any
}

// view is a Tally that can be compared.
type view struct {
	acked, missing     []PeerID
	refused, responses []said
	decider            PeerID
	decided            bool
	rule               string
}

func viewOf(t Tally) view {
	v := view{acked: slices.Collect(t.Acked()), missing: slices.Collect(t.Missing()), rule: t.Quorum().String()}
	for peer, reason := range t.Refused() {
		v.refused = append(v.refused, said{peer, reason})
	}
	for peer, response := range t.Responses() {
		v.responses = append(v.responses, said{peer, response})
	}
	v.decider, v.decided = t.Decider()
	return v
}

// ending is how an entry has to end.
type ending struct {
	end     End
	value   any
	match   []error // what its Err must match
	exact   error   // what its Err must be, if not nil
	reasons []error // of an ErrUnreachable
	since   time.Duration
	view    view
}

var sentinels = []error{
	ErrNotParked, ErrDuplicateKey, ErrInvalidQuorum, ErrFull, ErrNilCallback, ErrClosed, ErrTimeout,
	ErrSessionEnded, ErrUnreachable, ErrTruncated, ErrNoReason, ErrReached,
}

// matchesOnly tells whether err matches all of the wanted errors and no sentinel that none of them matches.
func matchesOnly(err error, wanted ...error) error {
	if (err == nil) != (len(wanted) == 0) {
		return fmt.Errorf("error %v, want %v", err, wanted)
	}
	for _, w := range wanted {
		if !errors.Is(err, w) {
			return fmt.Errorf("error %v does not match %v", err, w)
		}
	}
	for _, s := range sentinels {
		if errors.Is(err, s) && !slices.ContainsFunc(wanted, func(w error) bool { return errors.Is(w, s) }) {
			return fmt.Errorf("error %v matches %v", err, s)
		}
	}
	return nil
}

// check compares an outcome with the one foreseen.
func (e *ending) check(out any, end End, err error, value any, since time.Time, tally Tally) error {
	switch got := viewOf(tally); {
	case end != e.end:
		return fmt.Errorf("%+v: ended as %v, want %v", out, end, e.end)
	case value != e.value:
		return fmt.Errorf("%+v: value %v, want %v", out, value, e.value)
	case !since.Equal(epoch.Add(e.since)):
		return fmt.Errorf("%+v: since %v, want %v", out, since.Sub(epoch), e.since)
	case !reflect.DeepEqual(got, e.view):
		return fmt.Errorf("%v: tally %+v, want %+v", end, got, e.view)
	case e.exact != nil && err != e.exact:
		return fmt.Errorf("%v: error %v, want exactly %v", end, err, e.exact)
	}
	if timeout, ok := err.(interface{ Timeout() bool }); end == EndTimedOut && !(ok && timeout.Timeout()) {
		return fmt.Errorf("%v is no timeout as package net has them", err)
	}
	if err := matchesOnly(err, e.match...); err != nil {
		return fmt.Errorf("%v: %w", end, err)
	}
	if end == EndUnreachable {
		many, _ := err.(interface{ Unwrap() []error })
		if many == nil || !slices.Equal(many.Unwrap(), e.reasons) {
			return fmt.Errorf("unreachable for %v, want the reasons %v", err, e.reasons)
		}
	}
	return nil
}

func orNone(err error) error {
	if err == nil {
		return ErrNoReason
	}
	return err
}

// refusal tells what both lists have to check first, up to what the lists have of their own.
func (o *oracle[K]) refusal(r *registration[K]) []error {
	switch cause, ended := o.causes[r.in]; {
	case o.closed:
		return []error{ErrClosed}
	case ended && r.in != nil:
		return []error{ErrSessionEnded, cause}
	}
	return nil
}

func (o *oracle[K]) full() bool { return o.capacity > 0 && len(o.parked) >= o.capacity }

// park parks a registration with a timeout from now on.
func (o *oracle[K]) park(r *registration[K], timeout time.Duration) {
	r.acked, r.refused = map[PeerID]bool{}, map[PeerID]bool{}
	r.since = o.now()
	if r.deadline = r.since + timeout; r.deadline < r.since {
		r.deadline = math.MaxInt64
	}
	o.books.Added++
	o.parked = append(o.parked, r)
}

func (o *oracle[K]) isParked(r *registration[K]) bool { return slices.Contains(o.parked, r) }

// claim ends a registration. It is the only way out.
func (o *oracle[K]) claim(r *registration[K], end End, match ...error) *ending {
	o.parked = slices.DeleteFunc(o.parked, func(p *registration[K]) bool { return p == r })
	return o.finish(r, end, match...)
}

// finish enters in the books that a registration is over.
func (o *oracle[K]) finish(r *registration[K], end End, match ...error) *ending {
	e := &ending{end: end, match: match, since: r.since, view: o.view(r)}
	o.ended[r] = e
	if r.kind != opWait {
		o.running++
	}
	*o.books.counter(end)++
	return e
}

func (st *Stats) counter(end End) *uint64 {
	return map[End]*uint64{
		EndReached: &st.Reached, EndCompleted: &st.Completed, EndTimedOut: &st.TimedOut,
		EndUnreachable: &st.Unreachable, EndFailed: &st.Failed, EndTruncated: &st.Truncated,
		EndSession: &st.SessionEnded, EndCanceled: &st.Canceled, EndClosed: &st.Closed,
	}[end]
}

// endAll ends what the test admits and returns how many.
func (o *oracle[K]) endAll(end End, exact error, test func(r *registration[K]) bool) (n int) {
	for _, r := range slices.Clone(o.parked) {
		if test(r) {
			o.claim(r, end, exact).exact = exact
			n++
		}
	}
	return n
}

func anyOf[K comparable](*registration[K]) bool { return true }

// sweep ends what is due. What is never due stays.
func (o *oracle[K]) sweep(now time.Duration) int {
	return o.endAll(EndTimedOut, ErrTimeout, func(r *registration[K]) bool {
		return r.deadline <= now && r.deadline != math.MaxInt64
	})
}

func (o *oracle[K]) endSession(s *Session, cause error) (n int) {
	if o.causes[s] != nil {
		return 0
	}
	o.causes[s] = orNone(cause)
	for _, r := range slices.Clone(o.parked) {
		if r.in == s {
			o.claim(r, EndSession, ErrSessionEnded, o.causes[s])
			n++
		}
	}
	return n
}

func (o *oracle[K]) held(s *Session) (n int) {
	for _, r := range o.parked {
		if r.in == s {
			n++
		}
	}
	return n
}

func (o *oracle[K]) stats() Stats {
	st := o.books
	st.Parked, st.Running = len(o.parked), o.running
	return st
}

// What follows is a WaitingList's own.

// verdict evaluates a rule by its definition. Rules are monotone, so whether it can still be reached is
// whether it would be, if all that have not refused acked.
func (r ruling) verdict(l *life) Verdict {
	switch {
	case r.external:
		return Undecided
	case r.tree.met(func(p PeerID) bool { return l.acked[p] }):
		return Reached
	case r.tree.met(func(p PeerID) bool { return l.acked[p] || !l.refused[p] }):
		return Undecided
	}
	return Unreachable
}

func (r ruling) members() []PeerID {
	if r.external || r.invalid {
		return nil
	}
	return r.tree.members()
}

func viewOfOwn[K comparable](r *registration[K]) view {
	v := view{rule: rulings[r.rule].quorum.String(), responses: slices.Clone(r.responses)}
	for _, p := range rulings[r.rule].members() {
		switch {
		case r.acked[p]:
			v.acked = append(v.acked, p)
		case !r.refused[p]:
			v.missing = append(v.missing, p)
		}
	}
	for _, s := range r.reasons {
		if r.refused[s.peer] {
			v.refused = append(v.refused, s)
		}
	}
	return v
}

func (o *oracle[K]) find(key K) *registration[K] {
	for _, r := range o.parked {
		if r.key == key {
			return r
		}
	}
	return nil
}

// answer enters an ack (reason is nil), or a nack.
func (o *oracle[K]) answer(r *registration[K], peer PeerID, payload any, reason error) AckResult {
	switch {
	case r == nil:
		o.books.LateAcks++
		return AckUnknown
	case !slices.Contains(rulings[r.rule].members(), peer):
		o.books.ForeignAcks++
		return AckNotMember
	case r.acked[peer] || reason != nil && r.refused[peer]:
		o.books.DuplicateAcks++
		return AckDuplicate
	}
	if reason != nil {
		r.refused[peer] = true
		r.reasons = append(r.reasons, said{peer, reason})
	} else {
		r.acked[peer] = true
		delete(r.refused, peer)
		if payload != nil {
			r.responses = append(r.responses, said{peer, payload})
		}
	}
	var e *ending
	switch rulings[r.rule].verdict(&r.life) {
	case Undecided:
		return AckCounted
	case Reached:
		e = o.claim(r, EndReached)
	case Unreachable:
		e = o.claim(r, EndUnreachable, ErrUnreachable)
		for _, s := range e.view.refused {
			e.reasons = append(e.reasons, s.what.(error))
			e.match = append(e.match, s.what.(error))
		}
	}
	e.view.decider, e.view.decided = peer, true
	return AckDecided
}

func (o *oracle[K]) answerMany(keys []K, peer PeerID) (ended int) {
	over := map[K]bool{}
	for _, key := range keys {
		if over[key] {
			o.books.DuplicateAcks++
		} else if o.answer(o.find(key), peer, nil, nil) == AckDecided {
			over[key] = true
			ended++
		}
	}
	return ended
}

func (o *oracle[K]) peerDown(peer PeerID, reason error) (ended int) {
	for _, r := range slices.Clone(o.parked) {
		if slices.Contains(rulings[r.rule].members(), peer) && !r.acked[peer] && !r.refused[peer] {
			if o.answer(r, peer, nil, orNone(reason)) == AckDecided {
				ended++
			}
		}
	}
	return ended
}
