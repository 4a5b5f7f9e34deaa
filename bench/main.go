// Command bench does the same work on package waitlist and on what its users would otherwise pick, in one
// process and in turns, and writes down how long each took.
//
//	go -C bench run .                  everything; writes RESULTS.md and results.svg
//	go -C bench run . -quick           a short pass over everything, printed only: that it runs, not how fast
//	go -C bench run . -only request    what has a matching name, and what is measured along with it; printed only
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/waitlist-go/waitlist/bench/rivals"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	var (
		flags  = flag.NewFlagSet("bench", flag.ContinueOnError)
		quick  = flags.Bool("quick", false, "few rounds, small numbers: checks that everything runs")
		only   = flags.String("only", "", "regular expression: measure only what has a matching name")
		filter = flags.String("rivals", "", "regular expression: only these rivals (package waitlist always takes part)")
		out    = flags.String("out", "", "folder for RESULTS.md and results.svg; without it a complete run writes here, any other nothing")
	)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	onlyRE, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	filterRE, err := regexp.Compile(*filter)
	if err != nil {
		return fmt.Errorf("-rivals: %w", err)
	}

	b := &bench{only: onlyRE, size: full, results: newResults()}
	if *quick {
		b.size = short
	}
	for _, r := range rivals.All() {
		if len(b.waiters) == 0 || filterRE.MatchString(r.Name) {
			b.waiters = append(b.waiters, r)
		}
	}
	for _, r := range rivals.AllMarkers() {
		if len(b.markers) == 0 || filterRE.MatchString(r.Name) {
			b.markers = append(b.markers, r)
		}
	}
	if err := b.check(); err != nil {
		return err
	}

	about := describe(args)
	begin := time.Now()
	for _, w := range workloads {
		if !b.wants(w.names...) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(begin).Seconds(), strings.Join(w.names, ", "))
		if err := w.run(b); err != nil {
			return err
		}
		runtime.GOMAXPROCS(runtime.NumCPU())
		runtime.GC()
	}
	about.took = time.Since(begin)

	text := report(about, b)
	complete := *only == "" && *filter == "" && !*quick
	if *out == "" && complete {
		*out = "."
	}
	if *out == "" {
		fmt.Print(text)
		return nil
	}
	if err := os.WriteFile(filepath.Join(*out, "RESULTS.md"), []byte(text), 0o644); err != nil {
		return err
	}
	return drawChart(filepath.Join(*out, "results.svg"), b.results, about.caption())
}

// workload measures one or several columns of the results.
type workload struct {
	names []string
	run   func(*bench) error
}

// workloads are in the order in which they run: the small heaps first.
var workloads = []workload{
	{[]string{colAllocs}, (*bench).allocations},
	{requestNames(0), func(b *bench) error { return b.requests(0) }},
	{requestNames(1000), func(b *bench) error { return b.requests(1000) }},
	{[]string{colHandoff}, (*bench).handoff},
	{[]string{colExpiring}, (*bench).expiring},
	{markerRequestNames, (*bench).markerRequests},
	{[]string{colMarkerEmpty}, (*bench).markerEmpty},
	{markerMillionNames, (*bench).markerMillion},
	{requestNames(million), (*bench).requestsAmongMany},
	{[]string{colSessionEnd, colSessionAdd}, (*bench).sessions},
	{millionNames, (*bench).million},
	{millionsNames, (*bench).millions},
}

const million = 1_000_000

// size is how much of everything is done.
type size struct {
	many      int           // what stands for a million
	slice     time.Duration // one turn of a rival, where turns are short
	rounds    int           // how many short turns
	heavy     int           // how many turns of what takes a second or more
	veryHeavy int           // how many turns with five times as many
	settle    time.Duration // how long parking many entries with one deadline may take
}

var (
	full  = size{many: million, slice: 15 * time.Millisecond, rounds: 31, heavy: 5, veryHeavy: 2, settle: 3 * time.Second}
	short = size{many: 20_000, slice: time.Millisecond, rounds: 3, heavy: 1, veryHeavy: 1, settle: 500 * time.Millisecond}
)

// bench is one run.
type bench struct {
	only    *regexp.Regexp
	size    size
	waiters []rivals.Rival       // package waitlist first
	markers []rivals.MarkerRival // package waitlist first
	results *results
}

func (b *bench) wants(names ...string) bool {
	return slices.ContainsFunc(names, b.only.MatchString)
}

// check refuses to time a rival that does not do the work.
func (b *bench) check() error {
	for seed := range uint64(3) {
		for _, r := range b.waiters {
			err := rivals.Check(r, rivals.Config{}, seed, nil)
			if err == nil && r.Expiry == rivals.OnAnyClock {
				clock := new(rivals.Clock)
				err = rivals.Check(r, rivals.Config{Clock: clock}, seed, clock.Move)
			}
			if err != nil {
				return fmt.Errorf("not equivalent: %w", err)
			}
		}
		for _, r := range b.markers {
			if err := rivals.CheckMarker(r, seed); err != nil {
				return fmt.Errorf("not equivalent: %w", err)
			}
		}
	}
	return nil
}

// takeTurns calls measure for every rival in every round. The order is another one in each round, so that none
// always comes after the same neighbour or in the same moment of the host's moods.
func takeTurns[R any](all []R, rounds int, measure func(r R) error) error {
	for round := range rounds {
		for k := range all {
			i := (k + round) % len(all)
			if round/len(all)%2 == 1 {
				i = len(all) - 1 - i
			}
			if err := measure(all[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
