package waitlist

import "sync"

// Session groups the entries that wait on behalf of one client connection, so that
// they end with it. It may hold entries of several lists, and serves as well to withdraw
// together what waits for the first of several things. The zero value is ready to use; a
// Session must not be copied after first use.
//
// A connection that comes back is a new Session: ending the old one late cannot
// touch what the new one holds. Only entries in a session pay for it.
type Session struct {
	mu    sync.Mutex
	first *tie // doubly linked: an entry that ended otherwise leaves at once
	held  int
	ended error // not nil once ended
}

// holder is a shard of any list.
type holder interface {
	// claimTied claims the entry of t, unless somebody has, for the pass of its list.
	claimTied(t *tie, err error, passes *sessionPasses)
}

// sessionPass is a pass of any list.
type sessionPass interface {
	wake()
	run(panicking *bool)
	count() int
}

// sessionPasses are the passes of one End, one for each list.
type sessionPasses struct {
	byList map[any]sessionPass
	all    []sessionPass
}

// End ends every entry that the session still holds, as EndSession, and returns how
// many. Their error matches ErrSessionEnded and the cause; a nil cause becomes
// ErrNoReason. From now on an Add into the session is refused with that error. A
// second End keeps the first cause and returns 0.
//
// It first claims all and then calls, and costs only what the session holds. Any
// goroutine may call it, callbacks included.
func (s *Session) End(cause error) (ended int) {
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return 0
	}
	s.ended = caused(ErrSessionEnded, cause)
	s.mu.Unlock()

	// The lock order is shard, then session, so End never holds both: between
	// take and claimTied somebody else may end the entry, which the claim finds out.
	passes := sessionPasses{byList: map[any]sessionPass{}}
	for t, h := s.take(); t != nil; t, h = s.take() {
		h.claimTied(t, s.ended, &passes)
	}
	for _, p := range passes.all {
		ended += p.count()
		p.wake()
	}
	var panicking bool
	next := 0
	throughout(func() {
		for next < len(passes.all) {
			next++
			passes.all[next-1].run(&panicking)
		}
	})
	return ended
}

// Len returns how many entries the session holds.
func (s *Session) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// lock and unlock take a nil session for none.
func (s *Session) lock() {
	if s != nil {
		s.mu.Lock()
	}
}

func (s *Session) unlock() {
	if s != nil {
		s.mu.Unlock()
	}
}

// joinLocked puts an entry into the session. The caller holds the session's lock
// and that of the entry's shard.
func (s *Session) joinLocked(t *tie, h holder) {
	t.session, t.holder = s, h
	if t.next = s.first; t.next != nil {
		t.next.prev = t
	}
	s.first = t
	s.held++
}

// leave takes an entry out of the session, unless End has. The caller holds the
// entry's shard.
func (s *Session) leave(t *tie) {
	s.mu.Lock()
	if t.holder != nil {
		s.unlinkLocked(t)
	}
	s.mu.Unlock()
}

// take takes one entry out of the session and tells who holds it.
func (s *Session) take() (*tie, holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.first
	if t == nil {
		return nil, nil
	}
	h := t.holder
	s.unlinkLocked(t)
	return t, h
}

func (s *Session) unlinkLocked(t *tie) {
	if t.prev == nil {
		s.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.prev, t.next, t.holder = nil, nil, nil
	s.held--
}

func (s *shard[K]) claimTied(t *tie, err error, passes *sessionPasses) {
	p, _ := passes.byList[s.list].(*pass[K])
	if p == nil {
		p = &pass[K]{list: s.list}
		passes.byList[s.list] = p
		passes.all = append(passes.all, p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.slot != gone {
		p.claimLocked(s, t.slot, EndSession, err)
	}
}

func (p *pass[K]) count() int { return p.claimed }
