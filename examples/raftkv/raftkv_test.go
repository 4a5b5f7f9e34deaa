package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/waitlist-go/waitlist"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestHistoryIsLinearizable is the whole of it: clients at work, frames that overtake
// each other, leaders that lose power and come back.
func TestHistoryIsLinearizable(t *testing.T) {
	const (
		clients = 8
		ops     = 20_000
		kills   = 5
		timeout = 10 * time.Second // no request should come near it
	)
	c := newTestCluster(t, timeout, time.Millisecond)
	w := newWorkload(c, clients, ops)
	ctx := testContext(t)

	var lives []*node // that have ended
	troubled := make(chan error, 1)
	go func() {
		troubled <- func() error {
			for i := range kills {
				if _, err := w.done.Wait(ctx, ops*(i+1)/(kills+1)); err != nil {
					return err
				}
				leader, term, err := c.waitLeader(ctx, 0)
				if err != nil {
					return err
				}
				lives = append(lives, c.node(leader))
				lost, err := c.kill(leader)
				if err != nil {
					return err
				}
				t.Logf("node %d killed in term %d, %d bytes of its log lost", leader, term, lost)
				// Every other time it is back before the others have noticed.
				if i%2 == 0 {
					if _, _, err := c.waitLeader(ctx, term); err != nil {
						return err
					}
				}
				if err := c.restart(ctx, leader); err != nil {
					return err
				}
				if _, _, err := c.waitLeader(ctx, term); err != nil {
					return err
				}
				// And now and then a leader lives on without its peers, and believes
				// for a while that it leads.
				if i%2 == 0 {
					continue
				}
				if _, err := w.done.Wait(ctx, ops*(i+1)/(kills+1)+ops/(3*kills)); err != nil {
					return err
				}
				if leader, term, err = c.waitLeader(ctx, 0); err != nil {
					return err
				}
				c.isolate(leader, true)
				if _, _, err := c.waitLeader(ctx, term); err != nil {
					return err
				}
				c.isolate(leader, false)
				t.Logf("node %d was cut off in term %d", leader, term)
			}
			return nil
		}()
	}()
	history, err := w.run(ctx)
	require.NoError(t, err)
	require.NoError(t, <-troubled)
	require.Len(t, history, ops)
	require.Len(t, lives, kills)

	// Nobody hung, and nobody was left to the deadline.
	unknowns := 0
	for _, op := range history {
		assert.Less(t, op.slowest, timeout, "%+v", op)
		if op.outcome == outcomeUnknown {
			unknowns++
		}
	}
	t.Logf("%d writes with unknown outcome; writes parked for %v in the median, %v at p99", unknowns,
		c.metrics.writes.quantile(0.5), c.metrics.writes.quantile(0.99))

	// Nothing stays parked, and all nodes hold the same.
	require.NoError(t, c.settle(ctx))
	want := c.node(1).store.snapshot()
	for id := uint64(1); id <= clusterSize; id++ {
		assert.Equal(t, want, c.node(id).store.snapshot(), "node %d", id)
		lives = append(lives, c.node(id))
	}
	require.NoError(t, c.close(ctx))
	var decided uint64
	for id := waitlist.PeerID(1); id <= clusterSize; id++ {
		decided += c.metrics.decided(id)
	}
	var committed, completed uint64
	for _, n := range lives {
		checkBooks(t, n)
		assert.Zero(t, n.writes.Stats().TimedOut, "a write was left to its deadline")
		committed += n.commits.Stats().Reached
		completed += n.writes.Stats().Completed
	}
	assert.Equal(t, committed, decided, "every write that was committed by acks has a decider")
	assert.GreaterOrEqual(t, committed, completed, "no write is answered before a majority stores it")

	result := porcupine.CheckOperationsTimeout(register, porcupineHistory(history), time.Minute)
	require.Equal(t, porcupine.Ok, result, "the history is not linearizable")

	// The judge is not asleep: one read that is out of date, among all these, is noticed.
	forged := slices.Clone(history)
	require.True(t, forge(forged), "no key was written twice and then read")
	result = porcupine.CheckOperationsTimeout(register, porcupineHistory(forged), time.Minute)
	require.Equal(t, porcupine.Illegal, result, "a stale read went unnoticed")
}

// register is the model of one key; keys are independent of each other.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[string][]porcupine.Operation)
		for _, o := range history {
			key := o.Input.(operation).key
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		if op := input.(operation); !op.put {
			return op.value == state, state
		} else {
			return true, op.value
		}
	},
}

// porcupineHistory says when each operation can have taken effect: one whose outcome is
// unknown at any time after its call, which may be never.
func porcupineHistory(history []operation) []porcupine.Operation {
	var ops []porcupine.Operation
	for _, op := range history {
		end := int64(op.end)
		if op.outcome == outcomeUnknown {
			end = math.MaxInt64
		}
		ops = append(ops, porcupine.Operation{ClientId: op.client, Input: op, Call: int64(op.call), Return: end})
	}
	return ops
}

// forge makes one read return what was overwritten before it began.
func forge(history []operation) bool {
	slices.SortFunc(history, func(a, b operation) int { return int(a.call - b.call) })
	older := make(map[string][]operation) // writes of a key that were answered
	for i, op := range history {
		if op.put && op.outcome == outcomeDone {
			older[op.key] = append(older[op.key], op)
		}
		if op.put {
			continue
		}
		w := older[op.key]
		for j := 1; j < len(w); j++ {
			if w[j-1].end < w[j].call && w[j].end < op.call {
				history[i].value = w[j-1].value
				return true
			}
		}
	}
	return false
}

// checkBooks checks that every request of a node that has ended was called back once,
// and that the lists are over.
func checkBooks(t *testing.T, n *node) {
	t.Helper()
	for _, done := range []<-chan struct{}{n.writes.Done(), n.commits.Done(), n.reads.Done(), n.applied.Done()} {
		<-done
	}
	for name, s := range n.stats() {
		assert.Zero(t, s.Parked+s.Running, name)
		assert.Zero(t, s.CallbackPanics, name)
		assert.Equal(t, s.Added, s.Reached+s.Completed+s.TimedOut+s.Unreachable+s.Failed+s.Truncated+
			s.SessionEnded+s.Canceled+s.Closed, name)
	}
}

// TestDeposedLeaderAnswersAtOnce: a leader that is cut off can neither write nor read. What
// it holds must not wait for a deadline that is an hour away.
func TestDeposedLeaderAnswersAtOnce(t *testing.T) {
	c := newTestCluster(t, time.Hour, 0)
	ctx := testContext(t)
	leader, term, err := c.waitLeader(ctx, 0)
	require.NoError(t, err)
	old := c.node(leader)

	c.isolate(leader, true)
	writes, reads := make(chan reply, 1), make(chan reply, 1)
	go func() { writes <- request(ctx, http.MethodPut, c.clients[leader], "key") }()
	go func() { reads <- request(ctx, http.MethodGet, c.clients[leader], "key") }()
	w, r := <-writes, <-reads
	require.NoError(t, w.err)
	require.NoError(t, r.err)
	want := "none" // on a slow day it came when leadership was gone
	if old.commits.Stats().Added > 0 {
		want = "unknown"
	}
	assert.Equal(t, http.StatusServiceUnavailable, w.status)
	assert.Equal(t, want, w.header.Get("Kv-Outcome"))
	assert.Equal(t, "none", r.header.Get("Kv-Outcome"))

	// Whoever comes now is told at once, too.
	w = request(ctx, http.MethodPut, c.clients[leader], "key")
	require.NoError(t, w.err)
	assert.Equal(t, http.StatusServiceUnavailable, w.status)
	assert.Equal(t, "none", w.header.Get("Kv-Outcome"))
	assert.Zero(t, old.parked())

	_, _, err = c.waitLeader(ctx, term)
	require.NoError(t, err)
	c.isolate(leader, false)
	require.NoError(t, c.rejoined(ctx, leader))
	w = request(ctx, http.MethodPut, c.clients[leader], "key")
	require.NoError(t, w.err)
	assert.Equal(t, http.StatusTemporaryRedirect, w.status)
	assert.NotEmpty(t, w.header.Get("Kv-Leader"))
}

// TestDeposedLeaderNamesTheNext: a write that was in hand when another was elected is
// answered with that one's address.
func TestDeposedLeaderNamesTheNext(t *testing.T) {
	c := newTestCluster(t, time.Hour, 0)
	ctx := testContext(t)
	leader, _, err := c.waitLeader(ctx, 0)
	require.NoError(t, err)
	old := c.node(leader)

	// The loop of a leader learns of another one: hold a write in its list, and let
	// the new leader's first message depose it.
	held := make(chan error, 1)
	require.NoError(t, old.writes.Add(requestID{}, waitlist.External(), func(out waitlist.Outcome[requestID]) { held <- out.Err }))
	next := leader%clusterSize + 1
	old.receive(&raftpb.Message{
		Type: raftpb.MsgHeartbeat.Enum(), From: new(next), To: new(leader), Term: new(uint64(1000)),
	})
	var lost *unknown
	require.ErrorAs(t, <-held, &lost)
	assert.Equal(t, c.clients[next], lost.leader)

	w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, "/kv/key", nil)
	old.refuse(w, req, lost)
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, c.clients[next], w.Header().Get("Kv-Leader"))
}

// TestFollowerReadsWhatWasWritten: a read on any node sees what was answered before.
func TestFollowerReadsWhatWasWritten(t *testing.T) {
	c := newTestCluster(t, 10*time.Second, time.Millisecond)
	ctx := testContext(t)
	for i := range 50 {
		value := fmt.Sprint(i)
		require.NoError(t, putSomewhere(ctx, c, "key", value))
		for id := uint64(1); id <= clusterSize; id++ {
			got, ok, err := c.node(id).get(ctx, "key")
			if lost := (*notDone)(nil); errors.As(err, &lost) {
				continue // an election, on a slow day
			}
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, value, string(got), "node %d", id)
		}
	}
}

// TestFollowerRedirects: a client that does what it is told gets there.
func TestFollowerRedirects(t *testing.T) {
	c := newTestCluster(t, 10*time.Second, 0)
	ctx := testContext(t)
	redirected := 0
	for redirected < clusterSize-1 {
		require.NoError(t, ctx.Err())
		_, _, err := c.waitLeader(ctx, 0)
		require.NoError(t, err)
		redirected = 0
		for id := uint64(1); id <= clusterSize; id++ {
			require.NoError(t, c.rejoined(ctx, id)) // it knows who leads
			r := request(ctx, http.MethodPut, c.clients[id], "a/key with space")
			require.NoError(t, r.err)
			if r.status != http.StatusTemporaryRedirect {
				continue
			}
			assert.Equal(t, "none", r.header.Get("Kv-Outcome"))
			leader := r.header.Get("Kv-Leader")
			assert.Equal(t, "http://"+leader+"/kv/a/key%20with%20space", r.header.Get("Location"))
			r = request(ctx, http.MethodPut, leader, "a/key with space")
			require.NoError(t, r.err)
			if r.status == http.StatusOK && r.header.Get("Kv-Index") != "" {
				redirected++
			}
		}
	}
	r := request(ctx, http.MethodGet, c.clients[1], "a/key with space")
	require.NoError(t, r.err)
	assert.Equal(t, http.StatusOK, r.status)
	assert.Equal(t, "a value", r.body)
	r = request(ctx, http.MethodGet, c.clients[1], "another")
	require.NoError(t, r.err)
	assert.Equal(t, http.StatusNotFound, r.status)
}

// TestMinorityAnswersAtOnce: a node that is alone knows that it cannot serve.
func TestMinorityAnswersAtOnce(t *testing.T) {
	c := newTestCluster(t, time.Hour, 0)
	ctx := testContext(t)
	leader, _, err := c.waitLeader(ctx, 0)
	require.NoError(t, err)
	parked := make(chan reply, 1)
	for id := uint64(1); id <= clusterSize; id++ {
		if id != leader {
			_, err := c.kill(id)
			require.NoError(t, err)
		}
	}
	go func() { parked <- request(ctx, http.MethodPut, c.clients[leader], "key") }()
	r := <-parked
	require.NoError(t, r.err)
	assert.Equal(t, http.StatusServiceUnavailable, r.status)
	assert.Empty(t, r.header.Get("Kv-Leader"))
	r = request(ctx, http.MethodGet, c.clients[leader], "key")
	require.NoError(t, r.err)
	assert.Equal(t, http.StatusServiceUnavailable, r.status)
	assert.Equal(t, "none", r.header.Get("Kv-Outcome"))
}

// TestDeadlineIsUnknown: a write whose time is up may be done yet.
func TestDeadlineIsUnknown(t *testing.T) {
	c := newTestCluster(t, 20*time.Millisecond, 0)
	ctx := testContext(t)
	leader, _, err := c.waitLeader(ctx, 0)
	require.NoError(t, err)
	n := c.node(leader)
	c.isolate(leader, true)
	_, err = n.put(ctx, "key", nil)
	var lost *unknown
	require.ErrorAs(t, err, &lost)
	assert.ErrorIs(t, err, waitlist.ErrTimeout)

	w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, "/kv/key", nil)
	n.refuse(w, req, err)
	assert.Equal(t, http.StatusGatewayTimeout, w.Code)
	assert.Equal(t, "unknown", w.Header().Get("Kv-Outcome"))
}

// TestAllLosePower: what was answered is still there when every node has lost power.
func TestAllLosePower(t *testing.T) {
	c := newTestCluster(t, 10*time.Second, 0)
	ctx := testContext(t)
	for round := range 3 {
		_, term, err := c.waitLeader(ctx, 0)
		require.NoError(t, err)
		for i := range 20 {
			require.NoError(t, putSomewhere(ctx, c, fmt.Sprint(round, "-", i), "a value"))
		}
		for id := uint64(1); id <= clusterSize; id++ {
			_, err := c.kill(id)
			require.NoError(t, err)
		}
		for id := uint64(1); id <= clusterSize; id++ {
			require.NoError(t, c.restart(ctx, id))
		}
		_, _, err = c.waitLeader(ctx, term)
		require.NoError(t, err)
		require.NoError(t, c.settle(ctx))
		for i := range 20 {
			_, ok := c.node(1).store.get(fmt.Sprint(round, "-", i))
			assert.True(t, ok, "write %d of round %d is lost", i, round)
		}
	}
}

func newTestCluster(t *testing.T, timeout, delay time.Duration) *cluster {
	t.Helper()
	c, err := startCluster(t.TempDir(), timeout, delay)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		assert.NoError(t, c.close(ctx))
	})
	return c
}

// testContext ends before the test runner loses its patience, so that a test that hangs
// says where.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// request makes one attempt. A write writes "a value".
func request(ctx context.Context, method, addr, key string) reply {
	shared := newHTTPClient(1)
	defer shared.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr, strings.NewReader("a value"))
	if err != nil {
		return reply{err: err}
	}
	req.URL.Path = "/kv/" + key
	if method == http.MethodGet {
		req.Body, req.ContentLength = nil, 0
	}
	resp, err := shared.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(body), err}
}

// putSomewhere writes, wherever the leader is. It writes again if it does not know whether
// it has: a write of a deposed leader is in the log before what comes after it, or never.
func putSomewhere(ctx context.Context, c *cluster, key, value string) error {
	shared := newHTTPClient(1)
	defer shared.CloseIdleConnections()
	cl := &client{http: shared, addrs: []string{c.clients[1], c.clients[2], c.clients[3]}, limit: time.Minute}
	op := operation{put: true, key: key, value: value}
	for op.outcome != outcomeDone {
		if err := cl.do(ctx, time.Now(), &op); err != nil {
			return err
		}
	}
	return nil
}
