//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// write is one value under one key, and how sure its writer is of it.
type write struct {
	key, value string
	confirmed  bool // the replica has it
	tries      int
	at         time.Time // when the try began that succeeded
}

// writer writes values, and remembers which. Redis answers a write when the primary has
// it in memory; a primary that is killed then takes it along. Who cannot have that asks,
// with WAIT, whether a replica has it too.
type writer struct {
	guide *guide
	// confirmLimit is how long a write waits for the replica. It must be below replyLimit,
	// or the answer would be taken for a server that hangs.
	confirmLimit time.Duration

	turn turn // who has it may change client

	client *redis.Client // nil: to be opened

	mu     sync.Mutex
	writes []write // guarded by mu
}

func newWriter(g *guide, confirmLimit time.Duration) *writer {
	return &writer{guide: g, confirmLimit: confirmLimit, turn: newTurn()}
}

func (w *writer) close() {
	_ = w.turn.take(context.Background())
	defer w.turn.giveBack()
	w.dropLocked(w.client)
}

// keepFor is how long a value stays.
const keepFor = time.Hour

// put writes until some primary has the value. What a try that failed has done is not
// known, so the value may be written twice; for the callers it is the same value.
func (w *writer) put(ctx context.Context, key, value string) (write, error) {
	this := write{key: key, value: value}
	for {
		this.tries++
		client, err := w.primary(ctx)
		if err == nil {
			this.at = time.Now()
			this.confirmed, err = w.set(ctx, client, key, value)
		}
		if err == nil {
			w.mu.Lock()
			w.writes = append(w.writes, this)
			w.mu.Unlock()
			return this, nil
		}
		w.drop(client)
		if !pause(ctx, retryEvery) {
			return this, err
		}
	}
}

// set writes once. WAIT is about what was written on its own connection, so both
// go down the same one.
func (w *writer) set(ctx context.Context, client *redis.Client, key, value string) (confirmed bool, err error) {
	pipe := client.Pipeline()
	pipe.Set(ctx, prefix+key, value, keepFor)
	wait := pipe.Do(ctx, "WAIT", 1, w.confirmLimit.Milliseconds())
	if _, err := pipe.Exec(ctx); err != nil {
		return false, err
	}
	replicas, err := wait.Int()
	return replicas >= 1, err
}

func (w *writer) primary(ctx context.Context) (*redis.Client, error) {
	if err := w.turn.take(ctx); err != nil {
		return nil, err
	}
	defer w.turn.giveBack()
	if w.client != nil {
		return w.client, nil
	}
	addr, err := w.guide.primary(ctx)
	if err != nil {
		return nil, err
	}
	options := w.guide.options(addr)
	// A write that waits for the replica has its connection to itself.
	options.PoolSize, options.PipelinePoolSize = 100, -1
	w.client = redis.NewClient(options)
	return w.client, nil
}

// drop lets go of a client that has failed, unless another has done so.
func (w *writer) drop(failed *redis.Client) {
	_ = w.turn.take(context.Background())
	defer w.turn.giveBack()
	w.dropLocked(failed)
}

func (w *writer) dropLocked(failed *redis.Client) {
	if failed != nil && failed == w.client {
		failed.Close()
		w.client = nil
	}
}

// all returns the writes so far.
func (w *writer) all() []write {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

// fates is what has become of the writes.
type fates struct {
	handled []write // by some caller, at least once
	kept    []write // nobody has handled it, but it is there
	lost    []write // not handled, not there, and the replica had not confirmed it
}

// reckon looks for each write at the primary, after a failover. A write that is lost
// although it was confirmed is an error: that cannot happen while the server that has
// confirmed is the one that was promoted.
func (w *writer) reckon(ctx context.Context, l *ledger) (f fates, err error) {
	var broken []error
	for _, this := range w.all() {
		there, err := w.look(ctx, this.key)
		switch {
		case err != nil:
			return f, err
		case l.times(this.value) > 0:
			f.handled = append(f.handled, this)
		case there == this.value:
			f.kept = append(f.kept, this)
		case !this.confirmed:
			f.lost = append(f.lost, this)
		default:
			broken = append(broken, fmt.Errorf("%s was confirmed and is lost", this.value))
		}
	}
	return f, errors.Join(broken...)
}

// look reads what some primary has under a key; nothing is "".
func (w *writer) look(ctx context.Context, key string) (string, error) {
	for {
		client, err := w.primary(ctx)
		if err == nil {
			var value string
			value, err = client.Get(ctx, prefix+key).Result()
			if err == nil || errors.Is(err, redis.Nil) {
				return value, nil
			}
		}
		w.drop(client)
		if !pause(ctx, retryEvery) {
			return "", err
		}
	}
}
