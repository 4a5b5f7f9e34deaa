//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/waitlist-go/waitlist"
)

// show is what the program does.
type show struct {
	out                        io.Writer
	callers, connections, keys int
	patience                   time.Duration

	began  time.Time
	pair   *pair
	room   *room
	writer *writer
	ledger ledger
}

// say prints a line with the time since the beginning.
func (s *show) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%6.2fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// table prints rows of cells divided by tabs.
func (s *show) table(rows ...string) {
	fmt.Fprintln(s.out)
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t\n", r)
	}
	w.Flush()
}

func (s *show) run(ctx context.Context) (err error) {
	logging.Disable() // that connections are lost is what is shown
	s.began = time.Now()
	if s.pair, err = startPair(ctx); err != nil {
		return err
	}
	defer func() { s.pair.stop() }()
	s.say("primary at %s, replica at %s", s.pair.primary.addr, s.pair.replica.addr)
	s.room = newRoom(s.pair.guide(), s.connections, time.Second, 10*time.Second)
	defer s.room.close()
	s.writer = newWriter(s.room.guide, 250*time.Millisecond)
	defer s.writer.close()

	waits := []string{"callers\tanswered\twaits: woken\tlost\ttimed out\tvalue to caller: p50\tp99\tmax"}
	for _, part := range []struct {
		name string
		run  func(context.Context, *audience) error
	}{
		{"plain", s.plain},
		{"a connection cut", s.cutOne},
		{"the primary killed", s.failOver},
	} {
		row, err := s.play(ctx, part.name, part.run)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		waits = append(waits, row)
	}
	lost, err := s.comeLate(ctx)
	if err != nil {
		return err
	}
	s.table(waits...)
	if err := s.reportWrites(ctx, lost); err != nil {
		return err
	}
	return s.check()
}

// audience is the callers of one part, who wait until each has a value.
type audience struct {
	name    string
	answers []answer
	errs    []error
	got     []time.Time
	left    sync.WaitGroup
}

func (s *show) key(part string, i int) string { return fmt.Sprintf("%s/%d", part, i%s.keys) }

// seat starts the callers. Several wait for each key, on different connections if there
// are enough.
func (s *show) seat(ctx context.Context, name string) *audience {
	a := &audience{
		name: name, answers: make([]answer, s.callers),
		errs: make([]error, s.callers), got: make([]time.Time, s.callers),
	}
	for i := range s.callers {
		c := s.room.connections[i*s.connections/s.callers]
		a.left.Go(func() {
			a.answers[i], a.errs[i] = c.get(ctx, s.key(name, i), s.patience)
			a.got[i] = time.Now()
			if a.errs[i] == nil {
				s.ledger.handle(a.answers[i].value)
			}
		})
	}
	return a
}

// parked waits until so many callers are parked.
func (s *show) parked(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("the callers do not park"))
	defer cancel()
	for s.room.waits.Len() != n {
		if !pause(ctx, time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// play is one part: all callers are parked, something happens, all have their value.
func (s *show) play(ctx context.Context, name string, happen func(context.Context, *audience) error) (row string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	a := s.seat(ctx, name)
	defer a.left.Wait()
	defer cancel()
	if err := s.parked(ctx, s.callers); err != nil {
		return "", err
	}
	if err := happen(ctx, a); err != nil {
		return "", err
	}
	a.left.Wait()
	if err := errors.Join(a.errs...); err != nil {
		return "", err
	}
	return s.summary(a), nil
}

func (s *show) summary(a *audience) string {
	written := make(map[string]time.Time)
	for _, w := range s.writer.all() {
		written[w.value] = w.at
	}
	ends := make(map[waitlist.End]int)
	var took []time.Duration
	for i, answer := range a.answers {
		for _, end := range answer.ends {
			ends[end]++
		}
		took = append(took, a.got[i].Sub(written[answer.value]))
	}
	slices.Sort(took)
	round := func(d time.Duration) time.Duration { return max(d, 0).Round(10 * time.Microsecond) }
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%v\t%v\t%v", a.name, len(took),
		ends[waitlist.EndCompleted], ends[waitlist.EndSession], ends[waitlist.EndTimedOut],
		round(took[len(took)/2]), round(took[len(took)*99/100]), round(took[len(took)-1]))
}

// write writes the values of some keys at once, and returns how many were confirmed.
func (s *show) write(ctx context.Context, part string, from, to int) (confirmed int, err error) {
	var writes sync.WaitGroup
	done, errs := make([]write, to-from), make([]error, to-from)
	for i := range done {
		key := s.key(part, from+i)
		writes.Go(func() { done[i], errs[i] = s.writer.put(ctx, key, "value of "+key) })
	}
	writes.Wait()
	for _, w := range done {
		if w.confirmed {
			confirmed++
		}
	}
	return confirmed, errors.Join(errs...)
}

func (s *show) plain(ctx context.Context, a *audience) error {
	s.say("%d callers wait for %d keys over %d connections", s.callers, s.keys, s.connections)
	confirmed, err := s.write(ctx, a.name, 0, s.keys)
	s.say("%d values written, %d confirmed by the replica", s.keys, confirmed)
	return err
}

func (s *show) cutOne(ctx context.Context, a *audience) error {
	before := s.room.waits.Stats()
	l, err := s.room.connections[0].current(ctx)
	if err != nil {
		return err
	}
	if err := s.pair.primary.admin.Do(ctx, "CLIENT", "KILL", "ADDR", l.local).Err(); err != nil {
		return err
	}
	l.wait()
	if err := s.parked(ctx, s.callers); err != nil {
		return err
	}
	after := s.room.waits.Stats()
	s.say("one connection is cut: %d callers have checked again and are parked on another one",
		after.SessionEnded-before.SessionEnded)
	_, err = s.write(ctx, a.name, 0, s.keys)
	return err
}

const (
	lateSafe  = "late callers, confirmed"
	lateRisky = "late callers, not confirmed"
)

func (s *show) failOver(ctx context.Context, a *audience) error {
	part := s.keys / 5
	confirmed, err := s.write(ctx, lateSafe, 0, part)
	if err != nil {
		return err
	}
	if confirmed < part {
		return fmt.Errorf("the replica has confirmed %d writes of %d", confirmed, part)
	}
	if _, err := s.write(ctx, a.name, 0, part); err != nil {
		return err
	}
	if err := s.pair.cutReplication(ctx); err != nil {
		return err
	}
	s.say("the replica hears nothing any more: what is written now is not confirmed")
	if _, err := s.write(ctx, a.name, part, 2*part); err != nil {
		return err
	}
	if _, err := s.write(ctx, lateRisky, 0, part); err != nil {
		return err
	}
	waiting := s.room.waits.Len()
	s.pair.primary.kill()
	s.say("the primary is killed, %d callers wait; writers go on trying", waiting)
	written := make(chan error, 1)
	go func() {
		_, err := s.write(ctx, a.name, 2*part, s.keys)
		written <- err
	}()
	pause(ctx, 500*time.Millisecond) // until somebody has noticed
	err = s.pair.promote(ctx)
	s.say("the replica is promoted")
	if err = errors.Join(err, <-written); err != nil {
		return err
	}
	a.left.Wait()
	s.say("the values written into the gap have their callers")
	err = s.pair.rejoin(ctx)
	s.say("the killed server is back, as the replica")
	return err
}

// comeLate has callers come after the failover for what was written before, and
// returns what is lost.
func (s *show) comeLate(ctx context.Context) (lost []write, err error) {
	part := s.keys / 5
	ask := func(what string, patience time.Duration) (found, empty int, err error) {
		var asking sync.WaitGroup
		answers, errs := make([]answer, part), make([]error, part)
		for i := range part {
			c := s.room.connections[i%s.connections]
			asking.Go(func() { answers[i], errs[i] = c.get(ctx, s.key(what, i), patience) })
		}
		asking.Wait()
		for i, a := range answers {
			switch {
			case errs[i] == nil:
				found++
				s.ledger.handle(a.value)
			case errors.Is(errs[i], errEmpty):
				empty++
			default:
				err = errors.Join(err, errs[i])
			}
		}
		return found, empty, err
	}
	const short = 300 * time.Millisecond
	for _, what := range []string{lateSafe, lateRisky} {
		found, empty, err := ask(what, short)
		if err != nil {
			return nil, err
		}
		s.say("%s: %d find their value, %d wait %v for nothing", what, found, empty, short)
	}
	f, err := s.writer.reckon(ctx, &s.ledger)
	if err != nil {
		return nil, err
	}
	for _, w := range f.lost {
		// The same value again: who has it already takes no harm.
		if _, err := s.writer.put(ctx, w.key, w.value); err != nil {
			return nil, err
		}
	}
	found, _, err := ask(lateRisky, short)
	s.say("their writer reports %d lost and writes them again: %d find their value", len(f.lost), found)
	return f.lost, err
}

func (s *show) reportWrites(ctx context.Context, lost []write) error {
	f, err := s.writer.reckon(ctx, &s.ledger)
	if err != nil {
		return err
	}
	type row struct{ writes, confirmed, tries, lost int }
	rows := make(map[string]*row)
	var names []string
	of := func(w write) *row {
		name, _, _ := strings.Cut(w.key, "/")
		if rows[name] == nil {
			rows[name] = &row{}
			names = append(names, name)
		}
		return rows[name]
	}
	for _, w := range s.writer.all() {
		r := of(w)
		r.writes++
		r.tries += w.tries
		if w.confirmed {
			r.confirmed++
		}
	}
	for _, w := range lost {
		of(w).lost++
	}
	lines := []string{"writes\tdone\tconfirmed\tfailed tries\treported lost"}
	for _, name := range names {
		r := rows[name]
		lines = append(lines, fmt.Sprintf("%s\t%d\t%d\t%d\t%d", name, r.writes, r.confirmed, r.tries-r.writes, r.lost))
	}
	s.table(lines...)
	fmt.Fprintln(s.out)
	if n := len(f.kept) + len(f.lost); n > 0 {
		return fmt.Errorf("%d values have not been handled", n)
	}
	times, effects := s.ledger.sums()
	s.say("all values were handled, %d times in all; %d effects, one for each value", times, effects)
	return nil
}

// check is what must hold whatever happened.
func (s *show) check() error {
	if n := s.room.overslept.Load(); n > 0 {
		return fmt.Errorf("%d waits slept to their deadline over a value", n)
	}
	s.say("nobody slept to a deadline over a value that was there; %d are parked", s.room.waits.Len())
	return nil
}
