package waitlist

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	ofThree = Majority(1, 2, 3)
	errTest = errors.New("test reason")
)

func ignore[K comparable](Outcome[K]) {}

// underRace tells whether the race detector is built in. It makes every step ten
// times as dear, and the sync.Pool of the passes forgetful.
var underRace = sync.OnceValue(func() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
})

// rounds is how often a race is run that deserves n tries.
func rounds(n int) int {
	if underRace() || testing.Short() {
		return n / 20
	}
	return n
}

// collide runs the racers n times, on a goroutine each and released together,
// between prepare and check on the goroutine of the test. The racers spin at
// the barrier, so that they meet within a fraction of a microsecond.
func collide(n int, prepare, check func(), racers ...func()) {
	var arrived atomic.Int64
	var back sync.WaitGroup
	start := make(chan struct{})
	defer close(start)
	for _, racer := range racers {
		go func() {
			for round := int64(1); ; round++ {
				if _, more := <-start; !more {
					return
				}
				arrived.Add(1)
				for arrived.Load() < round*int64(len(racers)) {
					runtime.Gosched()
				}
				racer()
				back.Done()
			}
		}()
	}
	for range n {
		prepare()
		back.Add(len(racers))
		for range racers {
			start <- struct{}{}
		}
		back.Wait()
		check()
	}
}

// outcomes remembers what a callback was told.
type outcomes[K comparable] struct {
	mu   sync.Mutex
	list []Outcome[K]
}

func (o *outcomes[K]) note(out Outcome[K]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, out)
}

// take returns what was noted since the last take.
func (o *outcomes[K]) take() []Outcome[K] {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.list
	o.list = nil
	return list
}

// one returns the only outcome since the last take.
func (o *outcomes[K]) one(t *testing.T) Outcome[K] {
	t.Helper()
	list := o.take()
	require.Len(t, list, 1, "outcomes")
	return list[0]
}

func (o *outcomes[K]) keys() []K {
	o.mu.Lock()
	defer o.mu.Unlock()
	keys := make([]K, 0, len(o.list))
	for _, out := range o.list {
		keys = append(keys, out.Key)
	}
	return keys
}

func (st *Stats) sumOfEnds() uint64 {
	return st.Reached + st.Completed + st.TimedOut + st.Unreachable + st.Failed + st.Truncated +
		st.SessionEnded + st.Canceled + st.Closed
}

// audit checks the books and the structure of a list that nobody is using.
func audit[K comparable](t *testing.T, l *WaitingList[K]) {
	t.Helper()
	st := l.Stats()
	require.Equal(t, st.Added, uint64(st.Parked)+st.sumOfEnds(), "Added is Parked and the ends: %+v", st)
	require.Equal(t, st.Parked, l.Len())
	require.NoError(t, l.checkInvariants())
}

// sameShard returns n keys that share a shard.
func sameShard(l *WaitingList[int], n int) (keys []int) {
	home, _ := l.locate(0)
	for key := 0; len(keys) < n; key++ {
		if s, _ := l.locate(key); s == home {
			keys = append(keys, key)
		}
	}
	return keys
}

// otherShard returns a key that does not share the shard of key.
func otherShard(l *WaitingList[int], key int) int {
	home, _ := l.locate(key)
	for other := key + 1; ; other++ {
		if s, _ := l.locate(other); s != home {
			return other
		}
	}
}

// stage is a list on a fake clock, with a session.
type stage struct {
	*WaitingList[string]
	clock   *FakeClock
	session *Session
}

func newStage(opts Options) *stage {
	clock := NewFakeClock(fakeStart)
	opts.Clock = clock
	return &stage{New[string](opts), clock, new(Session)}
}

// park adds an entry that every one of the endings can end.
func (s *stage) park(t *testing.T, key string, done Callback[string]) {
	t.Helper()
	require.NoError(t, s.Add(key, ofThree, done, InSession(s.session), Timeout(time.Hour)))
}

// endings are the ways in which an entry of a stage ends that was added and not
// waited for. Those that are marked all end everything on the stage.
var endings = []struct {
	name string
	end  End
	all  bool
	run  func(s *stage, key string)
}{
	{"Ack", EndReached, false, func(s *stage, key string) { s.Ack(key, 1); s.Ack(key, 2) }},
	{"AckWith", EndReached, false, func(s *stage, key string) { s.AckWith(key, 1, "a"); s.AckWith(key, 3, "b") }},
	{"AckBatch", EndReached, false, func(s *stage, key string) {
		s.AckBatch([]string{key, "unknown"}, 1)
		s.AckBatch([]string{"unknown", key, key}, 3)
	}},
	{"Nack then Ack", EndReached, false, func(s *stage, key string) {
		s.Nack(key, 1, errTest)
		s.Ack(key, 1)
		s.Ack(key, 2)
	}},
	{"Nack", EndUnreachable, false, func(s *stage, key string) { s.Nack(key, 1, errTest); s.Nack(key, 2, errTest) }},
	{"PeerDown", EndUnreachable, true, func(s *stage, _ string) { s.PeerDown(1, errTest); s.PeerDown(2, errTest) }},
	{"Complete", EndCompleted, false, func(s *stage, key string) { s.Complete(key, "value") }},
	{"Fail", EndFailed, false, func(s *stage, key string) { s.Fail(key, errTest) }},
	{"FailFunc", EndFailed, false, func(s *stage, key string) {
		s.FailFunc(func(k string) bool { return k == key }, errTest)
	}},
	{"FailAll", EndFailed, true, func(s *stage, _ string) { s.FailAll(errTest) }},
	{"deadline", EndTimedOut, true, func(s *stage, _ string) { s.clock.Advance(time.Hour); s.Sweep() }},
	{"Session.End", EndSession, true, func(s *stage, _ string) { s.session.End(errTest) }},
	{"Close", EndClosed, true, func(s *stage, _ string) { _ = s.Close() }},
	{"Shutdown", EndClosed, true, func(s *stage, _ string) {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Shutdown(over)
	}},
}

// heapInUse is what the heap holds that is reachable.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what a sync.Pool keeps survives the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// span returns n peers from first on.
func span(first PeerID, n int) []PeerID {
	peers := make([]PeerID, n)
	for i := range peers {
		peers[i] = first + PeerID(i)
	}
	return peers
}
