package main

import (
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
)

func checksum(b []byte) uint32 { return crc32.Checksum(b[21:], castagnoli) }

func appendTo(t *testing.T, l *recordLog, values ...string) batchInfo {
	t.Helper()
	b := newBatch(values...)
	i, err := parseProduced(b)
	require.NoError(t, err)
	i, err = l.append(b, i)
	require.NoError(t, err)
	again, err := parseBatch(b)
	require.NoError(t, err, "the checksum is not valid once the batch has its place")
	require.Equal(t, i, again)
	return i
}

func TestLogReadsWholeBatchesWithinLimits(t *testing.T) {
	l, err := openLog(filepath.Join(t.TempDir(), "log"), func(batchInfo) {})
	require.NoError(t, err)
	defer l.close()
	none, err := l.read(0, 0, 1000, true)
	require.NoError(t, err)
	require.Empty(t, none)
	a := appendTo(t, l, "a")                // offset 0
	b := appendTo(t, l, "b", "b")           // 1, 2
	c := appendTo(t, l, "c", "c", "c", "c") // 3 to 6
	require.EqualValues(t, 7, l.end())
	for _, r := range []struct {
		from, to   int64
		limit      int
		atLeastOne bool
		want       int
	}{
		{0, 7, 1 << 20, false, a.size + b.size + c.size},
		{0, 3, 1 << 20, false, a.size + b.size},
		{2, 7, 1 << 20, false, b.size + c.size}, // from the middle of a batch
		{3, 3, 1 << 20, false, 0},
		{7, 7, 1 << 20, true, 0},
		{5, 3, 1 << 20, true, 0}, // above the high watermark
		{0, 7, a.size + b.size, false, a.size + b.size},
		{0, 7, a.size + b.size - 1, false, a.size},
		{0, 7, 1, false, 0},
		{0, 7, 1, true, a.size},
	} {
		got, err := l.read(r.from, r.to, r.limit, r.atLeastOne)
		require.NoError(t, err)
		require.Len(t, got, r.want, "%+v", r)
	}
	require.EqualValues(t, b.size+c.size, l.bytes(1, 7))
	require.Zero(t, l.bytes(5, 3))
}

func TestLogCutsOffWhatACrashLeftHalfWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := openLog(path, func(batchInfo) {})
	require.NoError(t, err)
	first := appendTo(t, l, "a", "b")
	second := appendTo(t, l, "c")
	require.NoError(t, l.close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	for cut := range whole {
		require.NoError(t, os.WriteFile(path, whole[:cut], 0o644))
		var seen []batchInfo
		l, err := openLog(path, func(i batchInfo) { seen = append(seen, i) })
		require.NoError(t, err)
		if cut < first.size {
			require.Empty(t, seen)
			require.Zero(t, l.end())
		} else {
			require.Equal(t, []batchInfo{first}, seen)
			require.EqualValues(t, 2, l.end())
			require.Equal(t, second.base, appendTo(t, l, "d").base)
		}
		require.NoError(t, l.close())
	}
}

func TestLogTakesFromALeaderOnlyWhatComesNext(t *testing.T) {
	folder := t.TempDir()
	leading, err := openLog(filepath.Join(folder, "leader"), func(batchInfo) {})
	require.NoError(t, err)
	defer leading.close()
	following, err := openLog(filepath.Join(folder, "follower"), func(batchInfo) {})
	require.NoError(t, err)
	defer following.close()
	appendTo(t, leading, "a")
	appendTo(t, leading, "b", "c")
	all, err := leading.read(0, 3, 1<<20, true)
	require.NoError(t, err)
	rest, err := leading.read(1, 3, 1<<20, true)
	require.NoError(t, err)

	require.Error(t, following.appendCopy(rest), "a gap")
	require.Zero(t, following.end())
	require.NoError(t, following.appendCopy(all))
	require.Error(t, following.appendCopy(rest), "a repetition")
	require.ErrorIs(t, following.appendCopy(rest[:len(rest)-1]), errCorrupt)
	copied, err := following.read(0, 3, 1<<20, true)
	require.NoError(t, err)
	require.Equal(t, all, copied)
}

func TestProducersKnowWhatIsRepeatedAndWhatIsMissing(t *testing.T) {
	p := make(producers)
	const most = 1<<31 - 1
	batch := func(id int64, epoch int16, sequence, count int32) batchInfo {
		return batchInfo{base: 1000 + int64(sequence), producer: id, epoch: epoch, sequence: sequence, count: count}
	}
	check := func(i batchInfo, repeats bool, want error) {
		t.Helper()
		got, err := p.check(i)
		require.Equal(t, want, err)
		require.Equal(t, repeats, got != nil)
		if repeats {
			require.Equal(t, i.base, got.base)
		}
	}
	check(batch(-1, -1, -1, 9), false, nil)
	check(batch(1, 0, 3, 1), false, kerr.OutOfOrderSequenceNumber)
	for s := int32(0); s < 70; s += 10 {
		check(batch(1, 0, s, 10), false, nil)
		p.note(batch(1, 0, s, 10))
		check(batch(1, 0, s, 10), true, nil)
	}
	check(batch(1, 0, 20, 10), true, nil)
	check(batch(1, 0, 10, 10), false, kerr.OutOfOrderSequenceNumber) // too long ago
	check(batch(1, 0, 60, 9), false, kerr.OutOfOrderSequenceNumber)
	check(batch(1, 0, 80, 10), false, kerr.OutOfOrderSequenceNumber)
	check(batch(2, 0, 70, 10), false, kerr.OutOfOrderSequenceNumber)
	check(batch(1, 1, 70, 10), false, kerr.OutOfOrderSequenceNumber)
	check(batch(1, 1, 0, 10), false, nil)
	p.note(batch(1, 1, 0, 10))
	check(batch(1, 0, 70, 10), false, kerr.InvalidProducerEpoch)

	p.note(batch(3, 0, most-4, 10)) // sequences go on with 0 after the largest
	check(batch(3, 0, 5, 1), false, nil)
	check(batch(3, 0, 6, 1), false, kerr.OutOfOrderSequenceNumber)
}

func TestHistogramQuantilesAreNotFarOff(t *testing.T) {
	var h histogram
	require.Zero(t, h.quantile(0.5))
	for i := range 100_000 {
		h.add(time.Duration(1000*i + 1))
	}
	for _, share := range []float64{0.001, 0.5, 0.99, 1} {
		exact := share * 100_000 * 1000
		require.InEpsilon(t, exact, float64(h.quantile(share)), 1.0/16, "%v", share)
	}
	require.Equal(t, h.largest, h.quantile(1))
}
