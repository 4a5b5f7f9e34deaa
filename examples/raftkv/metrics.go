package main

import (
	"math/bits"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

// metrics are what the program prints in the end. They outlive the nodes that fill
// them.
type metrics struct {
	writes, reads histogram // how long requests were parked that ended well

	mu       sync.Mutex
	deciders map[waitlist.PeerID]uint64 // whose answer committed a write, and how many
}

func newMetrics() *metrics { return &metrics{deciders: make(map[waitlist.PeerID]uint64)} }

// committed notes who decided a write. It is the callback of a write that is parked by
// its log index.
func (m *metrics) committed(out waitlist.Outcome[uint64]) {
	if peer, ok := out.Tally.Decider(); ok {
		m.mu.Lock()
		m.deciders[peer]++
		m.mu.Unlock()
	}
}

func (m *metrics) decided(peer waitlist.PeerID) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deciders[peer]
}

// histogram counts durations in buckets that grow with what they count, eight to each
// power of two: a quantile is at most an eighth too large, and memory does not grow.
type histogram struct {
	mu      sync.Mutex
	buckets [512]uint64
	total   uint64
}

func (h *histogram) add(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buckets[bucketOf(uint64(max(d, 0)))]++
	h.total++
}

func (h *histogram) count() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.total
}

// quantile returns a duration that the given share of all did not exceed.
func (h *histogram) quantile(share float64) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	var seen uint64
	for i, n := range h.buckets {
		seen += n
		if n > 0 && float64(seen) >= share*float64(h.total) {
			return time.Duration(bucketEnd(i))
		}
	}
	return 0
}

func bucketOf(v uint64) int {
	if v < 8 {
		return int(v)
	}
	exp := bits.Len64(v) - 4 // v>>exp is 8 to 15
	return exp*8 + int(v>>exp)
}

// bucketEnd returns the largest value in a bucket.
func bucketEnd(i int) uint64 {
	if i < 8 {
		return uint64(i)
	}
	exp := i/8 - 1
	return uint64(i%8+9)<<exp - 1
}
