//go:build unix

package main

import "sync"

// queue hands work to the goroutines that may block: putting never does. Its length
// is bounded by who puts, here by the number of transactions in flight.
type queue[T any] struct {
	mu     sync.Mutex
	filled *sync.Cond
	items  []T
	closed bool
}

func newQueue[T any]() *queue[T] {
	q := &queue[T]{}
	q.filled = sync.NewCond(&q.mu)
	return q
}

func (q *queue[T]) put(item T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, item)
	q.filled.Signal()
}

// get returns false when the queue is closed and empty.
func (q *queue[T]) get() (item T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.closed {
		q.filled.Wait()
	}
	if len(q.items) == 0 {
		return item, false
	}
	item = q.items[0]
	clear(q.items[:1])
	q.items = q.items[1:]
	return item, true
}

func (q *queue[T]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
}
