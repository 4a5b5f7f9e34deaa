//go:build unix

// Twophase moves money between accounts at two PostgreSQL servers, all or nothing, and
// kills whoever takes part to show that it stays so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

const usage = `Usage: twophase [flags]

Moves money between accounts at two PostgreSQL servers by two-phase commit: each
transfer is prepared at both (PREPARE TRANSACTION) and parked in a waitlist until
both have voted. Then the coordinator writes the decision to its log and sends it.

The program starts two servers of its own, on free ports of the loopback address and
in a temporary folder, and a coordinator process. While clients transfer money it
kills the coordinator at the worst moments, and then one of the servers, with kill -9.
In the end it counts the money. It needs the server programs of PostgreSQL 11 or
later, which are looked for in PATH and in /usr/lib/postgresql.

Flags:
`

func main() {
	if isCoordinator() {
		runCoordinator(os.Stdin, os.Stdout)
		return
	}
	var s show
	flag.IntVar(&s.transfers, "transfers", 1000, "how many transfers the clients ask for")
	flag.IntVar(&s.clients, "clients", 16, "how many clients ask at once")
	flag.IntVar(&s.accounts, "accounts", 100, "how many accounts each server has")
	flag.BoolVar(&s.fsync, "fsync", true, "let the servers force their writes to the disk")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || s.transfers < 1 || s.clients < 1 || s.accounts < 2 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := s.run(ctx)
	if ctx.Err() != nil {
		err = errors.New("interrupted") // and whatever came of that is no news
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "twophase:", err)
		os.Exit(1)
	}
}

// show is what the program does.
type show struct {
	transfers, clients, accounts int
	fsync                        bool

	began  time.Time
	office *office
	keeper *keeper
}

const openingBalance = 1000

// say prints a line with the time since the beginning.
func (s *show) say(format string, args ...any) {
	fmt.Printf("%6.2fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *show) run(ctx context.Context) error {
	s.began = time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cluster, err := startCluster(ctx, s.fsync, "north", "south")
	if err != nil {
		return err
	}
	defer cluster.stop()
	if s.office, err = openOffice(ctx, cluster, "bank", s.accounts, openingBalance); err != nil {
		return err
	}
	for i, server := range cluster.servers {
		var version string
		err := visit(ctx, s.office.banks[i], func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, "show server_version").Scan(&version)
		})
		if err != nil {
			return err
		}
		s.say("%s: PostgreSQL %s on port %d, %d accounts", server.name, version, server.port, s.accounts)
	}
	folder, err := cluster.makeFolder("coordinator")
	if err != nil {
		return err
	}
	s.keeper = &keeper{
		job:     job{Folder: folder, Banks: s.office.banks},
		died:    func(p *process, at crashAt, err error) { s.reportDeath(ctx, p, at, err) },
		started: s.reportStart,
		crashes: []crashAt{{}},
	}
	defer s.keeper.kill() // what is left of it if something below has failed

	s.say("")
	s.say("A third of %d transfers, with nothing in the way:", s.transfers)
	if err := s.serve(ctx, 0); err != nil {
		return err
	}
	if _, err := s.keeper.stop(); err != nil {
		return err
	}

	s.say("")
	s.say("A third while the coordinator is killed again and again:")
	after := max(s.transfers/30, 1)
	s.keeper.crashes = []crashAt{{stepAllVoted, after}, {stepDecided, after}, {stepHalfSent, after}}
	if err := s.serve(ctx, 1); err != nil {
		return err
	}

	s.say("")
	s.say("A third while a server is killed:")
	accident := make(chan error, 1)
	answered := s.office.answered()
	go func() { accident <- s.killAndRestart(ctx, cluster.servers[1], answered+s.transfers/9) }()
	if err := s.serve(ctx, 2); err != nil {
		return err
	}
	if err := <-accident; err != nil {
		return err
	}

	s.say("")
	stats, err := s.keeper.stop()
	if err != nil {
		return err
	}
	s.say("the last coordinator parked %d transactions: %d had all votes, %d a no, %d timed out, %d are still parked; %d votes came late",
		stats.Added, stats.Reached, stats.Unreachable, stats.TimedOut, stats.Parked, stats.LateAcks)
	if err := s.office.audit(ctx); err != nil {
		return fmt.Errorf("the books are wrong:\n%w", err)
	}
	s.say("the books are right: %d in all, as at the beginning; every transfer is at both servers or at none,", s.office.total())
	s.say("as its client was told; no transaction is left prepared")
	return nil
}

// serve is a third of the transfers.
func (s *show) serve(ctx context.Context, third int) error {
	before, attempts, began := s.office.tally(), s.office.attempts.Load(), time.Now()
	n := (s.transfers + third) / 3
	if err := s.office.serve(ctx, s.keeper, n, s.clients, uint64(third)); err != nil {
		return err
	}
	took := time.Since(began)
	s.say("%d transfers by %d clients in %.2fs, %d attempts:", n, s.clients, took.Seconds(), s.office.attempts.Load()-attempts)
	after := s.office.tally()
	for _, what := range slices.Sorted(maps.Keys(after)) {
		if count := after[what] - before[what]; count > 0 {
			s.say("  %4d %s", count, what)
		}
	}
	return nil
}

func (s *show) reportStart(p *process) {
	s.say("coordinator: process %d is ready", p.command.Process.Pid)
	if found := p.found; found.Committed+found.RolledBack > 0 {
		s.say("             committed %d that the log has as decided, rolled back %d that it has not", found.Committed, found.RolledBack)
	}
}

func (s *show) reportDeath(ctx context.Context, p *process, at crashAt, err error) {
	if p == nil {
		s.say("coordinator: did not start: %v", err)
		return
	}
	s.say("coordinator: process %d is dead, %v, at the step %q", p.command.Process.Pid, p.command.ProcessState, at.Step)
	left, err := s.office.leftPrepared(ctx)
	if err != nil {
		s.say("             the servers do not say what is left: %v", err)
		return
	}
	for i, b := range s.office.banks {
		s.say("             %s is left with %d prepared", b.Name, len(left[i]))
	}
}

// killAndRestart is the accident of a server, once the clients have so many answers.
func (s *show) killAndRestart(ctx context.Context, victim *server, answers int) error {
	for s.office.answered() < answers {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
	n, err := victim.kill()
	if err != nil {
		return err
	}
	s.say("%s: killed, %d processes", victim.name, n)
	time.Sleep(500 * time.Millisecond)
	if err := victim.start(ctx); err != nil {
		return err
	}
	s.say("%s: started again", victim.name)
	return nil
}
