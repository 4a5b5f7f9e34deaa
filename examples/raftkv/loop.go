package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waitlist-go/waitlist"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// loop is what the loop's goroutine owns.
type loop struct {
	raft    *raft.RawNode
	wal     *wal
	storage *raft.MemoryStorage
	hard    *raftpb.HardState

	term    uint64 // of the last Ready
	leading bool   // whether this node led at the last Ready
	first   uint64 // index of the first entry of its own term, if it leads

	toPropose   []*raftpb.Entry
	toAsk       []requestID          // reads that raft has not been asked about
	unconfirmed map[requestID]uint64 // reads that raft was asked about, and at which tick
	ticks       uint64
}

// run is the loop.
func (n *node) run() {
	n.err = n.work()
	n.leader.Store(0)
	// Nobody is left to end what is parked. A write may be in the log, so it is unknown.
	n.writes.Close()
	n.reads.Close()
	n.commits.Close()
	n.applied.Close()
	close(n.stopped)
}

func (n *node) work() error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-n.dead:
			return errKilled
		case <-n.quit:
			return nil
		case <-ticker.C:
			n.tick()
		case m := <-n.inbox:
			n.step(m)
		case c := <-n.proposals:
			n.collect(c)
		case id := <-n.readers:
			n.toAsk = append(n.toAsk, id)
		case peer := <-n.unreachable:
			n.raft.ReportUnreachable(peer)
		}
		n.collectMore()
		n.propose()
		n.ask()
		for n.raft.HasReady() {
			if err := n.ready(n.raft.Ready()); err != nil {
				return err
			}
			if err := n.check(); err != nil {
				return err
			}
		}
	}
}

// collectMore takes what else has come, so that one write to disk serves all of it.
func (n *node) collectMore() {
	for range maxBatch {
		select {
		case m := <-n.inbox:
			n.step(m)
		case c := <-n.proposals:
			n.collect(c)
		case id := <-n.readers:
			n.toAsk = append(n.toAsk, id)
		default:
			return
		}
	}
}

func (n *node) tick() {
	n.ticks++
	n.raft.Tick()
	// A question about a read index can get lost on its way to the leader and back.
	// Asking twice does no harm, and either answer will do.
	for id, asked := range n.unconfirmed {
		if _, parked := n.reads.Get(id); !parked {
			delete(n.unconfirmed, id)
		} else if n.ticks-asked >= askAgainTicks {
			n.toAsk = append(n.toAsk, id)
		}
	}
}

// step gives raft a message. If it says that a peer stores more of the log, so does
// commits; only answers to this term's entries count.
func (n *node) step(m *raftpb.Message) {
	// Errors are about messages that raft has no use for, from peers that may be late.
	_ = n.raft.Step(m)
	if m.GetType() == raftpb.MsgAppResp && !m.GetReject() {
		n.stored(m.GetFrom(), m.GetIndex(), m.GetTerm())
	}
}

// stored notes that a peer stores the log of a term up to index.
func (n *node) stored(peer, index, term uint64) {
	// The message may have been the one that deposed this node.
	if s := n.raft.BasicStatus(); n.leading && s.RaftState == raft.StateLeader && s.GetTerm() == term && n.term == term {
		n.commits.Ack(index, waitlist.PeerID(peer))
	}
}

// collect takes a command for the next proposal, unless its request has ended while it
// was in the queue: its client was told that nobody knows, and nothing is the better half
// of that.
func (n *node) collect(c command) {
	if _, parked := n.writes.Get(c.id); !parked {
		return
	}
	if !n.leading {
		n.writes.Fail(c.id, n.notLeader())
		return
	}
	n.toPropose = append(n.toPropose, &raftpb.Entry{Data: c.encode()})
}

func (n *node) propose() {
	if len(n.toPropose) == 0 {
		return
	}
	entries := n.toPropose
	n.toPropose = nil
	err := n.raft.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(n.id), Entries: entries})
	if err == nil {
		return
	}
	for _, e := range entries {
		id, _ := cutRequestID(e.GetData())
		n.writes.Fail(id, &notDone{cause: err, leader: n.address(n.raft.BasicStatus().Lead)})
	}
}

// ask asks the leader, which may be this node, for the index that a read has to wait for.
// One question serves all reads that have come meanwhile.
func (n *node) ask() {
	for batch := range slices.Chunk(n.toAsk, maxBatch) {
		if n.raft.BasicStatus().Lead == raft.None {
			for _, id := range batch {
				n.reads.Fail(id, n.notLeader())
			}
			continue
		}
		var question []byte
		for _, id := range batch {
			n.unconfirmed[id] = n.ticks
			question = id.append(question)
		}
		n.raft.ReadIndex(question)
	}
	n.toAsk = n.toAsk[:0]
}

// ready does what raft wants done, in the order that keeps its promises.
func (n *node) ready(rd raft.Ready) error {
	before := n.leading
	changed := n.observe(rd)
	deposed := changed && before
	if deposed {
		// From now on these indexes may belong to another leader's entries.
		n.commits.FailAll(errDeposed)
	}
	if n.leading {
		if changed {
			n.beginTerm(rd.Entries)
		}
		if err := n.parkCommits(rd.Entries); err != nil {
			return err
		}
	}

	if err := n.persist(rd); err != nil {
		return err
	}
	if err := n.apply(rd.CommittedEntries); err != nil {
		return err
	}
	n.confirm(rd.ReadStates)
	if changed {
		// After apply: whatever was decided in our favour has been answered so.
		n.leadershipLost(deposed)
		if n.leading {
			n.elected(n.id, n.term)
		}
	}

	n.raft.Advance(rd)
	if k := len(rd.Entries); k > 0 {
		n.stored(n.id, rd.Entries[k-1].GetIndex(), n.term)
	}
	return nil
}

// observe takes in who leads, and reports whether that has changed.
func (n *node) observe(rd raft.Ready) (changed bool) {
	if rd.HardState != nil {
		n.hard = rd.HardState
		if term := rd.HardState.GetTerm(); term != n.term {
			n.term, changed = term, true
		}
	}
	if rd.SoftState != nil {
		n.leading = rd.RaftState == raft.StateLeader
		changed = n.leader.Swap(rd.Lead) != rd.Lead || changed
	}
	return changed
}

// beginTerm starts the term of this node as leader: the first entry of its own, an empty
// one, is among those that raft has just appended.
func (n *node) beginTerm(entries []*raftpb.Entry) {
	for _, e := range entries {
		if e.GetTerm() == n.term {
			n.first = e.GetIndex()
			n.commits.BeginTerm(n.first)
			break
		}
	}
}

// parkCommits parks the writes that were given an index, before anybody can have heard
// of it.
func (n *node) parkCommits(entries []*raftpb.Entry) error {
	for _, e := range entries {
		if len(e.GetData()) == 0 {
			continue
		}
		if err := n.commits.Add(e.GetIndex(), n.metrics.committed); err != nil {
			return err
		}
	}
	return nil
}

// persist stores what has to survive a crash and sends what peers may hear.
func (n *node) persist(rd raft.Ready) error {
	// The leader's peers may store an entry while the leader does, and without it: its
	// own copy is one of those that are counted. All else that is said may be a promise,
	// and has to wait for the disk.
	early := func(m *raftpb.Message) bool {
		return n.leading && (m.GetType() == raftpb.MsgApp || m.GetType() == raftpb.MsgHeartbeat)
	}
	for _, m := range rd.Messages {
		if early(m) {
			if err := n.peersIO.send(m); err != nil {
				return err
			}
		}
	}

	// A commit index alone is not worth a write: it is learnt anew after a restart.
	if rd.MustSync {
		if err := n.wal.write(n.hard, rd.Entries); err != nil {
			return err
		}
		if err := n.wal.sync(); err != nil {
			return err
		}
		if n.killed() {
			return errKilled // amid all this: what was written may be lost
		}
		n.wal.keep()
	}
	if err := errors.Join(n.storage.Append(rd.Entries), n.storage.SetHardState(n.hard)); err != nil {
		return err
	}
	if !raft.IsEmptySnap(rd.Snapshot) {
		return errors.New("a peer sent a snapshot, though no log is ever compacted")
	}

	for _, m := range rd.Messages {
		if !early(m) {
			if err := n.peersIO.send(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply applies committed entries, answers the writes among them that are parked here,
// and lets the reads go that have waited for them.
func (n *node) apply(entries []*raftpb.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	for _, e := range entries {
		if e.GetType() != raftpb.EntryNormal {
			return fmt.Errorf("entry %d changes the members, which nobody proposes", e.GetIndex())
		}
		if len(e.GetData()) == 0 {
			continue // a leader's first
		}
		c, err := decodeCommand(e.GetData())
		if err != nil {
			return fmt.Errorf("entry %d: %w", e.GetIndex(), err)
		}
		n.store.apply(c)
		// Most are not parked here: they came in by another node, in another life,
		// or their client has given up.
		n.writes.Complete(c.id, e.GetIndex())
	}
	n.applied.Advance(entries[len(entries)-1].GetIndex())
	return nil
}

// confirm parks reads on the index that the leader has named. It is the commit index of
// a time after the read began, and whoever named it was still leader then.
func (n *node) confirm(states []raft.ReadState) {
	for _, s := range states {
		for rest := s.RequestCtx; len(rest) >= requestIDSize; {
			var id requestID
			id, rest = cutRequestID(rest)
			if _, ok := n.unconfirmed[id]; !ok {
				continue // asked twice, or in another life of this node
			}
			delete(n.unconfirmed, id)
			err := n.applied.Add(s.Index, func(out waitlist.Outcome[uint64]) {
				if out.Err != nil {
					n.reads.Fail(id, out.Err)
				} else {
					n.reads.Complete(id, out.Key)
				}
			})
			if err != nil {
				n.reads.Fail(id, &notDone{cause: err})
			}
		}
	}
}

// leadershipLost answers all that is parked, now that somebody else leads or nobody does.
// What it was parked for may take long or never happen, and its client can do something
// more useful than wait.
func (n *node) leadershipLost(deposed bool) {
	if deposed {
		// Each of these may be in the log, and another leader may commit it yet.
		n.writes.FailAll(&unknown{cause: errDeposed, leader: n.address(n.leader.Load())})
	}
	clear(n.unconfirmed)
	n.reads.FailAll(n.notLeader())
	n.applied.FailAll(n.notLeader())
}

// check compares two implementations of one rule: while this node leads, the watermark
// that its list has counted out is the commit index that raft has. Before that has
// reached the leader's own term, the list says nothing new.
func (n *node) check() error {
	s := n.raft.BasicStatus()
	if !n.leading || s.RaftState != raft.StateLeader {
		return nil
	}
	mark, commit := n.commits.Watermark(), s.GetCommit()
	if mark > commit || mark < commit && commit >= n.first {
		return fmt.Errorf("the acks of term %d add up to commit index %d, and raft says %d", n.term, mark, commit)
	}
	return nil
}
