package main

import (
	"bufio"
	"container/heap"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// transport carries raft's messages over TCP: one connection to each peer for what this
// node sends, one from each for what it receives. A message may get lost and may arrive
// late; raft copes with both, so a full queue drops and nobody waits for the network.
type transport struct {
	id       uint64
	listener net.Listener
	links    map[uint64]*link
	deliver  func(*raftpb.Message) // blocks while the node is busy, so that TCP holds back the peers
	delay    time.Duration         // each frame is held for up to this time
	cutOff   atomic.Bool           // nothing goes out and nothing comes in

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	incoming map[net.Conn]struct{} // nil once closed
}

const (
	linkQueue     = 1024
	maxMessage    = 64 << 20
	redialEvery   = 20 * time.Millisecond
	patienceOfTCP = time.Second // for dialling, and for a peer that does not read
)

func newTransport(id uint64, listener net.Listener, peers map[uint64]string, delay time.Duration, deliver func(*raftpb.Message), unreachable func(uint64)) *transport {
	t := &transport{
		id: id, listener: listener, links: make(map[uint64]*link), deliver: deliver, delay: delay,
		incoming: make(map[net.Conn]struct{}),
	}
	t.ctx, t.stop = context.WithCancel(context.Background())
	for peer, addr := range peers {
		if peer == id {
			continue
		}
		l := &link{
			transport: t, addr: addr, queue: make(chan []byte, linkQueue),
			lost: func() { unreachable(peer) },
		}
		t.links[peer] = l
		t.wg.Go(l.run)
	}
	t.wg.Go(t.accept)
	return t
}

// close ends all connections and returns when all goroutines are gone.
func (t *transport) close() {
	t.stop()
	t.listener.Close()
	t.mu.Lock()
	for c := range t.incoming {
		c.Close()
	}
	t.incoming = nil
	t.mu.Unlock()
	t.wg.Wait()
}

// send queues a message for its receiver, or drops it.
func (t *transport) send(m *raftpb.Message) error {
	l, ok := t.links[m.GetTo()]
	if !ok || t.cutOff.Load() {
		return nil
	}
	frame, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 4, 64), m)
	if err != nil {
		return fmt.Errorf("message to node %d: %w", m.GetTo(), err)
	}
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-4))
	select {
	case l.queue <- frame:
	default:
		l.lost()
	}
	return nil
}

func (t *transport) accept() {
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			if t.ctx.Err() != nil {
				return
			}
			pause(t.ctx, redialEvery) // out of descriptors, most likely
			continue
		}
		t.mu.Lock()
		closed := t.incoming == nil
		if !closed {
			t.incoming[conn] = struct{}{}
		}
		t.mu.Unlock()
		if closed {
			conn.Close()
			return
		}
		t.wg.Go(func() {
			t.receive(conn)
			conn.Close()
			t.mu.Lock()
			delete(t.incoming, conn)
			t.mu.Unlock()
		})
	}
}

// receive delivers what comes over a connection, until that ends or makes no sense.
func (t *transport) receive(conn net.Conn) {
	r := bufio.NewReaderSize(conn, 64<<10)
	var head [4]byte
	var body []byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		size := int(binary.LittleEndian.Uint32(head[:]))
		if size > maxMessage {
			return
		}
		if cap(body) < size {
			body = make([]byte, size)
		}
		body = body[:size]
		if _, err := io.ReadFull(r, body); err != nil {
			return
		}
		m := new(raftpb.Message)
		if err := proto.Unmarshal(body, m); err != nil {
			return
		}
		if t.links[m.GetFrom()] == nil || m.GetTo() != t.id {
			return
		}
		if !t.cutOff.Load() {
			t.deliver(m)
		}
	}
}

// link sends to one peer. All but the queue is owned by run.
type link struct {
	transport *transport
	addr      string
	queue     chan []byte
	lost      func() // tells that something did not get through

	held heldFrames
	conn *outgoing
	w    *bufio.Writer
	next time.Time // when to dial again
}

func (l *link) run() {
	defer l.hangUp()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if len(l.held) > 0 {
			timer.Reset(time.Until(l.held[0].due))
		}
		select {
		case <-l.transport.ctx.Done():
			return
		case frame := <-l.queue:
			if max := l.transport.delay; max > 0 {
				heap.Push(&l.held, heldFrame{time.Now().Add(rand.N(max)), frame})
			} else {
				l.write(frame)
			}
		case now := <-timer.C:
			for len(l.held) > 0 && !l.held[0].due.After(now) {
				l.write(heap.Pop(&l.held).(heldFrame).frame)
			}
		}
		if len(l.queue) == 0 {
			l.flush()
		}
	}
}

func (l *link) write(frame []byte) {
	if l.transport.cutOff.Load() || !l.connected() {
		l.lost()
		return
	}
	l.conn.SetWriteDeadline(time.Now().Add(patienceOfTCP))
	if _, err := l.w.Write(frame); err != nil {
		l.broken()
	}
}

func (l *link) flush() {
	if l.conn != nil && l.w.Buffered() > 0 && l.w.Flush() != nil {
		l.broken()
	}
}

// connected sees to it that there is a connection, if that is possible now.
func (l *link) connected() bool {
	if l.conn != nil && l.conn.ended.Load() {
		l.broken()
	}
	if l.conn != nil {
		return true
	}
	if time.Now().Before(l.next) {
		return false
	}
	d := net.Dialer{Timeout: patienceOfTCP}
	conn, err := d.DialContext(l.transport.ctx, "tcp", l.addr)
	if err != nil {
		l.next = time.Now().Add(redialEvery)
		return false
	}
	l.conn = &outgoing{Conn: conn}
	l.w = bufio.NewWriterSize(conn, 64<<10)
	l.transport.wg.Go(l.conn.watch)
	return true
}

func (l *link) broken() {
	l.hangUp()
	l.lost()
}

func (l *link) hangUp() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
}

// outgoing is a connection on which the peer never says anything, so that a read returns
// when the peer is gone. Without that the first frames to a peer that has restarted
// would be written to the old connection, and lost.
type outgoing struct {
	net.Conn
	ended atomic.Bool
}

func (c *outgoing) watch() {
	io.Copy(io.Discard, c)
	c.ended.Store(true)
}

// heldFrames are frames that are being delayed, the next one due first.
type heldFrames []heldFrame

type heldFrame struct {
	due   time.Time
	frame []byte
}

func (h heldFrames) Len() int           { return len(h) }
func (h heldFrames) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h heldFrames) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heldFrames) Push(f any)        { *h = append(*h, f.(heldFrame)) }
func (h *heldFrames) Pop() any {
	last := len(*h) - 1
	f := (*h)[last]
	(*h)[last] = heldFrame{}
	*h = (*h)[:last]
	return f
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
