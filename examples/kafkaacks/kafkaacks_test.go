package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var (
	led1 = []int32{1, 2, 3}
	led2 = []int32{2, 3, 1}
)

func TestNothingAcknowledgedIsLostWithAFollower(t *testing.T) {
	const total, victim = 50_000, 3
	w := newWorld(t, 500*time.Millisecond)
	w.topic("orders", 2, led1, led2)
	names := []partitionName{{"orders", 0}, {"orders", 1}}
	l, err := newLoad(w.cluster, "orders", len(names))
	require.NoError(t, err)
	defer l.stop()
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel() // before stop, which waits for the consumer
	l.wg.Go(func() { l.consume(ctx) })

	// What is committed is on every replica in sync, at any moment.
	l.wg.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, time.Millisecond) {
			for _, name := range names {
				mark := w.leading(name).highWatermark() // before the set: it may shrink
				inSync := w.cluster.inSync(name)
				for _, b := range w.living() {
					if end := b.logOf(name).end(); slices.Contains(inSync, b.id) && end < mark {
						t.Errorf("%s: broker %d is in sync and ends at %d, but the high watermark is %d", name, b.id, end, mark)
						return
					}
				}
			}
		}
	})

	produce := func(n int) {
		for range n / 100 / len(names) {
			for _, name := range names {
				l.produce(ctx, name.index, 100)
			}
		}
	}
	produce(total * 3 / 10)
	w.kill(victim)
	before := l.acknowledged()
	produce(total * 2 / 10) // what they wait for is that the victim has left
	for _, name := range names {
		w.awaitInSync(name, 2)
	}
	require.NoError(t, l.producer.Flush(ctx))
	require.Greater(t, l.acknowledged(), before)
	produce(total * 2 / 10) // it misses these
	require.NoError(t, w.start(victim))
	produce(total * 3 / 10)
	require.NoError(t, l.finish(ctx))
	require.Equal(t, total, l.acknowledged())

	for _, name := range names {
		w.awaitInSync(name, 3)
		leader := w.leading(name)
		require.EqualValues(t, total/2, leader.log.end(), "a record was appended twice, or not at all")
		w.eventually(func() bool { return leader.highWatermark() == total/2 }, "%s: the high watermark stays behind", name)
		require.NoError(t, sameOnAll(w.cluster, name))
	}
	w.eventually(func() bool {
		left, back := w.moves(victim)
		return left >= len(names) && left == back
	}, "the victim should have left and returned")
}

// A leader that is killed forgets who waits, but not what its producers have sent: they
// send again what is in the log.
func TestProducersBatchesAreNotAppendedTwiceWhenTheLeaderReturns(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 2, led1)
	name := partitionName{"orders", 0}
	l, err := newLoad(w.cluster, "orders", 1)
	require.NoError(t, err)
	defer l.stop()
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	l.wg.Go(func() { l.consume(ctx) })

	for range 3 {
		w.kill(3) // now nothing is acknowledged
		l.produce(ctx, 0, 2000)
		w.eventually(func() bool { return w.leading(name).log.end()-w.leading(name).highWatermark() > 0 }, "nothing waits")
		w.kill(1)
		require.NoError(t, w.start(1))
		l.produce(ctx, 0, 2000)
		require.NoError(t, w.start(3))
	}
	require.NoError(t, l.finish(ctx))
	require.Equal(t, 12_000, l.acknowledged())
	require.EqualValues(t, 12_000, w.leading(name).log.end())
}

// The list remembers what a follower has acked; one that returns with less must not
// count for it.
func TestFollowerThatLostItsDiskLeavesTheInSyncSetUntilItHasCaughtUp(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1)
	name := partitionName{"orders", 0}
	for i := range 20 {
		require.NoError(t, w.produce(name, acksAll, patience, fmt.Sprint("before ", i)))
	}
	w.kill(3)
	require.NoError(t, os.Remove(filepath.Join(w.folder, "broker-3", "orders-0.log")))
	require.NoError(t, w.start(3))
	w.eventually(func() bool {
		left, back := w.moves(3)
		return left == 1 && back == 1
	}, "it should leave and return")
	require.NoError(t, w.produce(name, acksAll, patience, "after"))
	require.EqualValues(t, 21, w.leading(name).highWatermark())
	require.NoError(t, sameOnAll(w.cluster, name))
}

func TestFollowerCannotClaimWhatTheLeaderHasNot(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, []int32{1, 2})
	name := partitionName{"orders", 0}
	w.kill(2)
	conn := w.dial(1)
	for i, offset := range []int64{-1, 1, 100} {
		req := fetchRequest(name, offset, 1, 0)
		req.ReplicaID = 2
		conn.send(req)
		require.Equal(t, kerr.OffsetOutOfRange.Code, fetched(conn.receive(req, int32(i+1))).ErrorCode)
	}
	stranger := fetchRequest(name, 0, 1, 0)
	stranger.ReplicaID = 3
	conn.send(stranger)
	require.Equal(t, kerr.ReplicaNotAvailable.Code, fetched(conn.receive(stranger, 4)).ErrorCode)
	require.ErrorIs(t, w.produce(name, acksAll, 50*time.Millisecond, "a"), kerr.RequestTimedOut)
}

// Between the fetch of a follower and its return to the in-sync set the mark may rise.
func TestFollowerThatIsBehindTheMarkIsNotAdmitted(t *testing.T) {
	w := newWorld(t, 200*time.Millisecond)
	w.topic("orders", 1, led1)
	name := partitionName{"orders", 0}
	w.kill(3)
	require.NoError(t, w.produce(name, acksAll, patience, "a", "b"))
	w.awaitInSync(name, 2)
	l := w.leading(name)
	for next, want := range [][]int32{{1, 2}, {1, 2}, {1, 2, 3}} {
		l.isrMu.Lock()
		l.admit(3, int64(next), *l.inSync.Load())
		got := *l.inSync.Load()
		l.isrMu.Unlock()
		require.Equal(t, want, got)
		if next < 2 {
			_, known := l.committed.Match(3)
			require.False(t, known, "the rule still counts it")
		}
	}
}

func TestEveryKindOfAcks(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1, led2)
	for i, opts := range [][]kgo.Opt{
		{kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite()},
		{kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()},
		{kgo.RequiredAcks(kgo.AllISRAcks()), kgo.DisableIdempotentWrite()},
		{kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerBatchCompression(kgo.ZstdCompression())},
	} {
		c := w.client(append(opts, kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))...)
		for j := range 10 {
			require.NoError(t, c.ProduceSync(w.ctx, &kgo.Record{Topic: "orders", Value: []byte{byte(10*i + j)}}).FirstErr())
		}
		require.NoError(t, c.Flush(w.ctx))
		c.Close()
	}
	c := w.client(kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	var have []byte
	for len(have) < 40 {
		fetches := c.PollFetches(w.ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { have = append(have, r.Value...) })
	}
	slices.Sort(have)
	for i := range 40 {
		require.EqualValues(t, i, have[i])
	}
	c.Close()
}

func TestLongPollWakesOnTheAdvanceAndNotAtItsMaximumWait(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1, led2)
	c := w.client(
		kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(30*time.Second), kgo.FetchMinBytes(1),
	)
	producer := w.client(kgo.ProducerLinger(0), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	records := make(chan *kgo.Record)
	go func() {
		defer close(records)
		for {
			fetches := c.PollFetches(w.ctx)
			if fetches.IsClientClosed() {
				return
			}
			fetches.EachRecord(func(r *kgo.Record) { records <- r })
		}
	}()
	for i := range int32(20) {
		name := partitionName{"orders", i % 2}
		w.eventually(func() bool { return w.leading(name).committed.Len() > 0 }, "the poll is not parked")
		began := time.Now()
		require.NoError(t, producer.ProduceSync(w.ctx, &kgo.Record{Topic: "orders", Partition: name.index, Value: []byte{byte(i)}}).FirstErr())
		r := <-records
		require.Equal(t, []byte{byte(i)}, r.Value)
		require.Less(t, time.Since(began), 5*time.Second)
	}
	c.Close()
	for range records {
	}
}

func TestPollWaitsForItsMinimumAcrossPartitions(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1, led1)
	first, second := partitionName{"orders", 0}, partitionName{"orders", 1}
	size := len(newBatch("a"))
	req := fetchRequest(first, 0, 3*size, 30*time.Second)
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetchRequest(second, 0, 0, 0).Topics[0].Partitions...)
	conn := w.dial(1)
	conn.send(req)
	parked := func() int { return w.leading(first).committed.Len() + w.leading(second).committed.Len() }
	w.eventually(func() bool { return parked() == 2 }, "the fetch is not parked in both partitions")

	require.NoError(t, w.produce(first, acksAll, patience, "a"))
	require.NoError(t, w.produce(second, acksAll, patience, "b"))
	w.eventually(func() bool { return parked() == 2 }, "two thirds should not be enough")
	require.NoError(t, w.produce(first, acksAll, patience, "c"))
	resp := conn.receive(req, 1).(*kmsg.FetchResponse) // or its deadline comes before the wait's
	require.Len(t, resp.Topics[0].Partitions[0].RecordBatches, 2*size)
	require.Len(t, resp.Topics[0].Partitions[1].RecordBatches, size)
	require.Zero(t, parked())
}

func TestPollEndsEmptyAtItsMaximumWait(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1)
	conn := w.dial(1)
	for _, wait := range []time.Duration{-time.Second, 0, 50 * time.Millisecond} {
		req := fetchRequest(partitionName{"orders", 0}, 0, 1, wait)
		began := time.Now()
		conn.send(req)
		p := fetched(conn.receive(req, conn.next))
		require.GreaterOrEqual(t, time.Since(began), wait)
		require.Zero(t, p.ErrorCode)
		require.Empty(t, p.RecordBatches)
	}
}

func TestConsumersSeeNothingAboveTheHighWatermark(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1)
	name := partitionName{"orders", 0}
	require.NoError(t, w.produce(name, acksAll, patience, "seen"))
	w.kill(2)
	require.NoError(t, w.produce(name, acksLeader, patience, "not", "yet"))
	require.EqualValues(t, 3, w.leading(name).log.end())

	conn := w.dial(1)
	req := fetchRequest(name, 0, 1, 0)
	conn.send(req)
	p := fetched(conn.receive(req, 1))
	require.EqualValues(t, 1, p.HighWatermark)
	require.Len(t, p.RecordBatches, len(newBatch("seen")))
	offsets := kmsg.NewPtrListOffsetsRequest()
	offsets.Version, offsets.ReplicaID = 5, -1
	op := kmsg.NewListOffsetsRequestTopicPartition()
	op.Timestamp = latestOffset
	ot := kmsg.NewListOffsetsRequestTopic()
	ot.Topic, ot.Partitions = name.topic, append(ot.Partitions, op)
	offsets.Topics = append(offsets.Topics, ot)
	conn.send(offsets)
	require.EqualValues(t, 1, conn.receive(offsets, 2).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].Offset)

	// Behind the mark and behind the end are different things.
	req = fetchRequest(name, 2, 1, 30*time.Second)
	conn.send(req)
	beyond := fetchRequest(name, 4, 1, 30*time.Second)
	conn.send(beyond)
	w.eventually(func() bool { return w.leading(name).committed.Len() == 1 }, "the fetch is not parked")
	require.NoError(t, w.start(2))
	p = fetched(conn.receive(req, 3))
	require.EqualValues(t, 3, p.HighWatermark)
	require.Len(t, p.RecordBatches, len(newBatch("not", "yet")))
	require.Equal(t, kerr.OffsetOutOfRange.Code, fetched(conn.receive(beyond, 4)).ErrorCode)
}

func TestTooFewInSyncRefuseAtOnce(t *testing.T) {
	w := newWorld(t, 300*time.Millisecond)
	w.topic("orders", 2, led1)
	name := partitionName{"orders", 0}
	require.NoError(t, w.produce(name, acksAll, patience, "a"))
	w.kill(2)
	w.kill(3)
	// They are believed in until they lag. Then what waits for them is in the log, but
	// not where it was promised to be.
	require.ErrorIs(t, w.produce(name, acksAll, 30*time.Second, "b"), kerr.NotEnoughReplicasAfterAppend)
	w.awaitInSync(name, 1)

	began := time.Now()
	require.ErrorIs(t, w.produce(name, acksAll, 30*time.Second, "c"), kerr.NotEnoughReplicas)
	require.Less(t, time.Since(began), patience)
	require.EqualValues(t, 2, w.leading(name).log.end(), "what was refused was appended")
	require.NoError(t, w.produce(name, acksLeader, patience, "d"))

	require.NoError(t, w.start(2))
	w.awaitInSync(name, 2)
	require.NoError(t, w.produce(name, acksAll, patience, "e"))
	require.NoError(t, sameOnAll(w.cluster, name))
}

func TestRequestsOwnTimeout(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1)
	name := partitionName{"orders", 0}
	require.NoError(t, w.produce(name, acksAll, patience, "a"))
	w.kill(3)
	const timeout = 50 * time.Millisecond
	began := time.Now()
	require.ErrorIs(t, w.produce(name, acksAll, timeout, "b"), kerr.RequestTimedOut)
	require.GreaterOrEqual(t, time.Since(began), timeout)
	require.ErrorIs(t, w.produce(name, acksAll, 0, "c"), kerr.RequestTimedOut)
	require.Zero(t, w.leading(name).committed.Len())
	// What has timed out is not undone.
	require.NoError(t, w.start(3))
	w.eventually(func() bool { return w.leading(name).highWatermark() == 3 }, "what timed out should be committed later")
}

// Answers come in the order of the requests, though what is asked first ends last.
func TestAnswersComeInOrder(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1)
	name := partitionName{"orders", 0}
	conn := w.dial(1)
	waits, does := fetchRequest(name, 0, 1, 30*time.Second), fetchRequest(name, 0, 1, 0)
	conn.send(waits)
	for range 2 * pipeline {
		conn.send(does)
	}
	w.eventually(func() bool { return w.leading(name).committed.Len() == 1 }, "the first should wait")
	require.NoError(t, w.produce(name, acksAll, patience, "a"))
	require.NotEmpty(t, fetched(conn.receive(waits, 1)).RecordBatches)
	for i := range int32(2 * pipeline) {
		conn.receive(does, i+2)
	}
}

func TestNothingWaitsForAClientThatHasHungUp(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1, led1)
	first, second := partitionName{"orders", 0}, partitionName{"orders", 1}
	w.kill(2)

	poll := w.dial(1)
	req := fetchRequest(first, 0, 1, time.Hour)
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetchRequest(second, 0, 0, 0).Topics[0].Partitions...)
	poll.send(req)
	writer := w.dial(1)
	for i := range 10 {
		writer.send(produceRequest(first, acksAll, time.Hour, newBatch(fmt.Sprint(i))))
	}
	w.eventually(func() bool {
		return w.leading(first).committed.Len() == 11 && w.leading(second).committed.Len() == 1
	}, "all should be parked")
	poll.Close()
	writer.Close()
	w.eventually(func() bool {
		return w.leading(first).committed.Len() == 0 && w.leading(second).committed.Len() == 0
	}, "requests wait for clients that are gone")
}
