package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waitlist-go/waitlist"
)

// workload is clients that write and read the same few keys, half and half, each value
// written once.
type workload struct {
	addrs   []string
	clients int
	ops     int
	keys    int
	limit   time.Duration // for one attempt

	// done lets others wait for the n-th operation: its watermark is how many there
	// were.
	done *waitlist.WatermarkList[int]
}

func newWorkload(c *cluster, clients, ops int) *workload {
	w := &workload{
		clients: clients, ops: ops, keys: 64,
		// A node answers within the timeout. What takes longer than this hangs.
		limit: c.timeout + time.Second,
		done:  waitlist.NewWatermarkList(0, waitlist.Options{Timeout: 5 * time.Minute}),
	}
	for id := uint64(1); id <= clusterSize; id++ {
		w.addrs = append(w.addrs, c.clients[id])
	}
	return w
}

// run does all operations and returns them, in no order.
func (w *workload) run(ctx context.Context) ([]operation, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer w.done.Close() // whoever waits for operations that will not come
	shared := newHTTPClient(w.clients)
	defer shared.CloseIdleConnections()

	began := time.Now()
	histories := make([][]operation, w.clients)
	var started, finished atomic.Int64
	var wg sync.WaitGroup
	for i := range w.clients {
		wg.Go(func() {
			c := &client{http: shared, addrs: w.addrs, target: i % len(w.addrs), limit: w.limit}
			for n := int(started.Add(1)); n <= w.ops; n = int(started.Add(1)) {
				op := operation{client: i, put: rand.N(2) == 0, key: fmt.Sprint("key", rand.N(w.keys))}
				if op.put {
					op.value = fmt.Sprintf("value %d of client %d", n, i)
				} else {
					c.target = rand.N(len(w.addrs)) // any node will do
				}
				if err := c.do(ctx, began, &op); err != nil {
					cancel(err)
					return
				}
				histories[i] = append(histories[i], op)
				w.done.Advance(int(finished.Add(1)))
			}
		})
	}
	wg.Wait()
	var all []operation
	for _, h := range histories {
		all = append(all, h...)
	}
	return all, context.Cause(ctx)
}
