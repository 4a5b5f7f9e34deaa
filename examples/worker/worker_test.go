package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlannedHandoverDoesNotWaitForTheTimeout(t *testing.T) {
	const timeout, budget = 30 * time.Second, 1700 * time.Millisecond
	w := newWorld(t, timeout)
	anna := w.start("anna", budget)
	w.await("anna", "lease", 1)
	ben := w.start("ben", budget)
	w.await("ben", "waiting", 1)
	// Of the eight that anna takes, four can be finished within the budget.
	jobs := w.send(slices.Concat(repeat(4, 700*time.Millisecond), repeat(4, 3500*time.Millisecond), repeat(30, 5*time.Millisecond))...)
	w.await("anna", "claimed", 8)

	signalled := time.Now()
	require.NoError(t, anna.stop())
	h := handoverOf(w.journal, "anna", "ben", signalled, time.Now())
	require.Equal(t, 8, h.held)
	require.Equal(t, 4, h.finished, "what the budget allows is finished")
	require.Equal(t, 4, h.returned, "the rest is given back")
	require.Len(t, w.journal.all("anna", "claimed"), 8, "who stops does not claim")
	require.Less(t, h.stopped, timeout/3)

	w.finished()
	require.NoError(t, ben.stop())
	h = handoverOf(w.journal, "anna", "ben", signalled, time.Now())
	require.Positive(t, h.all)
	require.Less(t, h.waited, time.Second, "work that was given back waited for a claim to expire")
	require.Less(t, h.all, timeout/3)
	w.inspect(jobs)
	for _, r := range w.journal.all("ben", "claimed") {
		require.LessOrEqual(t, r.Delivery, uint64(2), "a message went to and fro")
	}
}

func TestAKilledWorkerLosesNothing(t *testing.T) {
	const timeout = 2 * time.Second
	w := newWorld(t, timeout)
	anna := w.start("anna", time.Second)
	w.await("anna", "lease", 1)
	ben := w.start("ben", time.Second)
	w.await("ben", "waiting", 1)
	jobs := w.send(slices.Concat(repeat(8, time.Second), repeat(30, 5*time.Millisecond))...)
	w.await("anna", "claimed", 8)

	signalled := time.Now()
	require.NoError(t, anna.kill())
	gone := time.Now()
	w.finished()
	require.NoError(t, ben.stop())
	h := handoverOf(w.journal, "anna", "ben", signalled, gone)
	require.Equal(t, 8, h.held)
	require.Zero(t, h.finished+h.returned)
	require.Greater(t, h.waited, timeout/2, "a claim was broken before its time")
	require.Less(t, h.waited, timeout+10*time.Second)
	w.inspect(jobs)
}

func TestAPausedWorkerActsInVain(t *testing.T) {
	w := newWorld(t, 2*time.Second)
	anna := w.start("anna", time.Second)
	w.await("anna", "lease", 1)
	ben := w.start("ben", time.Second)
	w.await("ben", "waiting", 1)
	jobs := w.send(slices.Concat(repeat(8, 200*time.Millisecond), repeat(30, 5*time.Millisecond))...)
	w.await("anna", "claimed", 8)

	// It sleeps over its lease and its claims, wakes up with its work done, and believes
	// for a moment that it still has both.
	require.NoError(t, anna.signal(syscall.SIGSTOP))
	w.finished()
	require.Len(t, w.journal.all("ben", "lease"), 1)
	require.NoError(t, anna.signal(syscall.SIGCONT))
	w.await("anna", "waiting", 2)
	require.Len(t, w.journal.all("anna", "lost"), 1)
	require.NoError(t, anna.stop())
	require.NoError(t, ben.stop())
	w.inspect(jobs)
}

func TestEachEffectOnceThroughManyHandovers(t *testing.T) {
	w := newWorld(t, time.Second)
	var jobs []job
	names := []string{"a", "b", "c", "d", "e"}
	current := w.start(names[0], 10*time.Millisecond)
	w.await(names[0], "lease", 1)
	for i, name := range names[1:] {
		next := w.start(name, 10*time.Millisecond)
		w.await(name, "waiting", 1)
		done := len(w.journal.all(names[i], "done"))
		jobs = append(jobs, w.send(repeat(100, 50*time.Millisecond)...)...)
		w.await(names[i], "done", done+20) // in the middle of it
		if i%2 == 0 {
			require.NoError(t, current.kill())
		} else {
			require.NoError(t, current.stop())
		}
		current = next
		w.await(name, "lease", 1)
	}
	w.finished()
	require.NoError(t, current.stop())
	w.inspect(jobs)
}

// inProcess runs a worker here, and returns a function that stops it.
func (w *world) inProcess(name string, budget time.Duration) (stop func()) {
	conn, closeConn := w.connect()
	ctx, cancel := context.WithCancel(w.ctx)
	one := &worker{
		name: name, budget: budget, slots: 4, queue: w.open(conn, 0),
		say: func(e event) { w.journal.add(record{e, name, time.Now()}) },
	}
	done := make(chan struct{})
	go func() { defer close(done); one.run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done; closeConn() })
	w.t.Cleanup(stop)
	return stop
}

func TestAnEffectIsNotAppliedAgain(t *testing.T) {
	w := newWorld(t, 30*time.Second)
	jobs := w.send(repeat(6, 10*time.Millisecond)...)
	// Two have had their effect from a worker that died before it could say so.
	for _, j := range jobs[:2] {
		first, err := w.queue.apply(w.ctx, j, effect{By: "zoe"})
		require.NoError(t, err)
		require.True(t, first)
	}
	stop := w.inProcess("anna", time.Second)
	w.finished()
	stop()
	w.inspect(jobs)
	for _, r := range w.journal.all("anna", "done") {
		want := "applied"
		if r.Job == jobs[0].ID || r.Job == jobs[1].ID {
			want = "had been applied"
		}
		require.Equal(t, want, r.Note, r.Job)
	}
	for _, j := range jobs[:2] {
		entry, err := w.queue.effects.Get(w.ctx, j.ID)
		require.NoError(t, err)
		require.Contains(t, string(entry.Value()), "zoe", "the first stays")
	}
}

func TestALongJobKeepsItsClaim(t *testing.T) {
	w := newWorld(t, 2*time.Second)
	jobs := w.send(5 * time.Second)
	stop := w.inProcess("anna", time.Second)
	w.finished()
	stop()
	w.inspect(jobs)
	require.Len(t, w.journal.all("", "claimed"), 1, "delivered again under the worker's hands")
}

func TestWhatIsNoJobHoldsUpNobody(t *testing.T) {
	w := newWorld(t, 30*time.Second)
	_, err := w.queue.js.Publish(w.ctx, w.queue.subject(), []byte("{"))
	require.NoError(t, err)
	jobs := w.send(repeat(3, time.Millisecond)...)
	stop := w.inProcess("anna", time.Second)
	w.finished()
	stop()
	require.NoError(t, w.queue.audit(w.ctx, jobs))
	require.Len(t, w.journal.all("", "trouble"), 1, notes(w.journal.all("", "")))
}

func TestTheLeaseIsOneWorkersAtATime(t *testing.T) {
	w := newWorld(t, 10*time.Second)
	var holders, terms atomic.Int64
	var last atomic.Uint64
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range 5 {
				l, err := acquire(w.ctx, w.queue.leases, "w", w.queue.timeout, func(err error) { t.Error(err) })
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the lease", n)
				}
				if before := last.Swap(l.term); before >= l.term {
					t.Errorf("term %d after %d", l.term, before)
				}
				terms.Add(1)
				holders.Add(-1)
				l.release()
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 30, terms.Load())
}

func TestALeaseThatIsAnothersIsLost(t *testing.T) {
	w := newWorld(t, time.Second)
	l, err := acquire(w.ctx, w.queue.leases, "anna", w.queue.timeout, func(err error) { t.Error(err) })
	require.NoError(t, err)
	_, err = w.queue.leases.Put(w.ctx, leaseKey, []byte("mallory"))
	require.NoError(t, err)
	select {
	case <-l.held.Done():
	case <-w.ctx.Done():
		require.Fail(t, "not noticed")
	}
	require.ErrorIs(t, context.Cause(l.held), errLeaseLost)
	l.release()
	entry, err := w.queue.leases.Get(w.ctx, leaseKey)
	if err == nil { // it expires soon
		require.Equal(t, "mallory", string(entry.Value()), "released what was another's")
	}
}

func TestARenewalWithoutAnAnswerLosesNoLease(t *testing.T) {
	w := newWorld(t, 2*time.Second)
	l, err := acquire(w.ctx, w.queue.leases, "anna", w.queue.timeout, func(err error) { t.Error(err) })
	require.NoError(t, err)
	// As if a write of its own had been stored, and the answer lost.
	_, err = w.queue.leases.Put(w.ctx, leaseKey, []byte(l.id))
	require.NoError(t, err)
	select {
	case <-l.held.Done():
		require.Fail(t, "lost")
	case <-time.After(3 * time.Second):
	}
	require.Positive(t, l.left())
	l.release()
	_, err = w.queue.leases.Get(w.ctx, leaseKey)
	require.Error(t, err, "not released")
}

func TestTheCommandLineIsChecked(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"}, {"-claim", "1ms"}, {"-jobs", "0"}, {"extra", "-h"}, {"-budget", "1s", "extra"},
		{"work"}, {"work", "-url", "x", "-queue", "q", "-name", "n", "-slots", "0"},
	} {
		var stderr bytes.Buffer
		require.Error(t, run(t.Context(), args, strings.NewReader(""), &stderr, &stderr), args)
	}
	var help bytes.Buffer
	err := run(t.Context(), []string{"-h"}, strings.NewReader(""), &help, &help)
	require.True(t, errors.Is(err, flag.ErrHelp))
	require.Contains(t, help.String(), "-claim-killed")
}
