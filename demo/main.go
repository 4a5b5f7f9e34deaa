// Command demo is a replicated store of three nodes on loopback TCP, and shows
// package waitlist at work: a client writes to the leader, the leader parks
// each write and sends it to its peers, and the callback answers the client
// once a majority holds the write, or the time is up.
//
//	go run ./demo
//	go run ./demo -drop 0.05 -duplicate 0.05 -delay 20ms
//	go run ./demo -kill 2@2000 -kill 3@4000
//	printf 'a=1\nb=2\n' | go run ./demo -in -
//	go run ./demo -log
//
// To read it, start with coordinator.go: how a node uses a WaitingList. With
// -log, loglead.go does the same with a WatermarkList. The rest is the world
// around them: node.go the nodes, link.go their connections, wire.go the frames,
// pump.go the queues and the faults, client.go the client, run.go the run.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/waitlist-go/waitlist"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the program the hard way
	os.Exit(command(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// command is the program; it returns the exit status.
func command(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cfg, src, err := parse(args, stdin, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 2
	}

	how := "each under its own id, in a WaitingList"
	if cfg.log {
		how = "numbered by log index, in a WatermarkList"
	}
	fmt.Fprintf(stdout, "three nodes on 127.0.0.1, a majority decides within %v; writes wait %s\n", cfg.timeout, how)
	fmt.Fprintf(stdout, "input: %v\n", src)
	con := newConsole(stdout, src.total())
	res, err := run(ctx, cfg, src, con)
	con.done()
	if err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 1
	}
	for _, k := range cfg.kills {
		if _, dead := res.killed[k.peer]; !dead {
			fmt.Fprintf(stdout, "peer %d did not die: there were no %s answers\n", k.peer, thousands(k.after))
		}
	}
	res.print(stdout)
	if res.inputErr != nil {
		fmt.Fprintf(stderr, "demo: %v\n", res.inputErr)
	}
	if !res.ok() {
		return 1
	}
	return 0
}

// parse reads the flags. Every error it returns is the caller's mistake.
func parse(args []string, stdin io.Reader, stderr io.Writer) (config, source, error) {
	cfg := config{window: 1024, patience: 200 * time.Millisecond}
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are printed once, by the caller
	in := fs.String("in", "", "write the lines key=value of `FILE`; - is standard input")
	writes := fs.Int("writes", 20000, "write `N` generated pairs")
	fs.Float64Var(&cfg.faults.drop, "drop", 0, "lose this `SHARE` (0 to 1) of the frames between nodes")
	fs.Float64Var(&cfg.faults.duplicate, "duplicate", 0, "send this `SHARE` (0 to 1) of the frames between nodes twice")
	fs.DurationVar(&cfg.faults.delay, "delay", 0, "hold each frame between nodes for up to this `TIME`, so that they overtake")
	fs.DurationVar(&cfg.timeout, "timeout", 500*time.Millisecond, "answer a write after this `TIME` at the latest")
	fs.BoolVar(&cfg.log, "log", false, "number the writes by log index, and ack and complete them cumulatively")
	fs.Func("kill", "let a peer die, given as `PEER@WRITES`: 3@5000 is peer 3 after 5,000 writes (repeatable)", func(s string) error {
		k, err := parseKill(s)
		if err == nil && slices.ContainsFunc(cfg.kills, func(o kill) bool { return o.peer == k.peer }) {
			err = fmt.Errorf("peer %d dies only once", k.peer)
		}
		cfg.kills = append(cfg.kills, k)
		return err
	})
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(stderr, "A replicated store of three nodes, to see package waitlist at work.\n\nUsage: demo [flags]\n\n")
			fs.SetOutput(stderr)
			fs.PrintDefaults()
			fmt.Fprintf(stderr, "\nA value longer than %d bytes is refused by every store.\n"+
				"The exit status is 0 only if every write was answered exactly once and every\n"+
				"committed write is on a majority of the nodes; it is 2 for a wrong flag.\n", maxValue)
		}
		return config{}, nil, err
	}
	slices.SortStableFunc(cfg.kills, func(a, b kill) int { return cmp.Compare(a.after, b.after) })

	given := make(map[string]bool)
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	share := func(v float64) bool { return v >= 0 && v <= 1 } // false for NaN
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q; -h lists the flags", fs.Arg(0))
	case given["in"] && given["writes"]:
		err = errors.New("-in and -writes exclude each other")
	case given["in"] && *in == "":
		err = errors.New("-in needs the name of a file, or - for standard input")
	case *writes < 1:
		err = fmt.Errorf("-writes must be at least 1, not %d", *writes)
	case !share(cfg.faults.drop):
		err = fmt.Errorf("-drop is a share from 0 to 1, not %v", cfg.faults.drop)
	case !share(cfg.faults.duplicate):
		err = fmt.Errorf("-duplicate is a share from 0 to 1, not %v", cfg.faults.duplicate)
	case cfg.faults.delay < 0:
		err = fmt.Errorf("-delay must not be negative, as %v is", cfg.faults.delay)
	case cfg.timeout <= 0:
		err = fmt.Errorf("-timeout must be positive, not %v", cfg.timeout)
	}
	if err != nil {
		return config{}, nil, err
	}
	src, err := open(*in, *writes, stdin)
	return cfg, src, err
}

// open returns the source that the flags name. Standard input is read only when
// it is asked for: a program that is started by another one may have inherited
// an input that is not meant for it, or never ends.
func open(in string, writes int, stdin io.Reader) (source, error) {
	switch in {
	case "":
		return generated(writes), nil
	case "-":
		return lines{"standard input", io.NopCloser(stdin)}, nil
	}
	f, err := os.Open(in)
	if err != nil {
		return nil, fmt.Errorf("-in: %w", err)
	}
	return lines{in, f}, nil
}

func parseKill(s string) (kill, error) {
	peer, after, ok := strings.Cut(s, "@")
	if !ok {
		return kill{}, errors.New("want PEER@WRITES, as in 3@5000")
	}
	id, err := strconv.ParseUint(peer, 10, 64)
	switch {
	case err != nil || id < 1 || id > nodes:
		return kill{}, fmt.Errorf("there is no peer %q, only 2 and 3 can die", peer)
	case waitlist.PeerID(id) == leaderID:
		return kill{}, errors.New("peer 1 leads, and this store elects no other; only 2 and 3 can die")
	}
	n, err := strconv.Atoi(after)
	if err != nil || n < 0 {
		return kill{}, fmt.Errorf("%q is not a number of writes", after)
	}
	return kill{waitlist.PeerID(id), n}, nil
}
