package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/waitlist-go/waitlist"
)

// cluster is three nodes in one process, and the hand that pulls their plugs.
type cluster struct {
	dir     string
	timeout time.Duration
	delay   time.Duration
	metrics *metrics
	peers   map[uint64]string
	clients map[uint64]string

	// terms lets others wait for an election: its watermark is the latest term in
	// which somebody was elected.
	terms *waitlist.WatermarkList[uint64]

	mu     sync.Mutex
	nodes  map[uint64]*node // those that are alive
	leader uint64           // of term
	term   uint64
}

const clusterSize = 3

func startCluster(dir string, timeout, delay time.Duration) (*cluster, error) {
	c := &cluster{
		dir: dir, timeout: timeout, delay: delay, metrics: newMetrics(),
		peers: make(map[uint64]string), clients: make(map[uint64]string), nodes: make(map[uint64]*node),
		terms: waitlist.NewWatermarkList[uint64](0, waitlist.Options{Timeout: 30 * time.Second}),
	}
	// Every node has to know all addresses, so they are taken before a node starts.
	var listeners []net.Listener
	for id := uint64(1); id <= clusterSize; id++ {
		for _, addrs := range []map[uint64]string{c.peers, c.clients} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				closeAll(listeners)
				return nil, err
			}
			listeners = append(listeners, l)
			addrs[id] = l.Addr().String()
		}
	}
	for id := uint64(1); id <= clusterSize; id++ {
		err := c.start(id, listeners[0], listeners[1])
		listeners = listeners[2:]
		if err != nil {
			closeAll(listeners)
			return nil, errors.Join(err, c.close(context.Background()))
		}
	}
	return c, nil
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		l.Close()
	}
}

func (c *cluster) start(id uint64, peers, clients net.Listener) error {
	n, err := startNode(config{
		id: id, dir: filepath.Join(c.dir, fmt.Sprint("node", id)), peers: c.peers, clients: c.clients,
		peerListener: peers, httpListener: clients, timeout: c.timeout, delay: c.delay,
		metrics: c.metrics, elected: c.elected,
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.nodes[id] = n
	c.mu.Unlock()
	return nil
}

// elected is called by the loop of a node that has won an election.
func (c *cluster) elected(id, term uint64) {
	c.mu.Lock()
	if term > c.term {
		c.leader, c.term = id, term
	}
	c.mu.Unlock()
	c.terms.Advance(term)
}

// waitLeader waits until somebody was elected in a term after the given one.
func (c *cluster) waitLeader(ctx context.Context, after uint64) (leader, term uint64, err error) {
	if _, err := c.terms.Wait(ctx, after+1); err != nil {
		return 0, 0, fmt.Errorf("no leader: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader, c.term, nil
}

func (c *cluster) node(id uint64) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id]
}

// kill lets a node lose power.
func (c *cluster) kill(id uint64) (lost int64, err error) {
	c.mu.Lock()
	n := c.nodes[id]
	delete(c.nodes, id)
	c.mu.Unlock()
	return n.kill()
}

// restart starts a node that was killed, where it was.
func (c *cluster) restart(ctx context.Context, id uint64) error {
	peers, err := listenAgain(ctx, c.peers[id])
	if err != nil {
		return err
	}
	clients, err := listenAgain(ctx, c.clients[id])
	if err != nil {
		peers.Close()
		return err
	}
	return c.start(id, peers, clients)
}

// listenAgain takes an address that was in use until just now. The system may have lent
// the port to some outgoing connection, so it is patient.
func listenAgain(ctx context.Context, addr string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		l, err := net.Listen("tcp", addr)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || ctx.Err() != nil {
			return l, err
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// isolate cuts a node off from its peers, or connects it again. Clients reach it.
func (c *cluster) isolate(id uint64, off bool) { c.node(id).peersIO.cutOff.Store(off) }

// rejoined waits until a node answers reads again. It cannot before it has learnt who
// leads, and has given up what it held as a leader itself.
func (c *cluster) rejoined(ctx context.Context, id uint64) error {
	n := c.node(id)
	for {
		if _, _, err := n.get(ctx, "any"); err == nil {
			return nil
		}
		if pause(ctx, tick); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// settle waits until every node has applied all that was written, and reports what is
// still parked then, which must be nothing once the clients have gone.
func (c *cluster) settle(ctx context.Context) error {
	index, err := c.lastWrite(ctx)
	if err != nil {
		return err
	}
	for id := range c.peers {
		n := c.node(id)
		for {
			// A change of leadership ends this wait like all others.
			_, err := n.applied.Wait(ctx, index)
			if err == nil {
				break
			}
			if pause(ctx, tick); ctx.Err() != nil {
				return fmt.Errorf("node %d has not applied entry %d: %w", id, index, err)
			}
		}
	}
	for id := range c.peers {
		for name, s := range c.node(id).stats() {
			if s.Parked > 0 {
				return fmt.Errorf("node %d still has %d parked in its %s", id, s.Parked, name)
			}
		}
	}
	return nil
}

// lastWrite writes once more, and returns the index of that write.
func (c *cluster) lastWrite(ctx context.Context) (index uint64, err error) {
	for {
		c.mu.Lock()
		n := c.nodes[c.leader]
		c.mu.Unlock()
		if n != nil {
			if index, err = n.put(ctx, "the end", nil); err == nil || ctx.Err() != nil {
				return index, err
			}
		}
		if pause(ctx, tick); ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
	}
}

// close stops all nodes in good order.
func (c *cluster) close(ctx context.Context) error {
	c.mu.Lock()
	nodes := c.nodes
	c.nodes = nil
	c.mu.Unlock()
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.close(ctx))
	}
	c.terms.Close()
	return errors.Join(errs...)
}
