package main

import (
	"math/bits"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

// metrics are what the program prints. They outlive the brokers that fill them.
type metrics struct {
	mu       sync.Mutex
	produces histogram // how long produces with acks=all were parked that reached their mark
	polls    histogram // likewise consumers' fetches
	expired  int       // produces that did not
	deciders map[waitlist.PeerID]int
}

func newMetrics() *metrics { return &metrics{deciders: make(map[waitlist.PeerID]int)} }

// produced is told how a parked produce ended.
func (m *metrics) produced(out waitlist.Outcome[int64]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch out.End {
	case waitlist.EndReached:
		m.produces.add(time.Since(out.Since))
		// Whose fetch it was that came last. There is none if a smaller in-sync set
		// has moved the mark.
		if peer, ok := out.Tally.Decider(); ok {
			m.deciders[peer]++
		}
	case waitlist.EndTimedOut:
		m.expired++
	}
}

// polled is told how a consumer's parked fetch ended.
func (m *metrics) polled(out waitlist.Outcome[int64]) {
	if out.End != waitlist.EndReached {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.polls.add(time.Since(out.Since))
}

// takeProduces returns the waits of produces since it was last called.
func (m *metrics) takeProduces() histogram {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.produces
	m.produces = histogram{}
	return h
}

// histogram counts durations. Its buckets are as wide as a sixteenth of what they
// count, or less, so a quantile is at most that much too large.
type histogram struct {
	buckets [61 * 16]uint32
	total   int
	largest time.Duration
}

func (h *histogram) add(d time.Duration) {
	v := uint64(max(d, 0))
	shift := max(bits.Len64(v)-5, 0) // v>>shift is less than 32
	h.buckets[shift*16+int(v>>shift)]++
	h.total++
	h.largest = max(h.largest, d)
}

// quantile returns a duration that the given share of all did not exceed.
func (h *histogram) quantile(share float64) time.Duration {
	seen := 0
	for i, n := range h.buckets {
		if seen += int(n); n > 0 && float64(seen) >= share*float64(h.total) {
			shift := max(i/16-1, 0)
			return min(time.Duration((i-shift*16+1)<<shift-1), h.largest)
		}
	}
	return 0
}
