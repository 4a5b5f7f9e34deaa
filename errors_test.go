package waitlist

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAmbiguity_RefusedAndTimedOutAreToldApart(t *testing.T) {
	var outs outcomes[int]
	clock := NewFakeClock(fakeStart)
	l := New[int](Options{Clock: clock})
	refused := l.Add(1, ofThree, outs.note, Timeout(0))
	require.NoError(t, l.Add(1, ofThree, outs.note))
	clock.Advance(time.Hour)
	expired := outs.one(t)
	require.NoError(t, l.Add(1, ofThree, outs.note))
	l.Nack(1, 1, fmt.Errorf("the peer's own: %w", ErrTimeout))
	l.Nack(1, 2, refused) // a peer that answers with its own refusal
	unreachable := outs.one(t)

	require.ErrorIs(t, refused, ErrTimeout)
	require.ErrorIs(t, expired.Err, ErrTimeout)
	require.ErrorIs(t, unreachable.Err, ErrTimeout)

	require.ErrorIs(t, refused, ErrNotParked)
	require.NotErrorIs(t, expired.Err, ErrNotParked)
	require.Equal(t, EndTimedOut, expired.End)
	require.Equal(t, EndUnreachable, unreachable.End, "the end, not the error, says how it ended")

	out, err := l.Wait(t.Context(), 1, ofThree, nil, Timeout(-time.Second))
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, err, ErrNotParked)
	require.Zero(t, out.End)
	require.Equal(t, err, out.Err)

	// ErrClosed, ErrSessionEnded and a context's error are as ambiguous.
	var s Session
	require.NoError(t, l.Add(1, ofThree, outs.note, InSession(&s)))
	s.End(errTest)
	require.NotErrorIs(t, outs.one(t).Err, ErrNotParked)
	err = l.Add(1, ofThree, outs.note, InSession(&s))
	require.ErrorIs(t, err, ErrNotParked)
	require.ErrorIs(t, err, errTest)
	require.NoError(t, l.Add(1, ofThree, outs.note))
	require.NoError(t, l.Close())
	require.NotErrorIs(t, outs.one(t).Err, ErrNotParked)
	require.ErrorIs(t, l.Add(1, ofThree, outs.note), ErrNotParked)
}

func TestErrTimeout_IsATimeoutAsThoseOfPackageNet(t *testing.T) {
	l := New[int](Options{})
	refused := l.Add(1, ofThree, ignore, Timeout(0))
	for _, err := range []error{ErrTimeout, refused, fmt.Errorf("wrapped: %w", ErrTimeout)} {
		var timeout interface{ Timeout() bool }
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
	}
	var netError net.Error
	require.NotErrorAs(t, ErrClosed, &netError)
}

func TestNilError_IsNeverReportedAsSuccess(t *testing.T) {
	for name, end := range map[string]func(s *stage){
		"Fail":        func(s *stage) { s.Fail("k", nil) },
		"FailAll":     func(s *stage) { s.FailAll(nil) },
		"FailFunc":    func(s *stage) { s.FailFunc(func(string) bool { return true }, nil) },
		"Nack":        func(s *stage) { s.Nack("k", 1, nil); s.Nack("k", 2, nil) },
		"PeerDown":    func(s *stage) { s.PeerDown(1, nil); s.PeerDown(2, nil) },
		"Session.End": func(s *stage) { s.session.End(nil) },
	} {
		var outs outcomes[string]
		s := newStage(Options{})
		s.park(t, "k", outs.note)
		end(s)
		out := outs.one(t)
		require.Error(t, out.Err, name)
		require.ErrorIs(t, out.Err, ErrNoReason, name)
		require.NotEqual(t, EndReached, out.End)
		for _, reason := range mapsValues(out.Tally) {
			require.Equal(t, ErrNoReason, reason)
		}
	}
}

func mapsValues(tally Tally) (reasons []error) {
	for _, reason := range tally.Refused() {
		reasons = append(reasons, reason)
	}
	return reasons
}

// Refusals come in a fixed order: each case is wrong in its own way and in all the
// ways of those below it.
func TestRefusals_InTheirOrder(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var ended Session
	ended.End(errTest)
	full := New[int](Options{Capacity: 1})
	require.NoError(t, full.Add(1, ofThree, ignore))
	closed := New[int](Options{Capacity: 1})
	require.NoError(t, closed.Close())
	defer full.Close()

	steps := []struct {
		reason error
		add    func() error
	}{
		{context.Canceled, func() error {
			_, err := closed.Wait(over, 1, Quorum{}, nil, Timeout(0), InSession(&ended))
			return err
		}},
		{ErrNilCallback, func() error { return closed.Add(1, Quorum{}, nil, Timeout(0), InSession(&ended)) }},
		{ErrInvalidQuorum, func() error { return closed.Add(1, Quorum{}, ignore, Timeout(0), InSession(&ended)) }},
		{ErrClosed, func() error { return closed.Add(1, ofThree, ignore, Timeout(0), InSession(&ended)) }},
		{ErrSessionEnded, func() error { return full.Add(1, ofThree, ignore, Timeout(0), InSession(&ended)) }},
		{ErrTimeout, func() error { return full.Add(1, ofThree, ignore, Timeout(0)) }},
		{ErrDuplicateKey, func() error { return full.Add(1, ofThree, ignore) }},
		{ErrFull, func() error { return full.Add(2, ofThree, ignore) }},
	}
	for i, step := range steps {
		err := step.add()
		require.ErrorIs(t, err, ErrNotParked)
		require.NotErrorIs(t, ErrNotParked, err)
		require.ErrorContains(t, err, bare(step.reason))
		for j, other := range steps {
			require.Equal(t, i == j, errors.Is(err, other.reason), "%v is %v", err, other.reason)
		}
	}
	require.EqualValues(t, 4, full.Stats().Refused)
	require.EqualValues(t, 4, closed.Stats().Refused)
}

func TestInvalidQuorum_SaysWhatIsWrong(t *testing.T) {
	l := New[int](Options{})
	for _, bad := range []Quorum{{}, Majority(), AtLeast(0, 1), AtLeast(3, 1, 2), All(1, 1), Weighted(9, map[PeerID]uint64{1: 1}), AllOf(External(), ofThree)} {
		err := l.Add(1, bad, ignore)
		require.ErrorIs(t, err, ErrInvalidQuorum)
		require.ErrorIs(t, err, ErrNotParked)
		require.ErrorContains(t, err, bare(bad.Err()))
	}
	require.EqualValues(t, 7, l.Stats().Refused)
}
