package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// show is what the program does.
type show struct {
	out             io.Writer
	planned, killed time.Duration // claim timeouts
	budget          time.Duration
	jobs            int

	began time.Time
	mu    sync.Mutex // one line at a time
}

func (s *show) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%6.2fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *show) run(ctx context.Context) (err error) {
	s.began = time.Now()
	dir, err := os.MkdirTemp("", "worker-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := startServer(dir)
	if err != nil {
		return err
	}
	defer stopServer(server)
	conn, js, err := connect(server.ClientURL(), "show")
	if err != nil {
		return err
	}
	defer conn.Close()
	s.say("a NATS server with JetStream is at %s", server.ClientURL())

	planned, err := s.round(ctx, js, server.ClientURL(), "planned", s.planned, (*process).stop)
	if err != nil {
		return err
	}
	killed, err := s.round(ctx, js, server.ClientURL(), "killed", s.killed, (*process).kill)
	if err != nil {
		return err
	}
	s.table(planned, killed)
	return nil
}

// round lets one worker work and another stand by, ends the first and lets the second
// do the rest.
func (s *show) round(ctx context.Context, js jetstream.JetStream, url, name string, timeout time.Duration, end func(*process) error) (h handover, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout+time.Minute) // nothing here waits for ever
	defer cancel()
	fmt.Fprintln(s.out)
	q, err := createQueue(ctx, js, name, timeout)
	if err != nil {
		return h, err
	}
	jobs := make([]job, s.jobs)
	for i := range jobs {
		jobs[i] = job{fmt.Sprintf("job-%04d", i), time.Duration(200+rand.IntN(800)) * time.Millisecond}
	}
	if err := q.send(ctx, jobs...); err != nil {
		return h, err
	}
	s.say("%d jobs are in the queue; claims and the lease live for %v", len(jobs), timeout)

	j := newJournal(s.tell)
	anna, err := startProcess(j, "anna", url, name, s.budget)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, anna.kill()) }()
	if err := j.await(ctx, "anna", "lease", 1); err != nil {
		return h, err
	}
	ben, err := startProcess(j, "ben", url, name, s.budget)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, ben.kill()) }()
	if err := j.await(ctx, "ben", "waiting", 1); err != nil {
		return h, err
	}
	pause(ctx, time.Second)

	s.say("anna %s", map[string]string{"planned": "is asked to stop", "killed": "is killed"}[name])
	signalled := time.Now()
	if err := end(anna); err != nil {
		return h, err
	}
	gone := time.Now()
	for left := uint64(1); left > 0; pause(ctx, 20*time.Millisecond) {
		if left, err = q.left(ctx); err != nil {
			return h, err
		}
	}
	if err := ben.stop(); err != nil {
		return h, err
	}
	if err := q.audit(ctx, jobs); err != nil {
		return h, err
	}
	s.say("all %d jobs are done, each had its effect once", len(jobs))
	return handoverOf(j, "anna", "ben", signalled, gone), nil
}

// tell prints what a worker says, except what it says all the time.
func (s *show) tell(r record) {
	switch r.What {
	case "claimed", "done", "returned":
		return
	}
	line := r.who + ": " + r.What
	if r.Note != "" {
		line += ", " + r.Note
	}
	s.say("%s", line)
}

func (s *show) table(planned, killed handover) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out)
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(what string, a, b any) { fmt.Fprintf(w, "%s\t%v\t%v\t\n", what, a, b) }
	short := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	row("", "planned stop", "kill -9")
	row("claim timeout, lease", s.planned, s.killed)
	row("messages in hand at the signal", planned.held, killed.held)
	row("finished within the budget", planned.finished, killed.finished)
	row("given back", planned.returned, killed.returned)
	row("gone, after the signal", short(planned.stopped), short(killed.stopped))
	row("replacement has the lease", short(planned.lease), short(killed.lease))
	row("and all that was not finished", short(planned.all), short(killed.all))
	row("waited for work let go, at most", short(planned.waited), short(killed.waited))
	w.Flush()
}
