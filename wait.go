package waitlist

import "context"

// wait parks a request by calling park with a callback that wakes this goroutine,
// sends, and waits for the end.
func (l *core[K]) wait(ctx context.Context, key K, send func() error, park func(Callback[K], *tie) (*shard[K], error)) (Outcome[K], error) {
	w := waiter[K]{list: l, woken: make(chan Outcome[K], 1), tie: &tie{wake: true, slot: gone}}
	var err error
	if ctx.Err() != nil {
		err = l.refuse(&refusal{contextError(ctx)})
	} else {
		w.shard, err = park(func(out Outcome[K]) { w.woken <- out }, w.tie)
	}
	if err != nil {
		return Outcome[K]{Key: key, Err: err}, err
	}
	out := w.await(ctx, send)
	return out, out.Err
}

// waiter is the two ways in which a Wait ends: its entry is ended by another, or it
// ends the entry itself. The claim decides which.
type waiter[K comparable] struct {
	list  *core[K]
	shard *shard[K] // where the entry is parked
	tie   *tie
	woken chan Outcome[K] // has room for the only outcome there will be
}

func (w *waiter[K]) await(ctx context.Context, send func() error) Outcome[K] {
	if send != nil {
		if err := w.send(send); err != nil {
			return w.cancel(err)
		}
	}
	select {
	case out := <-w.woken:
		return out
	case <-ctx.Done():
		return w.cancel(contextError(ctx))
	}
}

// send calls the caller's send. If that panics or exits, nobody is left to wait:
// the entry is taken back while the stack unwinds.
func (w *waiter[K]) send(send func() error) error {
	returned := false
	defer func() {
		if !returned {
			w.claim(ErrNoReason)
		}
	}()
	err := send()
	returned = true
	return err
}

// cancel ends the entry, unless another was first, whose outcome it then returns.
func (w *waiter[K]) cancel(err error) Outcome[K] {
	if c, ok := w.claim(err); ok {
		return c.out
	}
	return <-w.woken
}

func (w *waiter[K]) claim(err error) (c claim[K], ok bool) {
	s := w.shard
	s.mu.Lock()
	if ok = w.tie.slot != gone; ok {
		s.claimLocked(&c, w.tie.slot, EndCanceled, err)
	}
	s.mu.Unlock()
	if c.last {
		w.list.shardDrained()
	}
	return c, ok
}
