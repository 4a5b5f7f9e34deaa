// Worker takes jobs from a NATS JetStream queue, holds each in a waiting list while it
// is worked on, and hands over to a replacement when it is asked to stop: at once, and
// not when its claims expire.
//
// Without a command it shows the difference: see show.go. As a program to start from,
// read worker.go first.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

const usage = `worker: claims of messages and a lease, handed over instead of left to expire

  go run ./worker [flags]
      shows it, in about ten seconds: starts a NATS server with JetStream on a free
      port of the loopback address, its files in a temporary folder, and two workers
      as processes of their own, of which one holds the lease and works, while the
      other stands by. The first is stopped as planned (SIGTERM), and in a second
      round killed (SIGKILL); a table says how long its replacement waited for work.
      The second round has a shorter claim timeout, so as not to bore you.

  go run ./worker work -url nats://HOST:PORT -queue NAME -name WORKER [flags]
      runs one worker on a queue that exists (queue.go says what it consists of).
      It says on standard output what it does, one JSON object a line. The first
      SIGTERM or interrupt asks it to stop, the second does not ask.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal acts as if nobody listened
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "worker:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	command := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage+"\nFlags of this command:\n")
		flags.PrintDefaults()
	}
	var action func() error
	switch command {
	case "":
		action = showCommand(ctx, flags, stdout)
	case "work":
		action = workCommand(ctx, flags, stdin, stdout)
	default:
		return fmt.Errorf("no such command: %s (-h explains)", command)
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("too many arguments: %q", flags.Args())
	}
	return action()
}

func showCommand(ctx context.Context, flags *flag.FlagSet, stdout io.Writer) func() error {
	s := &show{out: stdout}
	flags.DurationVar(&s.planned, "claim", 30*time.Second, "claim timeout and lease in the round with the planned stop")
	flags.DurationVar(&s.killed, "claim-killed", 3*time.Second, "the same in the round with kill -9")
	flags.DurationVar(&s.budget, "budget", 300*time.Millisecond, "what a worker may take to finish when it is asked to stop")
	flags.IntVar(&s.jobs, "jobs", 40, "jobs in each round")
	return func() error {
		if s.planned < time.Second || s.killed < time.Second || s.budget < 0 || s.jobs < 1 {
			return errors.New("claim timeouts are at least 1s, there is a job, and a budget is not negative")
		}
		return s.run(ctx)
	}
}

func workCommand(ctx context.Context, flags *flag.FlagSet, stdin io.Reader, stdout io.Writer) func() error {
	url := flags.String("url", "", "the NATS server")
	name := flags.String("queue", "", "the queue's name")
	w := &worker{}
	flags.StringVar(&w.name, "name", "", "this worker's name")
	flags.DurationVar(&w.budget, "budget", 10*time.Second, "how long to go on with what is begun when asked to stop")
	flags.IntVar(&w.slots, "slots", 8, "messages in hand at a time")
	child := flags.Bool("child", false, "stop when standard input ends, so as not to outlive the parent")
	return func() error {
		if *url == "" || *name == "" || w.name == "" || w.slots < 1 || w.budget < 0 {
			return errors.New("work: -url, -queue and -name are needed, there is a slot, and a budget is not negative")
		}
		if *child {
			var stop context.CancelFunc
			ctx, stop = context.WithCancel(ctx)
			go func() {
				_, _ = io.Copy(io.Discard, stdin)
				stop()
			}()
		}
		// A reader that went away must not end the worker in the middle of its work.
		signal.Ignore(syscall.SIGPIPE)
		var mu sync.Mutex
		encoder := json.NewEncoder(stdout)
		w.say = func(e event) {
			mu.Lock()
			defer mu.Unlock()
			_ = encoder.Encode(e)
		}
		return w.connectAndRun(ctx, *url, *name)
	}
}
