package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waitlist-go/waitlist"
)

// show is what the program does.
type show struct {
	lag, phase time.Duration
	rate       int

	began   time.Time
	cluster *cluster
	admin   *kgo.Client
	mu      sync.Mutex // one line at a time
}

// say prints a line with the time since the beginning.
func (s *show) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if format == "" {
		fmt.Println()
		return
	}
	fmt.Printf("%6.2fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// table prints rows of cells divided by tabs.
func (s *show) table(rows ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range rows {
		fmt.Fprintf(w, "         %s\t\n", r)
	}
	w.Flush()
}

func (s *show) run(ctx context.Context, serve bool) (err error) {
	s.began = time.Now()
	s.cluster, err = newCluster(config{
		brokers: 3, lagMax: s.lag, replicaWait: s.lag / 4,
		inSync: func(c isrChange) {
			line := fmt.Sprintf("%s: in sync %v, were %v; high watermark %d", c.at, c.now, c.old, c.mark)
			if c.released > 0 {
				line += fmt.Sprintf("; %d requests released", c.released)
			}
			s.say("%s", line)
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.cluster.close()) }()
	for _, b := range s.cluster.living() {
		s.say("broker %d is at %s", b.id, b.address())
	}
	if serve {
		s.say("interrupt to stop")
		<-ctx.Done()
		return nil
	}
	if s.admin, err = kgo.NewClient(kgo.SeedBrokers(s.cluster.seeds()...)); err != nil {
		return err
	}
	defer s.admin.Close()
	for _, act := range []func(context.Context) error{s.compareAcks, s.loseFollower, s.refuse} {
		s.say("")
		if err := act(ctx); err != nil {
			return err
		}
	}
	s.books()
	return nil
}

// compareAcks produces one record after the other.
func (s *show) compareAcks(ctx context.Context) error {
	const records = 300
	if err := createTopic(ctx, s.admin, "acks", 1, [][]int32{{1, 2, 3}}); err != nil {
		return err
	}
	s.say("%d records with each kind of acks, one after the other; how long the client waits:", records)
	rows := []string{"acks\tp50\tp99\tmax"}
	for _, acks := range []struct {
		name string
		opts []kgo.Opt
	}{
		{"0", []kgo.Opt{kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite()}},
		{"1", []kgo.Opt{kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()}},
		{"all", []kgo.Opt{kgo.RequiredAcks(kgo.AllISRAcks())}},
	} {
		opts := append(acks.opts, kgo.SeedBrokers(s.cluster.seeds()...), kgo.ProducerLinger(0))
		client, err := kgo.NewClient(opts...)
		if err != nil {
			return err
		}
		var h histogram
		for i := range records + 20 {
			began := time.Now()
			err = client.ProduceSync(ctx, &kgo.Record{Topic: "acks", Value: []byte("hello")}).FirstErr()
			if err != nil {
				break
			}
			if i >= 20 { // the first ones make connections
				h.add(time.Since(began))
			}
		}
		client.Close()
		if err != nil {
			return fmt.Errorf("acks=%s: %w", acks.name, err)
		}
		rows = append(rows, acks.name+percentiles(h))
	}
	s.table(rows...)
	return nil
}

func percentiles(h histogram) string {
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	return fmt.Sprintf("\t%v\t%v\t%v", round(h.quantile(0.5)), round(h.quantile(0.99)), round(h.largest))
}

// loseFollower kills a follower under load and starts it again.
func (s *show) loseFollower(ctx context.Context) error {
	const victim = 3
	// The victim leads none of them, since leaders do not move.
	if err := createTopic(ctx, s.admin, "orders", 2, [][]int32{{1, 2, 3}, {2, 3, 1}}); err != nil {
		return err
	}
	s.say("%d records a second with acks=all and min.insync.replicas=2 in each of orders/0 and orders/1,", s.rate)
	s.say("led by brokers 1 and 2; a consumer whose polls may wait for 30 s")
	load, err := startLoad(ctx, s.cluster, "orders", 2, s.rate)
	if err != nil {
		return err
	}
	defer load.stop()

	rows := []string{"\tacknowledged\tparked for: p50\tp99\tmax"}
	acked := 0
	s.cluster.metrics.takeProduces()
	phaseOver := func(name string) {
		h, n := s.cluster.metrics.takeProduces(), load.acknowledged()
		rows = append(rows, fmt.Sprintf("%s\t%d%s", name, n-acked, percentiles(h)))
		acked = n
	}
	inSync := func(n int) error {
		return s.await(ctx, func() bool {
			return len(s.cluster.inSync(partitionName{"orders", 0})) == n && len(s.cluster.inSync(partitionName{"orders", 1})) == n
		})
	}

	pause(ctx, s.phase)
	phaseOver("all three")
	s.cluster.kill(victim)
	s.say("broker %d is killed", victim)
	if err := inSync(2); err != nil {
		return err
	}
	pause(ctx, 50*time.Millisecond) // what waited for it
	phaseOver("until it left")
	pause(ctx, s.phase)
	phaseOver("without it")
	if err := s.cluster.start(victim); err != nil {
		return err
	}
	s.say("broker %d is back", victim)
	if err := inSync(3); err != nil {
		return err
	}
	pause(ctx, s.phase)
	phaseOver("with it again")
	if err := load.finish(ctx); err != nil {
		return err
	}
	s.say("%d records acknowledged, and consumed once and in order; from the client that produced one to", load.acknowledged())
	s.say("the one that polled:%s", strings.NewReplacer("\t", " ").Replace(percentilesNamed(load.latency())))
	s.table(rows...)
	for i := range int32(2) {
		name := partitionName{"orders", i}
		if err := s.await(ctx, func() bool { return sameOnAll(s.cluster, name) == nil }); err != nil {
			return sameOnAll(s.cluster, name)
		}
	}
	s.say("all in-sync replicas of orders have the same bytes up to the high watermark")
	return nil
}

func percentilesNamed(h histogram) string {
	p := strings.Split(percentiles(h), "\t")
	return fmt.Sprintf(" p50 %s, p99 %s, max %s", p[1], p[2], p[3])
}

func (s *show) await(ctx context.Context, what func() bool) error {
	for !what() {
		if pause(ctx, 5*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(s.began) > time.Minute+10*(s.lag+s.phase) {
			return errors.New("this takes too long")
		}
	}
	return nil
}

// refuse shows the two ways in which acks=all says no.
func (s *show) refuse(ctx context.Context) error {
	const victim = 3
	if err := createTopic(ctx, s.admin, "ledger", 3, [][]int32{{1, 2, 3}}); err != nil {
		return err
	}
	s.cluster.kill(victim)
	s.say("broker %d is killed; now acks=all with min.insync.replicas=3 and a timeout of 300 ms:", victim)
	try := func() error {
		began := time.Now()
		err := produceRaw(ctx, s.admin, 1, partitionName{"ledger", 0}, 300*time.Millisecond, newBatch("a", "b"))
		var known *kerr.Error
		if err != nil && !errors.As(err, &known) {
			return err
		}
		s.say("%v after %v", err, time.Since(began).Round(10*time.Microsecond))
		return nil
	}
	if err := try(); err != nil {
		return err
	}
	if err := s.await(ctx, func() bool { return len(s.cluster.inSync(partitionName{"ledger", 0})) == 2 }); err != nil {
		return err
	}
	return try()
}

// books prints what has become of everything that was parked.
func (s *show) books() {
	for id := range int32(s.cluster.config.brokers) {
		s.cluster.kill(id + 1)
	}
	st, m := s.cluster.stats(), s.cluster.metrics
	s.say("")
	s.say("all brokers are stopped. What was parked in their lists, followers' fetches included:")
	s.table("parked\treached\ttimed out\tsession ended\tgiven back\tstill there",
		fmt.Sprintf("%d\t%d\t%d\t%d\t%d\t%d", st.Added, st.Reached, st.TimedOut, st.SessionEnded, st.Closed, st.Parked))
	m.mu.Lock()
	defer m.mu.Unlock()
	var who []string
	for id := range waitlist.PeerID(s.cluster.config.brokers) {
		who = append(who, fmt.Sprintf("broker %d %d times", id+1, m.deciders[id+1]))
	}
	s.say("a produce with acks=all was completed by the fetch (or the write) of %s", strings.Join(who, ", "))
	s.say("consumers' fetches that were parked: %d, for%s", m.polls.total, percentilesNamed(m.polls))
}

// createTopic makes a topic whose partitions have these replicas.
func createTopic(ctx context.Context, client *kgo.Client, name string, minInSync int, replicas [][]int32) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, -1, -1
	for i, r := range replicas {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition, a.Replicas = int32(i), r
		t.ReplicaAssignment = append(t.ReplicaAssignment, a)
	}
	c := kmsg.NewCreateTopicsRequestTopicConfig()
	c.Name, c.Value = "min.insync.replicas", new(fmt.Sprint(minInSync))
	t.Configs = append(t.Configs, c)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

// produceRaw sends one batch to one broker and returns the answer, where the client's
// own producer would go on trying. The client sets the acks, which are all of them.
func produceRaw(ctx context.Context, client *kgo.Client, broker int, at partitionName, timeout time.Duration, batch []byte) error {
	req := kmsg.NewPtrProduceRequest()
	req.TimeoutMillis = int32(timeout.Milliseconds())
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = at.index, batch
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.Partitions = at.topic, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := client.Broker(broker).Request(ctx, req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
}

// newBatch makes a batch as a producer would that is not idempotent.
func newBatch(values ...string) []byte {
	now := time.Now().UnixMilli()
	b := kmsg.RecordBatch{
		Magic: 2, LastOffsetDelta: int32(len(values) - 1), FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(values)),
	}
	for i, v := range values {
		r := kmsg.Record{OffsetDelta: int32(i), Value: []byte(v)}
		r.Length = int32(len(r.AppendTo(nil)) - 1) // without the length, which is 0 and one byte yet
		b.Records = r.AppendTo(b.Records)
	}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-batchPrefix))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], castagnoli))
	return raw
}

// sameOnAll tells whether all replicas in sync have what consumers can see.
func sameOnAll(c *cluster, name partitionName) error {
	l := c.leading(name)
	if l == nil {
		return kerr.LeaderNotAvailable
	}
	mark := l.highWatermark()
	want, err := l.log.read(0, mark, int(l.log.bytes(0, mark)), true)
	if err != nil {
		return err
	}
	isr := c.inSync(name)
	for _, b := range c.living() {
		if !slices.Contains(isr, b.id) {
			continue
		}
		log := b.logOf(name)
		have, err := log.read(0, mark, int(log.bytes(0, mark)), true)
		if err != nil {
			return err
		}
		if !slices.Equal(have, want) {
			return fmt.Errorf("%s: broker %d has %d bytes up to the high watermark %d, its leader %d, or they differ", name, b.id, len(have), mark, len(want))
		}
	}
	return nil
}
