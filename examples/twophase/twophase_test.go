//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waitlist-go/waitlist"
)

// The tests run this very program as the coordinator that they kill.
func TestMain(m *testing.M) {
	if isCoordinator() {
		runCoordinator(os.Stdin, os.Stdout)
		return
	}
	if os.Getenv("GORACE") == "" {
		// Under the race detector each coordinator would take a second to exit.
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	code := m.Run()
	if c, err := servers(); err == nil {
		c.stop()
	}
	os.Exit(code)
}

// servers are shared by the tests, each of which has schemas of its own. They run with
// fsync off: here processes are killed, not machines, and what a killed process
// has written is safe in the operating system's cache.
var servers = sync.OnceValues(func() (*cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return startCluster(ctx, false, "north", "south")
})

func theServers(t *testing.T) *cluster {
	c, err := servers()
	if errors.Is(err, errNoPostgres) {
		if ci, _ := strconv.ParseBool(os.Getenv("CI")); !ci {
			t.Skip(err)
		}
	}
	require.NoError(t, err)
	return c
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 40*time.Second, errors.New("the test takes too long"))
	t.Cleanup(cancel)
	return ctx
}

var names atomic.Int64

// freshName does for a schema and a file, also when the tests run more than once.
func freshName() string { return fmt.Sprint("test_", names.Add(1)) }

func newOffice(t *testing.T, accounts int, balance int64) *office {
	ctx := testContext(t)
	o, err := openOffice(ctx, theServers(t), freshName(), accounts, balance)
	require.NoError(t, err)
	// What a failed test has left prepared is not to be found by this one.
	left, err := o.leftPrepared(ctx)
	require.NoError(t, err)
	for i, ids := range left {
		for _, id := range ids {
			require.NoError(t, visit(ctx, o.banks[i], func(conn *pgx.Conn) error { return settle(ctx, conn, id, false) }))
		}
	}
	return o
}

// newFolder is a folder for a log. Unlike t.TempDir it goes also when the test is killed.
func newFolder(t *testing.T) string {
	folder, err := theServers(t).makeFolder(freshName())
	require.NoError(t, err)
	return folder
}

func newKeeper(t *testing.T, o *office, crashes ...crashAt) *keeper {
	k := &keeper{job: job{Folder: newFolder(t), Banks: o.banks}, crashes: crashes}
	t.Cleanup(k.kill)
	return k
}

// local is a coordinator in the test's own process, where the test sees inside.
type local struct{ *coordinator }

func (l local) transfer(ctx context.Context, t transfer) result {
	answer := make(chan result, 1) // has room for the only answer
	l.begin(t, func(r result) { answer <- r })
	select {
	case r := <-answer:
		return r
	case <-ctx.Done():
		return result{unknown, reasonOther, ctx.Err().Error()}
	}
}

// stopped stops a coordinator and returns its statistics.
func stopped(t *testing.T, c *coordinator) waitlist.Stats {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stats, err := c.close(ctx)
	require.NoError(t, err)
	return stats
}

// nothingIsParked checks the statistics of a stopped coordinator.
func nothingIsParked(t *testing.T, s waitlist.Stats) {
	t.Helper()
	require.Zero(t, s.Parked)
	require.Zero(t, s.Running)
	ends := s.Reached + s.Completed + s.TimedOut + s.Unreachable + s.Failed + s.Truncated + s.SessionEnded + s.Canceled + s.Closed
	require.Equal(t, s.Added, ends, "%+v", s)
}

const (
	testTransfers = 2000
	testClients   = 8
	testAccounts  = 40
)

// Half of the 2,000 transfers go through coordinators that are killed, half through one
// whose servers are.
var transfersPerCrash = testTransfers/2/len(steps) + 1

// crashAfter is how often a step is taken before the crash, so that it comes in the
// middle of the traffic.
const crashAfter = 5

// crashOf returns a crash at a step and the number of accounts with which the traffic
// will get there.
func crashOf(s step) (crash crashAt, accounts int) {
	if s == stepRolledBack {
		// A server that has prepared has to roll back only if the other's no comes
		// late, after it has waited for a lock. With few accounts that happens.
		return crashAt{s, 2}, 4
	}
	return crashAt{s, crashAfter}, testAccounts
}

func TestNoCrashOfTheCoordinatorLosesOrMakesMoney(t *testing.T) {
	for _, s := range steps {
		t.Run(string(s), func(t *testing.T) {
			ctx := testContext(t)
			crash, accounts := crashOf(s)
			o := newOffice(t, accounts, openingBalance)
			crashes := []crashAt{crash}
			if s == stepRecovering {
				// There has to be something to recover. Then the recovery is cut
				// short, and another completes it.
				crashes = []crashAt{{stepDecided, crashAfter}, {stepRecovering, 1}}
			}
			k := newKeeper(t, o, crashes...)
			require.NoError(t, o.serve(ctx, k, transfersPerCrash, testClients, 1))
			stats, err := k.stop()
			require.NoError(t, err)
			nothingIsParked(t, stats)
			require.Equal(t, len(crashes), k.deaths, "times that a coordinator has died")
			require.NoError(t, o.audit(ctx))
		})
	}
}

func TestNoCrashOfAServerLosesOrMakesMoney(t *testing.T) {
	for i, s := range steps {
		t.Run(string(s), func(t *testing.T) {
			ctx := testContext(t)
			crash, accounts := crashOf(s)
			o := newOffice(t, accounts, openingBalance)
			folder := newFolder(t)
			if s == stepRecovering {
				// A coordinator dies first, so that there is something to recover.
				crash.After = 1
				k := &keeper{job: job{Folder: folder, Banks: o.banks}, crashes: []crashAt{{stepDecided, crashAfter}}}
				alive, cancel := context.WithCancel(ctx)
				defer cancel()
				k.died = func(*process, crashAt, error) { cancel() }
				require.Error(t, o.serve(alive, k, transfersPerCrash, testClients, 2))
				k.kill()
			}

			victim := theServers(t).servers[i%2]
			killed, restarted := make(chan struct{}), make(chan error, 1)
			kill := func() {
				close(killed)
				_, err := victim.kill()
				go func() {
					time.Sleep(100 * time.Millisecond) // for some to find it dead
					restarted <- errors.Join(err, victim.start(ctx))
				}()
			}
			c, _, err := open(ctx, folder, o.banks, crash.probe(kill))
			require.NoError(t, err)
			serveErr := o.serve(ctx, local{c}, transfersPerCrash, testClients, 1)
			stats := stopped(t, c)
			require.NoError(t, serveErr)
			select {
			case <-killed:
				require.NoError(t, <-restarted)
			default:
				t.Fatal("the traffic did not get to the step")
			}
			nothingIsParked(t, stats)
			require.NoError(t, o.audit(ctx))
		})
	}
}

func TestANoVoteAbortsAtOnce(t *testing.T) {
	ctx := testContext(t)
	o := newOffice(t, 2, 100)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent()) // a coordinator takes its goroutines with it
	c, _, err := open(ctx, newFolder(t), o.banks, nil)
	require.NoError(t, err)
	defer c.close(ctx)

	// Somebody else holds the receiving account, so that the receiving server cannot
	// vote before its lock timeout.
	require.NoError(t, visit(ctx, o.banks[1], func(holder *pgx.Conn) error {
		_, err := run(ctx, holder, "begin; update accounts set balance = balance where number = 0")
		require.NoError(t, err)

		// Once is enough: had the abort to wait for that vote, it never would be so
		// quick, while on a busy machine much else can make it slow.
		quick := false
		for i := range 20 {
			overdraft := transfer{fmt.Sprint(tooMuch, i), account{0, 0}, account{1, 0}, 101}
			began := time.Now()
			r := local{c}.transfer(ctx, overdraft)
			if quick = r.Reason == reasonFunds && time.Since(began) < lockTimeout; quick {
				break
			}
		}
		require.True(t, quick, "no abort came before the other server could vote")

		r := local{c}.transfer(ctx, transfer{"held-up", account{0, 1}, account{1, 0}, 1})
		require.Equal(t, reasonBusy, r.Reason)
		return nil
	}))
	final := func(ask transfer) result {
		require.NoError(t, o.ask(ctx, local{c}, ask))
		return o.told[ask.Request]
	}
	require.Equal(t, reasonNoAccount, final(transfer{"nowhere", account{0, 0}, account{1, 2}, 1}).Reason)
	require.Equal(t, reasonBad, final(transfer{"nothing", account{0, 0}, account{1, 0}, 0}).Reason)
	delete(o.told, "nowhere")
	delete(o.told, "nothing")
	all := transfer{"all", account{0, 0}, account{1, 0}, 100}
	require.Equal(t, committed, final(all).Verdict)
	require.Equal(t, reasonDone, final(all).Reason, "a request that is repeated must not be made twice")
	require.Equal(t, committed, final(transfer{"within", account{1, 1}, account{1, 0}, 100}).Verdict)
	nothingIsParked(t, stopped(t, c))
	require.NoError(t, o.audit(ctx))
}

func TestDeadServerAbortsWhatWaitsForIt(t *testing.T) {
	ctx := testContext(t)
	o := newOffice(t, 50, openingBalance)
	c, _, err := open(ctx, newFolder(t), o.banks, nil)
	require.NoError(t, err)
	victim := theServers(t).servers[1]
	_, err = victim.kill()
	require.NoError(t, err)
	defer victim.start(context.WithoutCancel(ctx)) // for the tests that follow, if this one fails

	began := time.Now()
	answers := make(chan result, 50)
	for i := range cap(answers) {
		c.begin(transfer{fmt.Sprint("r", i), account{0, i}, account{1, i}, 1}, func(r result) { answers <- r })
	}
	for range cap(answers) {
		r := <-answers
		require.Equal(t, reasonUnreachable, r.Reason, "%+v", r)
	}
	require.Less(t, time.Since(began), voteTimeout, "they waited for a vote that could not come")

	require.NoError(t, victim.start(ctx))
	require.NoError(t, o.serve(ctx, local{c}, 20, 4, 1))
	nothingIsParked(t, stopped(t, c))
	require.NoError(t, o.audit(ctx))
}

// A vote can get lost after the server has prepared. Nobody knows of that
// transaction then, except the server.
func TestForgottenTransactionIsRolledBack(t *testing.T) {
	ctx := testContext(t)
	o := newOffice(t, 1, 100)
	c, _, err := open(ctx, newFolder(t), o.banks, nil)
	require.NoError(t, err)
	forget := func(id string) {
		require.NoError(t, visit(ctx, o.banks[0], func(conn *pgx.Conn) error {
			return prepare(ctx, conn, id, id, []change{{0, -1}}, func() bool { return true })
		}))
	}
	left := func() []string {
		ids, err := o.leftPrepared(ctx)
		require.NoError(t, err)
		return ids[0]
	}
	foreign := "twophase-another-1-1" // under another log, which may know of a commit
	forget(c.prefix() + "1-1000")
	require.Eventually(t, func() bool { return len(left()) == 0 }, 5*time.Second, 20*time.Millisecond)
	forget(foreign)
	time.Sleep(2 * resolveEvery)
	nothingIsParked(t, stopped(t, c))
	require.Equal(t, []string{foreign}, left(), "another coordinator's transaction was decided")
	require.NoError(t, visit(ctx, o.banks[0], func(conn *pgx.Conn) error { return settle(ctx, conn, foreign, false) }))
	require.NoError(t, o.audit(ctx))
}

// When the disk fails nobody can tell whether the decision is on it.
func TestFailingLogLeavesTheTransactionToTheNextCoordinator(t *testing.T) {
	ctx := testContext(t)
	o := newOffice(t, 1, 100)
	folder := newFolder(t)
	c, _, err := open(ctx, folder, o.banks, nil)
	require.NoError(t, err)
	c.log.file.Close() // writes will fail
	ask := transfer{"r", account{0, 0}, account{1, 0}, 1}
	r := local{c}.transfer(ctx, ask)
	require.Equal(t, unknown, r.Verdict)
	r = local{c}.transfer(ctx, transfer{"other", account{1, 0}, account{0, 0}, 1})
	require.True(t, r.Reason.again(), "%+v", r)

	soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	stats, err := c.close(soon)
	require.Error(t, err)
	nothingIsParked(t, stats)
	left, err := o.leftPrepared(ctx)
	require.NoError(t, err)
	require.Len(t, left[0], 1)
	require.Equal(t, left[0], left[1])

	c, found, err := open(ctx, folder, o.banks, nil)
	require.NoError(t, err)
	require.Equal(t, recovery{RolledBack: 2}, found, "nothing was written")
	require.NoError(t, o.ask(ctx, local{c}, ask))
	nothingIsParked(t, stopped(t, c))
	require.NoError(t, o.audit(ctx))
}

func TestTwoCoordinatorsCannotShareALog(t *testing.T) {
	ctx := testContext(t)
	o := newOffice(t, 2, 100)
	k := newKeeper(t, o)
	_, err := k.current(ctx)
	require.NoError(t, err)
	_, err = startCoordinator(ctx, k.job)
	require.ErrorContains(t, err, "another coordinator has the log")
	_, err = k.stop()
	require.NoError(t, err)
}

func TestShowRuns(t *testing.T) {
	theServers(t) // or skip
	s := show{transfers: 150, clients: 4, accounts: 20}
	require.NoError(t, s.run(testContext(t)))
}
