package main

import (
	"errors"
	"sync"
)

// maxValue is the longest value that a store takes. A longer one is refused by
// every peer, and so the write's quorum becomes unreachable at once.
const maxValue = 4 << 10

var errTooLong = errors.New("the value is too long for this store")

// A store is what one node holds: every write under its correlation id or log
// index. It outlives its node, for inspection.
type store struct {
	mu     sync.Mutex
	writes map[uint64]op
	prefix uint64 // Invariant: all of 1 to prefix are in writes
}

func newStore() *store { return &store{writes: make(map[uint64]op)} }

// admits says whether the store takes the write; all stores agree.
func (s *store) admits(o op) error {
	if len(o.value) > maxValue {
		return errTooLong
	}
	return nil
}

// put stores one write. A write that comes twice is stored once.
func (s *store) put(o op) error {
	if err := s.admits(o); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes[o.id] = o
	return nil
}

// extend stores entries of the log and returns the index up to which the store
// holds everything. Entries may come early, late and twice: those behind a gap
// are kept, and count once the gap is filled.
func (s *store) extend(entries []op) (prefix uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		s.writes[e.id] = e
	}
	for {
		if _, ok := s.writes[s.prefix+1]; !ok {
			return s.prefix
		}
		s.prefix++
	}
}

func (s *store) get(id uint64) (op, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.writes[id]
	return o, ok
}

func (s *store) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.writes)
}
