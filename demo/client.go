package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

// A client writes to the leader over one connection. It does not wait for one
// answer before it sends the next write, but never has more than its window
// unanswered; that is what bounds the leader's list in everyday life.
type client struct {
	conn       net.Conn
	token      uint64
	window     chan struct{}      // one element per unanswered write
	onAnswer   func(answered int) // called on the reading goroutine; must not block
	broken     chan struct{}      // closed when no further answer can come
	brokenOnce sync.Once

	mu       sync.Mutex
	err      error    // why it is broken
	sent     []record // the write with id i is sent[i-1]
	answered int
	strange  int // answers to writes that were never sent
	ends     [waitlist.EndClosed + 1]int
	lastMove time.Time // the last write or answer
}

// A record is what the client knows of one write.
type record struct {
	write   op
	answers int
	end     waitlist.End
	stored  uint64 // the id under which the stores have it
}

func dial(ctx context.Context, addr string, token uint64, window int, onAnswer func(int)) (*client, error) {
	dialer := net.Dialer{Timeout: helloTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &client{
		conn:     conn,
		token:    token,
		window:   make(chan struct{}, window),
		onAnswer: onAnswer,
		broken:   make(chan struct{}),
		lastMove: time.Now(),
	}
	return c, nil
}

// run sends what the channel has until it is closed or ctx ends, and returns
// when every write that was sent has been answered. Only a connection that
// breaks keeps it from that.
func (c *client) run(ctx context.Context, writes <-chan op) error {
	in := newFrameReader(c.conn)
	if _, err := greet(c.conn, in, hello{token: c.token, client: true}); err != nil {
		c.conn.Close()
		return err
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		c.abort(c.read(in))
	}()
	defer func() {
		c.conn.Close()
		<-gone
	}()
	c.write(ctx, writes)
	// All of the window can be taken once nothing is unanswered.
	for range cap(c.window) {
		select {
		case c.window <- struct{}{}:
		case <-c.broken:
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.err
		}
	}
	return nil
}

// write sends the writes, as many to a frame as are there and the window has
// room for.
func (c *client) write(ctx context.Context, writes <-chan op) {
	out := stallGuard{c.conn}
	var buf []byte
	for {
		batch := c.collect(ctx, writes)
		if len(batch) == 0 {
			return
		}
		c.mu.Lock()
		for i := range batch {
			batch[i].id = uint64(len(c.sent)) + 1
			c.sent = append(c.sent, record{write: batch[i]})
		}
		c.lastMove = time.Now()
		c.mu.Unlock()
		buf = appendOps(buf[:0], kindWrite, batch)
		if _, err := out.Write(buf); err != nil {
			c.abort(err)
			return
		}
	}
}

// collect waits for one write and for room in the window, and then takes what
// else is there. It returns nothing when there is nothing more to send.
func (c *client) collect(ctx context.Context, writes <-chan op) []op {
	if ctx.Err() != nil {
		return nil
	}
	var first op
	select {
	case o, ok := <-writes:
		if !ok {
			return nil
		}
		first = o
	case <-ctx.Done():
		return nil
	case <-c.broken:
		return nil
	}
	select {
	case c.window <- struct{}{}:
	case <-ctx.Done():
		return nil
	case <-c.broken:
		return nil
	}
	batch := []op{first}
	for bytes := len(first.key) + len(first.value); len(batch) < maxBatch && bytes < maxBatchBytes; {
		select {
		case c.window <- struct{}{}:
		default:
			return batch
		}
		select {
		case o, ok := <-writes:
			if ok {
				batch = append(batch, o)
				bytes += len(o.key) + len(o.value)
				continue
			}
		default:
		}
		<-c.window
		break
	}
	return batch
}

// read takes answers until the connection ends.
func (c *client) read(in *frameReader) error {
	for {
		k, body, err := in.next()
		if err != nil {
			return err
		}
		if k != kindAnswer {
			return fmt.Errorf("%w: kind %d from the leader", errMalformed, k)
		}
		answers, err := decodeAnswers(body)
		if err != nil {
			return err
		}
		for _, a := range answers {
			if n, ok := c.take(a); ok {
				c.onAnswer(n)
				<-c.window
			}
		}
	}
}

// take notes an answer, and reports whether it is the first to its write.
func (c *client) take(a answer) (answered int, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.id < 1 || a.id > uint64(len(c.sent)) || int(a.end) >= len(c.ends) {
		c.strange++
		return c.answered, false
	}
	r := &c.sent[a.id-1]
	if r.answers++; r.answers > 1 {
		return c.answered, false
	}
	r.end, r.stored = a.end, a.stored
	c.answered++
	c.ends[a.end]++
	c.lastMove = time.Now()
	return c.answered, true
}

// abort says that no further answer will come.
func (c *client) abort(err error) {
	c.brokenOnce.Do(func() {
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		close(c.broken)
		c.conn.Close()
	})
}

// progress is what the client has seen so far.
type progress struct {
	sent, answered int
	ends           [waitlist.EndClosed + 1]int
	still          time.Duration // for how long nothing has moved, with writes unanswered
}

func (c *client) progress() progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := progress{sent: len(c.sent), answered: c.answered, ends: c.ends}
	if p.answered < p.sent {
		p.still = time.Since(c.lastMove)
	}
	return p
}
