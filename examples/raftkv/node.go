package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waitlist-go/waitlist"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// config is what a node has to be told. The listeners become the node's.
type config struct {
	id           uint64
	dir          string            // of the log
	peers        map[uint64]string // raft addresses of all nodes
	clients      map[uint64]string // HTTP addresses of all nodes
	peerListener net.Listener
	httpListener net.Listener
	timeout      time.Duration // the latest answer to a request
	delay        time.Duration // see transport
	metrics      *metrics
	elected      func(id, term uint64) // called by the node that has won an election; must not block
}

// node is one replica. Requests come in on HTTP's goroutines (server.go), park in one of
// the lists, and hand their work to one goroutine, the loop, which owns raft and the log.
// All that the loop learns ends in a call of a list:
//
//	a write was appended at index i       commits.Add(i)
//	a peer stores the log up to i         commits.Ack(i, peer)
//	an entry was applied                  writes.Complete(its request)
//	the read index of a request is i      applied.Add(i)
//	the log was applied up to i           applied.Advance(i)
//	leadership has changed                FailAll, on each of them
type node struct {
	config

	// What is parked.
	writes  *waitlist.WaitingList[requestID] // by request: until the command is applied here
	commits *waitlist.WatermarkList[uint64]  // by log index, on the leader: until a majority stores it
	reads   *waitlist.WaitingList[requestID] // by request: until the read may be answered
	applied *waitlist.WatermarkList[uint64]  // by read index: until this node has applied it

	store    store
	ids      atomic.Uint64 // last requestID.seq given out
	boot     uint64
	leader   atomic.Uint64 // as raft sees it; 0: nobody
	server   *http.Server
	sessions sync.WaitGroup // HTTP connections
	peersIO  *transport

	// To the loop.
	inbox       chan *raftpb.Message
	proposals   chan command
	readers     chan requestID
	unreachable chan uint64

	quit    chan struct{} // closed: the loop ends when it has nothing in hand
	dead    chan struct{} // closed: the loop ends wherever it is
	stopped chan struct{} // closed by the loop when it has ended
	ended   sync.Once
	err     error // why the loop ended by itself; written before stopped is closed

	loop
}

const (
	tick          = 20 * time.Millisecond
	electionTicks = 15
	askAgainTicks = electionTicks // long enough to be sure that the question is lost
	maxBatch      = 256
	maxParked     = 10_000
)

var (
	errNotSubmitted = errors.New("the loop has not taken it")
	errKilled       = errors.New("killed")
	errNoLeader     = errors.New("no leader is known")
	errDeposed      = errors.New("leadership was lost before the write was applied")
)

// startNode starts a replica from what its log holds. It answers requests at once, but
// until it knows a leader the answer is that there is none.
func startNode(cfg config) (*node, error) {
	n := &node{
		config:      cfg,
		boot:        rand.Uint64(),
		store:       store{values: make(map[string][]byte)},
		inbox:       make(chan *raftpb.Message, maxBatch),
		proposals:   make(chan command, maxBatch),
		readers:     make(chan requestID, maxBatch),
		unreachable: make(chan uint64, 8),
		quit:        make(chan struct{}),
		dead:        make(chan struct{}),
		stopped:     make(chan struct{}),
	}
	voters := slices.Sorted(maps.Keys(cfg.peers))
	if err := n.open(voters); err != nil {
		cfg.peerListener.Close()
		cfg.httpListener.Close()
		return nil, fmt.Errorf("node %d: %w", cfg.id, err)
	}
	n.park(voters)
	n.peersIO = newTransport(cfg.id, cfg.peerListener, cfg.peers, cfg.delay, n.receive, n.reportUnreachable)
	go n.run()
	n.serve()
	return n, nil
}

func (n *node) open(voters []uint64) (err error) {
	n.wal, n.storage, n.hard, err = loadLog(n.dir, voters)
	if err != nil {
		return err
	}
	n.term = n.hard.GetTerm()
	n.unconfirmed = make(map[requestID]uint64)
	n.raft, err = raft.NewRawNode(&raft.Config{
		ID:                        n.id,
		ElectionTick:              electionTicks,
		HeartbeatTick:             2,
		Storage:                   n.storage,
		MaxSizePerMsg:             1 << 20,
		MaxCommittedSizePerReady:  16 << 20,
		MaxUncommittedEntriesSize: 64 << 20,
		MaxInflightMsgs:           256,
		// A leader that is cut off has to notice, for the sake of those who wait.
		CheckQuorum: true,
		PreVote:     true,
		// Forwarding would leave the client of a follower with nobody who knows
		// what became of its command when the leader changes. It is redirected instead.
		DisableProposalForwarding: true,
		Logger:                    &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)},
	})
	if err != nil {
		n.wal.close()
	}
	return err
}

// park makes the lists.
func (n *node) park(voters []uint64) {
	n.writes = waitlist.New[requestID](waitlist.Options{Timeout: n.timeout, Capacity: maxParked})
	n.reads = waitlist.New[requestID](waitlist.Options{Timeout: n.timeout, Capacity: maxParked})

	n.applied = waitlist.NewWatermarkList(uint64(firstIndex-1), waitlist.Options{Timeout: n.timeout})
	// An entry of the log has no deadline: it is committed or leadership is lost.
	n.commits = waitlist.NewWatermarkList(uint64(firstIndex-1), waitlist.Options{Timeout: math.MaxInt64})

	peers := make([]waitlist.PeerID, len(voters))
	for i, id := range voters {
		peers[i] = waitlist.PeerID(id)
	}
	if _, err := n.commits.SetQuorum(waitlist.Majority(peers...)); err != nil {
		panic(err) // no voters at all
	}
}

// receive and reportUnreachable are called by the transport.
func (n *node) receive(m *raftpb.Message) {
	select {
	case n.inbox <- m:
	case <-n.stopped:
	}
}

func (n *node) reportUnreachable(peer uint64) {
	select {
	case n.unreachable <- peer:
	default: // enough of them are waiting
	}
}

// nextID names a new request.
func (n *node) nextID() requestID { return requestID{n.boot, n.ids.Add(1)} }

// notLeader says that nothing was done here, and who can do it.
func (n *node) notLeader() error {
	leader := n.leader.Load()
	if leader == raft.None {
		return &notDone{cause: errNoLeader}
	}
	return &notDone{cause: fmt.Errorf("node %d leads", leader), leader: n.address(leader)}
}

// address returns where clients reach a node; that of nobody is empty.
func (n *node) address(id uint64) string { return n.clients[id] }

func (n *node) killed() bool {
	select {
	case <-n.dead:
		return true
	default:
		return false
	}
}

// parked returns how many entries the node's lists hold, or are about to call.
func (n *node) parked() int {
	var sum int
	for _, s := range n.stats() {
		sum += s.Parked + s.Running
	}
	return sum
}

func (n *node) stats() map[string]waitlist.Stats {
	return map[string]waitlist.Stats{
		"writes": n.writes.Stats(), "commits": n.commits.Stats(), "reads": n.reads.Stats(), "applied": n.applied.Stats(),
	}
}

// close stops the node in good order: what is parked may still end well, as long as ctx
// allows.
func (n *node) close(ctx context.Context) error {
	var err error
	n.ended.Do(func() {
		err = n.server.Shutdown(ctx) // waits for the requests
		n.server.Close()
		n.sessions.Wait()
		close(n.quit)
		<-n.stopped
		n.peersIO.close()
		err = errors.Join(err, n.err, n.wal.close())
	})
	return err
}

// kill stops the node as losing power would: no connection is wound up, nothing is
// answered, and what was not synced may be gone. It returns how many bytes of the log
// were lost.
func (n *node) kill() (lost int64, err error) {
	n.ended.Do(func() {
		n.server.Close()
		close(n.dead)
		n.peersIO.close()
		<-n.stopped
		n.sessions.Wait()
		if !errors.Is(n.err, errKilled) {
			err = n.err
		}
		var crash error
		lost, crash = n.wal.crash()
		err = errors.Join(err, crash)
	})
	return lost, err
}
