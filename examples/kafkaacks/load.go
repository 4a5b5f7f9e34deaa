package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// load is a client that produces and one that consumes, and the comparison of the two.
type load struct {
	topic    string
	producer *kgo.Client
	consumer *kgo.Client
	cancel   context.CancelFunc
	idle     chan struct{} // closed: no more records are produced
	wg       sync.WaitGroup

	mu         sync.Mutex
	acked      [][]int64 // by partition: the number of each record, by offset as acknowledged
	nextNumber []int64   // by partition, of the records to produce
	seen       []int64   // by partition: how many were consumed
	count      int       // acknowledged, in all
	late       histogram
	err        error
}

const unknownRecord = -1 // there is a record at this offset, but no acknowledgement of it

// startLoad produces at a rate in each partition, with acks=all, until it is stopped.
func startLoad(ctx context.Context, c *cluster, topic string, partitions, rate int) (*load, error) {
	l, err := newLoad(c, topic, partitions)
	if err != nil {
		return nil, err
	}
	ctx, l.cancel = context.WithCancel(ctx)
	l.wg.Go(func() { l.consume(ctx) })
	l.wg.Go(func() {
		const steps = 50 // a second
		tick := time.NewTicker(time.Second / steps)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				for p := range partitions {
					l.produce(ctx, int32(p), max(rate/steps, 1))
				}
			case <-l.idle:
				return
			case <-ctx.Done():
				return
			}
		}
	})
	return l, nil
}

func newLoad(c *cluster, topic string, partitions int) (*load, error) {
	l := &load{
		topic: topic, cancel: func() {}, idle: make(chan struct{}),
		acked: make([][]int64, partitions), nextNumber: make([]int64, partitions), seen: make([]int64, partitions),
	}
	var err error
	l.producer, err = kgo.NewClient(
		kgo.SeedBrokers(c.seeds()...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(time.Millisecond),
		kgo.MetadataMinAge(100*time.Millisecond), // a leader that returns is found sooner
	)
	if err != nil {
		return nil, err
	}
	from := make(map[int32]kgo.Offset)
	for p := range partitions {
		from[int32(p)] = kgo.NewOffset().AtStart()
	}
	l.consumer, err = kgo.NewClient(
		kgo.SeedBrokers(c.seeds()...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchMaxWait(30*time.Second), kgo.FetchMinBytes(1),
		kgo.MetadataMinAge(100*time.Millisecond),
	)
	if err != nil {
		l.producer.Close()
	}
	return l, err
}

// produce sends numbered records to a partition. It may block while many are not
// acknowledged.
func (l *load) produce(ctx context.Context, partition int32, n int) {
	for range n {
		l.mu.Lock()
		number := l.nextNumber[partition]
		l.nextNumber[partition]++
		l.mu.Unlock()
		value := binary.BigEndian.AppendUint64(nil, uint64(number))
		value = binary.BigEndian.AppendUint64(value, uint64(time.Now().UnixNano()))
		value = append(value, "an order of some length, as it may be"...)
		l.producer.Produce(ctx, &kgo.Record{Topic: l.topic, Partition: partition, Value: value}, func(r *kgo.Record, err error) {
			l.acknowledge(r, number, err)
		})
	}
}

func (l *load) acknowledge(r *kgo.Record, number int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			l.err = errors.Join(l.err, fmt.Errorf("produce %d: %w", number, err))
		}
		return
	}
	a := l.acked[r.Partition]
	for int64(len(a)) <= r.Offset {
		a = append(a, unknownRecord)
	}
	if a[r.Offset] != unknownRecord {
		l.err = errors.Join(l.err, fmt.Errorf("offset %d was acknowledged twice", r.Offset))
	}
	a[r.Offset] = number
	l.acked[r.Partition] = a
	l.count++
}

func (l *load) consume(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := l.consumer.PollFetches(ctx)
		if fetches.IsClientClosed() || ctx.Err() != nil {
			return
		}
		now := time.Now().UnixNano()
		l.mu.Lock()
		fetches.EachError(func(_ string, p int32, err error) {
			l.err = errors.Join(l.err, fmt.Errorf("consume partition %d: %w", p, err))
		})
		// The producer is idempotent and there is no other, so what was produced is in
		// the log once and in order, acknowledged yet or not.
		fetches.EachRecord(func(r *kgo.Record) {
			number, sent := int64(binary.BigEndian.Uint64(r.Value)), int64(binary.BigEndian.Uint64(r.Value[8:]))
			if want := l.seen[r.Partition]; number != want || r.Offset != want {
				l.err = errors.Join(l.err, fmt.Errorf("partition %d: consumed record %d at offset %d, expected %d", r.Partition, number, r.Offset, want))
			}
			l.seen[r.Partition] = r.Offset + 1
			l.late.add(time.Duration(now - sent))
		})
		failed := l.err != nil
		l.mu.Unlock()
		if failed {
			return
		}
	}
}

func (l *load) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *load) latency() histogram {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.late
}

// finish stops producing, waits until all is acknowledged and consumed, and returns
// what was wrong.
func (l *load) finish(ctx context.Context) error {
	close(l.idle)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := l.producer.Flush(ctx); err != nil {
		return err
	}
	for !l.complete() {
		if pause(ctx, time.Millisecond); ctx.Err() != nil {
			return errors.Join(l.check(), fmt.Errorf("not all was consumed: %w", ctx.Err()))
		}
	}
	return l.check()
}

func (l *load) complete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return true
	}
	for p, a := range l.acked {
		if l.seen[p] < int64(len(a)) {
			return false
		}
	}
	return true
}

// check compares what was acknowledged with what was consumed.
func (l *load) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, a := range l.acked {
		for offset, number := range a {
			if number != int64(offset) { // and consume has seen that this is what is there
				return errors.Join(l.err, fmt.Errorf("partition %d: offset %d was acknowledged as record %d", p, offset, number))
			}
		}
	}
	return l.err
}

// stop ends both clients.
func (l *load) stop() {
	l.cancel()
	l.producer.Close()
	l.consumer.Close()
	l.wg.Wait()
}
