package waitlist

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLostWakeup_EightAcksThroughOneBarrier(t *testing.T) {
	eight := []PeerID{0, 1, 2, 3, 4, 5, 6, math.MaxUint64}
	for name, rule := range map[string]struct {
		quorum Quorum
		peers  []PeerID
	}{
		"all of eight":      {All(eight...), eight},
		"majority of three": {ofThree, []PeerID{1, 2, 3}},
		"joint":             {AllOf(Majority(0, 1, 2, 3), Majority(3, 4, 5, 6)), eight},
		"weighted":          {Weighted(8, map[PeerID]uint64{0: 1, 1: 1, 2: 1, 3: 5}), eight[:4]},
	} {
		t.Run(name, func(t *testing.T) {
			l := New[uint64](Options{ManualSweep: true})
			var key uint64
			var calls, decided atomic.Int64
			var racers []func()
			for _, peer := range rule.peers {
				racers = append(racers, func() {
					if l.Ack(key, peer) == AckDecided {
						decided.Add(1)
					}
				})
			}
			n := int64(0)
			collide(rounds(50_000), func() {
				key++
				n++
				require.NoError(t, l.Add(key, rule.quorum, func(Outcome[uint64]) { calls.Add(1) }))
			}, func() {
				require.Zero(t, l.Len())
				require.Equal(t, n, calls.Load())
				require.Equal(t, n, decided.Load())
			}, racers...)
			audit(t, l)
		})
	}
}

func TestTwoWinners_LastAckAgainstEveryOtherEnd(t *testing.T) {
	for name, rival := range map[string]struct {
		end End
		run func(l *WaitingList[int]) bool
	}{
		"FailAll":  {EndFailed, func(l *WaitingList[int]) bool { return l.FailAll(errTest) == 1 }},
		"FailFunc": {EndFailed, func(l *WaitingList[int]) bool { return l.FailFunc(func(int) bool { return true }, nil) == 1 }},
		"Fail":     {EndFailed, func(l *WaitingList[int]) bool { return l.Fail(7, errTest) }},
		"Complete": {EndCompleted, func(l *WaitingList[int]) bool { return l.Complete(7, nil) }},
		"PeerDown": {EndUnreachable, func(l *WaitingList[int]) bool { return l.PeerDown(2, nil) == 1 }},
		"Nack":     {EndUnreachable, func(l *WaitingList[int]) bool { return l.Nack(7, 2, nil) == AckDecided }},
		"AckBatch": {EndReached, func(l *WaitingList[int]) bool { return l.AckBatch([]int{7, 8, 7}, 2) == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			l := New[int](Options{ManualSweep: true})
			var calls atomic.Int32
			var end End
			var acked, ended bool
			both := All(1, 2)
			n := 20_000
			if name == "FailAll" {
				n = 100_000
			}
			collide(rounds(n), func() {
				calls.Store(0)
				require.NoError(t, l.Add(7, both, func(out Outcome[int]) { end = out.End; calls.Add(1) }))
				require.Equal(t, AckCounted, l.Ack(7, 1))
			}, func() {
				require.EqualValues(t, 1, calls.Load())
				require.NotEqual(t, acked, ended, "one call has ended the entry, and knows it")
				if acked {
					require.Equal(t, EndReached, end)
				} else {
					require.Equal(t, rival.end, end)
				}
			}, func() { acked = l.Ack(7, 2) == AckDecided }, func() { ended = rival.run(l) })
			audit(t, l)
		})
	}
}

func TestTwoWinners_FiveEndsThroughOneBarrier(t *testing.T) {
	clock := NewFakeClock(fakeStart)
	var (
		l       *WaitingList[int]
		session *Session
		ended   atomic.Int32
		calls   atomic.Int32
		ctx     context.Context
		cancel  context.CancelFunc
	)
	n := rounds(5_000)
	ready := make(chan *WaitingList[int])
	results := make(chan Outcome[int])
	go func() { // the waiter: parks one entry in each round
		defer close(results)
		for l := range ready {
			out, err := l.Wait(ctx, 7, ofThree, func() error { ready <- nil; return nil }, InSession(session), Timeout(time.Second))
			if err != out.Err {
				panic(err)
			}
			results <- out
		}
	}()
	seen := map[End]int{}
	collide(n, func() {
		l = New[int](Options{Clock: clock, ManualSweep: true})
		session = new(Session)
		ctx, cancel = context.WithCancel(context.Background())
		calls.Store(0)
		ended.Store(0)
		ready <- l
		<-ready
		require.NoError(t, l.Add(8, ofThree, func(Outcome[int]) { calls.Add(1) }, InSession(session), Timeout(time.Second)))
		l.Ack(7, 1)
		l.Ack(8, 1)
		clock.Advance(time.Second)
	}, func() {
		out := <-results
		seen[out.End]++
		require.NotZero(t, out.End)
		require.EqualValues(t, 1, calls.Load())
		require.Zero(t, l.Len())
		require.Zero(t, session.Len())
		<-l.Done()
		audit(t, l)
	},
		func() { l.Ack(7, 2); l.Ack(8, 2) },
		func() { l.Sweep() },
		func() { session.End(errTest) },
		func() { cancel() },
		func() { _ = l.Close() },
	)
	close(ready)
	t.Log("who was first:", seen)
}

func TestLateAnswer_NothingMoreHappensAfterTheEnd(t *testing.T) {
	for _, ending := range endings {
		if ending.end == EndClosed {
			continue // no bystanders on a closed list
		}
		t.Run(ending.name, func(t *testing.T) {
			var outs outcomes[string]
			s := newStage(Options{})
			s.park(t, "ended", outs.note)
			ending.run(s, "ended")
			require.Equal(t, ending.end, outs.one(t).End)
			require.NoError(t, s.Add("bystander", ofThree, outs.note))
			before := s.Stats()

			for peer := range PeerID(5) {
				require.Equal(t, AckUnknown, s.Nack("ended", peer, errTest))
				require.Equal(t, AckUnknown, s.AckWith("ended", peer, "late"))
			}
			require.False(t, s.Complete("ended", 1))
			require.False(t, s.Fail("ended", nil))
			require.Zero(t, s.PeerDown(3, errTest))
			require.Zero(t, s.AckBatch([]string{"ended", "ended"}, 1))

			require.Empty(t, outs.take())
			after := s.Stats()
			require.EqualValues(t, 12, after.LateAcks-before.LateAcks)
			require.Equal(t, before.sumOfEnds(), after.sumOfEnds())
			require.Equal(t, AckCounted, s.Ack("bystander", 1))
			require.Equal(t, AckDecided, s.Ack("bystander", 2))
			require.Equal(t, EndReached, outs.one(t).End)
			audit(t, s.WaitingList)
		})
	}
}

func TestDuplicateAcks_CountOncePerPeer(t *testing.T) {
	var outs outcomes[int]
	l := New[int](Options{})
	defer l.Close()
	require.NoError(t, l.Add(1, AtLeast(3, 1, 2, 3, 4, 5), outs.note))
	require.Equal(t, AckCounted, l.Ack(1, 4))
	for range 4 {
		require.Equal(t, AckDuplicate, l.Ack(1, 4))
	}
	require.Equal(t, AckDuplicate, l.AckWith(1, 4, "second thoughts"))
	require.Equal(t, AckDuplicate, l.Nack(1, 4, errTest), "a nack after an ack is a duplicate and the ack stays")
	require.Zero(t, l.AckBatch([]int{1, 1}, 4))
	require.Zero(t, l.PeerDown(4, errTest), "it has answered")
	require.Equal(t, 1, l.Len())

	require.Equal(t, AckCounted, l.Nack(1, 5, errTest))
	require.Equal(t, AckDuplicate, l.Nack(1, 5, errors.New("another reason")))
	require.Equal(t, AckCounted, l.Ack(1, 5), "an ack after a nack counts")
	require.Equal(t, AckDuplicate, l.Ack(1, 5))
	require.Equal(t, AckDuplicate, l.Nack(1, 5, errTest))
	require.EqualValues(t, 11, l.Stats().DuplicateAcks)

	require.Empty(t, outs.take())
	require.Equal(t, AckDecided, l.Ack(1, 1))
	out := outs.one(t)
	require.Equal(t, []PeerID{1, 4, 5}, slices.Collect(out.Tally.Acked()))
	require.Empty(t, maps.Collect(out.Tally.Responses()), "the payload of a duplicate is dropped")
}

func TestNonMember_CountsForNothing(t *testing.T) {
	rules := map[string]Quorum{
		"count":    ofThree,
		"weighted": Weighted(2, map[PeerID]uint64{1: 1, 2: 1, 3: 1}),
		"joint":    AllOf(Majority(1, 2, 3), Majority(2, 3, 4)),
		"external": External(),
		"wide":     All(span(1000, 130)...),
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			l := New[int](Options{})
			defer l.Close()
			require.NoError(t, l.Add(1, rule, ignore))
			for _, stranger := range []PeerID{0, 5, 64, 65, 999, 1130, math.MaxUint64} {
				require.Equal(t, AckNotMember, l.Ack(1, stranger))
				require.Equal(t, AckNotMember, l.AckWith(1, stranger, "payload"))
				require.Equal(t, AckNotMember, l.Nack(1, stranger, errTest))
				require.Zero(t, l.AckBatch([]int{1}, stranger))
				require.Zero(t, l.PeerDown(stranger, errTest))
			}
			st := l.Stats()
			require.EqualValues(t, 4*7, st.ForeignAcks, "PeerDown is told to nobody who does not know the peer")
			require.Zero(t, st.DuplicateAcks+st.LateAcks)
			p, _ := l.Get(1)
			require.Empty(t, slices.Collect(p.Tally.Acked()))
			require.Equal(t, rule.Members(), slices.Collect(p.Tally.Missing()))
			audit(t, l)
		})
	}
}

func TestRemovedPeer_OldEntriesKeepTheRuleTheyWereAddedWith(t *testing.T) {
	l := New[int](Options{})
	defer l.Close()
	require.NoError(t, l.Add(1, Majority(1, 2, 3), ignore))
	require.NoError(t, l.Add(2, Majority(1, 2, 4), ignore))
	require.Equal(t, AckCounted, l.Ack(1, 3))
	require.Equal(t, AckNotMember, l.Ack(2, 3))
	require.Equal(t, AckNotMember, l.Ack(1, 4))
	require.Equal(t, AckCounted, l.Ack(2, 4))
}

func TestExternal_OnlyItsOwnersEndIt(t *testing.T) {
	for _, ending := range endings {
		var outs outcomes[string]
		s := newStage(Options{})
		require.NoError(t, s.Add("k", External(), outs.note, InSession(s.session), Timeout(time.Hour)))
		ending.run(s, "k")
		if ending.end == EndReached || ending.end == EndUnreachable {
			require.Empty(t, outs.take(), ending.name)
			require.True(t, s.Complete("k", nil))
			out := outs.one(t)
			require.NoError(t, out.Err)
			require.Equal(t, "external", out.Tally.Quorum().String())
			continue
		}
		require.Equal(t, ending.end, outs.one(t).End, ending.name)
	}
}

func TestOutcome_TellsHowWhyAndSinceWhen(t *testing.T) {
	for _, ending := range endings {
		t.Run(ending.name, func(t *testing.T) {
			var outs outcomes[string]
			s := newStage(Options{})
			s.clock.Advance(42 * time.Second)
			s.park(t, "k", outs.note)
			p, ok := s.Get("k")
			require.True(t, ok)
			assert.Equal(t, "k", p.Key)
			assert.True(t, p.Since.Equal(fakeStart.Add(42*time.Second)))
			assert.True(t, p.Deadline.Equal(p.Since.Add(time.Hour)))

			s.clock.Advance(time.Minute)
			ending.run(s, "k")

			out := outs.one(t)
			assert.Equal(t, "k", out.Key)
			assert.Equal(t, ending.end, out.End)
			assert.Equal(t, out.End == EndReached || out.End == EndCompleted, out.Err == nil)
			assert.True(t, p.Since.Equal(out.Since))
			assert.Equal(t, ofThree.Members(), out.Tally.Quorum().Members())
			want := map[End]error{EndTimedOut: ErrTimeout, EndUnreachable: ErrUnreachable, EndFailed: errTest, EndSession: ErrSessionEnded, EndClosed: ErrClosed}
			assert.ErrorIs(t, out.Err, want[out.End])
			_, ok = s.Get("k")
			assert.False(t, ok)
		})
	}
}

func TestComplete_HandsOverItsValueWhateverTheQuorum(t *testing.T) {
	var outs outcomes[int]
	l := New[int](Options{})
	defer l.Close()
	for _, value := range []any{nil, 1, "text", errTest, []byte("x")} {
		require.NoError(t, l.Add(1, ofThree, outs.note))
		require.Equal(t, AckCounted, l.Nack(1, 1, errTest))
		require.True(t, l.Complete(1, value))
		require.False(t, l.Complete(1, value))
		out := outs.one(t)
		require.Equal(t, value, out.Value)
		require.NoError(t, out.Err, "also if the value is an error")
		_, decided := out.Tally.Decider()
		require.False(t, decided)
	}
}

func TestGet_IsASnapshot(t *testing.T) {
	l := New[int](Options{})
	defer l.Close()
	require.NoError(t, l.Add(1, Majority(1, 2, 3, 4, 5), ignore))
	l.AckWith(1, 1, "one")
	l.Nack(1, 2, errTest)
	p, ok := l.Get(1)
	require.True(t, ok)
	l.AckWith(1, 3, "three")
	l.Ack(1, 2)
	l.Ack(1, 4)
	require.Equal(t, []PeerID{1}, slices.Collect(p.Tally.Acked()))
	require.Equal(t, []PeerID{3, 4, 5}, slices.Collect(p.Tally.Missing()))
	require.Equal(t, map[PeerID]any{1: "one"}, maps.Collect(p.Tally.Responses()))
	require.Equal(t, map[PeerID]error{2: errTest}, maps.Collect(p.Tally.Refused()))
	_, decided := p.Tally.Decider()
	require.False(t, decided)
}
