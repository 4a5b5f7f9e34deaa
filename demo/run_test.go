package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/waitlist-go/waitlist"
)

// watcher is a screen for tests.
type watcher func(progress)

func (watcher) say(string, ...any) {}
func (w watcher) show(p progress)  { w(p) }
func ignore(progress)              {}
func total(ends []int) (sum int) {
	for _, n := range ends {
		sum += n
	}
	return sum
}

// bothLists runs a test with each way to lead.
func bothLists(t *testing.T, test func(t *testing.T, cfg config)) {
	for name, log := range map[string]bool{"WaitingList": false, "WatermarkList": true} {
		t.Run(name, func(t *testing.T) {
			test(t, config{log: log, window: 256, timeout: time.Minute, patience: 10 * time.Millisecond})
		})
	}
}

func mustRun(t *testing.T, ctx context.Context, cfg config, src source, w watcher) *result {
	t.Helper()
	res, err := run(ctx, cfg, src, w)
	require.NoError(t, err)
	require.Empty(t, res.faults)
	require.NoError(t, res.inputErr)
	require.Equal(t, res.sent, res.answered)
	require.Equal(t, res.sent, total(res.ends[:]))
	s := res.stats
	require.Zero(t, s.Parked+s.Running)
	require.EqualValues(t, res.sent-res.ends[0], s.Added)
	return res
}

func TestEveryWriteCommits(t *testing.T) {
	bothLists(t, func(t *testing.T, cfg config) {
		res := mustRun(t, t.Context(), cfg, generated(3000), ignore)
		assert.Equal(t, 3000, res.ends[waitlist.EndReached])
		decided := 0
		for _, n := range res.ledger.decided {
			decided += n
		}
		assert.Equal(t, 3000, decided, "every commit has one peer that decided it")
		assert.Len(t, res.ledger.sorted(), 3000)
		assert.Equal(t, 3000, res.nodes[0].store.len())
	})
}

func TestLossDuplicatesAndDisorderBreakNoPromise(t *testing.T) {
	bothLists(t, func(t *testing.T, cfg config) {
		cfg.faults = faults{drop: 0.2, duplicate: 0.2, delay: 3 * time.Millisecond}
		if !cfg.log {
			cfg.timeout = 200 * time.Millisecond // what is lost stays lost
		}
		res := mustRun(t, t.Context(), cfg, generated(2000), ignore)
		if cfg.log {
			assert.Equal(t, 2000, res.ends[waitlist.EndReached], "gaps are repaired")
		} else {
			assert.Equal(t, 2000, res.ends[waitlist.EndReached]+res.ends[waitlist.EndTimedOut])
			assert.Positive(t, res.stats.LateAcks)
		}
		assert.Positive(t, res.ends[waitlist.EndReached])
		assert.Positive(t, res.stats.DuplicateAcks+res.stats.LateAcks)
	})
}

func TestALostMajorityEndsInTimeoutsAndNotInAHang(t *testing.T) {
	bothLists(t, func(t *testing.T, cfg config) {
		cfg.timeout = 100 * time.Millisecond
		cfg.kills = []kill{{2, 300}, {3, 600}}
		res := mustRun(t, t.Context(), cfg, generated(1500), ignore)
		assert.Equal(t, 1500, res.ends[waitlist.EndReached]+res.ends[waitlist.EndTimedOut])
		assert.Positive(t, res.ends[waitlist.EndReached])
		assert.Positive(t, res.ends[waitlist.EndTimedOut])
		assert.GreaterOrEqual(t, res.ledger.overtime, cfg.timeout)
		assert.Less(t, res.nodes[1].store.len(), 1500, "the dead hold what they had")
		assert.Equal(t, map[waitlist.PeerID]int{2: 300, 3: 600}, res.killed)
	})
}

func TestAMinorityMayDieUnnoticed(t *testing.T) {
	bothLists(t, func(t *testing.T, cfg config) {
		cfg.kills = []kill{{3, 0}}
		res := mustRun(t, t.Context(), cfg, generated(1000), ignore)
		assert.Equal(t, 1000, res.ends[waitlist.EndReached])
		assert.Equal(t, 1000, res.ledger.missing[3])
		assert.Zero(t, res.nodes[2].store.len())
	})
}

func TestAnInterruptGivesBackWhatIsParked(t *testing.T) {
	bothLists(t, func(t *testing.T, cfg config) {
		cfg.kills = []kill{{2, 0}, {3, 0}} // nothing can commit
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		res := mustRun(t, ctx, cfg, generated(10_000), func(p progress) {
			if p.sent == cfg.window {
				cancel()
			}
		})
		assert.True(t, res.interrupted)
		assert.Equal(t, cfg.window, res.sent)
		assert.Positive(t, res.givenBack)
		assert.Equal(t, res.givenBack, res.ends[waitlist.EndClosed])
		assert.Equal(t, res.sent, res.givenBack+res.ends[0], "what came after the drain began was refused")
	})
}

func TestAValueThatNoStoreTakes(t *testing.T) {
	bothLists(t, func(t *testing.T, cfg config) {
		in := strings.NewReader("a=1\nb=" + strings.Repeat("x", maxValue+1) + "\nc=3\n")
		res := mustRun(t, t.Context(), cfg, lines{"test", readCloser{in}}, ignore)
		assert.Equal(t, 2, res.ends[waitlist.EndReached])
		if cfg.log {
			assert.Equal(t, 1, res.ends[0], "it never got an index")
		} else {
			assert.Equal(t, 1, res.ends[waitlist.EndUnreachable], "its peers refused it")
		}
	})
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// Connections that break are not peers that are gone: the links come back, and
// with a log everything lost on the way is sent again.
func TestBrokenLinksAreRepaired(t *testing.T) {
	const writes = 3000
	led := newLedger()
	cfg := config{log: true, timeout: time.Minute}
	cluster, lead, err := startCluster(cfg, led)
	require.NoError(t, err)
	defer func() {
		for _, n := range cluster {
			n.stop()
			n.wait()
		}
	}()
	require.NoError(t, linked(t.Context(), cluster))
	cut := func(answered int) {
		if answered%500 != 0 {
			return
		}
		for _, n := range cluster[1:] {
			n.mu.Lock()
			for c := range n.conns {
				c.Close()
			}
			n.mu.Unlock()
		}
	}
	cl, err := dial(t.Context(), cluster[0].addr(), cluster[0].token, 256, cut)
	require.NoError(t, err)
	ch := make(chan op, maxBatch)
	go func() { _ = generated(writes).run(t.Context(), ch) }()
	require.NoError(t, cl.run(t.Context(), ch))
	assert.Zero(t, drain(lead, time.Second))
	assert.Equal(t, writes, cl.progress().ends[waitlist.EndReached])
	assert.Empty(t, verify(cl, cluster, led))
}

// When a client goes, what is parked for it ends with its session.
func TestAClientThatGoesTakesItsWritesWithIt(t *testing.T) {
	bothLists(t, func(t *testing.T, cfg config) {
		cfg.faults.drop = 1
		led := newLedger()
		cluster, lead, err := startCluster(cfg, led)
		require.NoError(t, err)
		defer func() {
			for _, n := range cluster {
				n.stop()
				n.wait()
			}
		}()
		require.NoError(t, linked(t.Context(), cluster))
		conn, in := connect(t, cluster[0], hello{token: cluster[0].token, client: true})
		_, err = conn.Write(appendOps(nil, kindWrite, []op{{1, "a", "1"}, {2, "b", "2"}}))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return lead.stats().Parked == 2 }, 10*time.Second, time.Millisecond)
		conn.Close()
		_, _, err = in.next()
		require.Error(t, err)
		require.Eventually(t, func() bool { return lead.stats().SessionEnded == 2 }, 10*time.Second, time.Millisecond)
		assert.Zero(t, drain(lead, time.Second))
	})
}

// connect opens a connection to a node and says hello.
func connect(t *testing.T, n *node, h hello) (net.Conn, *frameReader) {
	t.Helper()
	conn, err := net.Dial("tcp", n.addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = conn.Write(appendHello(nil, h))
	require.NoError(t, err)
	in := newFrameReader(conn)
	k, _, err := in.next()
	require.NoError(t, err)
	require.Equal(t, kindHello, k)
	return conn, in
}

func TestStrangersAreHungUpOn(t *testing.T) {
	bothLists(t, func(t *testing.T, cfg config) {
		cluster, lead, err := startCluster(cfg, newLedger())
		require.NoError(t, err)
		defer func() {
			for _, n := range cluster {
				n.stop()
				n.wait()
			}
		}()
		require.NoError(t, linked(t.Context(), cluster))
		token := cluster[0].token
		for name, c := range map[string]struct {
			to    *node
			h     hello
			bytes []byte
		}{
			"another cluster":             {cluster[0], hello{token: token + 1, client: true}, nil},
			"a client at a follower":      {cluster[1], hello{token: token, client: true}, nil},
			"a client that sends acks":    {cluster[0], hello{token: token, client: true}, appendIDs(nil, kindStored, 1)},
			"a client that sends garbage": {cluster[0], hello{token: token, client: true}, []byte("GET / HTTP/1.1\r\n\r\n")},
			"a leader that sends writes":  {cluster[1], hello{token: token, peer: 1}, appendOps(nil, kindWrite, someOps)},
			"a leader that sends garbage": {cluster[1], hello{token: token, peer: 1}, []byte{0, 0, 0, 3, byte(kindStore), 255, 255}},
		} {
			conn, in := connect(t, c.to, c.h)
			_, _ = conn.Write(c.bytes)
			_, _, err := in.next()
			assert.Error(t, err, name)
		}
		// Acks of what was never sent.
		if cfg.log {
			require.ErrorIs(t, lead.heard(2, kindAppended, appendIDs(nil, kindAppended, 7)[5:]), errMalformed)
		} else {
			require.NoError(t, lead.heard(2, kindStored, appendIDs(nil, kindStored, 7)[5:]))
			assert.EqualValues(t, 1, lead.stats().LateAcks)
		}
		require.ErrorIs(t, lead.heard(2, kindHello, appendIDs(nil, kindHello, 7)[5:]), errMalformed)
		require.ErrorIs(t, lead.heard(2, kindStored, []byte{9}), errMalformed)
		assert.Zero(t, drain(lead, time.Second))
	})
}

// The verdict on a run must not depend on the code that it judges, so it is
// tried on runs that went wrong.
func TestVerifyFindsWhatIsBroken(t *testing.T) {
	w := op{id: 1, key: "a", value: "1"}
	try := func(r record, calls int, holds ...op) []string {
		var cluster []*node
		for range nodes {
			cluster = append(cluster, &node{store: newStore()})
		}
		for i, o := range holds {
			require.NoError(t, cluster[i].store.put(o))
		}
		led := newLedger()
		led.calls = calls
		return verify(&client{sent: []record{r}}, cluster, led)
	}
	good := record{write: w, answers: 1, end: waitlist.EndReached, stored: 1}
	assert.Empty(t, try(good, 1, w, w))
	assert.Equal(t, []string{"1 write committed without a majority that holds it"}, try(good, 1, w))
	assert.Equal(t, []string{"1 write on a node with another key or value"}, try(good, 1, w, w, op{1, "a", "2"}))
	assert.Equal(t, []string{"2 callbacks for 1 parked write"}, try(good, 2, w, w))
	twice := good
	twice.answers = 2
	assert.Equal(t, []string{"1 write got more than one answer"}, try(twice, 1, w, w))
	assert.Equal(t, []string{"1 write got no answer"}, try(record{write: w}, 0))
	assert.Empty(t, try(record{write: w, answers: 1, end: waitlist.EndTimedOut, stored: 1}, 1, w))
}
