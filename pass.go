package waitlist

import (
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// finish calls a claimed entry's callback. No lock may be held. (It is call, written out for
// the entry that is ended alone: that saves 2 ns of a request.)
func (l *core[K]) finish(c *claim[K]) {
	if c.last {
		l.shardDrained()
	}
	switch {
	case c.wake:
		c.done(c.out) // sends to a channel that has room
	case l.executor != nil:
		l.handOver(c, nil)
	default:
		l.invoke(c, nil)
	}
}

// pass collects the entries that one call ends: all are claimed before the first
// is called, so that no callback can end, or see, what the call is going to end
// next. The zero value with its list set is ready.
type pass[K comparable] struct {
	list    *core[K]
	wakes   queue[K] // of Waits
	calls   queue[K]
	lots    []lot[K] // what was claimed wholesale, called after calls
	claimed int
	drained int // shards whose last entry was claimed after they were closed
}

// claimLocked claims an entry for the pass. The shard is locked.
func (p *pass[K]) claimLocked(s *shard[K], slot uint32, end End, err error) *claim[K] {
	return p.claimInto(&p.calls, s, slot, end, err)
}

// claimInto is claimLocked for a callback that has its place in another queue.
func (p *pass[K]) claimInto(calls *queue[K], s *shard[K], slot uint32, end End, err error) *claim[K] {
	c := p.next(calls, s.entry(slot))
	s.claimLocked(c, slot, end, err)
	if c.last {
		p.drained++
	}
	return c
}

// next returns where the claim of an entry goes.
func (p *pass[K]) next(calls *queue[K], e *entry[K]) *claim[K] {
	p.claimed++
	if e.tie != nil && e.tie.wake {
		calls = &p.wakes
	}
	return calls.push(p.list)
}

// finish wakes the waiters, who must not wait for anybody's callback, calls the
// callbacks, and returns how many entries the pass has ended.
func (p *pass[K]) finish() int {
	p.wake()
	var panicking bool
	p.run(&panicking)
	return p.claimed
}

func (p *pass[K]) wake() {
	for ; p.drained > 0; p.drained-- {
		p.list.shardDrained()
	}
	for c, ok := p.wakes.pop(p.list); ok; c, ok = p.wakes.pop(p.list) {
		c.done(c.out) // sends to a channel that has room
	}
}

// run calls the callbacks, each whatever the others do. panicking is set while a
// callback's panic is on its way: a later one must not replace it.
func (p *pass[K]) run(panicking *bool) {
	throughout(func() {
		for {
			c, ok := p.calls.pop(p.list)
			if !ok {
				break
			}
			p.list.call(&c, panicking)
		}
		for len(p.lots) > 0 {
			var c claim[K]
			if p.lots[0].pop(&c) {
				p.list.call(&c, panicking)
			} else {
				p.lots = p.lots[1:]
			}
		}
	})
}

// lot is all that a shard held when a call claimed it wholesale: a mass expiry, FailAll,
// Close. The entries stay where they are instead of being copied, and each is let go when
// it is called.
type lot[K comparable] struct {
	shard   *shard[K]
	entries slots[K]
	next    uint32 // slot
	n       uint32 // entries left; the slots of those that were claimed apart are empty
	end     End
	err     error
}

func (p *pass[K]) addLot(l lot[K]) {
	if l.n > 0 {
		p.claimed += int(l.n)
		p.lots = append(p.lots, l)
	}
}

// pop takes one entry out. c is empty.
func (l *lot[K]) pop(c *claim[K]) bool {
	for l.n > 0 {
		e := l.entries.entry(l.next)
		if l.next++; l.next%chunk == 0 {
			l.entries[l.next/chunk-1] = nil
		}
		if e.done != nil {
			l.n--
			c.fill(l.shard, e, l.end, l.err)
			c.out.Since = l.shard.list.at(e.since)
			*e = entry[K]{}
			return true
		}
	}
	return false
}

// throughout calls work until it returns. If a callback inside work panics or exits its
// goroutine, work is called again while the stack unwinds, to go on with what is left,
// and only then does the panic or the exit go on. So the panic keeps its value and
// the stack it came from. (Where callback after callback exits, each goes a few frames
// deeper.)
func throughout(work func()) {
	completed := false
	defer func() {
		if completed {
			return
		}
		if value := recover(); value != nil {
			defer panic(value) // or a callback that exits would swallow it
		}
		throughout(work)
	}()
	work()
	completed = true
}

// call runs one callback, or hands it to the executor. panicking is the pass's, nil
// if the entry is ended alone.
func (l *core[K]) call(c *claim[K], panicking *bool) {
	if l.executor != nil {
		l.handOver(c, panicking)
		return
	}
	l.invoke(c, panicking)
}

// invoke runs one callback here, settles the books, unless the claim names no shard, and
// deals with a panic.
func (l *core[K]) invoke(c *claim[K], panicking *bool) {
	returned := false
	defer func() {
		if returned {
			return
		}
		key, shard := c.out.Key, c.shard
		*c = claim[K]{} // this frame may live until a whole pass is over
		if shard != nil {
			defer l.settle(shard)
		}
		if value := recover(); value != nil {
			l.panics.Add(1)
			l.report(key, value, panicking)
		}
	}()
	c.done(c.out)
	returned = true
	if c.shard != nil {
		l.settle(c.shard)
	}
}

// handOver gives one callback to the executor. Whatever the executor does, the callback
// runs once: if the executor unwinds before it has called run, here.
func (l *core[K]) handOver(claimed *claim[K], panicking *bool) {
	c, key := *claimed, claimed.out.Key
	*claimed = claim[K]{} // the executor may take its time
	var taken atomic.Bool
	take := func() (mine claim[K], ok bool) {
		if ok = taken.CompareAndSwap(false, true); ok {
			mine, c = c, claim[K]{} // the executor may hold on to run
		}
		return mine, ok
	}
	accepted := false
	defer func() {
		if accepted {
			return
		}
		value := recover()
		if panicking == nil {
			panicking = new(bool)
		}
		mine, ok := take()
		switch {
		case ok:
		case value == nil:
			return
		case l.onPanic != nil && l.hold(): // the executor's own: OnPanic has had the callback's
			defer l.swept()
			l.panics.Add(1)
			l.report(key, value, panicking)
			return
		default:
			goOn(value, panicking)
			return
		}
		defer l.settle(mine.shard)
		mine.shard = nil // settled here
		if value != nil {
			l.panics.Add(1)
			if l.onPanic != nil {
				defer l.report(key, value, panicking)
			} else if !*panicking {
				*panicking = true
				defer panic(value)
			}
		}
		l.invoke(&mine, panicking)
	}()
	l.executor(func() {
		if mine, ok := take(); ok {
			l.invoke(&mine, nil)
		}
	})
	accepted = true
}

// report deals with a panic that has been recovered: OnPanic is told, or it goes on from
// here, on top of the stack that it came from.
func (l *core[K]) report(key K, value any, panicking *bool) {
	if l.onPanic == nil {
		goOn(value, panicking)
		return
	}
	defer func() {
		if value := recover(); value != nil { // OnPanic's own
			goOn(value, panicking)
		}
	}()
	l.onPanic(key, value, debug.Stack())
}

// goOn lets a panic go on, unless another of the same pass is on its way.
func goOn(value any, panicking *bool) {
	if panicking != nil {
		if *panicking {
			return // the first goes on, with its own value
		}
		*panicking = true
	}
	panic(value)
}

// settle says that a callback claimed in s is back.
func (l *core[K]) settle(s *shard[K]) {
	s.returned.Add(1)
	if s.closed.Load() && s.idle() {
		l.checkDone()
	}
}

// queue is first-in first-out, in blocks that all lists of a type share.
type queue[K comparable] struct {
	head, tail *block[K]
}

type block[K comparable] struct {
	next       *block[K]
	start, end int
	claims     [16]claim[K]
}

// pools holds a *sync.Pool for each type of block. There is one for all lists of a
// type, since a broker's ten thousand lists need no ten thousand pools.
var pools sync.Map

// pool returns the pool of *block[K].
func pool[K comparable]() *sync.Pool {
	p, ok := pools.Load(reflect.TypeFor[K]())
	if !ok {
		p, _ = pools.LoadOrStore(reflect.TypeFor[K](), new(sync.Pool))
	}
	return p.(*sync.Pool)
}

// push returns the place of one more claim, to be filled before the next pop.
func (q *queue[K]) push(l *core[K]) *claim[K] {
	b := q.tail
	if b == nil || b.end == len(b.claims) {
		b, _ = l.blocks.Get().(*block[K])
		if b == nil {
			b = new(block[K])
		}
		if q.tail == nil {
			q.head = b
		} else {
			q.tail.next = b
		}
		q.tail = b
	}
	b.end++
	return &b.claims[b.end-1]
}

// pop takes the first claim out and leaves nothing of it behind.
func (q *queue[K]) pop(l *core[K]) (c claim[K], ok bool) {
	b := q.head
	if b == nil {
		return c, false
	}
	c, b.claims[b.start] = b.claims[b.start], claim[K]{}
	if b.start++; b.start == b.end {
		if q.head = b.next; q.head == nil {
			q.tail = nil
		}
		b.next, b.start, b.end = nil, 0, 0
		l.blocks.Put(b)
	}
	return c, true
}
