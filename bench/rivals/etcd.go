package rivals

import "go.etcd.io/etcd/pkg/v3/wait"

// etcdWait is how etcd's server waits for its own proposals.
var etcdWait = Rival{
	Name:          "etcd wait",
	New:           func(Config) Waiter { return etcdWaiter{wait.New()} },
	Expiry:        NoDeadline,
	CountsNothing: true,
	About: "`go.etcd.io/etcd/pkg/v3/wait`: 64 maps under locks and a channel per request. " +
		"A request is Register, Trigger, receive.",
	Lacks: "counts no answers (one call stands for two acks and a late one), has no deadline, and cannot say what it holds; " +
		"the one who waits needs a goroutine; a key that is registered twice ends the process",
}

type etcdWaiter struct{ w wait.Wait }

func (e etcdWaiter) Requester(Done) Requester { return etcdRequester(e) }
func (etcdWaiter) Len() int                   { return -1 }
func (etcdWaiter) Close()                     {}

type etcdRequester struct{ w wait.Wait }

func (r etcdRequester) Add(key uint64) Ticket { return r.w.Register(key) }

func (r etcdRequester) Ack(key uint64, peer int) {
	if peer == decider {
		r.w.Trigger(key, true)
	}
}

func (etcdRequester) Ready(t Ticket) bool { return len(t.(<-chan any)) > 0 }

func (etcdRequester) Receive(t Ticket) bool {
	ok, _ := (<-t.(<-chan any)).(bool)
	return ok
}
