package main

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

const helloTimeout = 2 * time.Second // for a connection to say who it is

// A link is a connection to another node that is opened again whenever it
// breaks, for as long as the node runs.
//
// A broken link is not a verdict. The peer may hold what it was sent, and may
// be back in a moment; to tell the list so, with PeerDown or Nack, would end
// requests as unreachable that the next connection could still have completed.
// So the link dials again, and what the peer does not answer in time is
// answered by the list's own timeout. A system that knows for certain that a
// peer will not return (it was removed, its disk is lost) calls PeerDown.
type link struct {
	n    *node
	peer waitlist.PeerID
	addr string
	up   chan struct{} // closed when the link is connected for the first time
	once sync.Once
}

const (
	firstPause = 5 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

func (l *link) run() {
	pause := firstPause
	for l.n.ctx.Err() == nil {
		if l.connect() {
			pause = firstPause
		}
		l.n.pause(pause)
		pause = min(2*pause, lastPause)
	}
}

// connect opens the link and runs it until it breaks. It reports whether it
// ever stood.
func (l *link) connect() bool {
	dialer := net.Dialer{Timeout: helloTimeout}
	c, err := dialer.DialContext(l.n.ctx, "tcp", l.addr)
	if err != nil || !l.n.hold(c) {
		return false
	}
	defer l.n.drop(c)
	in := newFrameReader(c)
	who, err := greet(c, in, hello{token: l.n.token, peer: l.n.id})
	if err != nil || who.peer != l.peer {
		return false
	}
	var out feed = silence{}
	if l.n.lead != nil {
		l.n.lead.linked(l.peer)
		out = l.n.lead.feed(l.peer)
	}
	l.once.Do(func() { close(l.up) })
	// The error says why the link broke; run opens it again for every reason.
	_ = converse(c, in, out, l.n.faults, func(k kind, body []byte) error {
		if l.n.lead == nil {
			return fmt.Errorf("%w: kind %d to a follower", errMalformed, k)
		}
		// Who speaks is known from the connection, never from the frame.
		return l.n.lead.heard(l.peer, k, body)
	})
	return true
}

// silence is the feed of a link that has nothing to say, a follower's.
type silence struct{}

func (silence) next(buf []byte) []byte { return buf }
func (silence) wake() <-chan struct{}  { return nil }

// greet says hello on a fresh connection and returns what the other side said.
func greet(c net.Conn, in *frameReader, me hello) (hello, error) {
	if err := c.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return hello{}, err
	}
	if _, err := c.Write(appendHello(nil, me)); err != nil {
		return hello{}, err
	}
	k, body, err := in.next()
	if err != nil {
		return hello{}, err
	}
	if k != kindHello {
		return hello{}, fmt.Errorf("%w: kind %d instead of a hello", errMalformed, k)
	}
	who, err := decodeHello(body)
	if err != nil {
		return hello{}, err
	}
	if who.token != me.token {
		return hello{}, errors.New("this is a node of another cluster")
	}
	return who, c.SetDeadline(time.Time{})
}

// converse runs both directions of a connection: a pump for what out has, and
// this goroutine for what comes in. It returns when either fails.
func converse(c net.Conn, in *frameReader, out feed, f faults, heard func(kind, []byte) error) error {
	stop, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		_ = pump(c, out, f, stop)
		c.Close() // ends the reading, too
	}()
	defer func() {
		close(stop)
		c.Close()
		<-gone
	}()
	for {
		k, body, err := in.next()
		if err != nil {
			return err
		}
		if err := heard(k, body); err != nil {
			return err
		}
	}
}
