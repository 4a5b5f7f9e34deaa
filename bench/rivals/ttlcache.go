package rivals

import (
	"context"
	"time"

	"github.com/jellydator/ttlcache/v3"
)

// ttlCache uses another cache whose entries expire.
var ttlCache = Rival{
	Name:   "ttlcache",
	New:    newTTLCache,
	Expiry: SystemOnly,
	LateBy: time.Nanosecond, // what is due at this very moment is not yet
	About:  "`github.com/jellydator/ttlcache/v3` as a map whose entries expire, answers counted in an atomic word of the entry",
	Lacks: "to hear of an expiry one has to hear of every removal, each on a goroutine of its own that the cache starts; no clock but the system's; " +
		"the end of a session costs what is parked",
}

type ttlEntry struct {
	votes
	session int32
	done    Done
}

type ttlWaiter struct {
	pending     *ttlcache.Cache[uint64, *ttlEntry]
	unsubscribe func()
	gone        chan struct{} // closed when the background is; nil: there is none
}

type ttlRequester struct {
	calledBack
	*ttlWaiter
	done Done
}

func newTTLCache(cfg Config) Waiter {
	w := &ttlWaiter{pending: ttlcache.New(
		ttlcache.WithTTL[uint64, *ttlEntry](cfg.Timeout),
		ttlcache.WithDisableTouchOnHit[uint64, *ttlEntry](), // an answer does not prolong the wait
	)}
	w.unsubscribe = w.pending.OnEviction(
		func(_ context.Context, why ttlcache.EvictionReason, item *ttlcache.Item[uint64, *ttlEntry]) {
			if e := item.Value(); why == ttlcache.EvictionReasonExpired && e.giveUp() {
				e.done(item.Key(), false)
			}
		})
	if cfg.Background {
		w.gone = make(chan struct{})
		running := make(chan struct{})
		go func() {
			defer close(w.gone)
			close(running)
			w.pending.Start()
		}()
		<-running
	}
	return w
}

func (w *ttlWaiter) Requester(done Done) Requester { return &ttlRequester{ttlWaiter: w, done: done} }
func (w *ttlWaiter) Len() int                      { return w.pending.Len() }

func (w *ttlWaiter) Close() {
	for stopped := w.gone == nil; !stopped; {
		w.pending.Stop() // does nothing as long as Start has not come far enough
		select {
		case <-w.gone:
			stopped = true
		case <-time.After(time.Millisecond):
		}
	}
	w.unsubscribe()
}

func (r *ttlRequester) Add(key uint64) Ticket { return r.add(key, -1, ttlcache.DefaultTTL) }

func (r *ttlRequester) AddIn(key uint64, session int) Ticket {
	return r.add(key, session, ttlcache.DefaultTTL)
}

func (r *ttlRequester) AddUntil(key uint64, deadline time.Time) Ticket {
	return r.add(key, -1, time.Until(deadline))
}

func (r *ttlRequester) add(key uint64, session int, ttl time.Duration) Ticket {
	r.pending.Set(key, &ttlEntry{session: int32(session), done: r.done}, ttl)
	return nil
}

func (w *ttlWaiter) Ack(key uint64, peer int) {
	item := w.pending.Get(key)
	if item == nil {
		return
	}
	if e := item.Value(); e.ack(peer) {
		w.pending.Delete(key)
		e.done(key, true)
	}
}

func (w *ttlWaiter) Sweep() int {
	w.pending.DeleteExpired()
	return -1
}

func (w *ttlWaiter) EndSession(session int) (ended int) {
	// Range lets go of its lock around every call, and cannot go on from an item that has been removed.
	var keys []uint64
	var entries []*ttlEntry
	w.pending.Range(func(item *ttlcache.Item[uint64, *ttlEntry]) bool {
		if e := item.Value(); e.session == int32(session) {
			keys = append(keys, item.Key())
			entries = append(entries, e)
		}
		return true
	})
	for i, e := range entries {
		if e.giveUp() {
			w.pending.Delete(keys[i])
			e.done(keys[i], false)
			ended++
		}
	}
	return ended
}
