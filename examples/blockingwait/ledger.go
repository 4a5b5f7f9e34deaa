//go:build unix

package main

import "sync"

// ledger is where the effects of values go. It stands for a table with a unique
// key, in a database that does not lose what it has committed: it is there, and not in
// Redis, that handling a value twice is found out.
type ledger struct {
	mu      sync.Mutex
	handled map[string]int // guarded by mu; by value: how often it was handled
}

// handle takes note of a value, and tells whether this is its first time: then it has
// its effect.
func (l *ledger) handle(value string) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handled == nil {
		l.handled = make(map[string]int)
	}
	l.handled[value]++
	return l.handled[value] == 1
}

func (l *ledger) times(value string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.handled[value]
}

// sums returns how often anything was handled, and how many effects that had.
func (l *ledger) sums() (times, effects int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.handled {
		times += n
	}
	return times, len(l.handled)
}
