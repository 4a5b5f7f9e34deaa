// Package waitlist parks the requests of a cluster node until its peers have
// spoken.
//
// A node accepts a request in a microsecond but can answer it only after a majority
// has stored the write, the log has committed, or every participant has voted. A
// list holds the request meanwhile: a map from a key to a callback, a rule that says
// which peers are enough, a deadline, and the promise that the callback is called
// exactly once, whatever happens. No goroutine is blocked per request, and none is
// held while nothing is parked.
//
// A [WaitingList] is keyed by anything comparable, such as a correlation id; each
// entry has a [Quorum] of its own. A [WatermarkList] is keyed by log index; the high
// watermark completes everything up to it, in order.
//
// # Lifecycle
//
// An entry is parked by Add, claimed by whoever ends it, and called:
//
//	Add ──error──▶ nothing was parked, no callback
//	 │
//	 ▼            Ack, Nack, PeerDown, AckBatch   EndReached, EndUnreachable
//	parked ─────▶ Complete, Advance               EndCompleted, EndReached
//	 │            the deadline                    EndTimedOut
//	 │            Fail, FailFunc, FailAll         EndFailed
//	 │            Truncate                        EndTruncated
//	 │            Session.End                     EndSession
//	 │            Wait's context or send          EndCanceled
//	 ▼            Shutdown, Close                 EndClosed
//	claimed: out of the list, its slot reused, its capacity free
//	 │
//	 ▼
//	called, once, with no lock held
//
// A claim is what decides: one of those who come gets the entry, all others come too
// late and change nothing. So the callback may add the same key again, and an answer to
// the old entry that is still on its way then counts for the new one: put the attempt
// into the key.
//
// Add before you send. An error of Add means that nothing was parked, and so that
// the request was certainly not sent. Once parked, a request that ends other than by
// EndReached or EndCompleted is unknown: peers may have stored it. Outcome.End tells
// how it ended, not a search in Outcome.Err.
//
//	the error matches             it came from     what it says           who may retry
//	ErrNotParked                  Add, Wait        certainly not sent     anyone, once the reason is gone
//	ErrNotParked                  WatermarkList    the log may have it    who can tell duplicates apart
//	ErrTimeout, ErrUnreachable,   an Outcome       unknown                who can tell duplicates apart
//	ErrClosed, ErrSessionEnded,                                           (idempotent, or a request id
//	ErrTruncated, Fail's error,                                           that the state machine knows)
//	the context's or send's
//
// # Concurrency
//
// All methods may be called by any number of goroutines, and by callbacks. A callback
// runs on the goroutine that ended the entry, inside its call, with no lock of this
// package held: the reader of a connection that calls Ack, the sweeper's timer, whoever
// closes. See [Options].Executor if callbacks block or take locks.
//
// What happened before an Ack, Complete or Advance that counted happens before the
// callback. A call that ends several entries claims all of them before it calls the
// first, so its callbacks cannot change whom it ends. If a callback panics or exits its
// goroutine, the others of the same call still run, and only then does the panic or
// the exit go on; [Options].OnPanic stops panics.
//
// # Costs
//
//	Add                     one clock reading, one hash, one lock; no allocation
//	Ack, Complete, Fail     one hash, one lock; no allocation, no clock
//	AckBatch                the same for each key; no allocation up to 128 keys
//	AckWith, Nack, Wait,    the same, and a few allocations
//	an entry in a session
//	Advance, SetQuorum,     one lock, the members, and what it completes; Advance
//	Ack of a watermark      and Ack allocate nothing under rules of up to 64 members
//	a parked entry          about 95 bytes, 64 of which the garbage collector scans
//	a sweep                 128 locks, a look at shards of few entries, and what is due
//	PeerDown, FailFunc,     everything parked
//	FailAll, All
//	Session.End             what the session holds
//	an idle list            no goroutine and no timer; 35 KiB when new, up to 300 after
//	                        use; a WatermarkList 512 bytes when new, a few KiB after use
//
// # When not to use it
//
// It is not a durable queue: what is parked dies with the process, and nothing is
// redelivered or replayed. It does not send, retry or elect. If a goroutine per request
// is cheap enough for you and one answer is all there is to wait for, a channel does.
package waitlist
