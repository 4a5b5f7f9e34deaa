package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// about is what a reader has to know about a run.
type about struct {
	machine string
	system  string
	gover   string
	commit  string
	command string
	load    string // of the machine when the run began
	loop    float64
	day     time.Time
	took    time.Duration
}

func describe(args []string) about {
	return about{
		machine: machine(),
		system:  strings.TrimSpace(runtime.GOOS + "/" + runtime.GOARCH + " " + firstLine("/proc/sys/kernel/osrelease")),
		gover:   runtime.Version(),
		commit:  commit(),
		command: strings.Join(append([]string{"go -C bench run ."}, args...), " "),
		load:    machineLoad(),
		loop:    loopCost(),
		day:     time.Now().UTC(),
	}
}

func machine() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	fields := make(map[string]string)
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	name := fields["model name"]
	if name == "" {
		name = "unknown processor"
	}
	name += fmt.Sprintf(", %d cores", runtime.NumCPU())
	if family := fields["cpu family"]; family != "" {
		name += fmt.Sprintf(", family %s model %s", family, fields["model"])
	}
	if slices.Contains(strings.Fields(fields["flags"]), "hypervisor") {
		name += ", a virtual machine"
	}
	return name
}

// machineLoad is the machine's average load of the last one, five and fifteen minutes.
func machineLoad() string {
	fields := strings.Fields(firstLine("/proc/loadavg"))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

func firstLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// caption is what of it stands under the chart.
func (a about) caption() string {
	name, _, _ := strings.Cut(a.machine, ", family")
	return fmt.Sprintf("Medians, the shorter the better. %s, %s, commit %s, %s.", name, a.gover, a.commit, a.day.Format(time.DateOnly))
}

// commit names the state of the library: whether anything but the results differs from a commit.
func commit() string {
	hash, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "none"
	}
	name := strings.TrimSpace(string(hash))
	changed, err := exec.Command("git", "status", "--porcelain", "--", ":/*.go", ":/go.mod").Output()
	if err != nil || len(changed) > 0 {
		name += " with changes"
	}
	return name
}
