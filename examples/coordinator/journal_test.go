package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func records(t *testing.T, path string) (list []string, err error) {
	j, err := openJournal(path, func(p []byte) error {
		list = append(list, string(p))
		return nil
	})
	if err == nil {
		require.NoError(t, j.close())
	}
	return list, err
}

func TestACrashCostsNoWholeRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, err := openJournal(path, nil)
	require.NoError(t, err)
	var ends []int64
	for i := range 2 {
		require.NoError(t, j.append(fmt.Appendf(nil, "record %d", i), true))
		ends = append(ends, j.size)
	}
	require.NoError(t, j.close())
	require.Error(t, j.append([]byte("x"), true))
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for size := range len(whole) + 1 {
		for name, tail := range map[string][]byte{"cut": nil, "zeros": make([]byte, 20)} {
			require.NoError(t, os.WriteFile(path, append(whole[:size:size], tail...), 0o600))
			want := 0
			for _, end := range ends {
				if end <= int64(size) {
					want++
				}
			}
			if name == "zeros" && want < 2 && int64(size) != 0 && (want == 0 || ends[want-1] != int64(size)) {
				continue // a record half zeros, with more behind it, is damage
			}
			list, err := records(t, path)
			require.NoError(t, err, "%s at %d", name, size)
			assert.Len(t, list, want, "%s at %d", name, size)
			// And the next record is found behind them.
			j, err := openJournal(path, func([]byte) error { return nil })
			require.NoError(t, err)
			require.NoError(t, j.append([]byte("next"), true))
			require.NoError(t, j.close())
			list, err = records(t, path)
			require.NoError(t, err)
			assert.Equal(t, "next", list[want])
		}
	}
}

func TestDamageIsNotTakenForACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, err := openJournal(path, nil)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, j.append([]byte("record"), true))
	}
	require.NoError(t, j.close())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[journalHeader] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
	_, err = records(t, path)
	require.ErrorContains(t, err, "damaged")
}

func TestRewritingKeepsWhatIsWanted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hints")
	h, err := openHints(path)
	require.NoError(t, err)
	for i := range 600 {
		require.NoError(t, h.add([]string{"a", "b"}, fmt.Sprint("k", i%3), Cell{Time: int64(i + 1)}))
		if i%3 == 2 {
			for _, d := range h.pending("a") {
				require.NoError(t, h.delivered("a", d))
			}
		}
	}
	require.Less(t, h.journal.records, slack+20)
	stale := hint{key: "k0", seq: 1}
	require.NoError(t, h.delivered("b", stale), "a newer hint has taken its place")
	before := h.pending("b")
	require.Len(t, before, 3)
	require.NoError(t, h.close())

	h, err = openHints(path)
	require.NoError(t, err)
	assert.Equal(t, before, h.pending("b"))
	assert.Empty(t, h.pending("a"))
	for _, d := range before {
		require.NoError(t, h.delivered("b", d))
	}
	require.NoError(t, h.close())
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Zero(t, info.Size(), "nothing is owed, nothing is kept")
}

func TestAReplicaRemembers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	r, err := openReplica("r", path)
	require.NoError(t, err)
	for i := range 2 * slack {
		newer, err := r.put("k", Cell{Time: int64(i + 1)})
		require.NoError(t, err)
		require.True(t, newer)
	}
	newer, err := r.put("k", Cell{Time: 7})
	require.NoError(t, err)
	require.False(t, newer)
	require.NoError(t, r.close())
	r, err = openReplica("r", path)
	require.NoError(t, err)
	assert.EqualValues(t, 2*slack, r.get("k").Time)
	assert.Equal(t, 1, r.journal.records)
	require.NoError(t, r.close())
}
