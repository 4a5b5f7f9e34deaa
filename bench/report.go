package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// column is one measured quantity; the less, the better.
type column struct {
	name  string
	title string // with the unit
}

// group is one table.
type group struct {
	title, text string
	columns     []column
	markers     bool
}

var groups = []group{
	{
		title: "Requests",
		text: "Nanoseconds of the clock per request, whoever did it: Add, two answers that decide, the outcome, one late answer. " +
			"With two cores, two goroutines have keys of their own in one list.",
		columns: []column{
			{requestName(0, 1), "none parked, 1 core"},
			{requestName(0, 2), "none parked, 2 cores"},
			{requestName(1000, 1), "1,000 parked, 1 core"},
			{requestName(1000, 2), "1,000 parked, 2 cores"},
			{requestName(million, 1), "1,000,000 parked, 1 core"},
			{requestName(million, 2), "1,000,000 parked, 2 cores"},
		},
	},
	{
		title: "Other ways of a request",
		text: "Answered by another goroutine than the one that adds: nanoseconds of the clock per request, two cores. " +
			"A tenth never answered, each rival's own search for what is due at work, timeout 50 ms: nanoseconds of processor time per request, " +
			"until the last has expired.",
		columns: []column{
			{colAllocs, "allocations per request"},
			{colHandoff, "answered elsewhere, ns"},
			{colExpiring, "a tenth expires, ns of CPU"},
		},
	},
	{
		title: "What parked requests weigh",
		text: "Growth of the live heap divided by the number of requests, and the time of one `runtime.GC()`. " +
			"The stacks of goroutines that wait for a channel, 2 KiB or more each, are not in it.",
		columns: []column{
			{bytesName(million), "1,000,000 parked, bytes each"},
			{bytesName(5 * million), "5,000,000 parked, bytes each"},
			{gcName(million), "1,000,000 parked, GC, ms"},
			{gcName(5 * million), "5,000,000 parked, GC, ms"},
		},
	},
	{
		title: "Deadlines",
		text: "A million requests that arrived one by one over ten seconds. None due: the clock walks towards the first deadline in steps of 1 ms, " +
			"a sweep after each (those that look at everything: as many as fit in 250 ms). All due: the clock jumps behind the last deadline; " +
			"time until every callback has run, per request.",
		columns: []column{
			{colSweep, "sweep, none due, µs"},
			{colSweepWorst, "the worst of them, µs"},
			{colMassExpiry, "all due, ns each"},
		},
	},
	{
		title: "Sessions",
		text:  "A hundred connections have 10,000 requests each, and one of them ends.",
		columns: []column{
			{colSessionAdd, "Add in a session, ns"},
			{colSessionEnd, "end, ns per request ended"},
		},
	},
	{
		title: "Watermarks",
		text:  "Requests wait for consecutive indexes. A request is Add and the Advance that completes an older one; Advance by one is also timed alone. One core.",
		columns: []column{
			{markerRequestName(0), "request, none parked, ns"},
			{markerRequestName(million), "request, 1,000,000 parked, ns"},
			{advanceName(1000), "Advance, 1,000 parked, ns"},
			{advanceName(million), "Advance, 1,000,000 parked, ns"},
			{colMarkerMemory, "1,000,000 parked, bytes each"},
			{colMarkerEmpty, "an empty list, bytes"},
		},
		markers: true,
	},
}

// report writes the results as Markdown.
func report(a about, b *bench) string {
	var s strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	ours := b.waiters[0].Name

	p("# Side by side")
	p("")
	p("The same work done by package waitlist and by what its users would otherwise pick, in one process. Written by `%s`.", a.command)
	p("")
	p("| | |")
	p("|---|---|")
	p("| machine | %s |", a.machine)
	p("| system | %s |", a.system)
	p("| Go | %s |", a.gover)
	p("| commit | %s |", a.commit)
	if a.load != "" {
		p("| load before | %s |", a.load)
	}
	p("| day, duration | %s, %s |", a.day.Format(time.DateOnly), a.took.Round(time.Second))
	p("")
	if b.size.many != million {
		p("**This was a quick run, with %s standing for every million: it shows that all of it works, not how fast.**", thousands(b.size.many))
		p("")
	}
	p("How to read it. The rivals take turns, in another order in each of %d rounds (%d where a turn takes a second or more, %d with five million). "+
		"A cell has the median of the rounds with the spread from the 10th to the 90th percentile, and below it what package waitlist takes "+
		"as a multiple of that, from the quotients of the same rounds: below 1 it is ahead, **in bold** it is behind. "+
		"Compare within a column and a run: machine and neighbours change between runs, and the cost of sharing memory between two cores of a virtual "+
		"machine changes while it runs. %.1f ns of each request are the loop that asks for it, the same for all. "+
		"No rival looks for expired requests while requests are timed, unless the column says so; package waitlist does, as always. "+
		"A dash: it does not do that.", b.size.rounds, b.size.heavy, b.size.veryHeavy, a.loop)
	p("")
	writeGoals(p, b)
	for _, g := range groups {
		writeGroup(p, b, g, ours)
	}
	writeLosses(p, b, ours)
	writeNotes(p, b)
	return s.String()
}

type printer = func(format string, args ...any)

func (b *bench) names(g group) (names []string) {
	if g.markers {
		for _, r := range b.markers {
			names = append(names, r.Name)
		}
		return names
	}
	for _, r := range b.waiters {
		names = append(names, r.Name)
	}
	return names
}

func (b *bench) measured(g group) (columns []column) {
	for _, c := range g.columns {
		if len(b.results.columns[c.name]) > 0 {
			columns = append(columns, c)
		}
	}
	return columns
}

func writeGroup(p printer, b *bench, g group, ours string) {
	columns := b.measured(g)
	if len(columns) == 0 {
		return
	}
	p("## %s", g.title)
	p("")
	p("%s", g.text)
	p("")
	head, rule := "| |", "|---|"
	for _, c := range columns {
		head += " " + c.title + " |"
		rule += "---:|"
	}
	p("%s", head)
	p("%s", rule)
	for _, name := range b.names(g) {
		var row strings.Builder
		row.WriteString("| " + name + " |")
		for _, c := range columns {
			row.WriteString(" " + b.cell(c.name, name, ours) + " |")
		}
		p("%s", row.String())
	}
	p("")
}

func (b *bench) cell(column, name, ours string) string {
	values := summarize(b.results.columns[column][name])
	if values.n == 0 {
		return "–"
	}
	text := spread(values, number)
	if name == ours {
		return text
	}
	if ratio := b.results.ratio(column, ours, name); ratio.n > 0 {
		times := "×" + spread(ratio, factor)
		if ratio.median > 1 {
			times = "**" + times + "**"
		}
		text += "<br>" + times
	}
	return text
}

// spread writes a summary, without its spread where that cannot be seen.
func spread(s summary, format func(float64) string) string {
	median, low, high := format(s.median), format(s.low), format(s.high)
	if low == median && high == median {
		return median
	}
	return fmt.Sprintf("%s (%s–%s)", median, low, high)
}

// number writes a value with the digits that it deserves.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 1:
		return fmt.Sprintf("%.2f", v)
	case v < 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return thousands(int(math.Round(v)))
	}
}

func factor(v float64) string {
	if v < 0.01 {
		return fmt.Sprintf("%.1g", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// goal is a cost that the library promises.
type goal struct {
	what  string
	bound string
	value func(r *results, ours string) (shown string, met, known bool)
}

func atMost(column string, limit float64, unit string) func(*results, string) (string, bool, bool) {
	return func(r *results, ours string) (string, bool, bool) {
		v, known := r.median(column, ours)
		return number(v) + unit, v <= limit, known
	}
}

func atMostOf(column, rival string, limit float64) func(*results, string) (string, bool, bool) {
	return func(r *results, ours string) (string, bool, bool) {
		s := r.ratio(column, ours, rival)
		return spread(s, factor), s.median <= limit, s.n > 0
	}
}

var goals = []goal{
	{"a request, allocations", "none", atMost(colAllocs, 0, "")},
	{"a request, none parked, of etcd wait's time", "0.6", atMostOf(requestName(0, 1), "etcd wait", 0.6)},
	{"a request, 1,000,000 parked, of etcd wait's time", "0.5", atMostOf(requestName(million, 1), "etcd wait", 0.5)},
	{"two goroutines, time per request of one goroutine's", "1", func(r *results, ours string) (string, bool, bool) {
		one, ok1 := r.median(requestName(0, 1), ours)
		two, ok2 := r.median(requestName(0, 2), ours)
		if !ok1 || !ok2 {
			return "", false, false
		}
		return factor(two / one), two <= one, true
	}},
	{"two goroutines, time per request of the best rival's", "1", func(r *results, ours string) (string, bool, bool) {
		column, best, least := requestName(0, 2), "", math.Inf(1)
		for name := range r.columns[column] {
			if v, _ := r.median(column, name); name != ours && v < least {
				best, least = name, v
			}
		}
		s := r.ratio(column, ours, best)
		return spread(s, factor) + " (" + best + ")", s.median < 1, s.n > 0
	}},
	{"a sweep with 1,000,000 parked and none due", "10 µs", atMost(colSweep, 10, " µs")},
	{"the worst such sweep", "1 ms", atMost(colSweepWorst, 1000, " µs")},
	{"1,000,000 due at once, each", "150 ns", atMost(colMassExpiry, 150, " ns")},
	{"a parked entry", "112 bytes", atMost(bytesName(million), 112, " bytes")},
	{"an empty watermark list", "512 bytes", atMost(colMarkerEmpty, 512, " bytes")},
	{"Advance by one, 1,000,000 parked", "200 ns", atMost(advanceName(million), 200, " ns")},
	{"the same, of its time with 1,000 parked", "about 1", func(r *results, ours string) (string, bool, bool) {
		few, ok1 := r.median(advanceName(1000), ours)
		many, ok2 := r.median(advanceName(million), ours)
		if !ok1 || !ok2 {
			return "", false, false
		}
		return factor(many / few), many <= 2*few, true
	}},
}

func writeGoals(p printer, b *bench) {
	ours, started := b.waiters[0].Name, false
	for _, g := range goals {
		shown, met, known := g.value(b.results, ours)
		if !known {
			continue
		}
		if !started {
			started = true
			p("## What package waitlist promises")
			p("")
			p("| | at most | measured | |")
			p("|---|---:|---:|---|")
		}
		verdict := "kept"
		if !met {
			verdict = "**not kept**"
		}
		p("| %s | %s | %s | %s |", g.what, g.bound, shown, verdict)
	}
	if started {
		p("")
	}
}

// writeLosses lists every column in which a rival is ahead.
func writeLosses(p printer, b *bench, ours string) {
	p("## Where package waitlist is behind")
	p("")
	p("Its value as a multiple of the rival's, for every rival that has the lower median.")
	p("")
	none := true
	for _, g := range groups {
		for _, c := range b.measured(g) {
			var ahead []string
			for _, name := range b.names(g)[1:] {
				ratio := b.results.ratio(c.name, ours, name)
				if ratio.n == 0 || ratio.median <= 1 {
					continue
				}
				text := "×" + spread(ratio, factor) + " of " + name
				if ratio.low <= 1 {
					text += " (not in every round)"
				}
				ahead = append(ahead, text)
			}
			if len(ahead) > 0 {
				none = false
				p("- %s, %s: %s", g.title, c.title, strings.Join(ahead, ", "))
			}
		}
	}
	if none {
		p("- nowhere")
	}
	p("")
}

func writeNotes(p printer, b *bench) {
	p("## What the rivals are, and what they do not do")
	p("")
	for _, r := range b.waiters[1:] {
		p("- **%s**: %s. Does not do: %s.", r.Name, strings.TrimSuffix(r.About, "."), r.Lacks)
	}
	p("")
	p("None of them counts under any rule but \"two of three\", takes a refusal, reports who answered, limits how much is parked, drains, or " +
		"survives a callback that panics. A key of theirs is a number.")
	p("")
	p("For watermarks:")
	p("")
	for _, r := range b.markers[1:] {
		p("- **%s**: %s. Does not do: %s.", r.Name, strings.TrimSuffix(r.About, "."), r.Lacks)
	}
}
