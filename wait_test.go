package waitlist

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWait_SendThatAcksBeforeItReturns(t *testing.T) {
	l := New[int](Options{Capacity: 1})
	defer l.Close()
	for range 3 {
		out, err := l.Wait(t.Context(), 1, ofThree, func() error {
			require.Equal(t, 1, l.Len(), "it is parked while it is sent")
			require.Equal(t, AckCounted, l.Ack(1, 1))
			require.Equal(t, AckDecided, l.AckWith(1, 2, "two"))
			require.Zero(t, l.Len())
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, EndReached, out.End)
		require.Equal(t, 1, out.Key)
		peer, _ := out.Tally.Decider()
		require.Equal(t, PeerID(2), peer)
	}
	audit(t, l)
}

func TestWait_EveryEndWakesItWithItsOutcome(t *testing.T) {
	for _, ending := range endings {
		s := newStage(Options{Executor: func(func()) { t.Error("a Wait needs no executor") }})
		out, err := s.Wait(t.Context(), "k", ofThree, func() error { ending.run(s, "k"); return nil },
			InSession(s.session), Timeout(time.Hour))
		require.Equal(t, ending.end, out.End, ending.name)
		require.Equal(t, out.Err, err, ending.name)
		require.Equal(t, ending.end == EndReached || ending.end == EndCompleted, err == nil)
		require.NotErrorIs(t, err, ErrNotParked, ending.name)
		require.Zero(t, s.Stats().Running)
		audit(t, s.WaitingList)
		require.NoError(t, s.Close())
		require.True(t, isClosed(s.Done()))
	}
}

func TestWait_NothingToSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{})
		go func() {
			synctest.Wait()
			l.Complete(1, "value")
		}()
		out, err := l.Wait(t.Context(), 1, External(), nil)
		require.NoError(t, err)
		require.Equal(t, "value", out.Value)
		require.NoError(t, l.Close())
	})
}

func TestWait_ContextEnds(t *testing.T) {
	cause := errors.New("the client hung up")
	for name, begin := range map[string]func() (context.Context, context.CancelFunc){
		"deadline": func() (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(context.Background(), time.Second, cause)
		},
		"cancel": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(context.Background())
			stop := context.AfterFunc(ctx, func() {})
			time.AfterFunc(time.Second, func() { cancel(cause) })
			return ctx, func() { stop() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s Session
				l := New[int](Options{Capacity: 1})
				ctx, cancel := begin()
				defer cancel()
				out, err := l.Wait(ctx, 1, ofThree, func() error { l.AckWith(1, 1, "one"); return nil }, InSession(&s))
				require.Equal(t, EndCanceled, out.End)
				require.Equal(t, out.Err, err)
				require.ErrorIs(t, err, ctx.Err())
				require.ErrorIs(t, err, cause)
				require.NotErrorIs(t, err, ErrNotParked, "the peers may have it")
				require.Equal(t, map[PeerID]any{1: "one"}, maps.Collect(out.Tally.Responses()))
				require.Zero(t, s.Len())
				require.EqualValues(t, 1, l.Stats().Canceled)
				require.NoError(t, l.Add(1, ofThree, ignore), "key and place are free")
				require.NoError(t, l.Close())
			})
		})
	}
}

func TestWait_ContextAlreadyOver(t *testing.T) {
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	l := New[int](Options{})
	out, err := l.Wait(ctx, 1, Quorum{}, func() error { t.Error("sent"); return nil })
	require.Equal(t, Outcome[int]{Key: 1, Err: err}, out)
	require.ErrorIs(t, err, ErrNotParked)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, cause)
	require.NotErrorIs(t, err, ErrInvalidQuorum, "the context is asked first")
	require.EqualValues(t, 1, l.Stats().Refused)
	require.Zero(t, l.Stats().Added)
}

func TestWait_FailingSendIsRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{Capacity: 1})
		out, err := l.Wait(t.Context(), 1, ofThree, func() error {
			l.Ack(1, 1)
			return errTest
		})
		require.Equal(t, EndCanceled, out.End)
		require.ErrorIs(t, err, errTest)
		require.NotErrorIs(t, err, ErrNotParked, "it was parked: some of it may have been sent")
		require.Equal(t, AckUnknown, l.Ack(1, 2))
		requireRoom(t, l, 1)

		// If the peers were faster than the failure, they are believed.
		out, err = l.Wait(t.Context(), 1, ofThree, func() error {
			l.Ack(1, 1)
			l.Ack(1, 2)
			return errTest
		})
		require.NoError(t, err)
		require.Equal(t, EndReached, out.End)
		require.NoError(t, l.Close())
		<-l.Done()
	})
}

func TestWait_SendThatDoesNotReturn(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic("send") }, "exit": runtime.Goexit} {
		l := New[int](Options{Capacity: 1, OnPanic: func(_, _ any, _ []byte) { t.Error("a send is no callback") }})
		var value any
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { value = recover() }()
			_, _ = l.Wait(context.Background(), 1, ofThree, func() error { leave(); return nil })
			t.Error("Wait has returned")
		}()
		<-done
		if name == "panic" {
			require.Equal(t, "send", value)
		}
		st := l.Stats()
		require.EqualValues(t, 1, st.Canceled)
		require.Zero(t, st.CallbackPanics)
		requireRoom(t, l, 1)
		require.NoError(t, l.Close())
		require.True(t, isClosed(l.Done()))
	}
}

func TestSlowConsumer_ReaderNeverBlocksOnAWaitThatHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](Options{})
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			out, err := l.Wait(ctx, 0, ofThree, nil)
			require.Equal(t, EndCanceled, out.End)
			require.ErrorIs(t, err, context.Canceled)
		}()
		synctest.Wait()
		for i := range 1000 {
			require.NoError(t, l.Add(1+i, ofThree, ignore))
		}
		cancel()
		<-waited
		for i := range 1001 { // one reader, which would hang here
			l.Ack(i, 1)
			l.Ack(i, 2)
		}
		require.Zero(t, l.Len())
		require.EqualValues(t, 1000, l.Stats().Reached)
		require.EqualValues(t, 2, l.Stats().LateAcks)
		audit(t, l)
		require.NoError(t, l.Close())
	})
}

func TestSlowConsumer_ReaderNeverBlocksOnAWaitThatStillSends(t *testing.T) {
	l := New[int](Options{})
	sending, finish := make(chan struct{}), make(chan struct{})
	go func() {
		<-sending
		for i := range 1000 {
			l.Ack(1, PeerID(i%4)) // decides at 2
		}
		close(finish)
	}()
	out, err := l.Wait(t.Context(), 1, ofThree, func() error { close(sending); <-finish; return nil })
	require.NoError(t, err)
	require.Equal(t, EndReached, out.End)
	require.NoError(t, l.Close())
}

// Whoever ends several entries wakes the waiters among them before any callback.
func TestWait_DoesNotOutliveItsContextBySomebodysCallback(t *testing.T) {
	for _, ending := range endings {
		if !ending.all {
			continue
		}
		for _, executor := range []func(func()){nil, func(run func()) { run() }} {
			s := newStage(Options{Executor: executor})
			woken := make(chan struct{})
			for i := range 100 {
				s.park(t, string(rune('0'+i)), func(Outcome[string]) { <-woken })
			}
			done := make(chan struct{})
			out, _ := s.Wait(t.Context(), "wait", ofThree, func() error {
				go func() { defer close(done); ending.run(s, "wait") }()
				return nil
			}, InSession(s.session), Timeout(time.Hour))
			close(woken)
			<-done
			require.Equal(t, ending.end, out.End)
		}
	}
}

func TestIDReuse_ContextOfTheFirstWaitEndsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outs outcomes[int]
		l := New[int](Options{})
		ctx, cancel := context.WithCancel(t.Context())
		out, err := l.Wait(ctx, 1, ofThree, func() error {
			l.Fail(1, errTest) // the first is over,
			require.NoError(t, l.Add(1, ofThree, outs.note))
			cancel() // and its context ends only now
			return errors.New("send fails too")
		})
		require.Equal(t, EndFailed, out.End)
		require.ErrorIs(t, err, errTest)
		require.Empty(t, outs.take())
		require.Equal(t, AckCounted, l.Ack(1, 1))
		require.Equal(t, AckDecided, l.Ack(1, 2))
		require.Equal(t, EndReached, outs.one(t).End)
		require.NoError(t, l.Close())
	})
}

func TestIDReuse_CancelRacingTheNextUseOfTheKey(t *testing.T) {
	l := New[int](Options{ManualSweep: true})
	var second atomic.Int32
	requests, results := make(chan context.Context), make(chan Outcome[int])
	parked := make(chan struct{})
	go func() {
		defer close(results)
		for ctx := range requests {
			out, _ := l.Wait(ctx, 1, Majority(1), func() error { parked <- struct{}{}; return nil })
			results <- out
		}
	}()
	var cancel context.CancelFunc
	collide(rounds(20_000), func() {
		var ctx context.Context
		ctx, cancel = context.WithCancel(context.Background())
		second.Store(0)
		requests <- ctx
		<-parked
	}, func() {
		out := <-results
		require.Contains(t, []End{EndCanceled, EndReached}, out.End)
		require.Zero(t, second.Load())
		if l.Complete(1, nil) {
			require.EqualValues(t, 1, second.Load())
		}
		require.Zero(t, l.Len())
	},
		func() { cancel() },
		func() {
			l.Ack(1, 1)
			_ = l.Add(1, All(1, 2), func(Outcome[int]) { second.Add(1) })
		},
	)
	close(requests)
	<-results
	audit(t, l)
}
