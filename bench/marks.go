package main

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/waitlist-go/waitlist/bench/rivals"
)

const (
	colMarkerEmpty  = "watermark/empty"
	colMarkerMemory = "watermark/memory/parked=1000000"
)

func markerRequestName(parked int) string { return fmt.Sprintf("watermark/request/parked=%d", parked) }
func advanceName(parked int) string       { return fmt.Sprintf("watermark/advance/parked=%d", parked) }

var (
	markerRequestNames = []string{markerRequestName(0), advanceName(1000)}
	markerMillionNames = []string{markerRequestName(million), advanceName(million), colMarkerMemory}
)

// markLoad is a Marker whose requests wait for consecutive indexes.
type markLoad struct {
	rivals.MarkerRival
	m         rivals.Marker
	mark, top uint64
	completed uint64
	tickets   []rivals.Ticket // of the indexes above the mark, oldest first
	head      int
}

func newMarkLoad(r rivals.MarkerRival, parked int) *markLoad {
	l := &markLoad{MarkerRival: r}
	l.m = r.New(func(uint64, bool) { l.completed++ })
	l.park(parked)
	return l
}

func (l *markLoad) park(n int) {
	for range n {
		l.add()
	}
}

func (l *markLoad) add() {
	l.top++
	if ticket := l.m.Add(l.top); ticket != nil {
		l.tickets = append(l.tickets, ticket)
	}
}

func (l *markLoad) advance() {
	l.mark++
	l.m.Advance(l.mark)
	if len(l.tickets) > 0 {
		if l.m.Receive(l.tickets[l.head]) {
			l.completed++
		}
		l.tickets[l.head] = nil
		l.head++
		if l.head > len(l.tickets)/2 {
			l.tickets = append(l.tickets[:0], l.tickets[l.head:]...)
			l.head = 0
		}
	}
}

// timed repeats step until enough time has gone by, and returns what one took.
func (l *markLoad) timed(slice time.Duration, limit int, step func()) (float64, error) {
	before, n, group := l.completed, 0, 1
	begin := time.Now()
	for {
		group = min(group, limit-n)
		for range group {
			step()
		}
		n += group
		took := time.Since(begin)
		if took >= slice || n >= limit {
			if l.completed-before != uint64(n) {
				return 0, fmt.Errorf("%s: %d of %d completed", l.Name, l.completed-before, n)
			}
			return float64(took.Nanoseconds()) / float64(n), nil
		}
		if took < slice/8 {
			group *= 2
		}
	}
}

func (l *markLoad) request() {
	l.add()
	l.advance()
}

// markerRequests measures Add and Advance by one with nothing parked, and Advance by one among a thousand.
func (b *bench) markerRequests() error {
	runtime.GOMAXPROCS(1)
	return takeTurns(b.markers, b.size.rounds, func(r rivals.MarkerRival) error {
		l := newMarkLoad(r, 0)
		defer l.m.Close()
		runtime.GC()
		if _, err := l.timed(b.size.slice/4, 1<<30, l.request); err != nil { // warms up
			return err
		}
		ns, err := l.timed(b.size.slice, 1<<30, l.request)
		if err != nil {
			return err
		}
		b.results.add(markerRequestName(0), r.Name, ns)

		few := newMarkLoad(r, 0)
		defer few.m.Close()
		ns, err = few.advanceAmong(1000, b.size.slice)
		b.results.add(advanceName(1000), r.Name, ns)
		return err
	})
}

// advanceAmong measures Advance alone: a tenth of what is parked is completed, then the list is filled up
// again, until enough time has been measured.
func (l *markLoad) advanceAmong(parked int, slice time.Duration) (float64, error) {
	var (
		total, last time.Duration
		n           int
	)
	for total < slice {
		l.park(parked - int(l.top-l.mark))
		limit := max(1, parked/10)
		if last > 0 { // about as many as fit in what is left
			limit = min(limit, max(1, int((slice-total)/last)))
		}
		before, begin := l.completed, time.Now()
		done := 0
		for done < limit {
			l.advance()
			done++
			if done&(done-1) == 0 && time.Since(begin) > slice {
				break
			}
		}
		took := time.Since(begin)
		if l.completed-before != uint64(done) {
			return 0, fmt.Errorf("%s: %d of %d completed", l.Name, l.completed-before, done)
		}
		total += took
		n += done
		last = took / time.Duration(done)
	}
	return float64(total.Nanoseconds()) / float64(n), nil
}

// markerMillion does the same with a million parked, and weighs them.
func (b *bench) markerMillion() error {
	runtime.GOMAXPROCS(1)
	return takeTurns(b.markers, b.size.heavy, func(r rivals.MarkerRival) error {
		n := b.size.many
		before := liveHeap()
		l := newMarkLoad(r, 0)
		defer l.m.Close()
		l.park(n)
		own := uintptr(cap(l.tickets)) * unsafe.Sizeof(rivals.Ticket(nil)) // the list of tickets is this program's
		b.results.add(colMarkerMemory, r.Name, (heapGrowth(before)-float64(own))/float64(n))

		ns, err := l.timed(10*b.size.slice, 1<<30, l.request)
		if err != nil {
			return err
		}
		b.results.add(markerRequestName(million), r.Name, ns)
		ns, err = l.advanceAmong(n, 10*b.size.slice)
		b.results.add(advanceName(million), r.Name, ns)
		return err
	})
}

// markerEmpty weighs lists in which nothing waits, of which a broker has one per partition.
func (b *bench) markerEmpty() error {
	return takeTurns(b.markers, 3, func(r rivals.MarkerRival) error {
		const n = 10_000
		lists := make([]any, n)
		before := liveHeap()
		for i := range lists {
			if r.Empty != nil {
				lists[i] = r.Empty()
			} else {
				lists[i] = r.New(ignore)
			}
		}
		b.results.add(colMarkerEmpty, r.Name, heapGrowth(before)/n)
		for _, list := range lists {
			if m, ok := list.(rivals.Marker); ok {
				m.Close()
			}
		}
		return nil
	})
}
