package main

import (
	"bufio"
	"bytes"
	"container/heap"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// An outbox is a queue that never makes its producer wait. Callbacks of a
// waiting list run on the goroutine that ended the entry, here mostly the one
// that reads a peer's acks; if a callback wrote to a socket itself, a single
// slow client would hold up every ack behind it. So callbacks put, and the
// connection's own pump takes, as many at a time as have come meanwhile.
type outbox[T any] struct {
	limit int
	frame func(buf []byte, items []T) (frame []byte, taken int)
	ready chan struct{} // of one: something was put since the pump last looked

	mu    sync.Mutex
	items []T
}

func newOutbox[T any](limit int, frame func([]byte, []T) ([]byte, int)) *outbox[T] {
	return &outbox[T]{limit: limit, frame: frame, ready: make(chan struct{}, 1)}
}

// put queues the items. A queue that is longer than its limit loses its oldest
// items, and put says how many: nobody is allowed to fill the memory by not
// reading.
func (b *outbox[T]) put(items ...T) (lost int) {
	b.mu.Lock()
	b.items = append(b.items, items...)
	if lost = max(0, len(b.items)-b.limit); lost > 0 {
		b.items = append([]T(nil), b.items[lost:]...)
	}
	b.mu.Unlock()
	nudge(b.ready)
	return lost
}

func (b *outbox[T]) next(buf []byte) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.items) == 0 {
		return buf
	}
	buf, n := b.frame(buf, b.items)
	clear(b.items[:n])
	if b.items = b.items[n:]; len(b.items) == 0 {
		b.items = nil
	}
	return buf
}

func (b *outbox[T]) wake() <-chan struct{} { return b.ready }

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it has not yet looked at the last one
	}
}

// A feed has what a pump is to send.
type feed interface {
	next(buf []byte) []byte // appends the next frame; appends nothing when nothing waits
	wake() <-chan struct{}  // there may be something again
}

// faults are what a connection between two nodes does to the frames on it. The
// zero value does nothing.
type faults struct {
	drop, duplicate float64       // shares of the frames, from 0 to 1
	delay           time.Duration // upper bound; each frame draws its own, so frames overtake
}

func (f faults) copies() int {
	switch {
	case rand.Float64() < f.drop:
		return 0
	case rand.Float64() < f.duplicate:
		return 2
	}
	return 1
}

func (f faults) wait() time.Duration {
	if f.delay <= 0 {
		return 0
	}
	return rand.N(f.delay)
}

// stallTimeout is how long a write to a connection may take before the
// connection counts as broken.
const stallTimeout = 5 * time.Second

// pump writes what the feed has to the connection, through the faults, until
// stop is closed or a write fails. Frames that are still delayed then are lost,
// as they would be in a network.
func pump(conn net.Conn, from feed, f faults, stop <-chan struct{}) error {
	w := bufio.NewWriterSize(stallGuard{conn}, 64<<10)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var (
		late delayed
		buf  []byte
	)
	for {
		for {
			if buf = from.next(buf[:0]); len(buf) == 0 {
				break
			}
			for range f.copies() {
				if d := f.wait(); d > 0 {
					heap.Push(&late, delayedFrame{time.Now().Add(d), bytes.Clone(buf)})
				} else if _, err := w.Write(buf); err != nil {
					return err
				}
			}
		}
		for len(late) > 0 && !late[0].due.After(time.Now()) {
			if _, err := w.Write(heap.Pop(&late).(delayedFrame).frame); err != nil {
				return err
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if len(late) > 0 {
			timer.Reset(time.Until(late[0].due))
		}
		select {
		case <-stop:
			return nil
		case <-from.wake():
		case <-timer.C:
		}
	}
}

// stallGuard gives each write to a connection its own deadline.
type stallGuard struct{ net.Conn }

func (g stallGuard) Write(p []byte) (int, error) {
	if err := g.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
		return 0, err
	}
	return g.Conn.Write(p)
}

type delayedFrame struct {
	due   time.Time
	frame []byte
}

// delayed is a heap of frames, the one that is due next in front.
type delayed []delayedFrame

func (d delayed) Len() int           { return len(d) }
func (d delayed) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d delayed) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *delayed) Push(x any)        { *d = append(*d, x.(delayedFrame)) }
func (d *delayed) Pop() any {
	old := *d
	last := old[len(old)-1]
	old[len(old)-1] = delayedFrame{}
	*d = old[:len(old)-1]
	return last
}
