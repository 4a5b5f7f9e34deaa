//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// errNoRedis says that there is nothing to run.
var errNoRedis = errors.New("redis-server is not installed; " +
	"on Debian install it with: apt-get install redis-server (examples/install.sh does that)")

// server is one redis-server process.
type server struct {
	addr   string
	folder string
	admin  *redis.Client
	guard  *exec.Cmd
	leash  io.WriteCloser // its end makes the guard kill the server
}

// guardScript starts a server, and kills it and removes its folder when the pipe from
// this process ends. The kernel ends the pipe whatever this process dies of: a test's
// timeout, an interrupt, kill -9.
const guardScript = `
	trap '' INT TERM HUP
	"$1" redis.conf >redis.log 2>&1 </dev/null &
	read -r nothing
	kill -9 $!
	wait
	cd / && rm -rf "$2"`

// startServer starts a server that keeps nothing on disk. Without a password every user of
// this machine could use it, and have it write files.
func startServer(ctx context.Context, port int, password, replicaOf string) (s *server, err error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errNoRedis
	}
	if program, err = filepath.Abs(program); err != nil {
		return nil, err
	}
	s = &server{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	if s.folder, err = os.MkdirTemp("", "blockingwait-"); err != nil {
		return nil, err
	}
	// K$: publish the keys that commands on strings have written.
	config := fmt.Sprintf(`
		bind 127.0.0.1
		port %d
		requirepass %s
		masterauth %s
		save ""
		appendonly no
		notify-keyspace-events K$
		repl-diskless-sync yes
		repl-diskless-sync-delay 0
	`, port, password, password)
	if replicaOf != "" {
		host, port, _ := net.SplitHostPort(replicaOf)
		config += fmt.Sprintf("replicaof %s %s\n", host, port)
	}
	err = os.WriteFile(filepath.Join(s.folder, "redis.conf"), []byte(config), 0o600)
	if err == nil {
		s.guard = exec.Command("/bin/sh", "-c", guardScript, "guard", program, s.folder)
		s.guard.Dir = s.folder
		s.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		s.leash, err = s.guard.StdinPipe()
	}
	if err == nil {
		err = s.guard.Start()
	}
	if err != nil {
		os.RemoveAll(s.folder)
		return nil, err
	}
	g := guide{password: password}
	s.admin = redis.NewClient(g.options(s.addr))
	if err := s.ready(ctx); err != nil {
		log, _ := os.ReadFile(filepath.Join(s.folder, "redis.log"))
		s.kill()
		return nil, fmt.Errorf("redis-server did not start: %w\n%s", err, log[max(0, len(log)-1000):])
	}
	return s, nil
}

// startLimit is how long a server may take until it answers, and then until it is in sync.
const startLimit = 10 * time.Second

var errPortTaken = errors.New("another server has the port")

// ready waits until the server answers.
func (s *server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		info, err := s.admin.Info(ctx, "server").Result()
		switch {
		case err == nil && strings.Contains(info, filepath.Base(s.folder)): // it tells where its settings are
			return nil
		case err == nil, redis.IsAuthError(err):
			return errPortTaken
		}
		if !pause(ctx, retryEvery) {
			return err
		}
	}
}

// kill is kill -9. When it returns the server is gone, and so is its folder. It may be
// called twice.
func (s *server) kill() {
	s.leash.Close()
	_ = s.guard.Wait() // says how the last command of the script went
	s.admin.Close()
}

// pair is a primary and its replica.
type pair struct {
	password         string
	primary, replica *server
}

func startPair(ctx context.Context) (*pair, error) {
	p := &pair{password: rand.Text()}
	var err error
	if p.primary, err = p.start(ctx, ""); err != nil {
		return nil, err
	}
	if p.replica, err = p.start(ctx, p.primary.addr); err != nil {
		p.stop()
		return nil, err
	}
	if err := p.inSync(ctx); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// inSync waits until the replica has all that the primary has, and the primary knows. It
// asks with a write, since a primary that has written nothing takes a replica that has said
// nothing for one that has everything; and a replica is sent nothing before it has
// reported once, which may take a second. A message to nobody is a write that wakes nobody.
func (p *pair) inSync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		pipe := p.primary.admin.Pipeline()
		pipe.Publish(ctx, "blockingwait-probe", "")
		wait := pipe.Do(ctx, "WAIT", 1, (replyLimit / 4).Milliseconds())
		_, err := pipe.Exec(ctx)
		var replicas int
		if err == nil {
			replicas, err = wait.Int()
		}
		var info string
		if err == nil && replicas == 1 {
			info, err = p.replica.admin.Info(ctx, "replication").Result()
		}
		if err == nil && strings.Contains(info, "master_link_status:up") {
			return nil
		}
		if !pause(ctx, retryEvery) {
			return fmt.Errorf("the replica %s is not in sync: %w", p.replica.addr, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// start starts a server at a free port. Somebody may take the port between the look and
// the start.
func (p *pair) start(ctx context.Context, replicaOf string) (s *server, err error) {
	for range 5 {
		var port int
		if port, err = freePort(); err != nil {
			return nil, err
		}
		s, err = startServer(ctx, port, p.password, replicaOf)
		if !errors.Is(err, errPortTaken) {
			return s, err
		}
	}
	return nil, err
}

func (p *pair) stop() {
	for _, s := range []*server{p.primary, p.replica} {
		if s != nil {
			s.kill()
		}
	}
}

func (p *pair) guide() *guide {
	return &guide{addrs: []string{p.primary.addr, p.replica.addr}, password: p.password}
}

// cutReplication has the replica look for its primary where nobody is. It keeps what it
// has and hears of nothing more.
func (p *pair) cutReplication(ctx context.Context) error {
	return p.replica.admin.ReplicaOf(ctx, "127.0.0.1", "1").Err()
}

// promote makes the replica a primary, whether or not the old one is dead.
func (p *pair) promote(ctx context.Context) error {
	if err := p.replica.admin.ReplicaOf(ctx, "NO", "ONE").Err(); err != nil {
		return err
	}
	p.primary, p.replica = p.replica, p.primary
	return nil
}

// rejoin starts the killed server again where it was, as a replica of the new primary.
// Had it come back as the primary that it once was, there would be two.
func (p *pair) rejoin(ctx context.Context) error {
	_, port, _ := net.SplitHostPort(p.replica.addr)
	number, _ := strconv.Atoi(port)
	s, err := startServer(ctx, number, p.password, p.primary.addr)
	if err != nil {
		return err
	}
	p.replica = s
	return p.inSync(ctx)
}

// freePort finds a free port below those that the system gives to outgoing
// connections, so that nobody is given a dead server's port by chance.
func freePort() (int, error) {
	for range 100 {
		port := 15000 + mathrand.IntN(15000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port found")
}
