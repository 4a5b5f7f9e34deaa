//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waitlist-go/waitlist"
)

// Values lie under keys with this prefix. Redis publishes on a channel named after the
// key that it was written, if notify-keyspace-events has K and $.
const (
	prefix  = "result:"
	channel = "__keyspace@0__:"
)

// ticket is the key of one wait: what it waits for, and a number that no other wait has.
// So any number of callers can wait for one key without touching each other, and a
// wake-up that comes late for one wait cannot find the next of the same caller.
type ticket struct {
	key    string
	number uint64
}

// line is one connection through which Redis wakes callers, and the Session of all that
// is parked on it. Once lost it stays lost: another line is another Session.
type line struct {
	room       *room
	addr       string         // of the server
	local      string         // of this end, as the server knows it
	checks     *redis.Client  // of the same server: who wakes is who is asked
	wakes      *redis.PubSub  // read by listen alone
	subscriber *redis.Client  // what wakes was made of
	heard      atomic.Int64   // when the server was last heard, in Unix nanoseconds
	ended      chan struct{}  // closed when it is lost
	work       sync.WaitGroup // listen and keepAlive

	session waitlist.Session

	once sync.Once // of end

	mu      sync.Mutex
	waiting map[string]map[uint64]struct{} // guarded by mu; tickets by key
}

var errOneConnection = errors.New("a line is one connection and no more")

// openLine connects to the primary and subscribes. When it returns the subscription is
// in force: whatever is written from now on wakes.
func openLine(ctx context.Context, r *room) (*line, error) {
	addr, err := r.guide.primary(ctx)
	if err != nil {
		return nil, err
	}
	l := &line{
		room:    r,
		addr:    addr,
		ended:   make(chan struct{}),
		waiting: make(map[string]map[uint64]struct{}),
	}
	// A PubSub of this client connects again by itself, and subscribes again, when
	// its connection is lost. What was published meanwhile is gone then, and nobody
	// has been told. So this one can connect once; after that it can only fail.
	options := r.guide.options(addr)
	var dialed atomic.Bool
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dialed.Swap(true) {
			return nil, errOneConnection
		}
		dialer := net.Dialer{Timeout: replyLimit}
		conn, err := dialer.DialContext(ctx, network, addr)
		if err == nil {
			l.local = conn.LocalAddr().String()
		}
		return conn, err
	}
	l.subscriber = redis.NewClient(options)
	l.checks = redis.NewClient(r.guide.options(addr))
	l.wakes = l.subscriber.PSubscribe(ctx, channel+prefix+"*")
	if err := l.confirmed(ctx); err != nil {
		l.hangUp()
		return nil, fmt.Errorf("subscribing at %s: %w", addr, err)
	}
	l.heard.Store(time.Now().UnixNano())
	l.work.Go(l.listen)
	l.work.Go(l.keepAlive)
	return l, nil
}

// confirmed waits for the server's word that the subscription is in force.
func (l *line) confirmed(ctx context.Context) error {
	reply, err := l.wakes.ReceiveTimeout(ctx, replyLimit)
	if err != nil {
		return err
	}
	if _, ok := reply.(*redis.Subscription); !ok {
		return fmt.Errorf("unexpected reply %v", reply)
	}
	return nil
}

// listen is the reader of the connection. It wakes by itself, since a wake-up of a Wait
// takes no time.
func (l *line) listen() {
	for {
		message, err := l.wakes.Receive(context.Background())
		if err != nil {
			l.end(err)
			return
		}
		l.heard.Store(time.Now().UnixNano())
		if m, ok := message.(*redis.Message); ok {
			l.wake(strings.TrimPrefix(m.Channel, channel+prefix))
		}
	}
}

var errSilent = errors.New("the server is silent")

// keepAlive finds out about a server that hangs or whose machine is gone. Nothing comes
// from such a one any more, not even the end of the connection.
func (l *line) keepAlive() {
	ticker := time.NewTicker(l.room.heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-l.ended:
			return
		case <-ticker.C:
		}
		if time.Since(time.Unix(0, l.heard.Load())) > 3*l.room.heartbeat {
			l.end(errSilent)
			return
		}
		if err := l.wakes.Ping(context.Background()); err != nil {
			l.end(err)
			return
		}
	}
}

// end says that the line is lost. All that wait on it are told, which makes them check
// again: wake-ups meant for them may be lost with it.
func (l *line) end(cause error) {
	l.once.Do(func() {
		close(l.ended) // first, so that who is told takes another line
		l.session.End(fmt.Errorf("connection to %s: %w", l.addr, cause))
		l.hangUp()
	})
}

func (l *line) hangUp() {
	l.wakes.Close() // errors: it may be closed already, which is what is wanted
	l.subscriber.Close()
	l.checks.Close()
}

// wait returns when the line is lost and all that waited on it have been told.
func (l *line) wait() {
	<-l.ended
	l.work.Wait()
}

func (l *line) lost() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// check looks for the value. There being none is redis.Nil.
func (l *line) check(ctx context.Context, key string) (string, error) {
	return l.checks.Get(ctx, prefix+key).Result()
}

// park waits until it is woken, until the line is lost, or for the timeout at most.
// Parked, it checks again: a value that was written before it could be found here has
// woken nobody. If that finds the value, the outcome has it.
func (l *line) park(ctx context.Context, key string, timeout time.Duration) waitlist.Outcome[ticket] {
	t := ticket{key, l.room.tickets.Add(1)}
	defer l.withdraw(t)
	out, _ := l.room.waits.Wait(ctx, t, waitlist.External(), func() error {
		l.enrol(t)
		switch value, err := l.check(ctx, key); {
		case err == nil:
			l.room.waits.Complete(t, value)
			return nil
		case errors.Is(err, redis.Nil):
			return nil
		default:
			return err
		}
	}, waitlist.Timeout(timeout), waitlist.InSession(&l.session))
	return out
}

// wake ends the waits for a key on this line. Each line has a subscription of its own,
// so a write wakes those of other lines through theirs.
func (l *line) wake(key string) {
	l.mu.Lock()
	var woken []ticket
	for number := range l.waiting[key] {
		woken = append(woken, ticket{key, number})
	}
	l.mu.Unlock()
	for _, t := range woken {
		l.room.waits.Complete(t, nil)
	}
}

func (l *line) enrol(t ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[t.key] == nil {
		l.waiting[t.key] = make(map[uint64]struct{})
	}
	l.waiting[t.key][t.number] = struct{}{}
}

func (l *line) withdraw(t ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting[t.key], t.number)
	if len(l.waiting[t.key]) == 0 {
		delete(l.waiting, t.key)
	}
}
