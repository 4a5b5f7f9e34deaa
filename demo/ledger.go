package main

import (
	"slices"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

// A ledger is what the leader's callbacks note of every write that was parked.
type ledger struct {
	mu       sync.Mutex
	calls    int                     // callbacks, one for every write that was parked
	waits    []time.Duration         // of the committed writes
	overtime time.Duration           // the longest wait of those that timed out
	decided  map[waitlist.PeerID]int // whose answer ended it
	missing  map[waitlist.PeerID]int // who had not answered when it ended
}

func newLedger() *ledger {
	return &ledger{decided: make(map[waitlist.PeerID]int), missing: make(map[waitlist.PeerID]int)}
}

// count is called from callbacks, so it must be short.
func (l *ledger) count(end waitlist.End, since time.Time, tally waitlist.Tally) {
	waited := time.Since(since)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	switch end {
	case waitlist.EndReached:
		l.waits = append(l.waits, waited)
	case waitlist.EndTimedOut:
		l.overtime = max(l.overtime, waited)
	}
	if id, ok := tally.Decider(); ok {
		l.decided[id]++
	}
	for id := range tally.Missing() {
		l.missing[id]++
	}
}

// percentile returns the wait that a share of the committed writes did not
// exceed. The waits must be sorted.
func percentile(waits []time.Duration, share float64) time.Duration {
	if len(waits) == 0 {
		return 0
	}
	return waits[min(int(share*float64(len(waits))), len(waits)-1)]
}

func (l *ledger) sorted() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.waits)
	return l.waits
}
