package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A process is one replica of the demonstration: this very program, run again.
type process struct {
	name string
	data string
	addr string // the same in each life
	cmd  *exec.Cmd
}

// start runs the replica, for the first time or again, and returns when it listens.
func (p *process) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	addr := p.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	p.cmd = exec.Command(self, "replica", "-child", "-name", p.name, "-data", p.data, "-listen", addr)
	p.cmd.Stderr = os.Stderr
	// The child stops when this pipe ends, as it does even if this process is killed.
	if _, err := p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return errors.Join(fmt.Errorf("replica %s did not start: %w", p.name, err), p.kill())
	}
	p.addr = strings.TrimPrefix(strings.TrimSpace(line), "listening on http://")
	return nil
}

func (p *process) running() bool { return p.cmd != nil }

// kill is kill -9: the replica has no say in it.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // says that it was killed
	p.cmd = nil
	return err
}

// loseDisk removes what the replica has stored. It must not be running.
func (p *process) loseDisk() error { return os.Remove(p.data) }

// holds asks the replica itself, behind the coordinator's back, for its version.
func (p *process) holds(ctx context.Context, client *http.Client, key string) (string, error) {
	if !p.running() {
		return "dead", nil
	}
	r := &remote{Node: Node{Name: p.name, URL: "http://" + p.addr}, client: client}
	cell, err := r.get(ctx, key)
	switch {
	case err != nil:
		return "", err
	case cell.Time == 0:
		return "-", nil
	case cell.Deleted:
		return "deleted", nil
	}
	return string(cell.Value), nil
}

// A cluster is the replicas of the demonstration and the coordinator in front.
type cluster struct {
	dir       string
	processes []*process
	cfg       Config

	url   string // of the coordinator
	c     *coordinator
	stop  context.CancelFunc
	ended chan error
}

func startCluster(dir string) (*cluster, error) {
	cl := &cluster{dir: dir}
	cl.cfg = Config{
		Local:        "east",
		HintFile:     filepath.Join(dir, "hints"),
		Timeout:      2 * time.Second,
		Settle:       3 * time.Second,
		ProbeTimeout: time.Second,
	}
	for _, name := range []string{"east-1", "east-2", "east-3", "west-1", "west-2", "west-3"} {
		p := &process{name: name, data: filepath.Join(dir, name)}
		cl.processes = append(cl.processes, p)
		if err := p.start(); err != nil {
			return nil, errors.Join(err, cl.stopAll())
		}
		cl.cfg.Nodes = append(cl.cfg.Nodes, Node{Name: name, Datacentre: name[:4], URL: "http://" + p.addr})
	}
	if err := cl.startCoordinator(); err != nil {
		return nil, errors.Join(err, cl.stopAll())
	}
	return cl, nil
}

func (cl *cluster) startCoordinator() error {
	c, err := newCoordinator(cl.cfg)
	if err != nil {
		return err
	}
	l, err := listenLoopback()
	if err != nil {
		return errors.Join(err, c.shutdown(context.Background()))
	}
	ctx, stop := context.WithCancel(context.Background())
	cl.c, cl.url, cl.stop, cl.ended = c, "http://"+l.Addr().String(), stop, make(chan error, 1)
	c.watch(50 * time.Millisecond)
	go func() { cl.ended <- serveOn(ctx, l, c.handler()) }()
	return nil
}

func (cl *cluster) stopCoordinator() error {
	if cl.c == nil {
		return nil
	}
	cl.stop()
	err := <-cl.ended
	patience, cancel := context.WithTimeout(context.Background(), cl.cfg.Settle)
	defer cancel()
	err = errors.Join(err, cl.c.shutdown(patience))
	cl.c = nil
	return err
}

func (cl *cluster) stopAll() error {
	err := cl.stopCoordinator()
	for _, p := range cl.processes {
		if p.running() {
			err = errors.Join(err, p.kill())
		}
	}
	return err
}

func (cl *cluster) process(name string) *process {
	for _, p := range cl.processes {
		if p.name == name {
			return p
		}
	}
	panic("no such replica: " + name)
}
