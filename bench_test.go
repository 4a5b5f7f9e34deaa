package waitlist_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/waitlist-go/waitlist"
)

// Run with
//
//	go test -run '^$' -bench . -count 5 .
//
// Names are key=value, for benchstat. A request is an Add, two deciding acks of three
// and a late third. Compare only what ran in one process, alternating: bench/ does that
// with what people use instead.

var (
	benchQuorum = waitlist.Majority(1, 2, 3)
	ignore      = func(waitlist.Outcome[uint64]) {}
	ignoreIndex = func(waitlist.Outcome[uint64]) {}
	parkedSizes = []int{0, 1000, 1_000_000}
)

// parkedList returns a list with n entries under keys that requests do not use.
func parkedList(b *testing.B, n int, opts waitlist.Options) *waitlist.WaitingList[uint64] {
	opts.Timeout = time.Hour
	l := waitlist.New[uint64](opts)
	for i := range n {
		if err := l.Add(uint64(i)|1<<63, benchQuorum, ignore); err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() { l.Close() })
	return l
}

func BenchmarkRequest(b *testing.B) {
	for _, parked := range parkedSizes {
		for _, cores := range []int{1, 2} {
			b.Run(fmt.Sprintf("parked=%d/cores=%d", parked, cores), func(b *testing.B) {
				l := parkedList(b, parked, waitlist.Options{})
				b.ReportAllocs()
				b.ResetTimer()
				var workers sync.WaitGroup
				for c := range cores {
					workers.Go(func() {
						for i := range b.N / cores {
							key := uint64(c)<<40 | uint64(i)
							_ = l.Add(key, benchQuorum, ignore)
							l.Ack(key, 1)
							l.Ack(key, 2)
							l.Ack(key, 3)
						}
					})
				}
				workers.Wait()
			})
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	l := parkedList(b, 0, waitlist.Options{})
	b.ReportAllocs()
	key := uint64(0)
	for b.Loop() {
		_ = l.Add(key, benchQuorum, ignore)
		if key++; key%1024 == 0 {
			b.StopTimer()
			l.FailAll(nil)
			b.StartTimer()
		}
	}
}

func BenchmarkAck(b *testing.B) {
	for _, result := range []struct {
		name string
		peer waitlist.PeerID
		key  uint64
	}{{"duplicate", 1, 0}, {"stranger", 9, 0}, {"late", 1, 1}} {
		b.Run("result="+result.name, func(b *testing.B) {
			l := parkedList(b, 0, waitlist.Options{})
			_ = l.Add(0, benchQuorum, ignore)
			l.Ack(0, 1)
			b.ReportAllocs()
			for b.Loop() {
				l.Ack(result.key, result.peer)
			}
		})
	}
}

// BenchmarkNack is a request that two refusals end.
func BenchmarkNack(b *testing.B) {
	l := parkedList(b, 0, waitlist.Options{})
	reason := errors.New("disk full")
	b.ReportAllocs()
	key := uint64(0)
	for b.Loop() {
		key++
		_ = l.Add(key, benchQuorum, ignore)
		l.Nack(key, 1, reason)
		l.Nack(key, 2, reason)
	}
}

// BenchmarkAckBatch is 64 requests whose acks come in three frames; the time is that
// of one request.
func BenchmarkAckBatch(b *testing.B) {
	l := parkedList(b, 0, waitlist.Options{})
	keys := make([]uint64, 64)
	next := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range keys {
			next++
			keys[i] = next
			_ = l.Add(next, benchQuorum, ignore)
		}
		for peer := range waitlist.PeerID(3) {
			l.AckBatch(keys, peer+1)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/request")
}

// BenchmarkSweepNoneDue walks the clock one millisecond a sweep and reports the worst
// sweep too.
func BenchmarkSweepNoneDue(b *testing.B) {
	for _, parked := range parkedSizes {
		b.Run(fmt.Sprintf("parked=%d", parked), func(b *testing.B) {
			clock := waitlist.NewFakeClock(time.Unix(0, 0))
			l := waitlist.New[uint64](waitlist.Options{Clock: clock, ManualSweep: true})
			for i := range parked {
				_ = l.Add(uint64(i), benchQuorum, ignore, waitlist.Timeout(1000*time.Hour+time.Duration(i*7919%1000)*time.Second))
			}
			worst := time.Duration(0)
			for b.Loop() {
				clock.Advance(time.Millisecond)
				begin := time.Now()
				if l.Sweep() != 0 {
					b.Fatal("something was due")
				}
				worst = max(worst, time.Since(begin))
			}
			b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
			l.Close()
		})
	}
}

// BenchmarkSweepAllDue expires everything in one sweep; the time is that of one entry.
func BenchmarkSweepAllDue(b *testing.B) {
	for _, parked := range parkedSizes[1:] {
		b.Run(fmt.Sprintf("parked=%d", parked), func(b *testing.B) {
			clock := waitlist.NewFakeClock(time.Unix(0, 0))
			l := waitlist.New[uint64](waitlist.Options{Clock: clock, ManualSweep: true})
			var spent time.Duration
			for b.Loop() {
				for i := range parked {
					_ = l.Add(uint64(i), benchQuorum, ignore, waitlist.Timeout(time.Second))
				}
				clock.Advance(time.Second)
				begin := time.Now()
				if l.Sweep() != parked {
					b.Fatal("not all were due")
				}
				spent += time.Since(begin)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N)/float64(parked), "ns/entry")
		})
	}
}

// BenchmarkParked reports what a parked entry takes, and how long a garbage
// collection lasts with all of them parked.
func BenchmarkParked(b *testing.B) {
	const parked = 1_000_000
	for b.Loop() {
		before := heapInUse()
		l := parkedList(b, parked, waitlist.Options{})
		b.ReportMetric(float64(heapInUse()-before)/parked, "B/entry")
		begin := time.Now()
		runtime.GC()
		b.ReportMetric(float64(time.Since(begin).Microseconds())/1000, "ms/GC")
		l.Close()
	}
	b.ReportMetric(0, "ns/op")
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkAdvance raises the mark by one and parks one more at the end.
func BenchmarkAdvance(b *testing.B) {
	for _, parked := range parkedSizes {
		b.Run(fmt.Sprintf("parked=%d", parked), func(b *testing.B) {
			w := waitlist.NewWatermarkList(uint64(0), waitlist.Options{Timeout: time.Hour})
			last, mark := uint64(0), uint64(0)
			for ; last < uint64(parked); last++ {
				_ = w.Add(last+1, ignoreIndex)
			}
			b.ReportAllocs()
			for b.Loop() {
				last++
				_ = w.Add(last, ignoreIndex)
				mark++
				w.Advance(mark)
			}
			w.Close()
		})
	}
}

// BenchmarkWatermarkRequest is an Add and three cumulative acks, of which the second
// commits.
func BenchmarkWatermarkRequest(b *testing.B) {
	for _, parked := range parkedSizes {
		b.Run(fmt.Sprintf("parked=%d", parked), func(b *testing.B) {
			w := waitlist.NewWatermarkList(uint64(0), waitlist.Options{Timeout: time.Hour})
			_, _ = w.SetQuorum(benchQuorum)
			last, mark := uint64(0), uint64(0)
			for ; last < uint64(parked); last++ {
				_ = w.Add(last+1, ignoreIndex)
			}
			b.ReportAllocs()
			for b.Loop() {
				last++
				_ = w.Add(last, ignoreIndex)
				mark++
				w.Ack(mark, 1)
				w.Ack(mark, 2)
				w.Ack(mark, 3)
			}
			w.Close()
		})
	}
}
