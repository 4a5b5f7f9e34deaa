// Command coordinator is a replicated key-value store in the manner of Dynamo and
// Cassandra: replicas in datacentres, a coordinator in front of them, and a
// consistency level that each request chooses for itself.
//
// Without a command it shows itself: see demo.go. As a program to start from, read
// coordinator.go first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `coordinator: a replicated store with a consistency level per request

  go run ./coordinator
      shows it: starts six replicas in two datacentres as processes of their own,
      kills them, brings them back, and tells what the clients see meanwhile.

  go run ./coordinator replica -name NAME -data FILE [-listen ADDR]
      runs one replica.

  go run ./coordinator serve -local DC -hints FILE [-listen ADDR] -replica DC/NAME=URL ...
      runs a coordinator in front of replicas that run already.

Clients then say
  curl -X PUT -d VALUE 'http://ADDR/kv/KEY?level=QUORUM'
  curl 'http://ADDR/kv/KEY?level=ONE'
  curl -X DELETE 'http://ADDR/kv/KEY'
  curl 'http://ADDR/status'
Levels are ONE, TWO, QUORUM (the default), ALL, LOCAL_QUORUM and EACH_QUORUM.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "coordinator:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	command := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("coordinator", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		if command != "" {
			fmt.Fprintf(stderr, "\nFlags of %s:\n", command)
			flags.PrintDefaults()
		}
	}
	var action func() error
	switch command {
	case "":
		action = func() error { return demo(ctx, stdout) }
	case "replica":
		action = replicaCommand(ctx, flags, stdin, stdout)
	case "serve":
		action = serveCommand(ctx, flags, stdout, stderr)
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

func replicaCommand(ctx context.Context, flags *flag.FlagSet, stdin io.Reader, stdout io.Writer) func() error {
	name := flags.String("name", "", "the replica's name")
	data := flags.String("data", "", "the file that holds its cells")
	listen := flags.String("listen", "127.0.0.1:0", "where to listen")
	child := flags.Bool("child", false, "stop when standard input ends, so as not to outlive the parent")
	return func() error {
		if *name == "" || *data == "" {
			return errors.New("replica: -name and -data are needed")
		}
		if *child {
			var stop context.CancelFunc
			ctx, stop = context.WithCancel(ctx)
			go func() {
				_, _ = io.Copy(io.Discard, stdin)
				stop()
			}()
		}
		r, err := openReplica(*name, *data)
		if err != nil {
			return err
		}
		err = listenAndServe(ctx, *listen, r.handler(), stdout)
		return errors.Join(err, r.close())
	}
}

func serveCommand(ctx context.Context, flags *flag.FlagSet, stdout, stderr io.Writer) func() error {
	cfg := Config{Log: slog.New(slog.NewTextHandler(stderr, nil))}
	flags.StringVar(&cfg.Local, "local", "", "the coordinator's datacentre, for LOCAL_QUORUM")
	flags.StringVar(&cfg.HintFile, "hints", "", "the file that holds what replicas have missed; for this coordinator alone")
	flags.DurationVar(&cfg.Timeout, "timeout", 2*time.Second, "how long a client waits for a decision")
	flags.DurationVar(&cfg.Settle, "settle", 5*time.Second, "how long a replica may take before it is owed a hint")
	flags.DurationVar(&cfg.ProbeTimeout, "probe-timeout", time.Second, "how long a living replica may take to say so")
	every := flags.Duration("probe", time.Second, "how often replicas are probed")
	listen := flags.String("listen", "127.0.0.1:0", "where to listen")
	flags.Func("replica", "`DC/NAME=URL` of a replica; give it once for each", func(s string) error {
		place, url, ok := strings.Cut(s, "=")
		dc, name, ok2 := strings.Cut(place, "/")
		if !ok || !ok2 || dc == "" || name == "" || !strings.HasPrefix(url, "http://") {
			return errors.New("want DC/NAME=http://HOST:PORT")
		}
		cfg.Nodes = append(cfg.Nodes, Node{Name: name, Datacentre: dc, URL: strings.TrimSuffix(url, "/")})
		return nil
	})
	return func() error {
		if cfg.HintFile == "" || cfg.Timeout <= 0 || cfg.Settle < cfg.Timeout || cfg.ProbeTimeout <= 0 || *every <= 0 {
			return errors.New("serve: -hints is needed, times are positive, and -settle is no less than -timeout")
		}
		c, err := newCoordinator(cfg)
		if err != nil {
			return err
		}
		c.watch(*every)
		err = listenAndServe(ctx, *listen, c.handler(), stdout)
		patience, cancel := context.WithTimeout(context.Background(), cfg.Settle)
		defer cancel()
		return errors.Join(err, c.shutdown(patience))
	}
}

// listenAndServe says where it listens and serves until ctx ends; then it lets
// requests finish.
func listenAndServe(ctx context.Context, addr string, handler http.Handler, stdout io.Writer) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "listening on http://%s\n", l.Addr())
	return serveOn(ctx, l, handler)
}

func serveOn(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := server.Shutdown(patience)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	<-failed
	return err
}
