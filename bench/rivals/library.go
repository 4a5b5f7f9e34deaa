package rivals

import (
	"fmt"
	"time"

	"github.com/waitlist-go/waitlist"
)

// library is package waitlist, used as its documentation says.
var library = Rival{
	Name:   "waitlist",
	New:    newLibrary,
	Expiry: OnAnyClock,
	About:  "package waitlist with its defaults, and one `Majority` of three for all requests",
}

var (
	members  = []waitlist.PeerID{1, 2, 3} // by the numbers of the peers
	majority = waitlist.Majority(members...)
)

type libraryWaiter struct {
	list     *waitlist.WaitingList[uint64]
	sessions [MaxSessions]waitlist.Session
}

type libraryRequester struct {
	calledBack
	*libraryWaiter
	done waitlist.Callback[uint64]
}

func newLibrary(cfg Config) Waiter {
	opts := waitlist.Options{Timeout: cfg.Timeout}
	if cfg.Clock != nil {
		opts.Clock, opts.ManualSweep = libraryClock{cfg.Clock}, true
	}
	return &libraryWaiter{list: waitlist.New[uint64](opts)}
}

// libraryClock is a clock for lists that are swept by hand. A waitlist.FakeClock would do, but no other way is
// asked to take a lock to read the time.
type libraryClock struct{ *Clock }

func (libraryClock) AfterFunc(time.Duration, func()) waitlist.Timer {
	panic("rivals: a list that is swept by hand has no timer")
}

func (w *libraryWaiter) Requester(done Done) Requester {
	return &libraryRequester{libraryWaiter: w, done: func(out waitlist.Outcome[uint64]) {
		done(out.Key, out.Err == nil)
	}}
}

func (w *libraryWaiter) Len() int                   { return w.list.Len() }
func (w *libraryWaiter) Sweep() int                 { return w.list.Sweep() }
func (w *libraryWaiter) EndSession(session int) int { return w.sessions[session].End(nil) }

func (w *libraryWaiter) Close() {
	if err := w.list.Close(); err != nil {
		panic(fmt.Sprintf("rivals: Close: %v", err)) // it promises nil
	}
}

func (r *libraryRequester) Add(key uint64) Ticket {
	mustPark(r.list.Add(key, majority, r.done))
	return nil
}

func (r *libraryRequester) AddIn(key uint64, session int) Ticket {
	mustPark(r.list.Add(key, majority, r.done, waitlist.InSession(&r.sessions[session])))
	return nil
}

func (w *libraryWaiter) Ack(key uint64, peer int) { w.list.Ack(key, members[peer]) }

// mustPark looks at Add's error as every user has to. None is expected.
func mustPark(err error) {
	if err != nil {
		panic(fmt.Sprintf("rivals: Add: %v", err))
	}
}

var libraryMarker = MarkerRival{
	Name:  "waitlist",
	New:   newLibraryMarker,
	About: "package waitlist's watermark list with its defaults",
	Empty: func() any { return waitlist.NewWatermarkList[uint64](0, waitlist.Options{}) },
}

type libraryMarks struct {
	calledBack
	list *waitlist.WatermarkList[uint64]
	done waitlist.Callback[uint64]
}

func newLibraryMarker(done Done) Marker {
	return &libraryMarks{
		list: waitlist.NewWatermarkList[uint64](0, waitlist.Options{}),
		done: func(out waitlist.Outcome[uint64]) { done(out.Key, out.Err == nil) },
	}
}

func (m *libraryMarks) Add(index uint64) Ticket {
	mustPark(m.list.Add(index, m.done))
	return nil
}

func (m *libraryMarks) Advance(to uint64) int { return m.list.Advance(to) }

func (m *libraryMarks) Close() {
	if err := m.list.Close(); err != nil {
		panic(fmt.Sprintf("rivals: Close: %v", err))
	}
}
