package main

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waitlist-go/waitlist"
)

const (
	// What a client may have under way on one connection. The next request stays in
	// the socket, so a client that wants more is slowed down by TCP. While it is, nobody
	// reads, so nobody sees it hang up before an answer is due: all waits are finite.
	pipeline = 64

	idleLimit  = 10 * time.Minute
	writeLimit = 30 * time.Second // a client that does not read for so long is gone
)

var (
	errKilled   = errors.New("the broker was killed")
	errHungUp   = errors.New("the client has hung up")
	errAnswered = errors.New("answered")
	errAcksNone = errors.New("a produce without acks has failed")
)

// conn is a connection of a client or a follower. One goroutine reads requests, begins
// what they ask for and goes on to the next; another writes the answers, which have to
// come in the order of the requests. Between the two a request is an entry of a
// waiting list and no goroutine.
type conn struct {
	broker  *broker
	net     net.Conn
	replies chan *reply
	gone    chan struct{}    // closed when no answer can be given any more
	session waitlist.Session // holds the produces that wait

	// A fetch waits for any of several partitions, so each is a session itself.
	mu      sync.Mutex
	fetches map[*fetch]struct{} // nil once gone
}

// reply is the answer to a request, when it is known.
type reply struct {
	header header
	ready  chan struct{}
	// body makes the answer, once ready, on the goroutine that writes. nil: there is
	// no answer.
	body func() kmsg.Response
}

func (r *reply) done() { close(r.ready) }

// now answers at once.
func (r *reply) now(resp kmsg.Response) {
	r.body = func() kmsg.Response { return resp }
	r.done()
}

func newConn(b *broker, nc net.Conn) *conn {
	return &conn{
		broker: b, net: nc, replies: make(chan *reply, pipeline), gone: make(chan struct{}),
		fetches: make(map[*fetch]struct{}),
	}
}

// serve returns when the connection is over and nothing waits on its behalf.
func (c *conn) serve() {
	var writer sync.WaitGroup
	writer.Go(c.write)
	c.close(c.read())
	writer.Wait()
}

// close ends the connection and everything that waits on its behalf.
func (c *conn) close(cause error) {
	c.mu.Lock()
	fetches := c.fetches
	c.fetches = nil
	c.mu.Unlock()
	if fetches == nil {
		return
	}
	close(c.gone)
	c.net.Close()
	if cause == nil {
		cause = errHungUp
	}
	c.session.End(cause)
	for f := range fetches {
		f.finish()
	}
}

func (c *conn) read() error {
	r := bufio.NewReaderSize(c.net, 32<<10)
	for {
		c.net.SetReadDeadline(time.Now().Add(idleLimit))
		frame, err := readFrame(r)
		if err != nil {
			return err
		}
		h, req, err := parseRequest(frame)
		if err != nil {
			return err // nobody knows what an answer to it would look like
		}
		reply := &reply{header: h, ready: make(chan struct{})}
		// It takes its place in the order of answers before anything can answer it.
		select {
		case c.replies <- reply:
		case <-c.gone:
			return nil
		}
		if err := c.handle(req, reply); err != nil {
			return err
		}
	}
}

func (c *conn) write() {
	var frame []byte
	for {
		var r *reply
		select {
		case r = <-c.replies:
		case <-c.gone:
			return
		}
		select {
		case <-r.ready:
		case <-c.gone:
			return
		}
		if r.body == nil {
			continue
		}
		frame = appendResponse(frame[:0], r.header, r.body())
		c.net.SetWriteDeadline(time.Now().Add(writeLimit))
		if _, err := c.net.Write(frame); err != nil {
			c.close(err)
			return
		}
		if cap(frame) > 1<<20 {
			frame = nil // one large answer should not stay for as long as the client does
		}
	}
}

// handle begins a request. An error ends the connection.
func (c *conn) handle(req kmsg.Request, r *reply) error {
	b := c.broker
	switch req := req.(type) {
	case nil:
		r.now(versions(nil))
	case *kmsg.ApiVersionsRequest:
		r.now(versions(req))
	case *kmsg.MetadataRequest:
		r.now(b.serveMetadata(req))
	case *kmsg.CreateTopicsRequest:
		r.now(b.serveCreateTopics(req))
	case *kmsg.ListOffsetsRequest:
		r.now(b.serveListOffsets(req))
	case *kmsg.InitProducerIDRequest:
		r.now(b.serveInitProducerID(req))
	case *kmsg.ProduceRequest:
		return c.produce(req, r)
	case *kmsg.FetchRequest:
		c.fetch(req, r)
	}
	return nil
}
