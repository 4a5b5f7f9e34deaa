package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
)

var testVoters = []uint64{1, 2, 3}

func hardState(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(commit)}
}

func entry(term, index uint64, data string) *raftpb.Entry {
	return &raftpb.Entry{Term: new(term), Index: new(index), Data: []byte(data)}
}

// writeLog writes three batches, of which the last replaces the end of the one before,
// and returns where each ends.
func writeLog(t *testing.T, dir string) (ends []int64) {
	t.Helper()
	w, _, _, err := loadLog(dir, testVoters)
	require.NoError(t, err)
	for _, b := range []struct {
		hard    *raftpb.HardState
		entries []*raftpb.Entry
	}{
		{hardState(2, 1, 1), []*raftpb.Entry{entry(2, 2, ""), entry(2, 3, "a")}},
		{hardState(2, 1, 3), []*raftpb.Entry{entry(2, 4, "b"), entry(2, 5, "c")}},
		{hardState(3, 2, 4), []*raftpb.Entry{entry(3, 5, "other")}},
	} {
		require.NoError(t, w.write(b.hard, b.entries))
		require.NoError(t, w.sync())
		ends = append(ends, w.written)
	}
	require.NoError(t, w.close())
	return ends
}

// contents reads a log back, as "term" and "data" of its entries from firstIndex on.
func contents(t *testing.T, dir string) (hard *raftpb.HardState, terms []uint64, data []string, err error) {
	t.Helper()
	w, storage, hard, err := loadLog(dir, testVoters)
	if err != nil {
		return nil, nil, nil, err
	}
	require.NoError(t, w.close())
	last, err := storage.LastIndex()
	require.NoError(t, err)
	if last < firstIndex {
		return hard, nil, nil, nil
	}
	entries, err := storage.Entries(firstIndex, last+1, 1<<30)
	require.NoError(t, err)
	for _, e := range entries {
		terms = append(terms, e.GetTerm())
		data = append(data, string(e.GetData()))
	}
	return hard, terms, data, nil
}

func TestLogIsReadBack(t *testing.T) {
	dir := t.TempDir()
	hard, _, data, err := contents(t, dir)
	require.NoError(t, err)
	assert.Equal(t, uint64(1), hard.GetCommit(), "an empty log begins with the voters")
	assert.Empty(t, data)

	writeLog(t, dir)
	hard, terms, data, err := contents(t, dir)
	require.NoError(t, err)
	assert.Equal(t, []uint64{2, 2, 2, 3}, terms)
	assert.Equal(t, []string{"", "a", "b", "other"}, data)
	assert.Equal(t, uint64(3), hard.GetTerm())
	assert.Equal(t, uint64(2), hard.GetVote())
	assert.Equal(t, uint64(4), hard.GetCommit())
}

// TestTornTailIsCutOff: wherever the file ends, what was whole is there, what was not is
// gone, and the log can be appended to.
func TestTornTailIsCutOff(t *testing.T) {
	dir := t.TempDir()
	ends := writeLog(t, dir)
	file := filepath.Join(dir, "raft.wal")
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	want := [][]string{nil, {"", "a"}, {"", "a", "b", "c"}, {"", "a", "b", "other"}}
	for cut := range len(whole) + 1 {
		batches := 0
		for _, end := range ends {
			if int64(cut) >= end {
				batches++
			}
		}
		for _, tail := range []string{"", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"} {
			if tail != "" && cut > 0 && cut < len(whole) && int64(cut)-append([]int64{0}, ends...)[batches] < frameHeader &&
				!slices.Contains(ends, int64(cut)) {
				continue // half a header and then zeros: the node does not start, to be on the safe side
			}
			require.NoError(t, os.WriteFile(file, append(whole[:cut:cut], tail...), 0o644))
			_, _, data, err := contents(t, dir)
			require.NoError(t, err, "cut at %d", cut)
			require.Equal(t, want[batches], data, "cut at %d", cut)
		}

		w, storage, _, err := loadLog(dir, testVoters)
		require.NoError(t, err)
		last, err := storage.LastIndex()
		require.NoError(t, err)
		require.NoError(t, w.write(hardState(9, 0, 1), []*raftpb.Entry{entry(9, last+1, "more")}))
		require.NoError(t, w.sync())
		require.NoError(t, w.close())
		_, _, data, err := contents(t, dir)
		require.NoError(t, err)
		require.Equal(t, append(want[batches][:len(want[batches]):len(want[batches])], "more"), data, "cut at %d", cut)
	}
}

// TestDamageIsNotTakenForATornTail: a bit that flips in what was synced must not make a
// node forget what it has promised. Only in the payload of the last frame the two look
// alike.
func TestDamageIsNotTakenForATornTail(t *testing.T) {
	dir := t.TempDir()
	ends := writeLog(t, dir)
	file := filepath.Join(dir, "raft.wal")
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	for at := range whole {
		for bit := range 8 {
			damaged := slices.Clone(whole)
			damaged[at] ^= 1 << bit
			require.NoError(t, os.WriteFile(file, damaged, 0o644))
			_, _, data, err := contents(t, dir)
			// The checksum of the last payload counts as payload.
			if int64(at) >= ends[1]+8 {
				require.NoError(t, err, "bit %d of byte %d", bit, at)
				require.Equal(t, []string{"", "a", "b", "c"}, data, "bit %d of byte %d", bit, at)
			} else {
				require.ErrorIs(t, err, errDamaged, "bit %d of byte %d", bit, at)
			}
		}
	}
}

// TestCrashLosesOnlyWhatWasNotSynced, and at most that.
func TestCrashLosesOnlyWhatWasNotSynced(t *testing.T) {
	seen := make(map[int]bool)
	for range 30 {
		dir := t.TempDir()
		writeLog(t, dir)
		w, _, _, err := loadLog(dir, testVoters)
		require.NoError(t, err)
		require.NoError(t, w.write(hardState(4, 4, 4), []*raftpb.Entry{entry(4, 6, "unsynced")}))
		_, err = w.crash()
		require.NoError(t, err)
		_, _, data, err := contents(t, dir)
		require.NoError(t, err)
		require.Equal(t, []string{"", "a", "b", "other"}, data[:4])
		seen[len(data)] = true
	}
	assert.True(t, seen[4], "nothing was ever lost")
}

// TestGapIsRefused: a log that skips an index was not written by this program.
func TestGapIsRefused(t *testing.T) {
	dir := t.TempDir()
	writeLog(t, dir)
	w, _, _, err := loadLog(dir, testVoters)
	require.NoError(t, err)
	require.NoError(t, w.write(hardState(4, 4, 4), []*raftpb.Entry{entry(4, 9, "")}))
	require.NoError(t, w.sync())
	require.NoError(t, w.close())
	_, _, _, err = contents(t, dir)
	assert.ErrorContains(t, err, "does not follow")
}
