package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	retryEvery = 20 * time.Millisecond
	dialLimit  = time.Second
)

// follow copies, for as long as the broker lives, what it follows of another broker.
func (b *broker) follow(leader int32) {
	for b.ctx.Err() == nil {
		// Whatever goes wrong, the next attempt begins at the end of the logs.
		_ = b.followOnce(leader)
		pause(b.ctx, retryEvery)
	}
}

func (b *broker) followOnce(leader int32) error {
	address, ok := b.cluster.addressOf(leader)
	if !ok || len(b.following(leader)) == 0 {
		return nil
	}
	dialer := net.Dialer{Timeout: dialLimit}
	nc, err := dialer.DialContext(b.ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer nc.Close()
	defer context.AfterFunc(b.ctx, func() { nc.Close() })()

	var frame []byte
	for turn := 0; ; turn++ {
		parts := b.following(leader)
		// An answer has a largest size. Without turns the first partitions could
		// fill it each time.
		turn %= len(parts)
		parts = slices.Concat(parts[turn:], parts[:turn])
		req := b.request(parts)
		frame = kmsg.NewRequestFormatter(kmsg.FormatterClientID("follower")).AppendRequest(frame[:0], req, int32(turn))
		nc.SetDeadline(time.Now().Add(b.cluster.config.replicaWait + writeLimit))
		if _, err := nc.Write(frame); err != nil {
			return err
		}
		resp, err := readFetched(nc, req)
		if err != nil {
			return err
		}
		if err := b.store(resp); err != nil {
			return err
		}
	}
}

func (b *broker) following(leader int32) []partitionName {
	b.mu.Lock()
	defer b.mu.Unlock()
	var parts []partitionName
	for name, r := range b.replicas {
		if r.leader == leader {
			parts = append(parts, name)
		}
	}
	slices.SortFunc(parts, func(a, b partitionName) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.index, b.index))
	})
	return parts
}

// request asks for what comes after the end of each log, which tells the leader at the
// same time that this broker has everything before.
func (b *broker) request(parts []partitionName) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version = served[kmsg.Fetch].highest
	req.ReplicaID = b.id
	req.MaxWaitMillis = int32(b.cluster.config.replicaWait.Milliseconds())
	req.MinBytes = 1
	req.MaxBytes = maxFrame - maxBatchSize
	req.SessionEpoch = -1 // no incremental fetches
	for _, name := range parts {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = name.index, b.logOf(name).end(), maxBatchSize
		t := kmsg.NewFetchRequestTopic()
		t.Topic = name.topic
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
	}
	return req
}

func readFetched(r io.Reader, req *kmsg.FetchRequest) (*kmsg.FetchResponse, error) {
	var head [9]byte // length, correlation id, and no tags
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[:])) - 5
	if size < 0 || size > maxFrame || head[8] != 0 {
		return nil, errMalformed
	}
	body := make([]byte, size) // from a broker, so its word is good
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	return resp, resp.ReadFrom(body)
}

// store appends what has come. What is wrong with one partition does not keep back the
// others.
func (b *broker) store(resp *kmsg.FetchResponse) error {
	var wrong []error
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			name := partitionName{t.Topic, p.Partition}
			err := kerr.ErrorForCode(p.ErrorCode)
			if log := b.logOf(name); log == nil {
				err = errMalformed
			} else if err == nil {
				err = log.appendCopy(p.RecordBatches)
			}
			if err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	return errors.Join(wrong...)
}
