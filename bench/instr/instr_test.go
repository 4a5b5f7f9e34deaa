package main

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var record = flag.Bool("record", false, "write what is counted to the record instead of comparing with it")

// The record has a line for each work: Go version, architecture, work, instructions.
const (
	recordPath = "../testdata/instructions.txt"
	recordHead = "# Instructions per request, as valgrind counts them. Written by: go -C bench test ./instr -record\n"
	tolerance  = 0.10
)

// Two runs differ by this many requests, which makes the start of a process and whatever its runtime does on
// the side small beside them.
const (
	fewRequests  = 5_000
	manyRequests = 55_000
)

func TestEveryWorkCompletes(t *testing.T) {
	for _, work := range names() {
		require.Equal(t, 2345, works[work](2345), work)
	}
}

// A change that makes a request dearer or cheaper by a tenth is seen here, whatever else the machine does.
func TestInstructionsAreAsRecorded(t *testing.T) {
	valgrind, err := exec.LookPath("valgrind")
	if err != nil {
		t.Skip("valgrind is not installed: instructions are not counted")
	}
	if testing.Short() {
		t.Skip("short: instructions are not counted")
	}
	version, recorded := goVersion(), readRecord(t)
	_, known := recorded[key(version, names()[0])]
	if !known && !*record {
		t.Skipf("nothing is recorded for %s on %s: instructions are not compared", version, runtime.GOARCH)
	}

	program := filepath.Join(t.TempDir(), "instr")
	build := exec.Command("go", "build", "-trimpath", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GODEBUG=", "GOEXPERIMENT=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	for _, work := range names() {
		got := perRequest(t, valgrind, program, work)
		if *record {
			recorded[key(version, work)] = got
			t.Logf("%s: %.0f instructions per request", work, got)
			continue
		}
		want, known := recorded[key(version, work)]
		if !known {
			t.Errorf("%s is not recorded for %s", work, version)
			continue
		}
		change := got/want - 1
		t.Logf("%s: %.0f instructions per request, %.0f recorded, %+.1f %%", work, got, want, 100*change)
		if math.Abs(change) > tolerance {
			t.Errorf("%s takes %.0f instructions per request and %.0f are recorded. If that is meant, record it: "+
				"go -C bench test ./instr -record", work, got, want)
		}
	}
	if *record {
		writeRecord(t, recorded)
	}
}

func perRequest(t *testing.T, valgrind, program, work string) float64 {
	t.Helper()
	few := instructions(t, valgrind, program, work, fewRequests)
	many := instructions(t, valgrind, program, work, manyRequests)
	return float64(many-few) / (manyRequests - fewRequests)
}

var counted = regexp.MustCompile(`Collected : (\d+)`)

func instructions(t *testing.T, valgrind, program, work string, n int) int64 {
	t.Helper()
	cmd := exec.Command(valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null",
		program, "-work="+work, fmt.Sprintf("-n=%d", n))
	// Valgrind does not survive the signals by which the runtime interrupts a goroutine; here none has to be.
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOGC=", "GOMEMLIMIT=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	found := counted.FindSubmatch(out)
	require.NotNil(t, found, "no count in:\n%s", out)
	count, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(t, err)
	return count
}

// goVersion leaves out the patch level, which does not change the code that is generated.
func goVersion() string {
	parts := strings.SplitN(runtime.Version(), ".", 3)
	if len(parts) < 2 {
		return parts[0]
	}
	return parts[0] + "." + parts[1]
}

func key(version, work string) string { return version + " " + runtime.GOARCH + " " + work }

func readRecord(t *testing.T) map[string]float64 {
	t.Helper()
	recorded := make(map[string]float64)
	text, err := os.ReadFile(recordPath)
	if os.IsNotExist(err) {
		return recorded
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		require.Positive(t, at, "record: %q", line)
		value, err := strconv.ParseFloat(line[at+1:], 64)
		require.NoError(t, err, "record: %q", line)
		recorded[line[:at]] = value
	}
	return recorded
}

func writeRecord(t *testing.T, recorded map[string]float64) {
	t.Helper()
	var text bytes.Buffer
	text.WriteString(recordHead)
	keys := make([]string, 0, len(recorded))
	for k := range recorded {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(&text, "%s %.0f\n", k, recorded[k])
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(recordPath), 0o755))
	require.NoError(t, os.WriteFile(recordPath, text.Bytes(), 0o644))
}
