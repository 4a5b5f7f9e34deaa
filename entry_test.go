package waitlist

import (
	"go/parser"
	"go/token"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a request writes lies in two cache lines: the first of the shard and the entry's. No line holds parts
// of two shards or two entries.
func TestClaim_CacheLinesOfARequest(t *testing.T) {
	if strconv.IntSize != 64 {
		t.Skip("laid out for 64 bits")
	}
	const line = 64
	assert.EqualValues(t, line, unsafe.Sizeof(entry[uint64]{}))
	assert.EqualValues(t, line, unsafe.Sizeof([chunk]link{}))
	var s hashed[uint64]
	assert.EqualValues(t, line, unsafe.Offsetof(s.due)+unsafe.Offsetof(s.due.heap), "what is written ends here")
	assert.EqualValues(t, 3*line, unsafe.Offsetof(s.entries), "what is read begins here")
	assert.EqualValues(t, 4*line, unsafe.Sizeof(s))
	var w WatermarkList[uint64]
	assert.Zero(t, unsafe.Offsetof(w.ordered)+unsafe.Offsetof(w.ordered.shard))
	for range 10 {
		l := New[uint64](Options{})
		for key := range uint64(1000) {
			require.NoError(t, l.Add(key, ofThree, ignore))
		}
		for _, s := range l.hashed {
			require.Zero(t, uintptr(unsafe.Pointer(s))%line)
			for _, chunk := range s.entries {
				require.Zero(t, uintptr(unsafe.Pointer(chunk))%line)
			}
		}
		require.NoError(t, l.Close())
	}
}

func TestClaim_RequestAllocatesNothing(t *testing.T) {
	if underRace() {
		t.Skip("the race detector allocates")
	}
	keys := make([]uint64, 64)
	for i := range keys {
		keys[i] = uint64(i)
	}
	wide := Majority(span(1, 64)...)
	l := New[uint64](Options{Capacity: 1000})
	defer l.Close()
	require.NoError(t, l.Add(1<<40, ofThree, ignore))
	var crowd []uint64 // of one shard, so that it is indexed and not, again and again
	for key := uint64(1000); len(crowd) < chunk+4; key++ {
		if s, _ := l.locate(key); s == l.hashed[0] {
			crowd = append(crowd, key)
		}
	}
	claims := map[string]func(){
		"Add, two acks, a late third": func() {
			_ = l.Add(7, ofThree, ignore)
			l.Ack(7, 1)
			l.Ack(7, 2)
			l.Ack(7, 3)
		},
		"its own timeout": func() {
			_ = l.Add(7, ofThree, ignore, Timeout(time.Hour), InSession(nil))
			l.Ack(7, 1)
			l.Ack(7, 1)
			l.Ack(7, 9)
			l.Ack(7, 2)
		},
		"weights and parts": func() { _ = l.Add(7, jointForAllocs, ignore); l.Ack(7, 1); l.Ack(7, 2); l.Ack(7, 3) },
		"64 members":        func() { _ = l.Add(7, wide, ignore); l.Ack(7, 64); l.Ack(7, 1); l.Complete(7, nil) },
		"Fail":              func() { _ = l.Add(7, ofThree, ignore); l.Fail(7, nil) },
		"AckBatch of 64": func() {
			for _, key := range keys {
				_ = l.Add(key, ofThree, ignore)
			}
			l.AckBatch(keys, 1)
			l.AckBatch(keys, 2)
			l.AckBatch(keys, 3)
		},
		"AckBatch that ends nothing": func() { l.AckBatch(keys[:1], 1) },
		"FailAll of 64": func() {
			for _, key := range keys {
				_ = l.Add(key, ofThree, ignore)
			}
			l.FailAll(nil)
			_ = l.Add(1<<40, ofThree, ignore)
		},
		"a shard that fills and drains": func() {
			for i, key := range crowd {
				_ = l.Add(key, ofThree, ignore, Timeout(time.Hour-time.Duration(i)*time.Second))
			}
			for _, key := range crowd {
				l.Fail(key, nil)
			}
		},
		"a shard that is indexed and not": func() {
			for _, key := range crowd[:fewEntries+1] {
				_ = l.Add(key, ofThree, ignore)
			}
			for range 10 {
				for _, key := range crowd[fewEntries/2-1 : fewEntries+1] {
					l.Fail(key, nil)
				}
				for _, key := range crowd[fewEntries/2-1 : fewEntries+1] {
					_ = l.Add(key, ofThree, ignore)
				}
			}
			for _, key := range crowd[:fewEntries+1] {
				l.Fail(key, nil)
			}
		},
		"refusals": func() {
			_ = l.Add(1<<40, ofThree, ignore)
			_ = l.Add(7, ofThree, nil)
			_ = l.Add(7, ofThree, ignore, Timeout(0))
		},
		"looks": func() { l.Len(); l.Stats(); l.Get(1 << 40) },
	}
	for name, claim := range claims {
		claim() // blocks and slabs are made once
		assert.Zero(t, testing.AllocsPerRun(100, claim), name)
	}
}

var jointForAllocs = AllOf(Weighted(2, map[PeerID]uint64{1: 1, 2: 1, 3: 2}), Majority(1, 2, 3))

// All structures counted, at a size at which the tables are none too full.
func TestClaim_HeapOfAnIdleList(t *testing.T) {
	if underRace() || strconv.IntSize != 64 {
		t.Skip("said of 64 bits, without the race detector")
	}
	var lists [8]*WaitingList[uint64]
	before := heapInUse()
	for i := range lists {
		lists[i] = New[uint64](Options{})
	}
	fresh := (heapInUse() - before) / int64(len(lists))
	for _, l := range lists {
		for i := range uint64(100_000) {
			require.NoError(t, l.Add(i, ofThree, ignore, Timeout(time.Hour+time.Duration(uint32(i)*2654435761))))
		}
		for i := range uint64(100_000) {
			l.Fail(i, nil)
		}
	}
	used := (heapInUse() - before) / int64(len(lists))
	t.Logf("%d KiB when new, %d after use", fresh>>10, used>>10)
	assert.LessOrEqual(t, fresh, int64(36<<10))
	assert.LessOrEqual(t, used, int64(300<<10))
	for _, l := range lists {
		require.NoError(t, l.Close())
	}
}

func TestClaim_HeapPerParkedEntry(t *testing.T) {
	const n = 200_000
	for name, timeout := range map[string]func(i int) time.Duration{
		"equal timeouts":   func(int) time.Duration { return time.Hour },
		"falling timeouts": func(i int) time.Duration { return time.Hour - time.Duration(i) },
		"random timeouts":  func(i int) time.Duration { return time.Hour + time.Duration(uint32(i)*2654435761) },
		"a long one first": func(i int) time.Duration { return time.Hour + 24*time.Hour*time.Duration(max(1-i, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := New[uint64](Options{})
			done := Callback[uint64](ignore[uint64])
			before := heapInUse()
			for i := range n {
				if l.Add(uint64(i), ofThree, done, Timeout(timeout(i))) != nil {
					t.Fatal("refused")
				}
			}
			per := float64(heapInUse()-before) / n
			t.Logf("%.1f bytes", per)
			assert.LessOrEqual(t, per, 112.0)
			require.Equal(t, n, l.FailAll(nil))
			assert.Less(t, heapInUse()-before, int64(1<<20), "and it is given back")
			runtime.KeepAlive(l)
		})
	}
}

func TestClaim_RootImportsTheStandardLibraryOnly(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	seen := 0
	for _, file := range files {
		name := file.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		require.NoError(t, err)
		seen++
		for _, spec := range source.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			root, _, _ := strings.Cut(path, "/")
			assert.NotContains(t, root, ".", "%s imports %s", name, path)
			assert.NotEqual(t, "C", root, name)
		}
	}
	assert.Greater(t, seen, 10)
}

// Whatever an entry held is let go when it ends, not when its timeout would have
// come: a MiB of payload in callbacks, responses, reasons, sessions and keys.
func TestPayloadLeak_CollectableAtTheNextGC(t *testing.T) {
	type payload [1 << 20]byte
	type reason struct {
		error
		data *payload
	}
	for _, ending := range endings {
		t.Run(ending.name, func(t *testing.T) {
			s := newStage(Options{})
			var weaks []weak.Pointer[payload]
			watched := func() *payload {
				p := new(payload)
				weaks = append(weaks, weak.Make(p))
				return p
			}
			func() {
				// Neighbours in the shards outlive it, so that its slot is filled by another.
				for i := range 500 {
					require.NoError(t, s.Add(strconv.Itoa(i), External(), ignore))
				}
				captured := watched()
				s.park(t, "k", func(Outcome[string]) { captured[0]++ })
				s.Nack("k", 3, reason{errTest, watched()})
				s.AckWith("k", 3, watched())
				s.Nack("k", 2, reason{errTest, watched()})
				s.Ack("k", 2)
				require.Equal(t, 500, s.Len(), "ended by 2 and 3")

				captured = watched()
				s.park(t, "k", func(Outcome[string]) { captured[0]++ })
				ending.run(s, "k")

				captured = watched()
				session := new(Session)
				if s.Add("session", ofThree, func(Outcome[string]) { captured[0]++ }, InSession(session)) == nil {
					session.End(reason{errTest, watched()})
				}
				big := watched()
				_, _ = s.Wait(t.Context(), "wait", ofThree, func() error {
					big[0]++
					s.AckWith("wait", 1, big)
					s.Complete("wait", big)
					return nil
				})
				_, _ = s.Wait(t.Context(), "wait", ofThree, func() error { big[0]++; return reason{errTest, big} })
			}()
			runtime.GC()
			runtime.GC() // the first moves what a sync.Pool holds to its victims
			for i, w := range weaks {
				assert.Nil(t, w.Value(), "payload %d is still held", i)
			}
			audit(t, s.WaitingList)
			runtime.KeepAlive(s)
			require.NoError(t, s.Close())
		})
	}
}

func TestEnums_ZeroIsNoAnswerAndUnknownValuesHaveANumber(t *testing.T) {
	assert.Equal(t, "never parked", End(0).String())
	assert.Equal(t, "AckResult(0)", AckResult(0).String())
	assert.Equal(t, "End(200)", End(200).String())
	assert.Equal(t, "AckResult(77)", AckResult(77).String())
	names := map[string]bool{}
	for e := EndReached; e < numEnds; e++ {
		names[e.String()] = true
	}
	assert.Len(t, names, int(EndClosed))
	for r := AckCounted; r <= AckUnknown; r++ {
		names[r.String()] = true
	}
	assert.NotContains(t, strings.Join(slices.Collect(maps.Keys(names)), " "), "(")
}
