package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A job is what a message asks for. Its ID is its identity: however often it is
// delivered, its effect is applied once.
type job struct {
	ID    string
	Takes time.Duration
}

// An effect is what a job has left behind.
type effect struct {
	By       string // the worker
	Lease    uint64 // the revision with which its lease began: it grows from holder to holder
	Delivery uint64
	Result   string
}

// A queue is all that workers share: the jobs, who may take them, and what came of it.
type queue struct {
	name    string
	conn    *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream   // of jobs; a job leaves it when it is acked
	claims  jetstream.Consumer // one for all workers: it knows who has been given what
	leases  jetstream.KeyValue
	effects jetstream.KeyValue
	timeout time.Duration // after which what a dead worker held is given to another
}

const consumerName = "workers"

func (q *queue) subject() string { return q.name + ".jobs" }

// connect returns a connection that survives its server's restart.
func connect(url, name string) (*nats.Conn, jetstream.JetStream, error) {
	conn, err := nats.Connect(url, nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, js, nil
}

// createQueue makes a queue where none is. A claim and a lease live for timeout
// without a sign of life of their holder.
func createQueue(ctx context.Context, js jetstream.JetStream, name string, timeout time.Duration) (*queue, error) {
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".jobs"}, Retention: jetstream.WorkQueuePolicy,
	})
	if err != nil {
		return nil, err
	}
	_, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, AckWait: timeout,
	})
	if err != nil {
		return nil, err
	}
	_, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: "leases-" + name, TTL: timeout,
		LimitMarkerTTL: time.Second, // who watches a lease is told when it expires, too
	})
	if err != nil {
		return nil, err
	}
	if _, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "effects-" + name}); err != nil {
		return nil, err
	}
	return openQueue(ctx, js, name)
}

// openQueue finds a queue. Its timeout is the queue's to tell: workers that each had
// their own idea of it could hold a lease that has expired for the others.
func openQueue(ctx context.Context, js jetstream.JetStream, name string) (*queue, error) {
	q := &queue{name: name, js: js, conn: js.Conn()}
	var err error
	if q.stream, err = js.Stream(ctx, name); err != nil {
		return nil, fmt.Errorf("queue %s: %w", name, err)
	}
	if q.claims, err = q.stream.Consumer(ctx, consumerName); err != nil {
		return nil, fmt.Errorf("queue %s: %w", name, err)
	}
	if q.leases, err = js.KeyValue(ctx, "leases-"+name); err != nil {
		return nil, fmt.Errorf("queue %s: %w", name, err)
	}
	if q.effects, err = js.KeyValue(ctx, "effects-"+name); err != nil {
		return nil, fmt.Errorf("queue %s: %w", name, err)
	}
	status, err := q.leases.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("queue %s: %w", name, err)
	}
	q.timeout = status.TTL()
	if wait := q.claims.CachedInfo().Config.AckWait; wait != q.timeout || wait <= 0 {
		return nil, fmt.Errorf("queue %s: claims live for %v and leases for %v", name, wait, q.timeout)
	}
	return q, nil
}

// send puts jobs into the queue. A job that is sent twice is there once.
func (q *queue) send(ctx context.Context, jobs ...job) error {
	for _, j := range jobs {
		data, err := json.Marshal(j)
		if err != nil {
			return err
		}
		if _, err := q.js.Publish(ctx, q.subject(), data, jetstream.WithMsgID(j.ID)); err != nil {
			return err
		}
	}
	return nil
}

// apply gives a job its effect, unless it has it: the key is the job's identity and is
// only ever created, so that of two workers that come here with the same job one
// comes too late. It reports whether this call was the one.
//
// Here this key is the whole effect. An effect elsewhere has to be stored in one step
// with the record that it has been, in that other place: in the same transaction.
func (q *queue) apply(ctx context.Context, j job, e effect) (first bool, err error) {
	data, err := json.Marshal(e)
	if err != nil {
		return false, err
	}
	_, err = q.effects.Create(ctx, j.ID, data)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return false, nil
	}
	return err == nil, err
}

// left says how many jobs are not done.
func (q *queue) left(ctx context.Context) (uint64, error) {
	info, err := q.stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return info.State.Msgs, nil
}

// audit checks that every job is done, that each of them has had its effect, and that
// nothing has had one twice: the bucket's stream counts every write it has ever taken.
func (q *queue) audit(ctx context.Context, jobs []job) error {
	left, err := q.left(ctx)
	if err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("%d jobs are not done", left)
	}
	keys, err := q.effects.Keys(ctx)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if _, found := slices.BinarySearch(keys, j.ID); !found {
			return fmt.Errorf("job %s is lost: it left the queue without effect", j.ID)
		}
	}
	written, err := q.js.Stream(ctx, "KV_"+q.effects.Bucket())
	if err != nil {
		return err
	}
	if n := written.CachedInfo().State.LastSeq; n != uint64(len(jobs)) || len(keys) != len(jobs) {
		return fmt.Errorf("%d jobs had %d effects under %d keys", len(jobs), n, len(keys))
	}
	return nil
}

// startServer starts a NATS server of our own, that keeps its files in dir.
func startServer(dir string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: dir,
		// Given, for otherwise the server looks at the machine and takes what it likes.
		JetStreamMaxMemory: 16 << 20, JetStreamMaxStore: 256 << 20,
	})
	if err != nil {
		return nil, err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		stopServer(s)
		return nil, errors.New("the NATS server does not start")
	}
	return s, nil
}

func stopServer(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}
