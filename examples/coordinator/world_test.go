package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waitlist-go/waitlist"
)

// The demonstration starts this very program again for each replica, and here that
// is the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "replica" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

const never = time.Hour // a test that needs it to pass has failed

// A world is replicas that can be killed, a coordinator, and a client.
type world struct {
	t      *testing.T
	dir    string
	nodes  []*node
	cfg    Config
	c      *coordinator
	front  *httptest.Server
	client *http.Client
}

// newWorld starts east replicas in the east and west ones in the west.
func newWorld(t *testing.T, east, west int, change ...func(*Config)) *world {
	w := &world{t: t, dir: t.TempDir(), client: newClient()}
	w.client.Timeout = 20 * time.Second // far above what any answer takes, far below never
	w.cfg = Config{
		Local:        "east",
		HintFile:     filepath.Join(w.dir, "hints"),
		Timeout:      never,
		Settle:       never,
		ProbeTimeout: never,
	}
	for i := range east + west {
		dc, n := "east", i+1
		if i >= east {
			dc, n = "west", i+1-east
		}
		nd := &node{t: t, name: fmt.Sprintf("%s-%d", dc, n)}
		nd.path = filepath.Join(w.dir, nd.name)
		nd.start()
		w.nodes = append(w.nodes, nd)
		w.cfg.Nodes = append(w.cfg.Nodes, Node{Name: nd.name, Datacentre: dc, URL: "http://" + nd.addr})
	}
	for _, f := range change {
		f(&w.cfg)
	}
	w.startCoordinator()
	t.Cleanup(w.close)
	return w
}

func (w *world) startCoordinator() {
	var err error
	w.c, err = newCoordinator(w.cfg)
	require.NoError(w.t, err)
	w.front = httptest.NewServer(w.c.handler())
}

// stopCoordinator waits for nothing: what is parked is given back. Nothing may stay.
func (w *world) stopCoordinator() {
	if w.c == nil {
		return
	}
	hurry, cancel := context.WithCancel(context.Background())
	cancel()
	err := w.c.shutdown(hurry)
	if err != nil {
		require.ErrorIs(w.t, err, context.Canceled)
	}
	w.front.Close()
	for _, l := range []*waitlist.WaitingList[uint64]{w.c.deciding, w.c.settling} {
		s := l.Stats()
		require.Zero(w.t, s.Parked+s.Running)
		require.Equal(w.t, s.Added, s.Reached+s.TimedOut+s.Unreachable+s.Canceled+s.Closed, "each request ends once")
	}
	w.c = nil
}

func (w *world) close() {
	w.stopCoordinator()
	for _, n := range w.nodes {
		n.kill()
	}
	w.client.CloseIdleConnections()
}

// probe is one round of the detector.
func (w *world) probe() {
	for _, r := range w.c.remotes {
		w.c.probe(context.Background(), r)
	}
}

// forget makes the coordinator believe that everybody is alive.
func (w *world) forget() {
	for _, r := range w.c.remotes {
		r.life.Store(r.life.Load() &^ 1)
	}
}

// settled waits until every request has heard from every replica that can answer.
func (w *world) settled() {
	w.eventually("settled", func() bool {
		s := w.c.settling.Stats()
		return s.Parked+s.Running == 0
	})
}

// heard waits until each request that has not settled has heard from n replicas.
func (w *world) heard(n int) {
	w.eventually("those that answer have answered", func() bool {
		for p := range w.c.settling.All() {
			if len(slices.Collect(p.Tally.Acked())) < n {
				return false
			}
		}
		return true
	})
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	require.Eventually(w.t, ok, 10*time.Second, time.Millisecond, what)
}

// everywhere says whether all replicas hold want under key.
func (w *world) everywhere(key string, want Cell) bool {
	return !slices.ContainsFunc(w.nodes, func(n *node) bool { return !n.replica.get(key).same(want) })
}

// An answer is what a client sees.
type answer struct {
	status int
	body   []byte
	header http.Header
	report
}

func (w *world) do(method, key, query, body string) answer {
	w.t.Helper()
	a, err := w.try(context.Background(), method, key, query, body)
	require.NoError(w.t, err)
	return a
}

func (w *world) put(key, level, value string) answer {
	return w.do(http.MethodPut, key, "level="+level, value)
}

func (w *world) get(key, level string) answer { return w.do(http.MethodGet, key, "level="+level, "") }

// try may be called from any goroutine.
func (w *world) try(ctx context.Context, method, key, query, body string) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, method, w.front.URL+"/kv/"+url.PathEscape(key)+"?"+query, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return a, err
	}
	a.status, a.header = resp.StatusCode, resp.Header
	a.body, err = io.ReadAll(resp.Body)
	if resp.Header.Get("Content-Type") == "application/json" {
		err = errors.Join(err, json.Unmarshal(a.body, &a.report))
	}
	return a, errors.Join(err, resp.Body.Close())
}

// later does a request in the background.
func (w *world) later(ctx context.Context, method, key, query, body string) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		a, err := w.try(ctx, method, key, query, body)
		if err != nil {
			a.status = -1
		}
		done <- a
	}()
	return done
}

func (w *world) receive(done <-chan answer) answer {
	w.t.Helper()
	select {
	case a := <-done:
		return a
	case <-time.After(10 * time.Second):
		require.FailNow(w.t, "no answer")
		return answer{}
	}
}

// A node is one replica in this process. It is killed as far as its peers can tell:
// its port and its connections are gone, its file remains.
type node struct {
	t       *testing.T
	name    string
	path    string
	addr    string // the same in each life
	replica *replica
	server  *http.Server
	served  chan struct{}

	hangs   atomic.Bool // takes requests and never answers
	refuses atomic.Bool // answers that it will not
}

func (n *node) start() {
	var err error
	n.replica, err = openReplica(n.name, n.path)
	require.NoError(n.t, err)
	addr := n.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var l net.Listener
	// Some other connection may have been given the port meanwhile, for a while.
	require.Eventually(n.t, func() bool {
		l, err = net.Listen("tcp", addr)
		return err == nil
	}, 10*time.Second, time.Millisecond)
	n.addr = l.Addr().String()
	handler := n.replica.handler()
	n.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case n.hangs.Load():
			_, _ = io.Copy(io.Discard, req.Body)
			<-req.Context().Done()
		case n.refuses.Load():
			http.Error(w, "no space left", http.StatusInsufficientStorage)
		default:
			handler.ServeHTTP(w, req)
		}
	})}
	n.served = make(chan struct{})
	go func(server *http.Server, served chan struct{}) {
		defer close(served)
		_ = server.Serve(l)
	}(n.server, n.served)
}

func (n *node) kill() {
	if n.server == nil {
		return
	}
	require.NoError(n.t, n.server.Close())
	<-n.served
	require.NoError(n.t, n.replica.close())
	n.server = nil
}

// deadSets are all sets of up to most of n replicas.
func deadSets(n, most int) (sets [][]int) {
	for mask := range 1 << n {
		var set []int
		for i := range n {
			if mask>>i&1 != 0 {
				set = append(set, i)
			}
		}
		if len(set) <= most {
			sets = append(sets, set)
		}
	}
	return sets
}

// definition says what each level means, by counting and without a quorum tree.
func definition(level Level, local string, nodes []Node, dead []int) bool {
	all, alive := map[string]int{}, map[string]int{}
	for i, n := range nodes {
		all[n.Datacentre]++
		if !slices.Contains(dead, i) {
			alive[n.Datacentre]++
		}
	}
	sum := alive["east"] + alive["west"]
	switch level {
	case One:
		return sum >= 1
	case Two:
		return sum >= 2
	case Quorum:
		return sum > len(nodes)/2
	case All:
		return sum == len(nodes)
	case LocalQuorum:
		return alive[local] > all[local]/2
	case EachQuorum:
		return alive["east"] > all["east"]/2 && alive["west"] > all["west"]/2
	}
	panic(level)
}
