package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// Workers are processes of this very program, and here that is the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "work" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// A world is a server with one queue, and workers that can be stopped and killed.
type world struct {
	t       *testing.T
	ctx     context.Context // ends when the test has failed by taking too long
	url     string
	conn    *nats.Conn
	queue   *queue
	journal *journal
	sent    int // jobs
}

func newWorld(t *testing.T, timeout time.Duration) *world {
	t.Parallel() // they mostly wait
	w := &world{t: t, journal: newJournal(nil)}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithTimeout(t.Context(), 25*time.Second)
	t.Cleanup(cancel)
	server, err := startServer(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { stopServer(server) })
	w.url = server.ClientURL()
	w.conn, _ = w.connect()
	w.queue = w.open(w.conn, timeout)
	return w
}

func (w *world) connect() (*nats.Conn, func()) {
	conn, _, err := connect(w.url, "test")
	require.NoError(w.t, err)
	w.t.Cleanup(conn.Close)
	return conn, conn.Close
}

// open opens the queue over a connection; made first, if there is a timeout.
func (w *world) open(conn *nats.Conn, timeout time.Duration) (q *queue) {
	js, err := jetstream.New(conn)
	require.NoError(w.t, err)
	if timeout > 0 {
		q, err = createQueue(w.ctx, js, "test", timeout)
	} else {
		q, err = openQueue(w.ctx, js, "test")
	}
	require.NoError(w.t, err)
	return q
}

// start runs a worker as a process.
func (w *world) start(name string, budget time.Duration) *process {
	w.t.Helper()
	p, err := startProcess(w.journal, name, w.url, w.queue.name, budget)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = p.kill() })
	return p
}

func (w *world) await(who, what string, n int) {
	w.t.Helper()
	require.NoError(w.t, w.journal.await(w.ctx, who, what, n), "%s: %s", who, what)
}

// send puts jobs with these durations into the queue.
func (w *world) send(takes ...time.Duration) (jobs []job) {
	w.t.Helper()
	for _, d := range takes {
		jobs = append(jobs, job{fmt.Sprintf("job-%04d", w.sent), d})
		w.sent++
	}
	require.NoError(w.t, w.queue.send(w.ctx, jobs...))
	return jobs
}

// finished waits until the queue is empty.
func (w *world) finished() {
	w.t.Helper()
	for {
		left, err := w.queue.left(w.ctx)
		require.NoError(w.t, err)
		if left == 0 {
			return
		}
		pause(w.ctx, 10*time.Millisecond)
	}
}

// inspect checks what has to be true when all is over, however it went.
func (w *world) inspect(jobs []job) {
	w.t.Helper()
	require.NoError(w.t, w.queue.audit(w.ctx, jobs))
	claimed, applied := map[string]int{}, map[string]int{}
	type delivery struct {
		seq, n uint64
		what   string
	}
	once := map[delivery]bool{}
	for _, r := range w.journal.all("", "") {
		switch r.What {
		case "claimed":
			claimed[r.Job]++
		case "done", "returned":
			d := delivery{r.Seq, r.Delivery, "ended"}
			require.False(w.t, once[d], "%s: delivery %d was answered twice", r.Job, r.Delivery)
			once[d] = true
			if r.Note == "applied" {
				applied[r.Job]++
			}
		case "trouble":
			require.Fail(w.t, "trouble", "%s: %s", r.who, r.Note)
		}
	}
	for _, j := range jobs {
		require.Positive(w.t, claimed[j.ID], "%s was never processed", j.ID)
		require.LessOrEqual(w.t, applied[j.ID], 1, "%s was applied twice", j.ID)
	}
}

// repeat is n times the same.
func repeat(n int, d time.Duration) []time.Duration {
	list := make([]time.Duration, n)
	for i := range list {
		list[i] = d
	}
	return list
}

// notes are what was said, for messages of failures.
func notes(records []record) string {
	var b strings.Builder
	for _, r := range records {
		fmt.Fprintf(&b, "%s %s %s %d/%d %s\n", r.who, r.What, r.Job, r.Seq, r.Delivery, r.Note)
	}
	return b.String()
}
