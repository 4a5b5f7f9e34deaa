//go:build unix

// Blockingwait lets many callers wait for values under keys in Redis, over few
// connections, and kills the server under them.
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
)

const usage = `Usage: blockingwait [flags]

Callers wait for values under keys in Redis: each checks, parks in a waitlist, checks
again, and when it is woken or its wait is lost it checks once more. Many callers share
one connection. Redis tells the connection which keys were written, and the callers that
wait for those are woken; when the connection is lost, all that wait on it check again
on another.

The program starts two redis-server processes of its own, a primary and a replica, on
free ports of the loopback address and in temporary folders. While the callers wait it
cuts a connection, then kills the primary with kill -9 and promotes the replica. Values
are written before, in the gap and after. In the end it tells what became of each write,
by whether it had waited for the replica. It takes a few seconds.

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return
	case ctx.Err() != nil:
		err = errors.New("interrupted") // and whatever came of that is no news
	}
	fmt.Fprintln(os.Stderr, "blockingwait:", err)
	stop()
	os.Exit(1)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("blockingwait", flag.ContinueOnError)
	flags.SetOutput(stderr)
	s := show{out: stdout}
	flags.IntVar(&s.callers, "callers", 200, "how many callers wait at once")
	flags.IntVar(&s.connections, "connections", 8, "how many connections they share")
	flags.IntVar(&s.keys, "keys", 50, "how many keys they wait for in each part")
	flags.DurationVar(&s.patience, "patience", 20*time.Second, "how long a caller waits in all")
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || s.connections < 1 || s.keys < 5 || s.keys > s.callers || s.patience <= 0 {
		return errors.New("it takes a connection, five keys, a caller for each key, and no other arguments (-h explains)")
	}
	return s.run(ctx)
}
