package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waitlist-go/waitlist"
)

const (
	pullWait = 200 * time.Millisecond // how long one request for messages is good; see pull
	patience = 10 * time.Minute       // the longest that a job may take
	errand   = 5 * time.Second        // the longest that a word with the server may take
)

// An event is what a worker says of itself.
type event struct {
	What     string // waiting, lease, claimed, done, returned, stopping, stopped, lost, trouble
	Job      string `json:",omitempty"`
	Seq      uint64 `json:",omitempty"`
	Delivery uint64 `json:",omitempty"`
	Note     string `json:",omitempty"`
}

type worker struct {
	name   string
	budget time.Duration // to finish what is begun, when asked to stop
	slots  int           // messages in hand at a time
	say    func(event)   // called by several goroutines
	queue  *queue
}

func (w *worker) connectAndRun(ctx context.Context, url, name string) error {
	conn, js, err := connect(url, w.name)
	if err != nil {
		return err
	}
	defer conn.Close()
	opening, cancel := context.WithTimeout(ctx, errand)
	defer cancel()
	if w.queue, err = openQueue(opening, js, name); err != nil {
		return err
	}
	w.run(ctx)
	return nil
}

// run works whenever it holds the lease, until ctx ends.
func (w *worker) run(ctx context.Context) {
	for {
		w.say(event{What: "waiting"})
		l, err := acquire(ctx, w.queue.leases, w.name, w.queue.timeout, w.trouble)
		if err != nil {
			w.say(event{What: "stopped", Note: "without the lease"})
			return
		}
		w.say(event{What: "lease", Note: fmt.Sprint("since revision ", l.term)})
		w.shift(ctx, l)
		if ctx.Err() != nil {
			return
		}
	}
}

func (w *worker) trouble(err error) { w.say(event{What: "trouble", Note: err.Error()}) }

// A claim is the key under which a message is parked: its place in the stream and which
// delivery of it this is. The delivery belongs to the key. A message that was given back
// can come again while the work for its earlier delivery still goes on somewhere, and
// what that has to say must not end the wait of the new one.
type claim struct{ seq, delivery uint64 }

// A shift is one time of holding the lease. Its list parks every message that the
// worker has claimed and has not yet answered for, while others do the work.
type shift struct {
	*worker
	lease  *lease
	parked *waitlist.WaitingList[claim]
	freed  chan struct{} // has room for one; somebody has left the list

	mu   sync.Mutex
	held map[claim]jetstream.Msg // guarded by mu; what is parked
}

// shift works until ctx ends or the lease does, and then gives back everything: what is
// not done within the budget, and last the lease itself.
func (w *worker) shift(ctx context.Context, l *lease) {
	s := &shift{
		worker: w, lease: l,
		parked: waitlist.New[claim](waitlist.Options{Timeout: patience, Capacity: w.slots}),
		freed:  make(chan struct{}, 1),
		held:   map[claim]jetstream.Msg{},
	}
	claiming, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(l.held, func() { stop(errLeaseLost) })()
	var wg sync.WaitGroup
	wg.Go(s.beat)
	pulling := make(chan struct{})
	go func() {
		defer close(pulling)
		s.pull(claiming)
	}()

	<-claiming.Done()
	lost := errors.Is(context.Cause(claiming), errLeaseLost)
	if lost {
		w.say(event{What: "lost"})
	} else {
		w.say(event{What: "stopping", Note: fmt.Sprint(s.parked.Len(), " in hand")})
	}
	// Without the lease there is nothing to be finished: held is over, and so is this.
	// If it gets lost meanwhile, the same happens then.
	budget, cancel := context.WithTimeout(l.held, w.budget)
	defer cancel()
	// Nothing may be given back while we still ask for messages: we would be given it.
	<-pulling
	_ = s.parked.Shutdown(budget) // what it would say is in the numbers below
	<-s.parked.Done()             // every callback is back: all is acked or given back
	wg.Wait()

	stats := s.parked.Stats()
	sent, cancelSent := context.WithTimeout(context.Background(), errand)
	defer cancelSent()
	if err := w.queue.conn.FlushWithContext(sent); err != nil { // negative acks are not answered
		w.trouble(err)
	}
	l.release()
	w.say(event{What: "stopped", Note: fmt.Sprintf("%d claimed, %d done, %d given back",
		stats.Added, stats.Completed, stats.Added-stats.Completed)})
}

// pull claims as many messages as there is room for, again and again, until ctx ends.
//
// Ending a request for messages early would lose those that are on their way: the
// server believes that we have them, and gives them to nobody else until the claim
// timeout. So each request is short and is always heard to its end, and what comes
// after we were asked to stop goes back.
func (s *shift) pull(ctx context.Context) {
	var late []jetstream.Msg
	for ctx.Err() == nil && s.lease.left() > 0 {
		room := s.slots - s.parked.Len() // only this goroutine makes it less
		if room <= 0 {
			select {
			case <-s.freed:
			case <-ctx.Done():
			}
			continue
		}
		batch, err := s.queue.claims.Fetch(room, jetstream.FetchMaxWait(pullWait))
		if err == nil {
			for msg := range batch.Messages() {
				if ctx.Err() != nil {
					late = append(late, msg)
				} else {
					s.park(msg)
				}
			}
			err = batch.Error()
		}
		if err != nil {
			s.trouble(err)
			pause(ctx, pullWait)
		}
	}
	<-ctx.Done() // a lease that ran out here is found out where it is kept
	for _, msg := range late {
		s.answer("late", msg.Nak())
	}
}

// park holds the message in the list and has the work done, in this order.
func (s *shift) park(msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		s.trouble(err) // not a message of a stream: there is nobody to answer
		return
	}
	var j job
	if err := json.Unmarshal(msg.Data(), &j); err != nil || j.ID == "" {
		s.trouble(fmt.Errorf("message %d is no job and never will be", meta.Sequence.Stream))
		s.answer("term", msg.Term())
		return
	}
	key := claim{meta.Sequence.Stream, meta.NumDelivered}
	s.hold(key, msg)
	err = s.parked.Add(key, waitlist.External(), func(out waitlist.Outcome[claim]) {
		s.settle(j, msg, out)
	})
	if err != nil {
		s.trouble(err)
		s.letGo(key)
		s.answer("nak", msg.Nak())
		return
	}
	s.say(event{What: "claimed", Job: j.ID, Seq: key.seq, Delivery: key.delivery})
	work(j, func(result string) {
		// False if the message has been given back meanwhile: this was in vain.
		_ = s.parked.Complete(key, result)
	})
}

// work stands for what a job really asks for, of whoever does it: an encoder, a payment
// service, a print shop. It answers later, on a goroutine of its own.
func work(j job, answer func(result string)) {
	time.AfterFunc(j.Takes, func() { answer("took " + j.Takes.String()) })
}

// settle answers for one delivery of one message. It is called once for each, on the
// goroutine that ended the entry: the work's own, which may wait for the server, or
// that of Shutdown or of the list's timer, where nothing is done but to send a word.
func (s *shift) settle(j job, msg jetstream.Msg, out waitlist.Outcome[claim]) {
	s.letGo(out.Key)
	e := event{What: "returned", Job: j.ID, Seq: out.Key.seq, Delivery: out.Key.delivery, Note: out.End.String()}
	switch out.End {
	case waitlist.EndCompleted:
		// Only here does a job have its effect: not in work, whose result may come too late.
		ctx, cancel := context.WithTimeout(context.Background(), errand)
		defer cancel()
		result, _ := out.Value.(string)
		first, err := s.queue.apply(ctx, j, effect{s.name, s.lease.term, out.Key.delivery, result})
		if err != nil {
			s.trouble(err)
			s.answer("nak", msg.NakWithDelay(time.Second))
			e.Note = "done, but not applied"
			break
		}
		e.What, e.Note = "done", "applied"
		if !first {
			e.Note = "had been applied"
		}
		s.answer("ack", msg.DoubleAck(ctx)) // if it fails the job comes again, to be found done
	case waitlist.EndTimedOut:
		s.answer("nak", msg.NakWithDelay(s.queue.timeout)) // not at once, or it does nothing else
	default: // EndClosed: the shift is over
		s.answer("nak", msg.Nak())
	}
	s.say(e)
}

// answer looks at how an answer to the server went. Without it the claim expires.
func (s *shift) answer(what string, err error) {
	if err != nil {
		s.trouble(fmt.Errorf("%s: %w", what, err))
	}
}

// beat tells the server of messages that are still worked on, so that their claims do
// not expire under us. One that is younger than a third of the timeout can wait for the
// next round. It ends with the list.
func (s *shift) beat() {
	every := s.queue.timeout / 3
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-s.parked.Done():
			return
		case <-ticker.C:
		}
		for p := range s.parked.All() {
			if time.Since(p.Since) < every {
				continue
			}
			s.mu.Lock()
			msg := s.held[p.Key]
			s.mu.Unlock()
			if msg == nil {
				continue // answered meanwhile
			}
			if err := msg.InProgress(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
				s.answer("in progress", err)
			}
		}
	}
}

func (s *shift) hold(key claim, msg jetstream.Msg) {
	s.mu.Lock()
	s.held[key] = msg
	s.mu.Unlock()
}

// letGo forgets a message that is no longer parked, and so makes room.
func (s *shift) letGo(key claim) {
	s.mu.Lock()
	delete(s.held, key)
	s.mu.Unlock()
	select {
	case s.freed <- struct{}{}:
	default: // the puller has not looked since the last time
	}
}

// pause waits for d, or for ctx if that ends first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
