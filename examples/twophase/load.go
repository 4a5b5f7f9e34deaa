//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waitlist-go/waitlist"
)

// teller is whom clients ask: a coordinator in this process, or a process.
type teller interface {
	transfer(ctx context.Context, t transfer) result
}

// office is the banks with clients, and what the clients have been told.
type office struct {
	banks    []bank
	accounts int // of each bank
	balance  int64

	requests atomic.Uint64
	attempts atomic.Uint64

	mu         sync.Mutex
	told       map[string]result // guarded by mu; by request: its final answer
	unanswered []transfer        // guarded by mu; asked for, and without a final answer
}

// openOffice makes new banks at the servers.
func openOffice(ctx context.Context, c *cluster, schema string, accounts int, balance int64) (*office, error) {
	banks, err := c.createBanks(ctx, schema, accounts, balance)
	return &office{banks: banks, accounts: accounts, balance: balance, told: map[string]result{}}, err
}

func (o *office) total() int64 { return int64(len(o.banks)) * int64(o.accounts) * o.balance }

// serve lets clients ask for n transfers in all, each until it has a final answer. Some
// are for more money than there is. What an earlier serve has left unanswered is asked
// for again, too.
func (o *office) serve(ctx context.Context, who teller, n, clients int, seed uint64) error {
	o.mu.Lock()
	again := o.unanswered
	o.unanswered = nil
	o.mu.Unlock()
	var running sync.WaitGroup
	errs := make([]error, clients)
	for i := range clients {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			var mine []transfer
			for j := i; j < len(again); j += clients {
				mine = append(mine, again[j])
			}
			for range (n + i) / clients { // adds up to n
				mine = append(mine, o.draw(rng))
			}
			for _, t := range mine {
				errs[i] = errors.Join(errs[i], o.ask(ctx, who, t))
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// tooMuch begins the names of requests that cannot be met.
const tooMuch = "too-much-"

func (o *office) draw(rng *rand.Rand) transfer {
	pick := func() account { return account{rng.IntN(len(o.banks)), rng.IntN(o.accounts)} }
	t := transfer{
		Request: fmt.Sprintf("request-%d", o.requests.Add(1)),
		From:    pick(),
		Amount:  1 + rng.Int64N(max(o.balance/20, 1)),
	}
	for t.To = pick(); t.To == t.From; {
		t.To = pick()
	}
	if rng.IntN(6) == 0 {
		t.Request = tooMuch + t.Request
		t.Amount = o.total() + 1
	}
	return t
}

// ask is one client with one request.
func (o *office) ask(ctx context.Context, who teller, t transfer) error {
	for {
		o.attempts.Add(1)
		r := who.transfer(ctx, t)
		// After an unknown end, as after an abort for a passing reason, the client
		// asks again under the same name. Either the first attempt has been or will
		// be made, and then the servers refuse the second as done; or it never will.
		if r.Verdict != unknown && !r.Reason.again() {
			o.mu.Lock()
			o.told[t.Request] = r
			o.mu.Unlock()
			return nil
		}
		select {
		case <-ctx.Done():
			o.mu.Lock()
			o.unanswered = append(o.unanswered, t)
			o.mu.Unlock()
			return fmt.Errorf("%s has no answer, the last was %+v: %w", t.Request, r, context.Cause(ctx))
		case <-time.After(time.Duration(5+rand.IntN(20)) * time.Millisecond):
		}
	}
}

// answered is how many requests have their final answer.
func (o *office) answered() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.told)
}

// tally counts the final answers.
func (o *office) tally() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	counts := map[string]int{}
	for _, r := range o.told {
		switch {
		case r.Reason == reasonDone:
			counts["committed by an attempt whose client was not told"]++
		case r.Verdict == aborted:
			counts["aborted: "+string(r.Reason)]++
		default:
			counts[string(r.Verdict)]++
		}
	}
	return counts
}

// leftPrepared lists, for each bank, the transactions that are prepared there.
func (o *office) leftPrepared(ctx context.Context) ([][]string, error) {
	left := make([][]string, len(o.banks))
	for i, b := range o.banks {
		err := visit(ctx, b, func(conn *pgx.Conn) (err error) {
			left[i], err = prepared(ctx, conn, "")
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
	}
	return left, nil
}

// audit compares what the banks hold with what the clients were told. It is for a
// moment in which nothing is under way: two servers cannot be read at one instant.
func (o *office) audit(ctx context.Context) error {
	left, err := o.leftPrepared(ctx)
	if err != nil {
		return err
	}
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var sum int64
	moved := map[string][]int64{} // by request
	for i, b := range o.banks {
		if len(left[i]) > 0 {
			fault("%s still has %v prepared", b.Name, left[i])
		}
		err := visit(ctx, b, func(conn *pgx.Conn) error {
			var here int64
			var wrong int
			err := conn.QueryRow(ctx, `select sum(balance), count(*) filter (where balance <> $1 +
				(select coalesce(sum(delta), 0) from entries where account = number)) from accounts`,
				o.balance).Scan(&here, &wrong)
			if err != nil {
				return err
			}
			sum += here
			if wrong > 0 {
				fault("%d accounts of %s are not what their entries add up to", wrong, b.Name)
			}
			rows, err := conn.Query(ctx, "select request, delta from entries")
			if err != nil {
				return err
			}
			var request string
			var delta int64
			_, err = pgx.ForEachRow(rows, []any{&request, &delta}, func() error {
				moved[request] = append(moved[request], delta)
				return nil
			})
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", b.Name, err)
		}
	}
	if sum != o.total() {
		fault("all balances add up to %d, not to %d", sum, o.total())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for request, deltas := range moved {
		if len(deltas) != 2 || deltas[0]+deltas[1] != 0 {
			fault("%s was made in part: %v", request, deltas)
		}
		if _, asked := o.told[request]; !asked {
			fault("%s was made, and its client was not told so", request)
		}
	}
	for _, request := range slices.Sorted(maps.Keys(o.told)) {
		r := o.told[request]
		_, made := moved[request]
		switch {
		case made != (r.Verdict == committed || r.Reason == reasonDone):
			fault("%s: made is %v, and the client was told %+v", request, made, r)
		case strings.HasPrefix(request, tooMuch) && r.Reason != reasonFunds:
			fault("%s: there is not so much money, and the client was told %+v", request, r)
		case r.Verdict == aborted && r.Reason != reasonFunds && r.Reason != reasonDone:
			fault("%s: the client was told %+v", request, r)
		}
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults[:min(len(faults), 20)], "\n"))
	}
	return nil
}

// keeper keeps a coordinator process running: who finds it dead starts the next.
type keeper struct {
	job     job
	crashes []crashAt                      // orders for the next processes, one each
	died    func(*process, crashAt, error) // called when one was found dead; may be nil
	started func(*process)                 // called with its successor; may be nil

	mu      sync.Mutex
	process *process // guarded by mu
	order   crashAt  // guarded by mu: of the last process
	deaths  int      // guarded by mu
}

func (k *keeper) transfer(ctx context.Context, t transfer) result {
	p, err := k.current(ctx)
	if err != nil {
		return result{aborted, reasonStopping, err.Error()} // it has not been asked
	}
	return p.transfer(ctx, t)
}

func (k *keeper) current(ctx context.Context) (*process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process != nil {
		select {
		case <-k.process.gone:
			k.foundDeadLocked(k.process, errCoordinatorGone)
			k.process = nil
		default:
			return k.process, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	j := k.job
	if len(k.crashes) > 0 {
		j.Crash, k.crashes = k.crashes[0], k.crashes[1:]
	}
	k.order = j.Crash
	p, err := startCoordinator(ctx, j)
	if err != nil {
		k.foundDeadLocked(nil, err)
		return nil, err
	}
	k.process = p
	if k.started != nil {
		k.started(p)
	}
	return p, nil
}

func (k *keeper) foundDeadLocked(p *process, err error) {
	k.deaths++
	if k.died != nil {
		k.died(p, k.order, err)
	}
}

// stop lets the process end in good order.
func (k *keeper) stop() (waitlist.Stats, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.process
	if p == nil {
		return waitlist.Stats{}, errCoordinatorGone
	}
	k.process = nil
	return p.stop()
}

// kill makes sure that no process is left.
func (k *keeper) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process != nil {
		k.process.kill()
		k.process = nil
	}
}
