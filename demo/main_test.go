package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// asCommand makes the test binary behave as the command itself.
const asCommand = "DEMO_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

func TestWrongFlagsEndWithStatusTwo(t *testing.T) {
	for args, complaint := range map[string]string{
		"-drop 1.5":              "-drop is a share",
		"-drop NaN":              "-drop is a share",
		"-duplicate -0.1":        "-duplicate is a share",
		"-delay -1s":             "-delay must not be negative",
		"-timeout 0":             "-timeout must be positive",
		"-timeout soon":          "-timeout",
		"-writes 0":              "-writes must be at least 1",
		"-writes 5 -in -":        "exclude each other",
		"-in=":                   "-in needs the name",
		"-in /no/such/file":      "-in: open",
		"-kill 2":                "PEER@WRITES",
		"-kill 1@5":              "peer 1 leads",
		"-kill 4@5":              "no peer",
		"-kill x@5":              "no peer",
		"-kill 2@-1":             "not a number of writes",
		"-kill 2@x":              "not a number of writes",
		"-kill 2@5 -kill 2@6":    "only once",
		"-unheard-of":            "not defined",
		"words that nobody asks": "unexpected argument",
	} {
		t.Run(args, func(t *testing.T) {
			var out, errs strings.Builder
			status := command(t.Context(), strings.Fields(args), strings.NewReader(""), &out, &errs)
			assert.Equal(t, 2, status)
			assert.Contains(t, errs.String(), complaint)
			assert.Empty(t, out.String(), "nothing has begun")
		})
	}
}

func TestHelpNamesEveryFlag(t *testing.T) {
	var out, errs strings.Builder
	assert.Equal(t, 0, command(t.Context(), []string{"-h"}, strings.NewReader(""), &out, &errs))
	for _, name := range []string{"delay", "drop", "duplicate", "in", "kill", "log", "timeout", "writes"} {
		assert.Contains(t, errs.String(), "\n  -"+name)
	}
}

func TestInputIsReadFromAFileAndFromStandardInput(t *testing.T) {
	const pairs = "a=1\r\n\nb=2=3\nc="
	file := filepath.Join(t.TempDir(), "pairs")
	require.NoError(t, os.WriteFile(file, []byte(pairs), 0o600))
	for _, in := range []string{file, "-"} {
		var out, errs strings.Builder
		status := command(t.Context(), []string{"-in", in, "-timeout", "1m"}, strings.NewReader(pairs), &out, &errs)
		assert.Equal(t, 0, status, "%s%s", &out, &errs)
		assert.Regexp(t, `committed +3\n`, out.String())
		assert.Contains(t, out.String(), "every write was answered exactly once")
	}
}

func TestABadLineEndsTheInputButNotTheWritesBeforeIt(t *testing.T) {
	for pairs, complaint := range map[string]string{
		"a=1\n\nnonsense\nb=2\n": `standard input, line 3: no "=" in "nonsense"`,
		"a=1\n=2\n":              "standard input, line 2: no key",
		"a=1\nb=" + strings.Repeat("x", maxOp+1) + "\nc=3\n": "standard input, line 2: longer than",
	} {
		var out, errs strings.Builder
		status := command(t.Context(), []string{"-in", "-", "-timeout", "1m"}, strings.NewReader(pairs), &out, &errs)
		assert.Equal(t, 1, status)
		assert.Contains(t, errs.String(), complaint)
		assert.Regexp(t, `committed +1\n`, out.String())
	}
}

func TestAPeerThatDidNotDieIsNamed(t *testing.T) {
	var out strings.Builder
	status := command(t.Context(), strings.Fields("-writes 10 -kill 3@5000 -timeout 1m"), strings.NewReader(""), &out, io.Discard)
	assert.Equal(t, 0, status)
	assert.Contains(t, out.String(), "peer 3 did not die: there were no 5,000 answers")
}

func TestInterruptDrains(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no way to send an interrupt")
	}
	// The peers are dead and the timeout is far: only the interrupt ends this.
	cmd := exec.CommandContext(t.Context(), os.Args[0], strings.Fields("-kill 2@100 -kill 3@200 -timeout 1h")...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var seen strings.Builder
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		seen.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "peer 3 died") {
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	assert.NoError(t, cmd.Wait(), "%s", &seen)
	assert.Regexp(t, `drained: [0-9,]+ writes? given back`, seen.String())
	assert.Contains(t, seen.String(), "every write was answered exactly once")
}

func TestConsoleWritesLinesWhereThereIsNoTerminal(t *testing.T) {
	var out strings.Builder
	con := newConsole(&out, 1000)
	for n := range 1001 {
		con.show(progress{sent: 1000, answered: n})
	}
	con.say("peer %d died", 3)
	con.done()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	assert.GreaterOrEqual(t, len(lines), 11, "one for every tenth, and what was said")
	assert.Less(t, len(lines), 100)
	assert.NotContains(t, out.String(), "\r")
	assert.Equal(t, "peer 3 died", lines[len(lines)-1])
}

func TestConsoleRewritesItsLineOnATerminal(t *testing.T) {
	var out strings.Builder
	con := newConsole(&out, 0)
	con.live = true
	con.show(progress{sent: 5, answered: 5})
	con.say("peer 3 died")
	con.show(progress{sent: 6, answered: 6})
	con.show(progress{sent: 7, answered: 7})
	con.done()
	parts := strings.Split(out.String(), "\r\x1b[K")
	require.Len(t, parts, 3)
	assert.Contains(t, parts[0], "5 answered")
	assert.Contains(t, parts[1], "peer 3 died\n")
	assert.Contains(t, parts[1], "6 answered")
	assert.Contains(t, parts[2], "7 answered")
	assert.True(t, strings.HasSuffix(out.String(), "\n"))
}

func TestNumbersAreGroupedByThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		assert.Equal(t, want, thousands(n))
	}
}

// An interrupted run asks the reader of its input to end, and does not wait for
// it: it may be blocked for as long as nobody types.
func TestInterruptDoesNotWaitForTheInput(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := make(chan struct{})
	go func() {
		defer close(cancelled)
		_, _ = io.WriteString(w, "a=1\n")
		cancel() // "a=1" was read, and nothing else will come
	}()
	var out, errs strings.Builder
	assert.Equal(t, 0, command(ctx, []string{"-in", "-", "-timeout", "1m"}, r, &out, &errs), "%s", &errs)
	assert.Contains(t, out.String(), "interrupted")
	<-cancelled
}
