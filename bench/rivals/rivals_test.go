package rivals

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// each runs a test for every way of holding requests.
func each(t *testing.T, test func(t *testing.T, r Rival)) {
	for _, r := range All() {
		t.Run(r.Name, func(t *testing.T) { test(t, r) })
	}
}

func TestSameCompletionsForSameOperations(t *testing.T) {
	each(t, func(t *testing.T, r Rival) {
		for seed := range uint64(20) {
			require.NoError(t, Check(r, Config{}, seed, nil))
		}
	})
}

func TestSameExpiryOnTheSystemClock(t *testing.T) {
	each(t, func(t *testing.T, r Rival) {
		if r.Expiry == NoDeadline {
			t.Skip("declares that it has no deadlines")
		}
		for seed := range uint64(20) {
			synctest.Test(t, func(t *testing.T) {
				require.NoError(t, Check(r, Config{}, seed, func(d time.Duration) {
					time.Sleep(d)
					synctest.Wait()
				}))
			})
		}
	})
}

func TestSameExpiryOnAClockThatIsMoved(t *testing.T) {
	each(t, func(t *testing.T, r Rival) {
		if r.Expiry != OnAnyClock {
			t.Skip("declares that it takes no clock")
		}
		for seed := range uint64(20) {
			clock := new(Clock)
			require.NoError(t, Check(r, Config{Clock: clock}, seed, clock.Move))
		}
	})
}

// What expires in the background is found without anybody calling Sweep.
func TestBackgroundFindsWhatIsDue(t *testing.T) {
	each(t, func(t *testing.T, r Rival) {
		if r.Expiry == NoDeadline {
			t.Skip("declares that it has no deadlines")
		}
		synctest.Test(t, func(t *testing.T) {
			w := r.New(Config{Timeout: 50 * time.Millisecond, Background: true})
			defer w.Close()
			var expired atomic.Int64
			req := w.Requester(func(_ uint64, ok bool) {
				if !ok {
					expired.Add(1)
				}
			})
			ticket := req.Add(1)
			time.Sleep(50*time.Millisecond + r.LateBy + fullScan)
			time.Sleep(time.Second) // a cache that looks once a second
			synctest.Wait()
			if ticket != nil {
				require.True(t, req.Ready(ticket))
				require.False(t, req.Receive(ticket))
				return
			}
			require.EqualValues(t, 1, expired.Load())
		})
	})
}

// All peers answer at once, from goroutines of their own.
func TestConcurrentAnswersDecideOnce(t *testing.T) {
	each(t, func(t *testing.T, r Rival) {
		const keys = 5000
		w := r.New(Config{Timeout: time.Hour})
		defer w.Close()
		var done atomic.Int64
		req := w.Requester(func(_ uint64, ok bool) {
			if ok {
				done.Add(1)
			}
		})
		tickets := make([]Ticket, keys)
		for key := range uint64(keys) {
			tickets[key] = req.Add(key)
		}
		var peers sync.WaitGroup
		for peer := range Peers {
			peers.Go(func() {
				own := w.Requester(func(uint64, bool) {})
				for key := range uint64(keys) {
					own.Ack(key, peer)
				}
			})
		}
		peers.Wait()
		for _, ticket := range tickets {
			if ticket != nil && req.Ready(ticket) && req.Receive(ticket) {
				done.Add(1)
			}
		}
		require.EqualValues(t, keys, done.Load())
	})
}

func TestEndOfASessionEndsItsRequestsAlone(t *testing.T) {
	each(t, func(t *testing.T, r Rival) {
		w, ok := r.New(Config{Timeout: time.Hour}).(SessionWaiter)
		if !ok {
			t.Skip("knows no sessions")
		}
		defer w.Close()
		ended := make(map[uint64]bool)
		req := w.Requester(func(key uint64, ok bool) { ended[key] = ok }).(SessionRequester)
		for key := range uint64(300) {
			req.AddIn(key, int(key%3))
		}
		req.Ack(1, 0)
		req.Ack(1, 1)
		clear(ended)
		require.Equal(t, 99, w.EndSession(1))
		require.Equal(t, 200, w.Len())
		for key, ok := range ended {
			require.False(t, ok)
			require.EqualValues(t, 1, key%3)
			require.NotEqualValues(t, 1, key, "had ended before")
		}
	})
}

func TestMarkersCompleteTheSame(t *testing.T) {
	for _, r := range AllMarkers() {
		t.Run(r.Name, func(t *testing.T) {
			for seed := range uint64(20) {
				require.NoError(t, CheckMarker(r, seed))
			}
		})
	}
}
