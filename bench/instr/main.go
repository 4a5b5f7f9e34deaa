// Command instr does a fixed amount of work on package waitlist and nothing else, so that a tool that counts
// instructions can tell what one request costs without a clock: the difference of two runs, divided by the
// difference of their requests. The test beside it does that.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/waitlist-go/waitlist"
)

const timeout = 10 * time.Second

var epoch = time.Unix(1_700_000_000, 0)

// works are the things of which one can be counted.
var works = map[string]func(n int) (completed int){
	"request":   request,
	"expiry":    expiry,
	"watermark": watermark,
}

func main() {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1) // a collection would come when it likes
	work := flag.String("work", "request", "one of: "+strings.Join(names(), ", "))
	n := flag.Int("n", 1000, "how many")
	flag.Parse()
	do := works[*work]
	if do == nil {
		fmt.Fprintf(os.Stderr, "instr: no work is called %q\n", *work)
		os.Exit(2)
	}
	if completed := do(*n); completed != *n {
		fmt.Fprintf(os.Stderr, "instr: %d of %d completed\n", completed, *n)
		os.Exit(1)
	}
}

func names() (all []string) {
	for name := range works {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// request is Add, two acks that decide, and a late one.
func request(n int) (completed int) {
	list := waitlist.New[uint64](waitlist.Options{})
	quorum := waitlist.Majority(1, 2, 3)
	done := func(waitlist.Outcome[uint64]) { completed++ }
	for key := range uint64(n) {
		if err := list.Add(key, quorum, done); err != nil {
			panic(err)
		}
		list.Ack(key, 1)
		list.Ack(key, 2)
		list.Ack(key, 3)
	}
	return completed
}

// expiry is Add and the part of a sweep that ends it.
func expiry(n int) (completed int) {
	clock := waitlist.NewFakeClock(epoch)
	list := waitlist.New[uint64](waitlist.Options{Clock: clock, ManualSweep: true, Timeout: timeout})
	quorum := waitlist.Majority(1, 2, 3)
	done := func(waitlist.Outcome[uint64]) { completed++ }
	for key := range uint64(n) {
		if err := list.Add(key, quorum, done); err != nil {
			panic(err)
		}
		if key%1000 == 999 {
			clock.Advance(timeout)
			list.Sweep()
		}
	}
	clock.Advance(timeout)
	list.Sweep()
	return completed
}

// watermark is Add and the Advance that completes it, with a hundred parked.
func watermark(n int) (completed int) {
	const parked = 100
	list := waitlist.NewWatermarkList[uint64](0, waitlist.Options{})
	done := func(waitlist.Outcome[uint64]) { completed++ }
	for index := uint64(1); index <= uint64(n); index++ {
		if err := list.Add(index, done); err != nil {
			panic(err)
		}
		if index > parked {
			list.Advance(index - parked)
		}
	}
	list.Advance(uint64(n))
	return completed
}
