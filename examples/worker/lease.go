package main

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// leaseKey is the one key over which the workers of a queue compete.
const leaseKey = "holder"

var (
	errTaken     = errors.New("the lease is another's")
	errLeaseLost = errors.New("the lease is lost")
)

// A lease is the right to take jobs out of the queue, of one worker at a time. It is
// a key in a bucket whose entries expire. Who creates the key holds the lease, who
// writes on top of his own last revision renews it, and who deletes that gives it back.
//
// It is no more than a right to begin: a process that is stopped in the middle of a
// step and goes on much later acts without it. Therefore effects are applied by
// create-only writes, whoever applies them.
type lease struct {
	bucket jetstream.KeyValue
	ttl    time.Duration
	id     string // what the key holds: nobody else writes this
	term   uint64 // the revision with which it began

	revision uint64       // of our last write, 0: none; owned by acquire, then by keep
	until    atomic.Int64 // nanoseconds after epoch until which the last write is good

	held context.Context // over when the lease is lost or given back
	lose context.CancelCauseFunc
	quit chan struct{} // closed to end keep
	kept chan struct{} // closed when keep has returned
}

// acquire waits for the lease. It fails only if ctx ends first.
func acquire(ctx context.Context, bucket jetstream.KeyValue, name string, ttl time.Duration, trouble func(error)) (*lease, error) {
	l := &lease{
		bucket: bucket, ttl: ttl, id: name + " " + rand.Text(),
		quit: make(chan struct{}), kept: make(chan struct{}),
	}
	// The watch is there before the first attempt, so that no release is missed between
	// the two. It makes the handover quick; the attempt every second makes it sure.
	var freed <-chan jetstream.KeyValueEntry
	watch, err := bucket.Watch(ctx, leaseKey, jetstream.UpdatesOnly())
	switch {
	case err == nil:
		defer func() { _ = watch.Stop() }()
		freed = watch.Updates()
	case ctx.Err() == nil:
		trouble(err)
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, ttl)
		err := l.write(attempt)
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			// It may have been written, though the answer is missing.
			l.drop()
			return nil, ctx.Err()
		}
		if !errors.Is(err, errTaken) {
			trouble(err)
		}
		l.await(ctx, freed)
	}
	l.term = l.revision
	l.held, l.lose = context.WithCancelCause(context.Background())
	go l.keep()
	return l, nil
}

// await returns when another attempt makes sense.
func (l *lease) await(ctx context.Context, freed <-chan jetstream.KeyValueEntry) {
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	for {
		select {
		case entry, open := <-freed:
			if !open {
				freed = nil
			} else if entry != nil && entry.Operation() != jetstream.KeyValuePut {
				return // deleted, or expired
			}
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// write takes the lease or renews it. The lease is good for ttl from the moment before
// the request was sent: the server's count begins later.
func (l *lease) write(ctx context.Context) error {
	sent := time.Now()
	var revision uint64
	var err error
	if l.revision == 0 {
		revision, err = l.bucket.Create(ctx, leaseKey, []byte(l.id))
	} else {
		revision, err = l.bucket.Update(ctx, leaseKey, []byte(l.id), l.revision)
	}
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		// Somebody wrote it, and that may have been an earlier write of ours to which the
		// answer got lost.
		var entry jetstream.KeyValueEntry
		entry, err = l.bucket.Get(ctx, leaseKey)
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound), err == nil && string(entry.Value()) != l.id:
			return errTaken
		case err == nil:
			sent = time.Now()
			revision, err = l.bucket.Update(ctx, leaseKey, []byte(l.id), entry.Revision())
		}
	}
	if err != nil {
		return err
	}
	l.revision = revision
	l.until.Store(int64(sent.Add(l.ttl).Sub(epoch)))
	return nil
}

// epoch is there for its monotonic reading, which no correction of the clock moves.
var epoch = time.Now()

// left is how long the lease is still good without another renewal.
func (l *lease) left() time.Duration { return time.Duration(l.until.Load()) - time.Since(epoch) }

// keep renews the lease until it is to be released, or lost. Attempts that fail without
// a verdict are repeated as long as the lease is good.
func (l *lease) keep() {
	defer close(l.kept)
	pause := l.ttl / 3
	for {
		select {
		case <-l.quit:
			return
		case <-time.After(pause):
		}
		ctx, cancel := context.WithTimeout(context.Background(), min(l.left(), l.ttl/3))
		err := l.write(ctx)
		cancel()
		pause = l.ttl / 3
		if err != nil {
			pause = l.ttl / 20
		}
		if errors.Is(err, errTaken) || l.left() <= 0 {
			l.lose(errLeaseLost)
			return
		}
	}
}

// release gives the lease back, for the next worker to take now.
func (l *lease) release() {
	close(l.quit)
	<-l.kept
	l.lose(nil)
	l.drop()
}

// drop deletes the key if it holds what we have written. If that fails the key expires.
func (l *lease) drop() {
	ctx, cancel := context.WithTimeout(context.Background(), min(l.ttl, 2*time.Second))
	defer cancel()
	entry, err := l.bucket.Get(ctx, leaseKey)
	if err == nil && string(entry.Value()) == l.id {
		_ = l.bucket.Delete(ctx, leaseKey, jetstream.LastRevision(entry.Revision()))
	}
}
