package waitlist

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// shrink takes away from a failing plan whatever it fails without.
func (p plan) shrink(failing func(plan) bool) plan {
	deadline := time.Now().Add(20 * time.Second) // of a test that fails anyway
	for again := true; again; {
		again = false
		for smaller := range p.smaller {
			if time.Now().After(deadline) {
				return p
			}
			if failing(smaller) {
				p, again = smaller, true
				break
			}
		}
	}
	return p
}

// smaller yields plans with a little less in them, the boldest first.
func (p plan) smaller(yield func(plan) bool) {
	going := true
	smallerOps(p.ops, func(ops []op) bool {
		going = yield(plan{p.setup, ops})
		return going
	})
	for _, s := range []setup{
		{p.clock, 0, p.executor, p.onPanic, p.timeout},
		{p.clock, p.capacity, 0, p.onPanic, p.timeout},
		{p.clock, p.capacity, p.executor, p.onPanic, 0},
		{0, p.capacity, p.executor, p.onPanic, p.timeout},
	} {
		if going && s != p.setup {
			going = yield(plan{s, p.ops})
		}
	}
}

func smallerOps(ops []op, yield func([]op) bool) bool {
	for size := len(ops); size > 0; size /= 2 {
		for at := 0; at+size <= len(ops); at += size {
			if !yield(slices.Concat(ops[:at], ops[at+size:])) {
				return false
			}
		}
	}
	for at, o := range ops {
		with := func(o op) bool {
			changed := slices.Clone(ops)
			changed[at] = o
			return yield(changed)
		}
		for _, field := range []func(*op) *int{
			func(o *op) *int { return &o.n }, func(o *op) *int { return &o.session },
			func(o *op) *int { return &o.time }, func(o *op) *int { return &o.err },
			func(o *op) *int { return &o.rule }, func(o *op) *int { return &o.key },
		} {
			for _, less := range []int{0, *field(&o) / 2, *field(&o) - 1} {
				changed := o
				if was := field(&changed); less >= 0 && less < *was {
					*was = less
					if !with(changed) {
						return false
					}
				}
			}
		}
		if o.fate != returns {
			changed := o
			changed.fate = returns
			if !with(changed) {
				return false
			}
		}
		if !smallerOps(o.then, func(then []op) bool {
			changed := o
			changed.then = then
			return with(changed)
		}) {
			return false
		}
	}
	return true
}

// seeded returns the seed of this run, which WAITLIST_SEED repeats, and logs it.
func seeded(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if given := os.Getenv("WAITLIST_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("WAITLIST_SEED: %v", err)
		}
	}
	t.Logf("repeat with WAITLIST_SEED=%d", seed)
	return seed
}

// randomBytes returns the bytes of the round-th plan of a seed.
func randomBytes(seed, round uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, round))
	data := make([]byte, 20+rng.IntN(500))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	return data
}

// report fails a test, and writes the plans that made it fail where they survive it.
func report(t *testing.T, err error, plans ...plan) {
	t.Helper()
	var text strings.Builder
	fmt.Fprintln(&text, err)
	for _, p := range plans {
		fmt.Fprintf(&text, "\n%v\n", p)
	}
	if file, failed := os.CreateTemp("", "waitlist-failing-*.txt"); failed == nil {
		_, _ = file.WriteString(text.String())
		_ = file.Close()
		t.Log("written to " + file.Name())
	}
	t.Fatalf("%.5000s", text.String())
}

// trials is how many plans a test tries that deserves n.
func trials(n int) uint64 {
	if underRace() || testing.Short() {
		return uint64(n / 5)
	}
	return uint64(n)
}

// checkPlans runs plans of random bytes, shrinks the first that fails, and returns what they have met.
func checkPlans(t *testing.T, n uint64, from []kind, check func(plan, *Stats) error) (met Stats) {
	t.Helper()
	seed := seeded(t)
	for round := range n {
		checkBytes(t, randomBytes(seed, round), from, check, &met)
	}
	return met
}

func checkBytes(t *testing.T, data []byte, from []kind, check func(plan, *Stats) error, met *Stats) {
	t.Helper()
	p := decode(data, from)
	err := check(p, met)
	if err == nil {
		return
	}
	p = p.shrink(func(p plan) bool {
		failed := check(p, met)
		if failed != nil {
			err = failed
		}
		return failed != nil
	})
	report(t, err, p)
}

// add adds up the books of several lists.
func (st *Stats) add(other Stats) {
	sum, part := reflect.ValueOf(st).Elem(), reflect.ValueOf(other)
	for i := range sum.NumField() {
		if field := sum.Field(i); field.CanUint() {
			field.SetUint(field.Uint() + part.Field(i).Uint())
		}
	}
}

// requireAll makes sure that the plans have met all that is counted: a generator that loses its teeth fails.
func requireAll(t *testing.T, met Stats) {
	t.Helper()
	for i, v := 0, reflect.ValueOf(met); i < v.NumField(); i++ {
		if v.Field(i).CanUint() && v.Field(i).Uint() == 0 {
			t.Errorf("no plan has met %s: %+v", v.Type().Field(i).Name, met)
		}
	}
}

// guarded runs a plan and complains if it hangs.
func guarded(run func() error) error {
	over := make(chan error, 1)
	go func() { over <- run() }()
	select {
	case err := <-over:
		return err
	case <-time.After(30 * time.Second):
		stacks := make([]byte, 1<<16)
		return fmt.Errorf("hangs\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}
