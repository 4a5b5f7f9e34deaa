// Command raftkv is a key-value store of three nodes on go.etcd.io/raft, with a log on
// disk, TCP between the nodes and HTTP for clients. It shows what package waitlist does
// in such a program: it holds every request between the moment a node accepts it and
// the moment the other nodes have said enough for an answer, or the leader is gone.
//
// To read it, start with server.go, where requests are parked, and then loop.go, where
// what raft says ends the wait. README.md has a map of the rest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/waitlist-go/waitlist"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the program the hard way
	os.Exit(program(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type settings struct {
	ops     int
	clients int
	delay   time.Duration
	timeout time.Duration
	dir     string
	serve   bool
}

// program is main without the process; it returns the exit status.
func program(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	set, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "raftkv: %v\n", err)
		return 2
	}
	if err := run(ctx, set, stdout); err != nil {
		fmt.Fprintf(stderr, "raftkv: %v\n", err)
		return 1
	}
	return 0
}

const usage = `A key-value store of three nodes on go.etcd.io/raft, in one process.

It starts the nodes on free loopback ports with their logs in a temporary folder, lets
clients write and read, takes the power from the leader, starts it again, cuts the
leader of that time off from its peers, and prints what became of the requests that
were parked meanwhile, which node's answer decided how many writes, and how long
requests were parked.

Usage: raftkv [flags]

`

// parse reads the flags. Every error it returns is the caller's mistake.
func parse(args []string, stderr io.Writer) (settings, error) {
	var set settings
	fs := flag.NewFlagSet("raftkv", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are printed once, by the caller
	fs.IntVar(&set.ops, "ops", 6000, "do `N` operations")
	fs.IntVar(&set.clients, "clients", 8, "let `N` clients do them, each one at a time")
	fs.DurationVar(&set.delay, "delay", 2*time.Millisecond, "hold each frame between nodes for up to this `TIME`, so that they overtake")
	fs.DurationVar(&set.timeout, "timeout", 5*time.Second, "answer a request after this `TIME` at the latest")
	fs.StringVar(&set.dir, "dir", "", "keep the nodes' logs in this `FOLDER` (default: a temporary one, removed in the end)")
	fs.BoolVar(&set.serve, "serve", false, "do nothing but serve, until interrupted, and say where")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stderr, usage)
			fs.SetOutput(stderr)
			fs.PrintDefaults()
			fmt.Fprint(stderr, "\nThe exit status is 0 only if every operation was answered in time and nothing\nstayed parked; it is 2 for a wrong flag.\n")
		}
		return settings{}, err
	}
	switch {
	case fs.NArg() > 0:
		return settings{}, fmt.Errorf("unexpected argument %q; -h lists the flags", fs.Arg(0))
	case set.ops < 1:
		return settings{}, fmt.Errorf("-ops must be at least 1, not %d", set.ops)
	case set.clients < 1:
		return settings{}, fmt.Errorf("-clients must be at least 1, not %d", set.clients)
	case set.delay < 0:
		return settings{}, fmt.Errorf("-delay must not be negative, as %v is", set.delay)
	case set.timeout <= 0:
		return settings{}, fmt.Errorf("-timeout must be positive, not %v", set.timeout)
	}
	return set, nil
}

func run(ctx context.Context, set settings, out io.Writer) (err error) {
	dir := set.dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "raftkv"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	c, err := startCluster(dir, set.timeout, set.delay)
	if err != nil {
		return err
	}
	defer func() {
		patience, cancel := context.WithTimeout(context.Background(), set.timeout)
		defer cancel()
		err = errors.Join(err, c.close(patience))
	}()
	leader, term, err := c.waitLeader(ctx, 0)
	if err != nil {
		return err
	}
	for id := uint64(1); id <= clusterSize; id++ {
		fmt.Fprintf(out, "node %d: http://%s/kv/KEY\n", id, c.clients[id])
	}
	fmt.Fprintf(out, "node %d leads in term %d\n", leader, term)
	if set.serve {
		fmt.Fprintf(out, "\n\tcurl -L -X PUT -d hello http://%s/kv/greeting\n\tcurl http://%s/kv/greeting\n\nor any other node; interrupt to stop\n", c.clients[1], c.clients[2])
		<-ctx.Done()
		return nil
	}

	w := newWorkload(c, set.clients, set.ops)
	fmt.Fprintf(out, "%d clients do %d operations; frames between nodes take up to %v\n", set.clients, set.ops, set.delay)
	troubled := make(chan error, 1)
	go func() { troubled <- trouble(ctx, c, w, out) }()
	history, err := w.run(ctx)
	if err := errors.Join(err, <-troubled); err != nil {
		return err
	}
	report(out, c, history)
	if err := c.settle(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "all nodes have applied the same log, and nothing is parked\n")
	for _, op := range history {
		if op.slowest >= w.limit {
			return fmt.Errorf("a request for %s hung for %v", op.key, op.slowest)
		}
	}
	return nil
}

// trouble is what happens to the leaders while the clients are at work.
func trouble(ctx context.Context, c *cluster, w *workload, out io.Writer) error {
	if _, err := w.done.Wait(ctx, w.ops/3); err != nil {
		return err
	}
	leader, term, err := c.waitLeader(ctx, 0)
	if err != nil {
		return err
	}
	lost, err := c.kill(leader)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  node %d has lost power, and %d bytes of its log that were not synced\n", leader, lost)
	start := time.Now()
	next, term, err := c.waitLeader(ctx, term)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  node %d leads in term %d, after %v\n", next, term, time.Since(start).Round(time.Millisecond))
	if err := c.restart(ctx, leader); err != nil {
		return err
	}
	fmt.Fprintf(out, "  node %d is back\n", leader)

	if _, err := w.done.Wait(ctx, w.ops*2/3); err != nil {
		return err
	}
	if leader, term, err = c.waitLeader(ctx, 0); err != nil {
		return err
	}
	old := c.node(leader)
	before := old.writes.Stats().Failed
	c.isolate(leader, true)
	fmt.Fprintf(out, "  node %d is cut off from its peers\n", leader)
	start = time.Now()
	if next, term, err = c.waitLeader(ctx, term); err != nil {
		return err
	}
	fmt.Fprintf(out, "  node %d leads in term %d, after %v\n", next, term, time.Since(start).Round(time.Millisecond))
	c.isolate(leader, false)
	if err := c.rejoined(ctx, leader); err != nil {
		return err
	}
	fmt.Fprintf(out, "  node %d is back, and has answered \"unknown\" to %d writes that it held\n", leader, old.writes.Stats().Failed-before)
	return nil
}

// report prints what there is to learn from the run.
func report(out io.Writer, c *cluster, history []operation) {
	var lost int
	var last time.Duration
	for _, op := range history {
		if op.outcome == outcomeUnknown {
			lost++
		}
		last = max(last, op.end)
	}
	fmt.Fprintf(out, "%d operations in %v: %d answered, %d writes with unknown outcome\n", len(history), last.Round(time.Millisecond), len(history)-lost, lost)
	fmt.Fprintf(out, "who decided: the answer of")
	for id := uint64(1); id <= clusterSize; id++ {
		fmt.Fprintf(out, " node %d %d times", id, c.metrics.decided(waitlist.PeerID(id)))
		if id < clusterSize {
			fmt.Fprint(out, ",")
		}
	}
	fmt.Fprintln(out)
	for _, l := range []struct {
		name string
		h    *histogram
	}{{"writes", &c.metrics.writes}, {"reads", &c.metrics.reads}} {
		fmt.Fprintf(out, "%d %s were parked: median %v, p99 %v\n", l.h.count(), l.name,
			l.h.quantile(0.5).Round(10*time.Microsecond), l.h.quantile(0.99).Round(10*time.Microsecond))
	}
}
