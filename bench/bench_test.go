package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waitlist-go/waitlist/bench/rivals"
)

func TestRunWritesTableAndChart(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, run([]string{"-quick", "-only", "parked=0|memory/parked=1000000", "-out", dir}))
	table, err := os.ReadFile(filepath.Join(dir, "RESULTS.md"))
	require.NoError(t, err)
	for _, r := range rivals.All() {
		require.Contains(t, string(table), "\n| "+r.Name+" | ")
	}
	for _, r := range rivals.AllMarkers() {
		require.Contains(t, string(table), "\n| "+r.Name+" | ")
	}
	require.NotContains(t, string(table), "NaN")
	chart, err := os.ReadFile(filepath.Join(dir, "results.svg"))
	require.NoError(t, err)
	require.Contains(t, string(chart), "</svg>")
	require.Contains(t, string(chart), "hand-written")
}

func TestRunRefusesWhatItDoesNotUnderstand(t *testing.T) {
	require.Error(t, run([]string{"everything"}))
	require.Error(t, run([]string{"-only", "("}))
}

func TestRunMeasuresOnlyWhatIsAskedFor(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, run([]string{"-quick", "-only", "^watermark/empty$", "-rivals", "heap", "-out", dir}))
	table, err := os.ReadFile(filepath.Join(dir, "RESULTS.md"))
	require.NoError(t, err)
	require.Contains(t, string(table), "| heap | ")
	require.NotContains(t, string(table), "| btree | ")
	require.Contains(t, string(table), "an empty list")
	require.NotContains(t, string(table), "\n## Requests\n")
}

func TestRatioComparesRoundsOfTheSameNumber(t *testing.T) {
	r := newResults()
	for i, ours := range []float64{10, 20, 30} {
		r.add("c", "ours", ours)
		r.add("c", "theirs", 2*ours+float64(i-1)) // 19, 40, 61: a drift that both share
	}
	ratio := r.ratio("c", "ours", "theirs")
	require.Equal(t, 3, ratio.n)
	require.InDelta(t, 0.5, ratio.median, 1e-9)
	require.InDelta(t, 30.0/61, ratio.low, 1e-9)
	require.InDelta(t, 10.0/19, ratio.high, 1e-9)
	require.Zero(t, r.ratio("c", "ours", "nobody").n)
}

func TestSummaryHasMedianAndSpread(t *testing.T) {
	var values []float64
	for i := range 31 {
		values = append(values, float64((i*7)%31))
	}
	require.Equal(t, summary{n: 31, median: 15, low: 3, high: 27}, summarize(values))
	require.Equal(t, summary{n: 2, median: 1.5, low: 1, high: 2}, summarize([]float64{2, 1}))
	require.Zero(t, summarize(nil))
}

func TestNumbersHaveTheDigitsTheyDeserve(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.123: "0.12", 1.26: "1.3", 98.6: "99", 1234567: "1,234,567", 1000: "1,000"} {
		require.Equal(t, want, number(v))
	}
}

// The benchmarks are for a look at one rival under the usual tools. What compares is the program.

func BenchmarkRequest(b *testing.B) {
	for _, r := range rivals.All() {
		for _, parked := range []int{0, 1000} {
			b.Run(fmt.Sprintf("rival=%s/parked=%d", r.Name, parked), func(b *testing.B) {
				l := newLoad(r, rivals.Config{Timeout: held}, parked)
				defer l.w.Close()
				b.ReportAllocs()
				b.ResetTimer()
				l.callers[0].request(b.N)
			})
		}
	}
}

func BenchmarkWatermark(b *testing.B) {
	for _, r := range rivals.AllMarkers() {
		for _, parked := range []int{0, 1000} {
			b.Run(fmt.Sprintf("rival=%s/parked=%d", r.Name, parked), func(b *testing.B) {
				l := newMarkLoad(r, parked)
				defer l.m.Close()
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					l.request()
				}
			})
		}
	}
}
