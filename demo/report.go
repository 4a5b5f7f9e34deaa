package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

// result is what a run came to.
type result struct {
	progress
	ledger      *ledger
	stats       waitlist.Stats
	nodes       []*node
	killed      map[waitlist.PeerID]int // after how many writes
	took        time.Duration
	interrupted bool
	givenBack   int
	faults      []string // broken promises
	inputErr    error
}

// ok says whether the run kept what the demo promises.
func (r *result) ok() bool { return len(r.faults) == 0 && r.inputErr == nil }

func (r *result) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s in %v, %s writes per second\n\n", counted(r.answered, "write"),
		r.took.Round(time.Millisecond), thousands(int(float64(r.answered)/max(r.took.Seconds(), 1e-9))))

	row := func(name string, n int, note string) {
		fmt.Fprint(w, strings.TrimRight(fmt.Sprintf("  %-16s%12s   %s", name, thousands(n), note), " ")+"\n")
	}
	row("committed", r.ends[waitlist.EndReached], "")
	row("timed out", r.ends[waitlist.EndTimedOut], noteIf(r.ends[waitlist.EndTimedOut], unknown))
	row("unreachable", r.ends[waitlist.EndUnreachable], "")
	row("given back", r.ends[waitlist.EndClosed], noteIf(r.ends[waitlist.EndClosed], unknown))
	row("refused", r.ends[0], noteIf(r.ends[0], "never parked, so certainly not stored"))
	fmt.Fprintln(w)
	row("duplicate acks", int(r.stats.DuplicateAcks), "ignored")
	row("late acks", int(r.stats.LateAcks), "ignored")

	waits := r.ledger.sorted()
	fmt.Fprintf(w, "\n  %-16s p50 %s   p99 %s   max %s\n", "wait", short(percentile(waits, 0.50)),
		short(percentile(waits, 0.99)), short(percentile(waits, 1)))
	if r.ledger.overtime > 0 {
		fmt.Fprintf(w, "  %-16s max %s\n", "until timed out", short(r.ledger.overtime))
	}

	fmt.Fprintf(w, "\n  %-16s%12s%12s%12s\n", "peer", "decided", "missing", "holds")
	for _, n := range r.nodes {
		name := fmt.Sprint(n.id)
		if n.id == leaderID {
			name += ", leads"
		}
		note := ""
		if after, dead := r.killed[n.id]; dead {
			note = "   died after " + thousands(after)
		}
		fmt.Fprintf(w, "  %-16s%12s%12s%12s%s\n", name, thousands(r.ledger.decided[n.id]),
			thousands(r.ledger.missing[n.id]), thousands(n.store.len()), note)
	}
	fmt.Fprint(w, "  (decided: its answer ended the write; missing: it had not answered by then)\n")

	fmt.Fprintln(w)
	for _, f := range r.faults {
		fmt.Fprintf(w, "BROKEN: %s\n", f)
	}
	if len(r.faults) == 0 {
		fmt.Fprintf(w, "every write was answered exactly once, every committed write is on a majority of the nodes\n")
	}
}

const unknown = "outcome unknown: a peer may hold it"

func noteIf(n int, note string) string {
	if n == 0 {
		return ""
	}
	return note
}

const (
	liveInterval = 50 * time.Millisecond // between two versions of the line
	lineInterval = time.Second           // between two lines, unless a tenth is done
)

// console is the screen of the command: a line that is written over and over
// on a terminal, lines one after the other elsewhere.
type console struct {
	w     io.Writer
	total int // 0: not known
	live  bool

	mu      sync.Mutex
	began   time.Time
	last    time.Time // of the last line
	tenths  int       // of the total, in the last line
	shown   int       // answers, in the last line
	showing bool      // the cursor is at the end of a line that will be rewritten
}

func newConsole(w io.Writer, total int) *console {
	now := time.Now()
	return &console{w: w, total: total, live: isTerminal(w), began: now, last: now}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (c *console) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wipeLocked()
	fmt.Fprintf(c.w, format+"\n", args...)
}

func (c *console) show(p progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	idle := p.answered == p.sent
	if c.live {
		if now.Sub(c.last) < liveInterval && !idle {
			return
		}
		c.last = now
		c.wipeLocked()
		fmt.Fprint(c.w, c.line(p))
		c.showing = true
		return
	}
	tenths := c.tenths
	if c.total > 0 {
		tenths = 10 * p.answered / c.total
	}
	if tenths > c.tenths || now.Sub(c.last) >= lineInterval && !(idle && p.answered == c.shown) {
		c.tenths, c.shown, c.last = tenths, p.answered, now
		fmt.Fprintln(c.w, c.line(p))
	}
}

// done leaves the last line as it is.
func (c *console) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.showing {
		c.showing = false
		fmt.Fprintln(c.w)
	}
}

func (c *console) wipeLocked() {
	if c.showing {
		c.showing = false
		fmt.Fprint(c.w, "\r\x1b[K")
	}
}

func (c *console) line(p progress) string {
	of := ""
	if c.total > 0 {
		of = " of " + thousands(c.total)
	}
	return fmt.Sprintf("%5.1fs  %s%s answered: %s committed, %s timed out; %s on the way", time.Since(c.began).Seconds(),
		thousands(p.answered), of, thousands(p.ends[waitlist.EndReached]),
		thousands(p.ends[waitlist.EndTimedOut]), thousands(p.sent-p.answered))
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return thousands(n) + " " + what
}

// short rounds a duration to three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	case d >= 10*time.Millisecond:
		d = d.Round(100 * time.Microsecond)
	default:
		d = d.Round(time.Microsecond)
	}
	return d.String()
}
