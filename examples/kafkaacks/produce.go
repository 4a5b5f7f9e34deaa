package main

import (
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// produce appends what a client sends. The request is answered when the last of its
// partitions has ended, well or not; each of them waits on its own.
func (c *conn) produce(req *kmsg.ProduceRequest, r *reply) error {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	var places int
	for _, t := range req.Topics {
		out := kmsg.NewProduceResponseTopic()
		out.Topic = t.Topic
		out.Partitions = make([]kmsg.ProduceResponseTopicPartition, len(t.Partitions))
		places += len(t.Partitions)
		resp.Topics = append(resp.Topics, out)
	}

	var failed atomic.Bool
	var left atomic.Int64
	left.Store(int64(places) + 1) // the one is for this loop, which must come to its end
	one := func() {
		if left.Add(-1) > 0 {
			return
		}
		if req.Acks != acksNone {
			r.body = func() kmsg.Response { return resp }
		}
		r.done()
	}
	patience := time.Duration(req.TimeoutMillis) * time.Millisecond
	for i, t := range req.Topics {
		for j, p := range t.Partitions {
			// Every partition has a place of its own in the answer, so nobody has to
			// lock it.
			out := &resp.Topics[i].Partitions[j]
			out.Default()
			out.Partition = p.Partition
			done := func(base int64, err error) {
				out.BaseOffset, out.ErrorCode, out.LogStartOffset = base, codeOf(err), 0
				if err != nil {
					failed.Store(true)
				}
				one()
			}
			l, err := c.broker.lookUp(t.Topic, p.Partition)
			switch {
			case err != nil:
			case req.TransactionID != nil:
				err = kerr.TransactionalIDAuthorizationFailed
			case req.Acks < acksAll || req.Acks > acksLeader:
				err = kerr.InvalidRequiredAcks
			}
			if err != nil {
				done(-1, err)
				continue
			}
			l.append(p.Records, req.Acks, patience, &c.session, done)
		}
	}
	one()
	if req.Acks == acksNone && failed.Load() {
		// There is no other way to tell a client that waits for no answer. It will
		// ask anew who leads.
		return errAcksNone
	}
	return nil
}
