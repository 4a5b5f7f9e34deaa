//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// decide commits ids, each in a line of its own.
func decide(t *testing.T, l *decisionLog, ids ...string) {
	for _, id := range ids {
		result := make(chan error, 1)
		require.NoError(t, l.commit(id, func(err error) { result <- err }))
		require.NoError(t, <-result)
	}
}

func reopen(t *testing.T, folder string) *decisionLog {
	l, err := openLog(folder, nil)
	require.NoError(t, err)
	t.Cleanup(l.release)
	return l
}

// leave ends a log as a crash does: nothing more is written.
func leave(l *decisionLog) { l.release() }

func TestLogKeepsCommitsUntilTheyHaveEnded(t *testing.T) {
	folder := t.TempDir()
	l := reopen(t, folder)
	id, epoch := l.id, l.epoch
	decide(t, l, "a", "b")
	l.end("a")
	leave(l)

	l = reopen(t, folder)
	require.Equal(t, id, l.id)
	require.Greater(t, l.epoch, epoch, "ids would be used twice")
	require.ElementsMatch(t, []string{"a", "b"}, l.unsettled(), "an end is not forced to the disk, a commit is")
	l.end("a")
	decide(t, l, "c")
	leave(l)

	l = reopen(t, folder)
	require.ElementsMatch(t, []string{"b", "c"}, l.unsettled())
	l.end("c")
	require.NoError(t, l.stop())
	leave(l)
	require.Equal(t, []string{"b"}, reopen(t, folder).unsettled())
}

// Every prefix of the file is what a crash may leave, as long as no line that was
// forced to the disk is cut.
func TestTornLastLineIsNoDecision(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "decisions")
	l := reopen(t, folder)
	decide(t, l, "a")
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	decide(t, l, "b")
	leave(l)
	full, err := os.ReadFile(path)
	require.NoError(t, err)
	for n := len(whole); n < len(full); n++ {
		require.NoError(t, os.WriteFile(path, full[:n], 0o600))
		l := reopen(t, folder)
		require.Equal(t, []string{"a"}, l.unsettled(), "cut at %d of %d", n, len(full))
		leave(l)
	}
}

func TestDamagedLogIsRefused(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "decisions")
	l := reopen(t, folder)
	decide(t, l, "a", "b")
	leave(l)
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	last := slices.Index(sound[:len(sound)-1], '\n') // end of the first line
	last += 1 + slices.Index(sound[last+1:], '\n')   // end of the line of a
	for i := range last {
		damaged := slices.Clone(sound)
		damaged[i] ^= 1
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		_, err := openLog(folder, nil)
		require.ErrorContains(t, err, "cannot be trusted", "byte %d", i)
	}
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = openLog(folder, nil)
	require.ErrorContains(t, err, "cannot be trusted")
}

func TestDecisionsShareAWrite(t *testing.T) {
	folder := t.TempDir()
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	l, err := openLog(folder, func(step) {
		once.Do(func() { close(held); <-release })
	})
	require.NoError(t, err)
	defer l.release()
	var decided sync.WaitGroup
	commit := func(id string) {
		decided.Add(1)
		require.NoError(t, l.commit(id, func(err error) {
			defer decided.Done()
			if err != nil || !l.committed(id) {
				t.Errorf("%s: %v", id, err)
			}
		}))
	}
	commit("first")
	<-held
	for i := range 100 {
		commit(fmt.Sprint("later-", i))
	}
	require.False(t, l.committed("first"), "it is not on disk yet")
	close(release)
	decided.Wait()
	content, err := os.ReadFile(filepath.Join(folder, "decisions"))
	require.NoError(t, err)
	lines := slices.Collect(bytes.Lines(content))
	require.Len(t, lines, 3, "the head, the first decision, all others")
	require.NoError(t, l.stop())
	require.ErrorIs(t, l.commit("late", nil), errNotWritten)
}
