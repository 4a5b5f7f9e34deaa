// Kafkaacks is three brokers that speak enough of Kafka's protocol for a real client,
// with every request that has to wait in a waiting list.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

const usage = `Usage: kafkaacks [flags]

Starts three Kafka brokers of its own on free ports of the loopback address, with
their logs in a temporary folder, and runs the client github.com/twmb/franz-go
against them: it creates topics, produces with acks=0, 1 and all, and consumes.

A produce with acks=all is parked on its last offset, a consumer's fetch on the first
that it has not seen; both wait for the high watermark, which the followers' fetches
move. A follower is killed and returns: you see it leave the in-sync set and come back,
what waited for it meanwhile, and in the end that nothing acknowledged has got lost.

With -serve it only starts the brokers, for a client of your own.

Flags:
`

func main() {
	var s show
	flag.DurationVar(&s.lag, "lag", time.Second, "how long a follower may be behind before it leaves the in-sync set")
	flag.DurationVar(&s.phase, "phase", time.Second, "how long each part of the show takes")
	flag.IntVar(&s.rate, "rate", 5000, "records a second, in each of two partitions")
	serve := flag.Bool("serve", false, "start the brokers and wait for an interrupt")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || s.lag < 10*time.Millisecond || s.phase < 10*time.Millisecond || s.rate < 100 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := s.run(ctx, *serve); err != nil {
		fmt.Fprintln(os.Stderr, "kafkaacks:", err)
		os.Exit(1)
	}
}
