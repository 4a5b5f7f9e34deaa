package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProgram(t *testing.T) {
	var out, errs strings.Builder
	dir := t.TempDir()
	status := program(testContext(t), []string{"-ops", "1500", "-dir", dir}, &out, &errs)
	require.Zero(t, status, "%s%s", &out, &errs)
	assert.Empty(t, errs.String())
	for _, want := range []string{"has lost power", "is back", "cut off", "who decided", "p99", "nothing is parked"} {
		assert.Contains(t, out.String(), want)
	}

	// What was written is still there for another run.
	out.Reset()
	status = program(testContext(t), []string{"-ops", "60", "-delay", "0", "-dir", dir}, &out, &errs)
	require.Zero(t, status, "%s%s", &out, &errs)
}

func TestFlags(t *testing.T) {
	var out, errs strings.Builder
	assert.Zero(t, program(t.Context(), []string{"-h"}, &out, &errs))
	assert.Contains(t, errs.String(), "Usage: raftkv [flags]")
	for _, args := range []string{"-ops 0", "-clients 0", "-delay -1s", "-timeout 0", "-nonsense", "argument"} {
		errs.Reset()
		assert.Equal(t, 2, program(t.Context(), strings.Fields(args), &out, &errs), args)
		assert.Equal(t, 1, strings.Count(errs.String(), "\n"), "one line: %s", &errs)
	}
	assert.Empty(t, out.String())
}

func TestCommandSurvivesTheLog(t *testing.T) {
	for _, c := range []command{
		{requestID{1, 2}, "key", []byte("value")},
		{requestID{math.MaxUint64, 0}, "", []byte{}},
		{requestID{}, strings.Repeat("k", 300), []byte{0, 255}},
	} {
		b := c.encode()
		got, err := decodeCommand(b)
		require.NoError(t, err)
		assert.Equal(t, c, got)
		for cut := range b[:len(b)-len(c.value)] {
			_, err := decodeCommand(b[:cut])
			assert.ErrorIs(t, err, errBadCommand, "cut at %d", cut)
		}
	}
}

func TestQuantile(t *testing.T) {
	var h histogram
	assert.Zero(t, h.quantile(0.99))
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	for _, share := range []float64{0.01, 0.5, 0.99, 1} {
		want := time.Duration(share * float64(time.Millisecond))
		got := h.quantile(share)
		assert.GreaterOrEqual(t, got, want)
		assert.LessOrEqual(t, got, want*9/8+1)
	}
	for _, v := range []uint64{0, 1, 7, 8, 9, 255, 256, math.MaxInt64} {
		i := bucketOf(v)
		assert.GreaterOrEqual(t, bucketEnd(i), v)
		if i > 0 {
			assert.Less(t, bucketEnd(i-1), v)
		}
	}
}
