package main

import (
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waitlist-go/waitlist"
)

// fetch is a request for records that may have to wait for them: a consumer's for what
// is committed, a follower's for what is appended. It waits for all of its partitions
// at once, with one entry in the list of each. They form a session: whichever ends
// the wait ends the entries of the others.
type fetch struct {
	conn     *conn
	reply    *reply
	replica  bool // a follower's
	parts    []fetchPart
	atLeast  int64 // bytes worth an answer
	atMost   int   // bytes in one answer
	deadline time.Time
	session  waitlist.Session
	finished atomic.Bool
}

type fetchPart struct {
	topic  int // its place in the request, and so in the answer
	index  int32
	from   int64
	limit  int
	leader *leader
	list   *waitlist.WatermarkList[int64] // what it waits in
	err    error
}

func (c *conn) fetch(req *kmsg.FetchRequest, r *reply) {
	f := &fetch{
		conn: c, reply: r, replica: req.ReplicaID >= 0, atLeast: int64(req.MinBytes), atMost: max(int(req.MaxBytes), 0),
		deadline: time.Now().Add(time.Duration(req.MaxWaitMillis) * time.Millisecond),
	}
	// An answer is one frame too. A batch always fits, so no reader is held up.
	f.atMost = min(f.atMost, maxFrame-maxBatchSize)
	wrong := false
	for i, t := range req.Topics {
		for _, p := range t.Partitions {
			part := fetchPart{topic: i, index: p.Partition, from: p.FetchOffset, limit: max(int(p.PartitionMaxBytes), 0)}
			part.resolve(c.broker, t.Topic, req.ReplicaID)
			wrong = wrong || part.err != nil
			f.parts = append(f.parts, part)
		}
	}
	r.body = func() kmsg.Response { return f.answer(req) }
	c.mu.Lock()
	gone := c.fetches == nil // then nobody would end the wait
	if !gone {
		c.fetches[f] = struct{}{}
	}
	c.mu.Unlock()
	if gone || wrong || len(f.parts) == 0 || f.enough() {
		f.finish()
		return
	}
	for i := range f.parts {
		f.park(&f.parts[i])
	}
}

// resolve finds what a part is about, and tells the leader what a follower has.
func (p *fetchPart) resolve(b *broker, topic string, replica int32) {
	if p.leader, p.err = b.lookUp(topic, p.index); p.err != nil {
		return
	}
	p.list = p.leader.committed
	if replica >= 0 {
		if !p.leader.heard(replica, p.from, time.Now()) {
			p.err = kerr.ReplicaNotAvailable
			return
		}
		p.list = p.leader.appended
	}
	if p.from < 0 || p.from > p.leader.log.end() {
		p.err = kerr.OffsetOutOfRange
	}
}

// end is the first offset that the part may not see yet.
func (p *fetchPart) end() int64 { return p.list.Watermark() + 1 }

// enough tells whether there is something worth an answer. It only looks at sizes.
func (f *fetch) enough() bool {
	var have int64
	for i := range f.parts {
		p := &f.parts[i]
		have += min(p.leader.log.bytes(p.from, p.end()), int64(p.limit))
	}
	return have >= f.atLeast
}

// park waits for the first record that a part may not see yet. If it has come in the
// meantime the list calls woken at once.
func (f *fetch) park(p *fetchPart) {
	err := p.list.Add(max(p.from, p.end()), func(out waitlist.Outcome[int64]) { f.woken(p, out) },
		waitlist.InSession(&f.session), waitlist.Timeout(time.Until(f.deadline)))
	if err != nil {
		// No time is left, or another part has finished all, or the broker is dying.
		f.finish()
	}
}

func (f *fetch) woken(p *fetchPart, out waitlist.Outcome[int64]) {
	if p.list == p.leader.committed {
		p.leader.cluster.metrics.polled(out)
	}
	if out.End == waitlist.EndReached && !f.enough() {
		f.park(p) // something has come, but less than what is worth an answer
		return
	}
	f.finish()
}

// finish answers with what there is.
func (f *fetch) finish() {
	if !f.finished.CompareAndSwap(false, true) {
		return
	}
	f.session.End(errAnswered)
	f.conn.mu.Lock()
	delete(f.conn.fetches, f)
	f.conn.mu.Unlock()
	f.reply.done()
}

// answer reads the records. It runs on the goroutine that writes to the client, and not
// in the callback that has moved a mark and has others to wake.
func (f *fetch) answer(req *kmsg.FetchRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range req.Topics {
		out := kmsg.NewFetchResponseTopic()
		out.Topic = t.Topic
		resp.Topics = append(resp.Topics, out)
	}
	left := f.atMost
	for i := range f.parts {
		p := &f.parts[i]
		out := kmsg.NewFetchResponseTopicPartition()
		out.Partition = p.index
		out.HighWatermark, out.LastStableOffset, out.LogStartOffset = -1, -1, -1
		if err := p.err; err == nil {
			// Without transactions all that is committed is stable.
			out.HighWatermark, out.LogStartOffset = p.leader.highWatermark(), 0
			out.LastStableOffset = out.HighWatermark
			out.RecordBatches, p.err = p.leader.log.read(p.from, p.end(), min(left, p.limit), left == f.atMost)
			left -= min(len(out.RecordBatches), left)
		}
		out.ErrorCode = codeOf(p.err)
		t := &resp.Topics[p.topic]
		t.Partitions = append(t.Partitions, out)
	}
	return resp
}
