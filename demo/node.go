package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

const boxLimit = 1 << 16 // elements that may wait for one connection

// A leader answers clients once enough peers hold their writes. It is what the
// demo is about: coordinator.go leads with a WaitingList, loglead.go with a
// WatermarkList.
type leader interface {
	// submit takes over a batch of a client's writes. Each of them is answered
	// exactly once, on any goroutine.
	submit(from *clientConn, ops []op)
	// feed has what a peer is to be sent.
	feed(peer waitlist.PeerID) feed
	// linked is told of every new connection to a peer, before its first frame.
	linked(peer waitlist.PeerID)
	// heard gets every frame from a peer. An error ends the connection.
	heard(peer waitlist.PeerID, k kind, body []byte) error
	// drain refuses new writes, lets the parked ones end until ctx does, and
	// gives back the rest. It returns when no answer is still to come.
	drain(ctx context.Context) error
	stats() waitlist.Stats
}

// A node is a listener, a store, and a link to every other node. All nodes are
// built alike; the one that has a leader leads.
type node struct {
	id     waitlist.PeerID
	token  uint64
	faults faults
	store  *store
	lead   leader // nil: a follower. Written before start.
	ln     net.Listener
	links  []*link

	ctx    context.Context // ends when the node stops
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	conns   map[net.Conn]struct{}
}

func newNode(id waitlist.PeerID, token uint64, f faults) (*node, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &node{id: id, token: token, faults: f, store: newStore(), ln: ln, conns: make(map[net.Conn]struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n, nil
}

func (n *node) addr() string { return n.ln.Addr().String() }

// start accepts connections and links the node to the others.
func (n *node) start(others []*node) {
	n.tasks.Go(n.accept)
	for _, other := range others {
		l := &link{n: n, peer: other.id, addr: other.addr(), up: make(chan struct{})}
		n.links = append(n.links, l)
		n.tasks.Go(l.run)
	}
}

// stop closes the listener and every connection, as a crash would, and waits
// for nothing. The store stays.
func (n *node) stop() {
	n.cancel()
	n.ln.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = true
	for c := range n.conns {
		c.Close()
	}
}

// wait returns when everything that the node ran is gone.
func (n *node) wait() { n.tasks.Wait() }

// hold registers a connection, so that stop closes it.
func (n *node) hold(c net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped {
		c.Close()
		return false
	}
	n.conns[c] = struct{}{}
	return true
}

func (n *node) drop(c net.Conn) {
	c.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
}

// pause waits, unless the node stops.
func (n *node) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-n.ctx.Done():
	}
}

func (n *node) accept() {
	for {
		c, err := n.ln.Accept()
		switch {
		case n.ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return
		case err != nil: // out of file descriptors, say: it may pass
			n.pause(10 * time.Millisecond)
		default:
			n.tasks.Go(func() { n.serve(c) })
		}
	}
}

// serve runs a connection that somebody else has opened.
func (n *node) serve(c net.Conn) {
	if !n.hold(c) {
		return
	}
	defer n.drop(c)
	in := newFrameReader(c)
	who, err := greet(c, in, hello{token: n.token, peer: n.id})
	switch {
	case err != nil:
	case !who.client:
		_ = n.follow(c, in) // the link at the other end notices, and dials again
	case n.lead != nil:
		n.serveClient(c, in)
	}
}

// verdict is a follower's word on a correlation id or a log index.
type verdict struct {
	kind kind
	id   uint64
}

// frameVerdicts sends as one batch what may go together. Of log indexes only
// the highest is worth sending, as it speaks for those below.
func frameVerdicts(buf []byte, items []verdict) ([]byte, int) {
	k := items[0].kind
	var ids []uint64
	n := 0
	for ; n < len(items) && items[n].kind == k; n++ {
		if k == kindAppended {
			ids = append(ids[:0], items[n].id)
		} else if ids = append(ids, items[n].id); len(ids) == maxBatch {
			n++
			break
		}
	}
	return appendIDs(buf, k, ids...), n
}

// follow stores what a leader sends, and tells it so.
func (n *node) follow(c net.Conn, in *frameReader) error {
	out := newOutbox(boxLimit, frameVerdicts)
	return converse(c, in, out, n.faults, func(k kind, body []byte) error {
		if k != kindStore && k != kindAppend {
			return fmt.Errorf("%w: kind %d from a leader", errMalformed, k)
		}
		ops, err := decodeOps(body)
		if err != nil {
			return err
		}
		if k == kindAppend {
			out.put(verdict{kindAppended, n.store.extend(ops)})
			return nil
		}
		verdicts := make([]verdict, len(ops))
		for i, o := range ops {
			verdicts[i] = verdict{kindStored, o.id}
			if n.store.put(o) != nil {
				verdicts[i].kind = kindRefused
			}
		}
		out.put(verdicts...)
		return nil
	})
}

// clientConn is the leader's side of a client's connection.
type clientConn struct {
	// session holds what is parked for this client: when the connection ends,
	// nobody is left to be answered, and the entries go with it.
	session waitlist.Session
	conn    net.Conn
	out     *outbox[answer]
}

// answer never blocks: it is called from callbacks.
func (c *clientConn) answer(a answer) {
	if c.out.put(a) > 0 {
		c.conn.Close() // it writes, and never reads
	}
}

func (n *node) serveClient(c net.Conn, in *frameReader) {
	client := &clientConn{conn: c, out: newOutbox(boxLimit, func(buf []byte, items []answer) ([]byte, int) {
		taken := min(len(items), maxBatch)
		return appendAnswers(buf, items[:taken]), taken
	})}
	err := converse(c, in, client.out, faults{}, func(k kind, body []byte) error {
		if k != kindWrite {
			return fmt.Errorf("%w: kind %d from a client", errMalformed, k)
		}
		ops, err := decodeOps(body)
		if err == nil {
			n.lead.submit(client, ops)
		}
		return err
	})
	client.session.End(err)
}
