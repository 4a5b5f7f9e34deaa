package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A record is an event of a worker, as its parent sees it.
type record struct {
	event
	who string
	at  time.Time
}

// A journal is what all workers have said, in order of arrival.
type journal struct {
	mu      sync.Mutex
	records []record      // guarded by mu
	more    chan struct{} // guarded by mu; closed and replaced when something is added
	hear    func(record)  // called for each, one at a time; nil: nobody listens
}

func newJournal(hear func(record)) *journal { return &journal{more: make(chan struct{}), hear: hear} }

func (j *journal) add(r record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = append(j.records, r)
	close(j.more)
	j.more = make(chan struct{})
	if j.hear != nil {
		j.hear(r)
	}
}

// all returns what who has said, of the kind what. Empty: anybody, anything.
func (j *journal) all(who, what string) (found []record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.records {
		if (who == "" || r.who == who) && (what == "" || r.What == what) {
			found = append(found, r)
		}
	}
	return found
}

// await returns when who has said what n times.
func (j *journal) await(ctx context.Context, who, what string, n int) error {
	for {
		j.mu.Lock()
		more := j.more
		j.mu.Unlock()
		if len(j.all(who, what)) >= n {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A process is one worker of the show: this very program, run again.
type process struct {
	name  string
	cmd   *exec.Cmd
	heard chan struct{} // closed when its output has ended
	wait  func() error  // for its end; may be called again
}

// startProcess starts a worker that tells its events to the journal.
func startProcess(j *journal, name, url, queue string, budget time.Duration) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, heard: make(chan struct{})}
	p.cmd = exec.Command(self, "work", "-child", "-url", url, "-queue", queue, "-name", name, "-budget", budget.String())
	p.cmd.Stderr = os.Stderr
	// The child stops when this pipe ends, as it does even if this process is killed.
	if _, err := p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.wait = sync.OnceValue(func() error {
		<-p.heard // Wait closes the pipe, so first comes all that is in it
		return p.cmd.Wait()
	})
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.heard)
		lines := json.NewDecoder(out)
		for {
			var e event
			if lines.Decode(&e) != nil {
				// Its end, or half a line of one that was killed.
				_, _ = io.Copy(io.Discard, out)
				return
			}
			j.add(record{e, name, time.Now()})
		}
	}()
	return p, nil
}

// stop asks the worker to stop, and waits until it has.
func (p *process) stop() error {
	return errors.Join(p.signal(syscall.SIGTERM), p.wait())
}

// kill is kill -9: the worker has no say in it.
func (p *process) kill() error {
	err := p.signal(syscall.SIGKILL)
	_ = p.wait() // says that it was killed
	return err
}

func (p *process) signal(s os.Signal) error {
	err := p.cmd.Process.Signal(s)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// A handover is what became of the messages that one worker held when its end came,
// and how long another waited for them.
type handover struct {
	held, finished, returned int
	stopped                  time.Duration // from the signal until the end of the process
	lease                    time.Duration // from the signal until another has it
	all                      time.Duration // from the signal until another has all that was not finished
	waited                   time.Duration // the longest that a message waited, from when it was let go
}

// handoverOf reads it off the journal. The process got its signal at signalled, and was
// gone at gone.
func handoverOf(j *journal, from, to string, signalled, gone time.Time) (h handover) {
	h.stopped = gone.Sub(signalled)
	for _, r := range j.all(to, "lease") {
		if r.at.After(signalled) {
			h.lease = r.at.Sub(signalled)
			break
		}
	}
	ends := slices.Concat(j.all(from, "done"), j.all(from, "returned"))
	for _, c := range j.all(from, "claimed") {
		letGo := signalled // by a worker that was killed
		i := slices.IndexFunc(ends, func(r record) bool { return r.Seq == c.Seq && r.Delivery == c.Delivery })
		if i >= 0 {
			letGo = ends[i].at
			if letGo.Before(signalled) {
				continue
			}
		}
		h.held++
		if i >= 0 && ends[i].What == "done" {
			h.finished++
			continue
		}
		if i >= 0 {
			h.returned++
		}
		for _, r := range j.all(to, "claimed") {
			if r.Seq == c.Seq && r.Delivery > c.Delivery {
				h.waited = max(h.waited, r.at.Sub(letGo))
				h.all = max(h.all, r.at.Sub(signalled))
				break
			}
		}
	}
	return h
}
