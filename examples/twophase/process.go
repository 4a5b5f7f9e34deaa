//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/waitlist-go/waitlist"
)

// The coordinator is a process of its own, so that it can be killed. It is this very
// program, started again with roleVariable set, and speaks JSON on its standard input
// and output: a job, then orders; news in return. It ends when its input does.
const roleVariable = "TWOPHASE_ROLE"

// job is what a coordinator process is to do. It goes over the pipe and not over the
// command line, where everybody could read the passwords in it.
type job struct {
	Folder string  `json:"folder"` // of the decision log
	Banks  []bank  `json:"banks"`
	Crash  crashAt `json:"crash"`
}

type order struct {
	Number   uint64   `json:"number"`
	Transfer transfer `json:"transfer"`
}

// news is one message from the process.
type news struct {
	Number uint64          `json:"number,omitempty"`
	Result *result         `json:"result,omitempty"` // of the order with that number
	Ready  *recovery       `json:"ready,omitempty"`
	Closed *waitlist.Stats `json:"closed,omitempty"`
	Failed string          `json:"failed,omitempty"` // to start, or to leave nothing behind
}

// isCoordinator tells whether this process was started as a coordinator.
func isCoordinator() bool { return os.Getenv(roleVariable) == "coordinator" }

// runCoordinator is the main function of the process.
func runCoordinator(in io.Reader, out io.Writer) {
	// An interrupt at the terminal goes to this process too. Its parent will
	// close the pipe, and then it ends in good order.
	signal.Ignore(os.Interrupt)

	// Decisions are answered from goroutines that must not block, so a slow reader
	// of the pipe may only hold up this one.
	outbox, written := newQueue[news](), make(chan struct{})
	go func() {
		defer close(written)
		encoder := json.NewEncoder(out)
		for {
			n, ok := outbox.get()
			if !ok {
				return
			}
			encoder.Encode(n) // an error: nobody listens any more
		}
	}()
	defer func() {
		outbox.close()
		<-written
	}()

	decoder := json.NewDecoder(in)
	var j job
	if err := decoder.Decode(&j); err != nil {
		outbox.put(news{Failed: err.Error()})
		return
	}
	c, found, err := open(context.Background(), j.Folder, j.Banks, j.Crash.probe(killSelf))
	if err != nil {
		outbox.put(news{Failed: err.Error()})
		return
	}
	outbox.put(news{Ready: &found})
	for {
		var o order
		if err := decoder.Decode(&o); err != nil {
			break
		}
		c.begin(o.Transfer, func(r result) { outbox.put(news{Number: o.Number, Result: &r}) })
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	stats, err := c.close(ctx)
	last := news{Closed: &stats}
	if err != nil {
		last.Failed = err.Error()
	}
	outbox.put(last)
}

// process is a coordinator process, seen by the one that started it.
type process struct {
	command *exec.Cmd
	found   recovery // what it settled before it was ready

	// Calls that wait for their answer are parked here. No quorum decides: the
	// answer completes them, or the end of the process fails them.
	calls *waitlist.WaitingList[uint64]
	last  atomic.Uint64

	sending sync.Mutex
	pipe    io.WriteCloser // guarded by sending
	orders  *json.Encoder  // guarded by sending

	gone  chan struct{} // closed when the process has ended and has been waited for
	final *news         // written before gone is closed; nil: it did not end by itself
}

// callLimit is far above what any answer takes: a coordinator decides, one way or the
// other, before its voteTimeout.
const callLimit = 15 * time.Second

var errCoordinatorGone = errors.New("the coordinator has ended")

// startCoordinator starts a process and waits until it has recovered.
func startCoordinator(ctx context.Context, j job) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{
		command: exec.Command(self),
		calls:   waitlist.New[uint64](waitlist.Options{Timeout: callLimit}),
		gone:    make(chan struct{}),
	}
	p.command.Env = append(os.Environ(), roleVariable+"=coordinator")
	p.command.Stderr = os.Stderr
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.pipe, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	p.orders = json.NewEncoder(p.pipe)
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	ready := make(chan error, 1) // has room for the only answer
	go p.listen(out, ready)
	if err := p.send(j); err != nil {
		p.kill()
		return nil, fmt.Errorf("%w: %w", errCoordinatorGone, err)
	}
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// listen reads the news until the process has ended.
func (p *process) listen(out io.Reader, ready chan<- error) {
	defer close(p.gone)
	decoder := json.NewDecoder(out)
	for {
		var n news
		if decoder.Decode(&n) != nil {
			break
		}
		switch {
		case n.Result != nil:
			p.calls.Complete(n.Number, *n.Result)
		case n.Ready != nil:
			p.found = *n.Ready
			ready <- nil
		case n.Closed != nil:
			p.final = &n
		case n.Failed != "":
			ready <- errors.New(n.Failed)
		}
	}
	p.command.Wait()
	select {
	case ready <- errCoordinatorGone:
	default: // it has been ready, or has said why not
	}
	// Whoever waits for an answer learns now that none will come. Who calls
	// after Close is refused, and knows that nothing was sent.
	p.calls.FailAll(errCoordinatorGone)
	p.calls.Close()
}

func (p *process) send(message any) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	return p.orders.Encode(message)
}

// transfer asks for one transfer and waits for its end.
func (p *process) transfer(ctx context.Context, t transfer) result {
	number := p.last.Add(1)
	out, err := p.calls.Wait(ctx, number, waitlist.External(), func() error {
		return p.send(order{number, t})
	})
	switch {
	case out.End == 0: // never parked, so never sent
		return result{aborted, reasonStopping, err.Error()}
	case err != nil:
		return result{unknown, reasonOther, err.Error()}
	}
	return out.Value.(result)
}

// stop lets the process end in good order and returns its last statistics.
func (p *process) stop() (waitlist.Stats, error) {
	p.sending.Lock()
	p.pipe.Close()
	p.sending.Unlock()
	select {
	case <-p.gone:
	case <-time.After(3 * callTimeout):
		p.kill()
	}
	if p.final == nil {
		return waitlist.Stats{}, fmt.Errorf("%w, and not in good order: %v", errCoordinatorGone, p.command.ProcessState)
	}
	if p.final.Failed != "" {
		return *p.final.Closed, errors.New(p.final.Failed)
	}
	return *p.final.Closed, nil
}

// kill is kill -9.
func (p *process) kill() {
	p.command.Process.Signal(syscall.SIGKILL)
	<-p.gone
}
