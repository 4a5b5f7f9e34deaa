package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/waitlist-go/waitlist"
)

func TestEveryLevelAgainstEverySetOfDead(t *testing.T) {
	for _, shape := range []struct {
		east, west int
		local      string
	}{{3, 3, "east"}, {2, 1, "west"}} {
		for _, dead := range deadSets(shape.east+shape.west, 3) {
			t.Run(fmt.Sprintf("%d+%d/local=%s/dead=%v", shape.east, shape.west, shape.local, dead), func(t *testing.T) {
				w := newWorld(t, shape.east, shape.west, func(cfg *Config) { cfg.Local = shape.local })
				require.Equal(t, http.StatusOK, w.put("old", "ALL", "value").status)
				for _, i := range dead {
					w.nodes[i].kill()
				}
				// First the coordinator has to find out by itself, each time anew; then
				// it knows.
				for _, known := range []bool{false, true} {
					if known {
						w.probe()
					}
					owed := len(w.c.hints.pending(w.nodes[0].name))
					if len(dead) > 0 {
						owed = len(w.c.hints.pending(w.nodes[dead[0]].name))
					}
					sent := 0
					for _, level := range levels {
						want := http.StatusServiceUnavailable
						if definition(level, shape.local, w.cfg.Nodes, dead) {
							want = http.StatusOK
						}
						if !known {
							w.forget()
						}
						a := w.put(fmt.Sprint("new", level, known), level.String(), "x")
						assert.Equal(t, want, a.status, "write at %v, known=%v: %s", level, known, a.body)
						for _, i := range dead {
							assert.NotContains(t, a.Acked, w.nodes[i].name)
						}
						switch {
						case want == http.StatusOK:
							assert.Equal(t, "yes", a.Stored)
							sent++
						case known:
							assert.Equal(t, "no", a.Stored, "hopeless from the start, so nobody was asked")
						}
						if !known {
							w.forget()
						}
						a = w.get("old", level.String())
						assert.Equal(t, want, a.status, "read at %v, known=%v: %s", level, known, a.body)
						if want == http.StatusOK {
							assert.Equal(t, "value", string(a.body))
						}
					}
					w.settled()
					if known {
						for i, n := range w.nodes {
							if slices.Contains(dead, i) {
								assert.Equal(t, owed+sent, w.c.hints.count(n.name), "%s is owed each write that was sent", n.name)
							} else {
								assert.Zero(t, w.c.hints.count(n.name), "%s has missed nothing", n.name)
							}
						}
					}
				}
			})
		}
	}
}

// A replica that hangs says neither yes nor no, so what cannot do without it ends at
// its deadline, as unknown, and no sooner.
func TestEveryLevelAgainstHungReplicas(t *testing.T) {
	for _, hung := range [][]int{{5}, {1, 2}, {2, 5}, {3, 4, 5}, {0, 2, 4}} {
		t.Run(fmt.Sprint(hung), func(t *testing.T) {
			clock := waitlist.NewFakeClock(time.Now())
			w := newWorld(t, 3, 3, func(cfg *Config) { cfg.Clock, cfg.Settle = clock, 2*never })
			require.Equal(t, http.StatusOK, w.put("old", "ALL", "value").status)
			w.settled()
			for _, i := range hung {
				w.nodes[i].hangs.Store(true)
			}
			for _, level := range levels {
				for _, method := range []string{http.MethodPut, http.MethodGet} {
					key := "old"
					if method == http.MethodPut {
						key = fmt.Sprint("new", level)
					}
					done := w.later(t.Context(), method, key, "level="+level.String(), "x")
					if definition(level, "east", w.cfg.Nodes, hung) {
						assert.Equal(t, http.StatusOK, w.receive(done).status, "%s at %v", method, level)
						continue
					}
					w.eventually("parked", func() bool { return w.c.deciding.Len() == 1 })
					w.heard(6 - len(hung)) // of this and earlier ones, before their time is up
					clock.Advance(never - 1)
					assert.Equal(t, 1, w.c.deciding.Len(), "%s at %v", method, level)
					clock.Advance(1)
					a := w.receive(done)
					assert.Equal(t, http.StatusGatewayTimeout, a.status, "%s at %v", method, level)
					if method == http.MethodPut {
						assert.Equal(t, "unknown", a.Stored)
					}
				}
			}
			w.heard(6 - len(hung))
			clock.Advance(2 * never)
			w.settled()
			for i, n := range w.nodes {
				want := 0
				if slices.Contains(hung, i) {
					want = len(levels)
				}
				assert.Equal(t, want, w.c.hints.count(n.name), n.name)
			}
		})
	}
}

func TestTheDetectorEndsWhatAHungReplicaHolds(t *testing.T) {
	w := newWorld(t, 3, 2, func(cfg *Config) { cfg.ProbeTimeout = 20 * time.Millisecond })
	w.nodes[4].hangs.Store(true)
	done := w.later(t.Context(), http.MethodPut, "k", "level=ALL", "v")
	w.eventually("parked", func() bool { return w.c.deciding.Len() == 1 })
	w.c.probe(t.Context(), w.c.remotes[4])
	a := w.receive(done)
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Equal(t, "unknown", a.Stored)
	assert.Contains(t, a.Refused, "west-2")

	// The hint is on disk before the client has its answer.
	assert.Equal(t, 1, w.c.hints.count("west-2"))

	// From now on it is known, and who needs it is not even tried.
	assert.Equal(t, "no", w.put("k", "EACH_QUORUM", "w").Stored, "a majority of two is both")
	assert.Equal(t, http.StatusOK, w.put("k", "QUORUM", "w").status)
}

// A connection refused in an earlier life may be reported late.
func TestNewsOfAnEarlierDeathEndsNothing(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.nodes[2].kill()
	r := w.c.remotes[2]
	before := r.life.Load()
	w.probe()
	require.True(t, r.down())
	w.nodes[2].start()
	w.probe()
	require.False(t, r.down())

	w.nodes[2].hangs.Store(true)
	done := w.later(t.Context(), http.MethodPut, "k", "level=ALL", "v")
	w.heard(2)
	w.eventually("parked", func() bool { return w.c.deciding.Len() == 1 })
	w.c.markDown(r, before, errDown)
	w.c.markUp(r, before)
	assert.False(t, r.down())
	assert.Equal(t, 1, w.c.deciding.Len())
	w.c.markDown(r, r.life.Load(), errDown)
	assert.Equal(t, http.StatusServiceUnavailable, w.receive(done).status)
}

func TestARefusalFailsTheLevelAtOnceAndLeavesAHint(t *testing.T) {
	w := newWorld(t, 3, 2)
	w.nodes[0].refuses.Store(true)
	a := w.put("k", "ALL", "v")
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Equal(t, "unknown", a.Stored)
	assert.Contains(t, a.Refused["east-1"], "no space left")
	assert.False(t, w.c.remotes[0].down(), "who says no is not dead")
	require.Equal(t, http.StatusOK, w.put("k", "QUORUM", "w").status)
	w.settled()
	require.Equal(t, 1, w.c.hints.count("east-1"), "of one key, the newest version")

	w.nodes[0].refuses.Store(false)
	w.probe()
	assert.Equal(t, "w", string(w.nodes[0].replica.get("k").Value))
	assert.Zero(t, w.c.hints.count("east-1"))
}

func TestKilledReplicasConverge(t *testing.T) {
	w := newWorld(t, 3, 3)
	require.Equal(t, http.StatusOK, w.put("key0", "ALL", "first").status)
	require.Equal(t, http.StatusOK, w.put("gone", "ALL", "first").status)
	w.nodes[2].kill()
	w.nodes[4].kill()
	for i := range 20 {
		for _, level := range []string{"ONE", "QUORUM", "EACH_QUORUM"} {
			require.Equal(t, http.StatusOK, w.put(fmt.Sprint("key", i), level, fmt.Sprint("value", i, level)).status)
		}
	}
	require.Equal(t, http.StatusOK, w.do(http.MethodDelete, "gone", "level=LOCAL_QUORUM", "").status)
	w.settled()
	require.Equal(t, 21, w.c.hints.count("east-3"))
	require.Equal(t, 21, w.c.hints.count("west-2"))

	// The hints outlive the coordinator, and one that is interrupted in the middle.
	w.stopCoordinator()
	w.startCoordinator()
	w.nodes[2].start()
	w.nodes[4].start()
	w.nodes[4].refuses.Store(true)
	w.probe()
	require.Zero(t, w.c.hints.count("east-3"))
	require.Equal(t, 21, w.c.hints.count("west-2"))
	w.nodes[4].refuses.Store(false)
	w.stopCoordinator()
	w.startCoordinator()
	require.Zero(t, w.c.hints.count("east-3"))
	w.probe()
	require.Zero(t, w.c.hints.count("west-2"))
	require.EqualValues(t, 21, w.c.replayed.Load())

	for i := range 20 {
		cell := w.nodes[0].replica.get(fmt.Sprint("key", i))
		assert.Equal(t, fmt.Sprint("value", i, "EACH_QUORUM"), string(cell.Value))
		assert.True(t, w.everywhere(fmt.Sprint("key", i), cell))
	}
	assert.True(t, w.everywhere("gone", w.nodes[0].replica.get("gone")))
	assert.Equal(t, http.StatusNotFound, w.get("gone", "ALL").status)
}

// A crash is not a shutdown: what counts is what is on disk when the client has been
// answered.
func TestAHintIsOnDiskBeforeTheAnswer(t *testing.T) {
	w := newWorld(t, 3, 2)
	w.nodes[1].kill()
	w.probe()
	for i := range 10 {
		require.Equal(t, http.StatusOK, w.put(fmt.Sprint("key", i), "ONE", "v").status)
		disk, err := os.ReadFile(w.cfg.HintFile)
		require.NoError(t, err)
		copied := filepath.Join(w.dir, "copy")
		require.NoError(t, os.WriteFile(copied, disk, 0o600))
		h, err := openHints(copied)
		require.NoError(t, err)
		assert.Equal(t, i+1, h.count("east-2"))
		require.NoError(t, h.close())
	}
}

func TestShutdownLeavesHintsForWhoHasNotAnswered(t *testing.T) {
	w := newWorld(t, 3, 2)
	w.nodes[3].hangs.Store(true)
	require.Equal(t, http.StatusOK, w.put("k", "ONE", "v").status)
	stuck := w.later(t.Context(), http.MethodPut, "k2", "level=ALL", "v")
	w.eventually("parked", func() bool { return w.c.deciding.Len() == 1 && w.c.settling.Len() == 2 })
	w.heard(4)
	w.stopCoordinator()
	a := w.receive(stuck)
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Equal(t, "unknown", a.Stored)
	w.startCoordinator()
	assert.Equal(t, 2, w.c.hints.count("west-1"))
	w.nodes[3].hangs.Store(false)
	w.probe()
	assert.Equal(t, "v", string(w.nodes[3].replica.get("k2").Value))
	assert.Equal(t, http.StatusOK, w.get("k2", "ALL").status)
}

func TestNothingIsAcceptedWhileClosing(t *testing.T) {
	w := newWorld(t, 2, 1)
	require.NoError(t, w.c.shutdown(t.Context()))
	assert.Equal(t, http.StatusServiceUnavailable, w.put("k", "ONE", "v").status)
	assert.ErrorIs(t, w.c.shutdown(t.Context()), errClosing)
	assert.Zero(t, w.nodes[0].replica.get("k"))
	w.front.Close()
	w.c = nil
}

func TestAClientThatLeavesLeavesNothingParked(t *testing.T) {
	w := newWorld(t, 3, 2)
	w.nodes[0].hangs.Store(true)
	ctx, leave := context.WithCancel(t.Context())
	done := w.later(ctx, http.MethodPut, "k", "level=ALL", "v")
	w.eventually("parked", func() bool { return w.c.deciding.Len() == 1 })
	leave()
	assert.Equal(t, -1, w.receive(done).status)
	w.eventually("taken back", func() bool { return w.c.deciding.Len() == 0 })
	assert.EqualValues(t, 1, w.c.deciding.Stats().Canceled)

	// The write goes on without the client.
	w.eventually("stored", func() bool { return string(w.nodes[4].replica.get("k").Value) == "v" })
}

func TestAReadRepairsBeforeItAnswers(t *testing.T) {
	w := newWorld(t, 3, 2)
	newest := Cell{Value: []byte("new"), Time: 20}
	for i, n := range w.nodes {
		cell := Cell{Value: []byte("old"), Time: 10}
		if i == 3 {
			cell = newest
		}
		_, err := n.replica.put("k", cell)
		require.NoError(t, err)
	}
	a := w.get("k", "ALL")
	assert.Equal(t, "new", string(a.body))
	assert.Equal(t, "20", a.header.Get("X-Timestamp"))
	assert.True(t, w.everywhere("k", newest), "when the client has its answer")
	assert.EqualValues(t, 4, w.c.repaired.Load())
	w.settled()
	assert.EqualValues(t, 4, w.c.repaired.Load(), "nobody is repaired twice")
}

func TestLateAnswersAreRepairedToo(t *testing.T) {
	w := newWorld(t, 3, 2)
	newest := Cell{Value: []byte("new"), Time: 20}
	_, err := w.nodes[0].replica.put("k", newest)
	require.NoError(t, err)
	// Whichever replica is first: in the end all have it.
	w.get("k", "ONE")
	w.settled()
	assert.True(t, w.everywhere("k", newest))
}

// Of a write that failed, a minority may know. Once one read at QUORUM has seen it,
// every later one has to, or the read has to say that it failed.
func TestAReadThatCannotRepairFails(t *testing.T) {
	w := newWorld(t, 3, 2)
	_, err := w.nodes[0].replica.put("k", Cell{Value: []byte("new"), Time: 20})
	require.NoError(t, err)
	w.nodes[3].kill()
	w.nodes[4].kill()
	w.probe()
	// With two dead, QUORUM needs the three that live. One of them loses its disk's
	// trust: it reads, but cannot write.
	w.nodes[2].replica.mu.Lock()
	w.nodes[2].replica.journal.broken = os.ErrPermission
	w.nodes[2].replica.mu.Unlock()
	a := w.get("k", "QUORUM")
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Contains(t, a.Refused["east-3"], "permission")
	w.eventually("who can be repaired is", func() bool { return string(w.nodes[1].replica.get("k").Value) == "new" })
}

func TestTiesHaveOneWinnerEverywhere(t *testing.T) {
	w := newWorld(t, 3, 2)
	at := strconv.FormatInt(time.Now().UnixMicro(), 10)
	for i, values := range [][]string{{"apple", "pear"}, {"pear", "apple"}} {
		key := fmt.Sprint("k", i)
		for _, v := range values {
			require.Equal(t, http.StatusOK, w.do(http.MethodPut, key, "level=ALL&timestamp="+at, v).status)
		}
		assert.Equal(t, "pear", string(w.get(key, "ALL").body))
		require.Equal(t, http.StatusOK, w.do(http.MethodDelete, key, "level=ALL&timestamp="+at, "").status)
		require.Equal(t, http.StatusOK, w.do(http.MethodPut, key, "level=ALL&timestamp="+at, "zebra").status)
		assert.Equal(t, http.StatusNotFound, w.get(key, "ONE").status)
		assert.True(t, w.everywhere(key, w.nodes[0].replica.get(key)))
	}
}

func TestNewerIsATotalOrder(t *testing.T) {
	ascending := []Cell{
		{},
		{Time: 1},
		{Time: 1, Value: []byte("a")},
		{Time: 1, Value: []byte("ab")},
		{Time: 1, Value: []byte("b")},
		{Time: 1, Deleted: true},
		{Time: 2, Value: []byte("a")},
	}
	for i, c := range ascending {
		for j, d := range ascending {
			assert.Equal(t, i > j, c.newer(d), "%v, %v", c, d)
			assert.Equal(t, i == j, c.same(d), "%v, %v", c, d)
		}
	}
}

// An address outlives who had it.
func TestAStrangerAtTheAddressIsNotCounted(t *testing.T) {
	w := newWorld(t, 1, 2, func(cfg *Config) { cfg.Nodes[2].URL = cfg.Nodes[1].URL })
	a := w.put("k", "ALL", "v")
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Contains(t, a.Refused["west-2"], "this is west-1, not west-2")
	assert.Equal(t, http.StatusOK, w.put("k", "QUORUM", "v").status)
}

func TestMalformedRequests(t *testing.T) {
	w := newWorld(t, 2, 1)
	ahead := strconv.FormatInt(time.Now().Add(time.Hour).UnixMicro(), 10)
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", "/kv/k?level=MOST", "", 400},
		{"GET", "/kv/k?level=", "", 400},
		{"GET", "/kv/k?lvl=ONE", "", 400},
		{"GET", "/kv/k?level=ONE&level=ALL", "", 400},
		{"GET", "/kv/k?level=%zz", "", 400},
		{"GET", "/kv/k?timestamp=5", "", 400},
		{"PUT", "/kv/k?timestamp=soon", "", 400},
		{"PUT", "/kv/k?timestamp=0", "", 400},
		{"PUT", "/kv/k?timestamp=-5", "", 400},
		{"PUT", "/kv/k?timestamp=99999999999999999999", "", 400},
		{"PUT", "/kv/k?timestamp=" + ahead, "", 400},
		{"DELETE", "/kv/k?level=SOME", "", 400},
		{"PUT", "/kv/%ff", "v", 400},
		{"PUT", "/kv/" + strings.Repeat("k", maxKey+1), "v", 400},
		{"PUT", "/kv/k", strings.Repeat("v", maxValue+1), 413},
		{"POST", "/kv/k", "v", 405},
		{"GET", "/kv/", "", 404},
		{"GET", "/elsewhere", "", 404},
		{"PUT", "/status", "", 405},
	} {
		req, err := http.NewRequest(c.method, w.front.URL+c.path, strings.NewReader(c.body))
		require.NoError(t, err)
		resp, err := w.client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, c.want, resp.StatusCode, "%s %.60s", c.method, c.path)
	}
	assert.Zero(t, w.c.deciding.Stats().Added, "none of them has reached the list")

	for _, c := range []struct {
		path, body string
		want       int
	}{
		{"/cells?key=k", `{"time":1,"value":"!"}`, 400},
		{"/cells?key=k", `{"time":1,"colour":1}`, 400},
		{"/cells?key=k", `{"time":1}{}`, 400},
		{"/cells?key=k", `{"value":"dg=="}`, 400},
		{"/cells?key=k", `{"time":1,"deleted":true,"value":"dg=="}`, 400},
		{"/cells?key=k", ``, 400},
		{"/cells", `{"time":1}`, 400},
	} {
		req, err := http.NewRequest("PUT", "http://"+w.nodes[0].addr+"/replicas/east-1"+c.path, strings.NewReader(c.body))
		require.NoError(t, err)
		resp, err := w.client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, c.want, resp.StatusCode, "PUT %s %s", c.path, c.body)
	}
	assert.Zero(t, w.nodes[0].replica.get("k"))
}

func TestAnyKeyAndValueComeBackUnchanged(t *testing.T) {
	w := newWorld(t, 2, 1)
	for _, key := range []string{"k", "a/b", "a//b", "a/../b", "...", " ", "%", "%2F", "ü", "?a=b#c", "a+b", "\x00", strings.Repeat("k", maxKey)} {
		value := "\x00\xff of " + key
		require.Equal(t, http.StatusOK, w.put(key, "ALL", value).status, "%q", key)
		assert.Equal(t, value, string(w.get(key, "ALL").body), "%q", key)
		assert.Equal(t, value, string(w.nodes[0].replica.get(key).Value), "%q", key)
	}
	long := strings.Repeat("\xff", maxValue)
	require.Equal(t, http.StatusOK, w.put("long", "ALL", long).status)
	assert.Equal(t, long, string(w.get("long", "ALL").body))
	require.Equal(t, http.StatusOK, w.put("empty", "ALL", "").status)
	assert.Equal(t, http.StatusOK, w.get("empty", "ALL").status)
	assert.Equal(t, http.StatusNotFound, w.get("absent", "ALL").status)
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	nodes := []Node{{Name: "a", Datacentre: "east"}, {Name: "b", Datacentre: "west"}}
	for name, cfg := range map[string]Config{
		"no replicas":             {Local: "east"},
		"TWO of one":              {Local: "east", Nodes: nodes[:1]},
		"no replica is local":     {Local: "north", Nodes: nodes},
		"a name used twice":       {Local: "east", Nodes: append(nodes, nodes[0])},
		"a replica without name":  {Local: "east", Nodes: append(nodes, Node{Datacentre: "east"})},
		"a hint file in no place": {Local: "east", Nodes: nodes, HintFile: filepath.Join(t.TempDir(), "none", "hints")},
	} {
		_, err := newCoordinator(cfg)
		assert.Error(t, err, name)
	}
}

// Clients write and read at QUORUM while replicas die and return, one at a time: no
// request fails, each client reads what it wrote last, and in the end all replicas
// hold the same.
func TestClientsNoticeNothingOfOneReplicaAtATime(t *testing.T) {
	w := newWorld(t, 3, 2)
	w.c.watch(2 * time.Millisecond)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var rounds [4]atomic.Int64 // of each client
	for i := range rounds {
		clients.Go(func() {
			key := fmt.Sprint("key", i)
			for n := 0; ; n++ {
				rounds[i].Add(1)
				select {
				case <-stop:
					return
				default:
				}
				value := fmt.Sprint(n)
				a, err := w.try(context.Background(), http.MethodPut, key, "level=QUORUM", value)
				if !assert.NoError(t, err) || !assert.Equal(t, http.StatusOK, a.status, "%s", a.body) {
					return
				}
				a, err = w.try(context.Background(), http.MethodGet, key, "level=QUORUM", "")
				if !assert.NoError(t, err) || !assert.Equal(t, value, string(a.body)) {
					return
				}
			}
		})
	}
	for round := range 10 {
		n := w.nodes[round%len(w.nodes)]
		r := w.c.remotes[round%len(w.nodes)]
		n.kill()
		w.eventually("its death is noticed", r.down)
		w.eventually("it has missed something", func() bool { return w.c.hints.count(n.name) > 0 })
		n.start()
		w.eventually("its return is noticed", func() bool { return !r.down() })
		// A request that is so slow that it meets three deaths may fail, so those
		// under way come to their end first.
		for i := range rounds {
			seen := rounds[i].Load()
			w.eventually("its clients go on", func() bool { return rounds[i].Load() > seen })
		}
	}
	close(stop)
	clients.Wait()
	w.settled()
	w.eventually("all hints are delivered", func() bool {
		return !slices.ContainsFunc(w.nodes, func(n *node) bool { return w.c.hints.count(n.name) > 0 })
	})
	for i := range 4 {
		key := fmt.Sprint("key", i)
		assert.True(t, w.everywhere(key, w.nodes[0].replica.get(key)), key)
	}
	assert.Zero(t, w.c.deciding.Len())
}

func TestTimestampsNeverRepeat(t *testing.T) {
	clock := waitlist.NewFakeClock(time.Unix(1, 0))
	c := &coordinator{cfg: Config{Clock: clock}}
	seen := make(map[int64]bool)
	for range 100 {
		seen[c.timestamp()] = true
	}
	assert.Len(t, slices.Collect(maps.Keys(seen)), 100)
	clock.Advance(time.Hour)
	assert.Equal(t, time.Unix(3601, 0).UnixMicro(), c.timestamp())
}

// The demonstration checks what it shows, with real processes and kill -9.
func TestDemonstration(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, demo(t.Context(), &out), "%s", &out)
	assert.Contains(t, out.String(), "hints replayed")
}

// The parts as servers: two replicas and a coordinator, started as a shell would.
func TestTheCommandsServe(t *testing.T) {
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	var servers sync.WaitGroup
	start := func(args ...string) (url string) {
		r, w := io.Pipe()
		servers.Go(func() {
			err := run(ctx, args, strings.NewReader(""), w, io.Discard)
			assert.NoError(t, err)
			_ = w.CloseWithError(cmp.Or(err, io.EOF))
		})
		line, err := bufio.NewReader(r).ReadString('\n')
		require.NoError(t, err)
		return strings.TrimPrefix(strings.TrimSpace(line), "listening on ")
	}
	args := []string{"serve", "-local", "east", "-hints", filepath.Join(dir, "hints")}
	for _, name := range []string{"a", "b"} {
		url := start("replica", "-name", name, "-data", filepath.Join(dir, name))
		args = append(args, "-replica", "east/"+name+"="+url)
	}
	client := newClient()
	s := &show{cluster: &cluster{url: start(args...)}, client: client}
	assert.NoError(t, s.must(t.Context(), http.MethodPut, "k", "ALL", "v", ""))
	code, body, err := s.request(t.Context(), http.MethodGet, "k", "TWO", "", "")
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "v", body)
	client.CloseIdleConnections()
	stop()
	servers.Wait()
}

// A level that was reached is reached without hints.
func TestALostHintFailsNoWrite(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.nodes[0].kill()
	w.probe()
	w.c.hints.mu.Lock()
	w.c.hints.journal.broken = os.ErrPermission
	w.c.hints.mu.Unlock()
	assert.Equal(t, http.StatusOK, w.put("k", "QUORUM", "v").status)
	w.settled()

	// The replica has no hint, but it has readers.
	w.nodes[0].start()
	w.probe()
	assert.Equal(t, http.StatusOK, w.get("k", "ALL").status)
	assert.Equal(t, "v", string(w.nodes[0].replica.get("k").Value))
}

func TestHelpExplains(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"replica", "-h"}, {"serve", "-h"}} {
		var out bytes.Buffer
		require.Error(t, run(t.Context(), args, nil, &out, &out))
		assert.Contains(t, out.String(), "go run ./coordinator")
	}
	for _, args := range [][]string{{"bogus"}, {"replica"}, {"serve"}, {"replica", "-name", "a", "-data", "b", "c"}, {"serve", "-replica", "x"}} {
		var out bytes.Buffer
		require.Error(t, run(t.Context(), args, nil, &out, &out), "%q", args)
	}
}
