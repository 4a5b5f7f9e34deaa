package waitlist_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waitlist-go/waitlist"
)

// What the recipes below stand on: a way to send and to answer that shows.
var (
	replicate = func(id uint64) {}
	send      = func(peer waitlist.PeerID, what string) { fmt.Println("send", what, "to peer", peer) }
	answer    = func(who any, what string) { fmt.Printf("%v: %s\n", who, what) }
)

func Example() {
	writes := waitlist.New[uint64](waitlist.Options{Timeout: 2 * time.Second})
	quorum := waitlist.Majority(1, 2, 3) // build once, share

	err := writes.Add(42, quorum, func(out waitlist.Outcome[uint64]) {
		fmt.Println(out.Key, out.End, out.Err) // called exactly once, whatever happens
	})
	if err != nil {
		return // nothing was parked and nothing sent: refuse the client
	}
	replicate(42) // send only now, so that no answer comes too early

	// The connections' readers hand in what the peers say:
	writes.Ack(42, 1) // this node's own disk: nobody acks that for you
	writes.Ack(42, 3) // a majority: the callback runs here
	writes.Ack(42, 2) // late: AckUnknown, changes nothing
	// Output: 42 reached <nil>
}

func ExampleWaitingList_majorityWrite() {
	writes := waitlist.New[uint64](waitlist.Options{})
	quorum := waitlist.Majority(1, 2, 3)

	put := func(id uint64, client string) {
		err := writes.Add(id, quorum, func(out waitlist.Outcome[uint64]) {
			switch {
			case out.Err == nil:
				answer(client, "stored")
			default: // out.End says how it ended; peers may have stored it
				answer(client, "unknown: "+out.Err.Error())
			}
		}, waitlist.Timeout(500*time.Millisecond))
		if err != nil { // matches ErrNotParked: certainly not sent
			answer(client, "refused: "+err.Error())
		}
	}

	put(1, "ann")
	put(1, "bob") // the same correlation id: the first is untouched
	writes.Ack(1, 1)
	writes.Ack(1, 2)
	// Output:
	// bob: refused: waitlist: not parked: key is already parked
	// ann: stored
}

func ExampleWaitingList_twoPhaseCommit() {
	votes := waitlist.New[string](waitlist.Options{Timeout: 3 * time.Second})
	participants := []waitlist.PeerID{1, 2}

	prepare := func(txn string) {
		err := votes.Add(txn, waitlist.All(participants...), func(out waitlist.Outcome[string]) {
			decision := "abort" // one no, or silence until the deadline
			if out.Err == nil {
				decision = "commit"
			}
			// Write the decision to disk before anybody hears of it. That blocks, so
			// a real coordinator sets Options.Executor.
			for _, p := range participants {
				send(p, decision+" "+out.Key)
			}
		})
		if err != nil {
			return
		}
		for _, p := range participants {
			send(p, "prepare "+txn)
		}
	}

	prepare("t1")
	votes.Ack("t1", 1)
	votes.Nack("t1", 2, errors.New("insufficient funds")) // All is out of reach: ends now
	// A yes that comes now is AckUnknown: tell that participant to abort.
	// Output:
	// send prepare t1 to peer 1
	// send prepare t1 to peer 2
	// send abort t1 to peer 1
	// send abort t1 to peer 2
}

func ExampleAllOf_jointConsensus() {
	log := waitlist.New[uint64](waitlist.Options{})
	joint := waitlist.AllOf(
		waitlist.Majority(1, 2, 3), // the old members
		waitlist.Majority(3, 4, 5), // the new ones
	)
	_ = log.Add(7, joint, func(out waitlist.Outcome[uint64]) {
		fmt.Println(out.End, slices.Collect(out.Tally.Acked()))
	})
	log.Ack(7, 1)
	log.Ack(7, 2) // a majority of the old ones is not enough
	log.Ack(7, 4)
	log.Ack(7, 3) // 3 counts on both sides
	// Output: reached [1 2 3 4]
}

func ExampleAtLeastOf_perDatacentre() {
	east := waitlist.Majority(1, 2, 3)
	west := waitlist.Majority(4, 5, 6)

	localQuorum := east                                       // LOCAL_QUORUM
	eachQuorum := waitlist.AllOf(east, west)                  // EACH_QUORUM
	anyQuorum := waitlist.AtLeastOf(1, east, west)            // one region may be down
	two := waitlist.AtLeast(2, 1, 2, 3, 4, 5, 6)              // any two of six: TWO
	heavy := waitlist.Weighted(3, map[waitlist.PeerID]uint64{ // votes instead of heads
		1: 2, 4: 1, 5: 1,
	})
	acked := []waitlist.PeerID{1, 2}
	for _, q := range []waitlist.Quorum{localQuorum, eachQuorum, anyQuorum, two, heavy} {
		fmt.Println(q, q.Verdict(acked, nil))
	}
	// Output:
	// 2 of {1 2 3} reached
	// all of (2 of {1 2 3}, 2 of {4 5 6}) undecided
	// 1 of (2 of {1 2 3}, 2 of {4 5 6}) reached
	// 2 of {1 2 3 4 5 6} reached
	// 3 of {1:2 4:1 5:1} undecided
}

func ExampleWaitingList_Complete() {
	proposals := waitlist.New[uint64](waitlist.Options{})

	// Propose: no peer decides; the apply loop does.
	_ = proposals.Add(9, waitlist.External(), func(out waitlist.Outcome[uint64]) {
		if out.Err != nil {
			answer("client", out.Err.Error())
			return
		}
		answer("client", fmt.Sprint(out.Value))
	})

	// Apply: every replica applies every command; only where it was proposed does
	// somebody wait for it.
	proposed := proposals.Complete(9, "balance 70")
	elsewhere := proposals.Complete(10, "balance 30")
	fmt.Println(proposed, elsewhere)
	// Output:
	// client: balance 70
	// true false
}

func ExampleRoster() {
	peers := waitlist.NewRoster("eu-1", "eu-2", "us-1") // ids are local to this process
	quorum := waitlist.Majority(peers.IDs("eu-1", "eu-2", "us-1")...)

	writes := waitlist.New[string](waitlist.Options{})
	_ = writes.Add("w1", quorum, func(out waitlist.Outcome[string]) {
		decider, _ := out.Tally.Decider()
		name, _ := peers.Name(decider)
		fmt.Println("decided by", name)
	})
	for _, from := range []string{"us-1", "mallory", "eu-2"} { // names off the wire
		if id, known := peers.Lookup(from); known {
			writes.Ack("w1", id)
		}
	}
	// Output: decided by eu-2
}

func ExampleSession() {
	var (
		store  sync.Map // what the callers wait for
		waits  = waitlist.New[string](waitlist.Options{Timeout: time.Minute})
		client waitlist.Session // one for each connection
	)

	// Check, park, check again: a value stored between the first check and the
	// parking has woken nobody. A key is parked once, so the waiter is part of it and
	// several can wait for one value.
	get := func(key, waiter string) {
		park := key + "/" + waiter
		if v, ok := store.Load(key); ok {
			answer(waiter, v.(string))
			return
		}
		err := waits.Add(park, waitlist.External(), func(out waitlist.Outcome[string]) {
			v, ok := store.Load(key) // woken, expired or lost: what counts is what is there
			switch {
			case ok:
				answer(waiter, v.(string))
			default:
				answer(waiter, out.End.String())
			}
		}, waitlist.InSession(&client))
		if err != nil {
			answer(waiter, "refused: "+err.Error())
			return
		}
		if _, ok := store.Load(key); ok {
			waits.Complete(park, nil)
		}
	}

	get("a", "reader 1")
	get("b", "reader 2")
	store.Store("a", "apple")
	waits.Complete("a/reader 1", nil)

	// The connection is lost: everything that waits on its behalf ends now.
	fmt.Println(client.End(errors.New("connection reset")), "left")
	// Output:
	// reader 1: apple
	// reader 2: session ended
	// 1 left
}

func ExampleWaitingList_PeerDown() {
	writes := waitlist.New[uint64](waitlist.Options{})
	quorum := waitlist.Majority(1, 2, 3)
	for id := range uint64(2) {
		_ = writes.Add(id, quorum, func(out waitlist.Outcome[uint64]) {
			fmt.Println(out.Key, out.End, out.Err)
		})
	}
	writes.Nack(0, 2, errors.New("disk full"))

	// The connection to peer 3 is lost, and nothing will be sent to it again. That
	// refuses, in its name, what is parked now. If you reconnect and retry, don't.
	writes.PeerDown(3, errors.New("connection reset"))
	fmt.Println(writes.Len(), "can still make it")
	// Output:
	// 0 unreachable waitlist: quorum is unreachable; peer 2: disk full; peer 3: connection reset
	// 1 can still make it
}

func ExampleOptions_executor() {
	// Callbacks that block or take locks run on a goroutine of their own, in order. The
	// queue grows: a bounded one could wait for its own worker.
	var (
		mu    sync.Mutex
		queue []func()
		more  = sync.NewCond(&mu)
	)
	go func() {
		for {
			mu.Lock()
			for len(queue) == 0 {
				more.Wait()
			}
			run := queue[0]
			queue = queue[1:]
			mu.Unlock()
			if run == nil {
				return
			}
			run()
		}
	}()
	execute := func(run func()) {
		mu.Lock()
		queue = append(queue, run)
		mu.Unlock()
		more.Signal()
	}

	writes := waitlist.New[string](waitlist.Options{Executor: execute})
	_ = writes.Add("a", waitlist.AtLeast(1, 1, 2), func(out waitlist.Outcome[string]) {
		fmt.Println("sync the file for", out.Key)
	})
	writes.Ack("a", 2) // returns at once

	_ = writes.Close()
	<-writes.Done() // the worker has run everything
	execute(nil)
	// Output: sync the file for a
}

func ExampleWaitingList_Shutdown() {
	jobs := waitlist.New[string](waitlist.Options{Timeout: 5 * time.Minute})
	for _, job := range []string{"j1", "j2"} {
		_ = jobs.Add(job, waitlist.External(), func(out waitlist.Outcome[string]) {
			if out.End == waitlist.EndClosed {
				fmt.Println("release", out.Key) // now, and not when its lease expires
			}
		})
	}
	jobs.Complete("j1", nil)

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	err := jobs.Shutdown(ctx) // refuses new work, waits, then gives back the rest
	fmt.Println(err)
	<-jobs.Done() // every callback is back
	// Output:
	// release j2
	// waitlist: shutdown gave back 1 parked: context deadline exceeded
}

func ExampleWaitingList_Wait() {
	type call struct{ id, attempt uint64 } // a retry is another key

	calls := waitlist.New[call](waitlist.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()

	first := call{id: 5, attempt: 1}
	out, err := calls.Wait(ctx, first, waitlist.AtLeast(1, 8, 9), func() error {
		go calls.AckWith(first, 9, "pong") // send the request; the reader acks
		return nil
	})
	if out.End == 0 {
		fmt.Println("certainly not sent:", err)
		return
	}
	for peer, response := range out.Tally.Responses() {
		fmt.Println(out.End, peer, response)
	}
	// Output: reached 9 pong
}

func ExampleTally_Missing() {
	writes := waitlist.New[string](waitlist.Options{})
	_ = writes.Add("k=v", waitlist.AtLeast(1, 1, 2, 3), func(out waitlist.Outcome[string]) {
		// On success, the others have only not answered yet; what they miss can be
		// kept for them and replayed.
		for peer := range out.Tally.Missing() {
			fmt.Println("hint for", peer, out.Key)
		}
		for peer, reason := range out.Tally.Refused() {
			fmt.Println("hint for", peer, out.Key, "since", reason)
		}
	})
	writes.Nack("k=v", 3, errors.New("disk full"))
	writes.Ack("k=v", 1)
	// Output:
	// hint for 2 k=v
	// hint for 3 k=v since disk full
}

func ExampleFakeClock() {
	clock := waitlist.NewFakeClock(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	writes := waitlist.New[uint64](waitlist.Options{Timeout: time.Hour, Clock: clock})
	_ = writes.Add(1, waitlist.All(1, 2), func(out waitlist.Outcome[uint64]) {
		fmt.Println(out.End, "waiting for", slices.Collect(out.Tally.Missing()))
	})
	writes.Ack(1, 2)

	clock.Advance(time.Hour - 1)
	fmt.Println(writes.Len(), "parked")
	clock.Advance(1) // the callback runs before Advance returns
	fmt.Println(clock.Armed(), "timers")
	// Output:
	// 1 parked
	// timed out waiting for [1]
	// 0 timers
}

func ExampleWatermarkList_raft() {
	applied := waitlist.NewWatermarkList(uint64(100), waitlist.Options{}) // applied so far

	// Propose: take the index, append and park under one lock, so that nothing is
	// parked once leadership is given up under it.
	var (
		log     sync.Mutex
		leading = true
		last    = uint64(100)
	)
	propose := func(client string) {
		log.Lock()
		defer log.Unlock()
		if !leading {
			answer(client, "not the leader")
			return
		}
		last++ // append the command here
		err := applied.Add(last, func(out waitlist.Outcome[uint64]) {
			if out.Err != nil {
				answer(client, "unknown: "+out.Err.Error()) // it may still be committed
				return
			}
			answer(client, fmt.Sprint("applied at ", out.Key))
		})
		if err != nil {
			answer(client, "unknown: "+err.Error())
		}
	}
	propose("ann")
	propose("bob")

	// Apply: in one step up to where the state machine is.
	applied.Advance(101)

	// Leadership is lost: end what is parked before anything else is applied, or
	// another leader's command at 102 is reported as bob's.
	log.Lock()
	leading = false
	log.Unlock()
	_, _ = applied.Truncate(102, errors.New("leadership lost"))
	applied.Advance(102)
	propose("eve")
	// Output:
	// ann: applied at 101
	// bob: unknown: waitlist: truncated: leadership lost
	// eve: not the leader
}

func ExampleWatermarkList_Ack() {
	// A leader that commits by counting. Its peers' acks are cumulative.
	commit := waitlist.NewWatermarkList(uint64(100), waitlist.Options{})
	_, _ = commit.SetQuorum(waitlist.Majority(1, 2, 3))
	commit.BeginTerm(101) // what earlier terms left is committed only along with 101

	_ = commit.Add(102, func(out waitlist.Outcome[uint64]) {
		fmt.Println(out.Key, out.End, slices.Collect(out.Tally.Acked()))
	})
	commit.Ack(102, 1) // the leader's own log
	commit.Ack(100, 2)
	fmt.Println("committed", commit.Watermark())
	if commit.Ack(103, 3) == waitlist.AckDecided { // the mark has moved: apply up to it
		fmt.Println("committed", commit.Watermark())
	}
	// Output:
	// committed 100
	// 102 reached [1 3]
	// committed 102
}

func ExampleWatermarkList_SetQuorum() {
	// acks=all: the high watermark is what every replica in sync holds.
	partition := waitlist.NewWatermarkList(int64(-1), waitlist.Options{}) // offsets from 0
	_, _ = partition.SetQuorum(waitlist.All(1, 2, 3))

	_ = partition.Add(4, func(out waitlist.Outcome[int64]) {
		fmt.Println("produced up to", out.Key, out.End)
	})
	partition.Ack(4, 1) // the leader has appended
	partition.Ack(4, 2) // a fetch from 5 on says that 2 has the rest

	// Replica 3 lags and leaves the in-sync set: what it held up completes.
	completed, _ := partition.SetQuorum(waitlist.All(1, 2))
	fmt.Println(completed, "completed, high watermark", partition.Watermark())

	// It has caught up to 4: let it in, tell at once what it holds, and look whether the
	// mark has risen meanwhile; then it is not in sync yet.
	_, _ = partition.SetQuorum(waitlist.All(1, 2, 3))
	partition.Ack(4, 3)
	if partition.Watermark() > 4 {
		_, _ = partition.SetQuorum(waitlist.All(1, 2))
	}
	// Output:
	// produced up to 4 reached
	// 1 completed, high watermark 4
}

func ExampleWatermarkList_Wait() {
	// Read your writes on a follower: the client brings the index of its last write.
	applied := waitlist.NewWatermarkList(uint64(17), waitlist.Options{})
	read := func(lastWrite uint64) string {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := applied.Wait(ctx, lastWrite); err != nil {
			return "behind, ask another"
		}
		return "up to date"
	}
	fmt.Println(read(12))  // reached long ago: does not wait
	go applied.Advance(18) // the apply loop
	fmt.Println(read(18))
	// Output:
	// up to date
	// up to date
}
