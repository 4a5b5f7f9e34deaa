package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

// broker leads some partitions and follows others.
type broker struct {
	id       int32
	cluster  *cluster
	folder   string
	listener net.Listener

	ctx  context.Context // ends with the broker
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	conns    map[*conn]struct{} // nil once killed
	leaders  map[partitionName]*leader
	replicas map[partitionName]replica // those it follows
}

// replica is a log that follows a leader's.
type replica struct {
	log    *recordLog
	leader int32
}

const anyPort = "127.0.0.1:0"

// newBroker makes a broker that hears, but does not answer before run.
func newBroker(c *cluster, id int32, folder, address string) (*broker, error) {
	if address == "" {
		address = anyPort
	}
	listener, err := net.Listen("tcp", address)
	if err != nil { // somebody has taken the port in the meantime
		if listener, err = net.Listen("tcp", anyPort); err != nil {
			return nil, err
		}
	}
	b := &broker{
		id: id, cluster: c, folder: folder, listener: listener, conns: make(map[*conn]struct{}),
		leaders: make(map[partitionName]*leader), replicas: make(map[partitionName]replica),
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b, nil
}

func (b *broker) run() {
	b.wg.Go(b.accept)
	b.wg.Go(b.watchLag)
	for id := range int32(b.cluster.config.brokers) {
		if leader := id + 1; leader != b.id {
			b.wg.Go(func() { b.follow(leader) })
		}
	}
}

func (b *broker) address() string { return b.listener.Addr().String() }

func (b *broker) hostPort() (string, int32) {
	a := b.listener.Addr().(*net.TCPAddr)
	return a.IP.String(), int32(a.Port)
}

// host opens the broker's log of a partition, if it is to have one.
func (b *broker) host(name partitionName, a assignment, minInSync int) error {
	if !slices.Contains(a.replicas, b.id) {
		return nil
	}
	path := filepath.Join(b.folder, fmt.Sprintf("%s-%d.log", name.topic, name.index))
	known := make(producers)
	log, err := openLog(path, known.note)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.leader() == b.id {
		b.leaders[name] = newLeader(b, name, a, log, known, minInSync)
	} else {
		b.replicas[name] = replica{log, a.leader()}
	}
	return nil
}

func (b *broker) leaderOf(name partitionName) *leader {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leaders[name]
}

// logOf returns the broker's log of a partition, or nil.
func (b *broker) logOf(name partitionName) *recordLog {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.leaders[name]; l != nil {
		return l.log
	}
	return b.replicas[name].log
}

// releaseFollowers answers the followers' fetches that wait, which know nothing of a new
// topic. The next ones do.
func (b *broker) releaseFollowers() {
	b.mu.Lock()
	conns := slices.Collect(maps.Keys(b.conns))
	b.mu.Unlock()
	for _, c := range conns {
		c.mu.Lock()
		fetches := slices.Collect(maps.Keys(c.fetches))
		c.mu.Unlock()
		for _, f := range fetches {
			if f.replica {
				f.finish()
			}
		}
	}
}

func (b *broker) leads() []*leader {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.leaders))
}

func (b *broker) stats() waitlist.Stats {
	var sum waitlist.Stats
	for _, l := range b.leads() {
		sum = addStats(sum, l.stats())
	}
	return sum
}

// kill cuts all connections, so that nobody gets an answer any more, and returns, with
// the books, when all goroutines are gone and no list will call anything again.
func (b *broker) kill() waitlist.Stats {
	b.stop()
	b.listener.Close()
	b.mu.Lock()
	conns := b.conns
	b.conns = nil
	b.mu.Unlock()
	for c := range conns {
		c.close(errKilled)
	}
	for _, l := range b.leads() {
		l.close()
	}
	b.wg.Wait()
	var sum waitlist.Stats
	for _, l := range b.leads() {
		l.join()
		sum = addStats(sum, l.stats())
		l.log.close()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.replicas {
		r.log.close()
	}
	return sum
}

func (b *broker) accept() {
	for {
		nc, err := b.listener.Accept()
		if err != nil {
			if b.ctx.Err() != nil {
				return
			}
			pause(b.ctx, 20*time.Millisecond) // out of descriptors, most likely
			continue
		}
		c := newConn(b, nc)
		b.mu.Lock()
		open := b.conns != nil
		if open {
			b.conns[c] = struct{}{}
		}
		b.mu.Unlock()
		if !open {
			nc.Close()
			return
		}
		b.wg.Go(func() {
			c.serve()
			b.mu.Lock()
			delete(b.conns, c)
			b.mu.Unlock()
		})
	}
}

// watchLag looks after followers that have stopped to fetch, which nothing else would
// notice.
func (b *broker) watchLag() {
	tick := time.NewTicker(max(b.cluster.config.lagMax/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			for _, l := range b.leads() {
				l.dropLaggards(now)
			}
		case <-b.ctx.Done():
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
