package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// never is a lag that no test reaches: the in-sync set does not shrink.
const never = time.Hour

// patience is far more than anything takes that should happen at once, and far less
// than what it is told apart from.
const patience = 10 * time.Second

type world struct {
	*cluster
	t   *testing.T
	ctx context.Context

	mu      sync.Mutex
	changes []isrChange
}

// newWorld starts three brokers. In the end it stops them and looks whether anything is
// still parked.
func newWorld(t *testing.T, lagMax time.Duration) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx}
	var err error
	w.cluster, err = newCluster(config{
		brokers: 3, lagMax: lagMax, replicaWait: min(lagMax/4, 100*time.Millisecond),
		inSync: func(c isrChange) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changes = append(w.changes, c)
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		// The clients are gone. Followers' fetches are all that may wait.
		for _, b := range w.living() {
			for _, l := range b.leads() {
				w.eventually(func() bool { return l.committed.Len() == 0 }, "%s: requests are parked for clients that are gone", l.name)
			}
		}
		require.NoError(t, w.close())
		st := w.stats()
		require.Zero(t, st.Parked)
		require.Zero(t, st.Running)
		require.Equal(t, st.Added, st.Reached+st.TimedOut+st.SessionEnded+st.Closed)
	})
	return w
}

func (w *world) client(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(w.seeds()...), kgo.MetadataMinAge(50 * time.Millisecond)}, opts...)...)
	require.NoError(w.t, err)
	w.t.Cleanup(c.Close)
	return c
}

// topic makes a topic of one partition for each list of replicas.
func (w *world) topic(name string, minInSync int, replicas ...[]int32) {
	w.t.Helper()
	c := w.client()
	defer c.Close()
	require.NoError(w.t, createTopic(w.ctx, c, name, minInSync, replicas))
}

// moves counts how often a broker has left the in-sync set of a partition and has come
// back.
func (w *world) moves(broker int32) (left, back int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changes {
		was, is := slices.Contains(c.old, broker), slices.Contains(c.now, broker)
		if was && !is {
			left++
		} else if is && !was {
			back++
		}
	}
	return left, back
}

func (w *world) eventually(what func() bool, format string, args ...any) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); !what(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.FailNow(w.t, fmt.Sprintf(format, args...))
		}
	}
}

func (w *world) awaitInSync(name partitionName, n int) {
	w.t.Helper()
	w.eventually(func() bool { return len(w.cluster.inSync(name)) == n }, "%s: %d should be in sync", name, n)
}

// produce appends one batch, without the retries of a client.
func (w *world) produce(at partitionName, acks int16, timeout time.Duration, values ...string) error {
	w.t.Helper()
	assigned, ok := w.metadata(at.topic)
	require.True(w.t, ok)
	return w.produceBatch(assigned[at.index].leader(), at, acks, timeout, newBatch(values...))
}

func (w *world) produceBatch(broker int32, at partitionName, acks int16, timeout time.Duration, batch []byte) error {
	w.t.Helper()
	conn := w.dial(broker)
	defer conn.Close()
	req := produceRequest(at, acks, timeout, batch)
	conn.send(req)
	return kerr.ErrorForCode(conn.receive(req, 1).(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
}

// produceRequest is in a version with the older header.
func produceRequest(at partitionName, acks int16, timeout time.Duration, batch []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 8, acks, int32(timeout.Milliseconds())
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = at.index, batch
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.Partitions = at.topic, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// wire is a connection to a broker with nothing in between.
type wire struct {
	t *testing.T
	net.Conn
	next int32
}

func (w *world) dial(broker int32) *wire {
	w.t.Helper()
	address, ok := w.addressOf(broker)
	require.True(w.t, ok)
	c, err := net.Dial("tcp", address)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	require.NoError(w.t, c.SetDeadline(time.Now().Add(patience)))
	return &wire{t: w.t, Conn: c}
}

func (c *wire) send(req kmsg.Request) {
	c.t.Helper()
	c.next++
	_, err := c.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, c.next))
	require.NoError(c.t, err)
}

// receive reads the answer to a request whose version has the older header.
func (c *wire) receive(to kmsg.Request, correlation int32) kmsg.Response {
	c.t.Helper()
	var head [8]byte
	_, err := io.ReadFull(c, head[:])
	require.NoError(c.t, err)
	require.Equal(c.t, byte(correlation), head[7])
	body := make([]byte, int(head[0])<<24+int(head[1])<<16+int(head[2])<<8+int(head[3])-4)
	_, err = io.ReadFull(c, body)
	require.NoError(c.t, err)
	resp := to.ResponseKind()
	require.NoError(c.t, resp.ReadFrom(body))
	return resp
}

// fetchRequest asks for one partition, in a version with the older header.
func fetchRequest(at partitionName, from int64, atLeast int, wait time.Duration) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.SessionEpoch = 11, -1
	req.MinBytes, req.MaxBytes, req.MaxWaitMillis = int32(atLeast), 1<<20, int32(wait.Milliseconds())
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = at.index, from, 1<<20
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.Partitions = at.topic, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

func fetched(resp kmsg.Response) *kmsg.FetchResponseTopicPartition {
	return &resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
}
