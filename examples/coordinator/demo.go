package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

func listenLoopback() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

// demo shows the coordinator to whoever looks on. It also checks what it shows, so
// that it cannot go on telling a story that has ceased to be true.
func demo(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "coordinator-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cl, err := startCluster(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.stopAll()) }()
	client := newClient()
	defer client.CloseIdleConnections()
	s := &show{cluster: cl, client: client, out: out}
	for _, scene := range []func(context.Context) error{s.levels, s.hints, s.lostDisk, s.tie, s.storm, s.books} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}

// A show is what the scenes share.
type show struct {
	*cluster
	client *http.Client
	out    io.Writer
}

func (s *show) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// levels kills one replica after another and asks at every level.
func (s *show) levels(ctx context.Context) error {
	s.say("Six replicas, each a process of its own: three in the east, where the coordinator is, three in the west.")
	s.say("Every level, writing (w) and reading (r), as replicas are killed with kill -9. Capitals: the answer was yes.\n")
	if err := s.must(ctx, http.MethodPut, "probe", "ALL", "x", ""); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "  %-28s", "dead")
	for _, l := range levels {
		fmt.Fprintf(s.out, "%-13s", l)
	}
	s.say("slowest answer")
	var dead []string
	for _, victim := range []string{"", "west-3", "east-3", "east-2"} {
		if victim != "" {
			if err := s.process(victim).kill(); err != nil {
				return err
			}
			dead = append(dead, victim)
		}
		name := strings.Join(dead, ", ")
		if name == "" {
			name = "nobody"
		}
		fmt.Fprintf(s.out, "  %-28s", name)
		var slowest time.Duration
		for _, l := range levels {
			for _, method := range []string{http.MethodPut, http.MethodGet} {
				start := time.Now()
				status, _, err := s.request(ctx, method, "probe", l.String(), "x", "")
				if err != nil {
					return err
				}
				slowest = max(slowest, time.Since(start))
				yes := status == http.StatusOK
				if yes != reachable(l, dead) || (!yes && status != http.StatusServiceUnavailable) {
					return fmt.Errorf("%s at %v with %s dead: status %d", method, l, name, status)
				}
				mark := map[string]string{http.MethodPut: "w", http.MethodGet: "r"}[method]
				if yes {
					mark = strings.ToUpper(mark)
				}
				fmt.Fprint(s.out, mark, " ")
			}
			fmt.Fprintf(s.out, "%9s", "") // up to the next column
		}
		s.say("%v", slowest.Round(100*time.Microsecond))
	}
	s.say("\nNo answer took anywhere near the timeout of %v: what cannot be reached is refused at once.", s.cfg.Timeout)
	return nil
}

// reachable is the definition of the levels, for the demonstration's six replicas.
func reachable(l Level, dead []string) bool {
	east, west := 3, 3
	for _, name := range dead {
		if strings.HasPrefix(name, "east") {
			east--
		} else {
			west--
		}
	}
	switch l {
	case One:
		return east+west >= 1
	case Two:
		return east+west >= 2
	case Quorum:
		return east+west >= 4
	case All:
		return east+west == 6
	case LocalQuorum:
		return east >= 2
	default:
		return east >= 2 && west >= 2
	}
}

// hints writes while three are dead, restarts the coordinator, and brings them back.
func (s *show) hints(ctx context.Context) error {
	s.say("\nWith %s still dead, ten keys are written at TWO.", "west-3, east-3 and east-2")
	for i := range 10 {
		if err := s.must(ctx, http.MethodPut, fmt.Sprintf("key%d", i), "TWO", fmt.Sprintf("value%d", i), ""); err != nil {
			return err
		}
	}
	if err := s.table(ctx, "key7"); err != nil {
		return err
	}
	if err := s.await(ctx, "hints for the dead", func(st status) bool {
		return hintsOf(st) >= 30 && st.Settling.Parked == 0
	}); err != nil {
		return err
	}
	if err := s.stopCoordinator(); err != nil {
		return err
	}
	if err := s.startCoordinator(); err != nil {
		return err
	}
	st, err := s.status(ctx)
	if err != nil {
		return err
	}
	s.say("The coordinator is stopped and started: %d hints are on its disk. Then the three come back.", hintsOf(st))
	for _, name := range []string{"west-3", "east-3", "east-2"} {
		if err := s.process(name).start(); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := s.await(ctx, "the hints to be replayed", func(st status) bool { return hintsOf(st) == 0 }); err != nil {
		return err
	}
	if st, err = s.status(ctx); err != nil {
		return err
	}
	s.say("%d hints replayed %v later:", st.Replayed, time.Since(start).Round(time.Millisecond))
	return s.converged(ctx, "key7", "value7")
}

// lostDisk brings a replica back empty, of which no hint knows, and reads.
func (s *show) lostDisk(ctx context.Context) error {
	s.say("\nwest-1 is killed, loses its disk, and is back before anybody wrote. No hint knows of it:")
	p := s.process("west-1")
	if err := errors.Join(p.kill(), p.loseDisk(), p.start()); err != nil {
		return err
	}
	if err := s.await(ctx, "west-1", func(st status) bool { return !st.Replicas[3].Down }); err != nil {
		return err
	}
	if err := s.table(ctx, "key7"); err != nil {
		return err
	}
	s.say("One read at ALL finds the newest version, and repairs the stale replica before it answers:")
	if err := s.must(ctx, http.MethodGet, "key7", "ALL", "", ""); err != nil {
		return err
	}
	return s.converged(ctx, "key7", "value7")
}

// tie has two clients write at the same microsecond.
func (s *show) tie(ctx context.Context) error {
	s.say("\nTwo clients write with the same timestamp, at ALL, in both orders. Every replica picks the same winner:")
	at := fmt.Sprint(time.Now().UnixMicro())
	for _, w := range [][2]string{{"first", "apple"}, {"first", "pear"}, {"second", "pear"}, {"second", "apple"}} {
		if err := s.must(ctx, http.MethodPut, w[0], "ALL", w[1], at); err != nil {
			return err
		}
	}
	return errors.Join(s.converged(ctx, "first", "pear"), s.converged(ctx, "second", "pear"))
}

// storm has clients write and read while one replica after another is killed and
// comes back.
func (s *show) storm(ctx context.Context) error {
	const clients, kills = 4, 6
	s.say("\nFour clients write and read at QUORUM, each the key of its own, while one replica after another is")
	s.say("killed and comes back. Each has to read what it wrote last.")
	storming, calm := context.WithCancel(ctx)
	defer calm()
	results := make(chan experience, clients)
	var rounds [clients]atomic.Int64
	for i := range clients {
		go func() { results <- s.oneClient(ctx, storming, fmt.Sprintf("storm%d", i), &rounds[i]) }()
	}
	killed := s.killInTurn(ctx, kills, rounds[:])
	calm()
	var total experience
	for range clients {
		t := <-results
		total.waits = append(total.waits, t.waits...)
		total.err = errors.Join(total.err, t.err)
	}
	if err := errors.Join(killed, total.err); err != nil {
		return err
	}
	slices.Sort(total.waits)
	n := len(total.waits)
	s.say("%d requests during %d deaths, none failed: median %v, p99 %v, longest %v.", n, kills,
		total.waits[n/2].Round(10*time.Microsecond), total.waits[n*99/100].Round(10*time.Microsecond), total.waits[n-1].Round(10*time.Microsecond))
	if err := s.await(ctx, "the hints to be replayed", func(st status) bool {
		return hintsOf(st) == 0 && st.Settling.Parked+st.Settling.Running == 0
	}); err != nil {
		return err
	}
	for i := range clients {
		key := fmt.Sprintf("storm%d", i)
		want, err := s.processes[0].holds(ctx, s.client, key)
		if err != nil {
			return err
		}
		if err := s.converged(ctx, key, want); err != nil {
			return err
		}
	}
	return nil
}

// An experience is what one client of the storm has seen.
type experience struct {
	waits []time.Duration
	err   error
}

// oneClient writes and reads until the storm is over.
func (s *show) oneClient(ctx, storming context.Context, key string, rounds *atomic.Int64) (t experience) {
	// A client that has failed holds nobody up.
	defer rounds.Store(math.MaxInt64)
	for n := 0; storming.Err() == nil; n++ {
		rounds.Store(int64(n))
		value := strconv.Itoa(n)
		for _, method := range []string{http.MethodPut, http.MethodGet} {
			start := time.Now()
			code, body, err := s.request(ctx, method, key, "QUORUM", value, "")
			t.waits = append(t.waits, time.Since(start))
			switch {
			case err != nil:
			case code != http.StatusOK:
				err = fmt.Errorf("%s %s: status %d: %s", method, key, code, body)
			case method == http.MethodGet && body != value:
				err = fmt.Errorf("%s is %s, but %s was written", key, body, value)
			}
			if err != nil {
				t.err = err
				return t
			}
		}
	}
	return t
}

// killInTurn kills n replicas, one at a time: the next when the last is back and
// the requests that have seen it die are over.
func (s *show) killInTurn(ctx context.Context, n int, rounds []atomic.Int64) error {
	for i := range n {
		p := s.processes[i%len(s.processes)]
		if err := p.kill(); err != nil {
			return err
		}
		is := func(down bool) error {
			return s.await(ctx, p.name, func(st status) bool { return st.Replicas[i%len(s.processes)].Down == down })
		}
		if err := is(true); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond) // for the eye: it is dead for a while
		if err := errors.Join(p.start(), is(false)); err != nil {
			return err
		}
		for k := range rounds {
			seen := rounds[k].Load()
			if err := s.await(ctx, "the clients", func(status) bool {
				return rounds[k].Load() > seen || seen == math.MaxInt64
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// books shows the list's own account.
func (s *show) books(ctx context.Context) error {
	if err := s.await(ctx, "everything to settle", func(st status) bool { return st.Deciding.Parked+st.Settling.Parked == 0 }); err != nil {
		return err
	}
	st, err := s.status(ctx)
	if err != nil {
		return err
	}
	d := st.Deciding
	s.say("\nSince the coordinator's restart %d requests were parked: %d reached, %d unreachable, %d timed out, %d parked now.",
		d.Added, d.Reached, d.Unreachable, d.TimedOut, d.Parked)
	fmt.Fprint(s.out, "Whose answer decided how often: ")
	for i, r := range st.Replicas {
		if i > 0 {
			fmt.Fprint(s.out, ", ")
		}
		fmt.Fprintf(s.out, "%s %d", r.Name, r.Decided)
	}
	s.say(".")
	return nil
}

// request does one request of a client. The level's refusal is not an error here.
func (s *show) request(ctx context.Context, method, key, level, value, timestamp string) (code int, body string, err error) {
	query := url.Values{"level": {level}}
	if timestamp != "" {
		query.Set("timestamp", timestamp)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+"/kv/"+url.PathEscape(key)+"?"+query.Encode(), strings.NewReader(value))
	if err != nil {
		return 0, "", err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), errors.Join(err, resp.Body.Close())
}

func (s *show) must(ctx context.Context, method, key, level, value, timestamp string) error {
	code, body, err := s.request(ctx, method, key, level, value, timestamp)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s %s at %s: status %d: %s", method, key, level, code, body)
	}
	return err
}

func (s *show) status(ctx context.Context) (st status, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/status", nil)
	if err != nil {
		return st, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return st, err
	}
	return st, errors.Join(json.NewDecoder(resp.Body).Decode(&st), resp.Body.Close())
}

// await polls the coordinator, as an operator would.
func (s *show) await(ctx context.Context, what string, ok func(status) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("waited in vain for %s", what))
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		st, err := s.status(ctx)
		if err == nil && ok(st) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// table shows what each replica holds under the key.
func (s *show) table(ctx context.Context, key string) error {
	_, err := s.held(ctx, key)
	return err
}

// converged shows the same and insists on it being want everywhere.
func (s *show) converged(ctx context.Context, key, want string) error {
	held, err := s.held(ctx, key)
	if err != nil {
		return err
	}
	for i, value := range held {
		if value != want {
			return fmt.Errorf("%s holds %s under %s, want %s", s.processes[i].name, value, key, want)
		}
	}
	return nil
}

func (s *show) held(ctx context.Context, key string) (held []string, err error) {
	fmt.Fprintf(s.out, "  %-8s", key)
	for _, p := range s.processes {
		value, err := p.holds(ctx, s.client, key)
		if err != nil {
			return nil, err
		}
		held = append(held, value)
		fmt.Fprintf(s.out, "  %s: %-7s", p.name, value)
	}
	s.say("")
	return held, nil
}

func hintsOf(st status) (n int) {
	for _, r := range st.Replicas {
		n += r.Hints
	}
	return n
}
