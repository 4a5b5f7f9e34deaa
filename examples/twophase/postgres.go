//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// errNoPostgres says that there is nothing to run.
var errNoPostgres = errors.New("no PostgreSQL server programs found; " +
	"on Debian install them with: apt-get install postgresql (examples/install.sh does that)")

// findPostgres returns the folder of initdb, pg_ctl and postgres. Debian keeps them out
// of PATH, one folder per version.
func findPostgres() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil && hasServer(filepath.Dir(path)) {
			return filepath.Dir(path), nil
		}
	}
	folders, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	version := func(folder string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(folder)))
		return n
	}
	slices.SortFunc(folders, func(a, b string) int { return version(b) - version(a) })
	for _, folder := range folders {
		if hasServer(folder) {
			return folder, nil
		}
	}
	return "", errNoPostgres
}

func hasServer(folder string) bool {
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(folder, program)); err != nil {
			return false
		}
	}
	return true
}

// cluster is some PostgreSQL servers in one temporary folder.
type cluster struct {
	servers []*server
	folder  string
	bin     string
	owner   *syscall.Credential // whom the servers run as; nil: as this process
	janitor *exec.Cmd
	alive   io.WriteCloser // its end tells the janitor to clean up
}

// server is one PostgreSQL server.
type server struct {
	*cluster
	name     string
	data     string
	port     int
	password string
}

// startCluster makes and starts a server for each name. With fsync off they live
// through the death of their processes all the same, since what they have written is
// in the operating system's cache. Only the machine must not lose its power.
func startCluster(ctx context.Context, fsync bool, names ...string) (c *cluster, err error) {
	c = &cluster{}
	if c.bin, err = findPostgres(); err != nil {
		return nil, err
	}
	if c.owner, err = serverOwner(); err != nil {
		return nil, err
	}
	if c.folder, err = os.MkdirTemp("", "twophase-"); err != nil {
		return nil, err
	}
	if err := c.startJanitor(); err != nil {
		os.RemoveAll(c.folder)
		return nil, err
	}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	if err := c.giveToOwner(c.folder); err != nil {
		return nil, err
	}
	var started sync.WaitGroup
	errs := make([]error, len(names))
	for i, name := range names {
		s := &server{cluster: c, name: name, data: filepath.Join(c.folder, name), password: rand.Text()}
		c.servers = append(c.servers, s)
		started.Go(func() { errs[i] = s.create(ctx, fsync) })
	}
	started.Wait()
	return c, errors.Join(errs...)
}

// serverOwner is whom to run servers as: PostgreSQL refuses to run as root.
func serverOwner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(found.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(found.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}

// makeFolder makes a folder that goes when the servers go.
func (c *cluster) makeFolder(name string) (string, error) {
	folder := filepath.Join(c.folder, name)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", err
	}
	return folder, c.giveToOwner(folder) // who will have to remove what is in it
}

func (c *cluster) giveToOwner(path string) error {
	if c.owner == nil {
		return nil
	}
	return os.Chown(path, int(c.owner.Uid), int(c.owner.Gid))
}

// command is one of PostgreSQL's programs, or the shell, as the servers' owner.
func (c *cluster) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = c.folder // the owner may not be able to enter ours
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner}
	return cmd
}

// startJanitor starts the process that will stop the servers and remove the folder. It
// does so when the pipe from this process closes, and the kernel closes it whatever
// this process dies of: a test's timeout, an interrupt, kill -9.
func (c *cluster) startJanitor() error {
	// An initdb or a start that was under way goes on after this process's death, so
	// then it looks more than once.
	const script = `
		trap '' INT TERM HUP
		rounds=5
		read -r word && rounds=1
		while [ "$rounds" -gt 0 ]; do
			for data in "$1"/*/; do
				[ -f "$data/postmaster.pid" ] && "$2" -D "$data" -m immediate -w -t 20 stop
			done
			rm -rf "$1"
			rounds=$((rounds - 1))
			[ "$rounds" = 0 ] || sleep 1
		done >/dev/null 2>&1`
	// As the servers' owner, since pg_ctl does not run as root either.
	c.janitor = exec.Command("/bin/sh", "-c", script, "janitor", c.folder, filepath.Join(c.bin, "pg_ctl"))
	c.janitor.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: c.owner}
	c.janitor.Dir = "/"
	pipe, err := c.janitor.StdinPipe()
	if err != nil {
		return err
	}
	c.alive = pipe
	return c.janitor.Start()
}

// stop stops the servers and removes all that they have left. It may be called twice.
func (c *cluster) stop() {
	io.WriteString(c.alive, "done\n") // nothing is under way
	c.alive.Close()
	c.janitor.Wait()
	os.RemoveAll(c.folder)
}

func (s *server) create(ctx context.Context, fsync bool) error {
	secret := s.data + ".password"
	if err := os.WriteFile(secret, []byte(s.password), 0o644); err != nil {
		return err
	}
	defer os.Remove(secret)
	// Without a password every user of this machine could be the servers' superuser.
	out, err := s.command(ctx, filepath.Join(s.bin, "initdb"), "-D", s.data, "-U", "twophase",
		"-A", "scram-sha-256", "--pwfile", secret, "-E", "UTF8", "--locale=C", "--no-sync").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb of %s: %w\n%s", s.name, err, ending(out))
	}
	settings, err := os.OpenFile(filepath.Join(s.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer settings.Close()
	onOff := map[bool]string{true: "on", false: "off"}
	// Prepared transactions are off by default. There can be one for each
	// transaction in flight, and some that a dead coordinator has left. The shared
	// memory is in files, since a server that is killed could not remove it
	// elsewhere.
	if _, err := fmt.Fprintf(settings, `
		listen_addresses = '127.0.0.1'
		unix_socket_directories = ''
		max_prepared_transactions = %d
		max_connections = 100
		shared_buffers = 16MB
		dynamic_shared_memory_type = mmap
		max_wal_size = 256MB
		jit = off
		fsync = %s
	`, 3*maxInFlight, onOff[fsync]); err != nil {
		return err
	}
	// Somebody may take the port between the look and the start.
	for range 5 {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.start(ctx); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// freePort finds a free port below those that the system gives to outgoing
// connections: while a server is dead, nobody should be given its port by chance.
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

func (s *server) logFile() string { return s.data + ".log" }

// start starts the server and returns when it takes connections.
func (s *server) start(ctx context.Context) error {
	out, err := s.command(ctx, filepath.Join(s.bin, "pg_ctl"), "-D", s.data, "-l", s.logFile(),
		"-o", "-p "+strconv.Itoa(s.port), "-w", "-t", "30", "start").CombinedOutput()
	if err == nil {
		return nil
	}
	log, _ := os.ReadFile(s.logFile())
	return fmt.Errorf("start of %s: %w\n%s%s", s.name, err, ending(out), ending(log))
}

// ending is what of a program's output is worth showing.
func ending(output []byte) []byte { return output[max(0, len(output)-1000):] }

// kill is kill -9 of the postmaster and all its children, and returns how many they
// were. They are dead when it returns.
func (s *server) kill() (int, error) {
	lockFile := filepath.Join(s.data, "postmaster.pid")
	content, err := os.ReadFile(lockFile)
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(content, []byte("\n"))
	postmaster, err := strconv.Atoi(string(first))
	if err != nil || postmaster <= 1 {
		return 0, fmt.Errorf("%s does not begin with a process id", lockFile)
	}
	// A postmaster that is stopped makes no more children.
	if err := syscall.Kill(postmaster, syscall.SIGSTOP); err != nil {
		return 0, err
	}
	victims := []int{postmaster}
	children, err := processes(func(pid, parent int) bool { return parent == postmaster })
	victims = append(victims, children...)
	for _, pid := range victims {
		syscall.Kill(pid, syscall.SIGKILL) // one that has ended meanwhile is as good as killed
	}
	if err != nil {
		return 0, err
	}
	for {
		left, err := processes(func(pid, _ int) bool { return slices.Contains(victims, pid) })
		if err != nil {
			return 0, err
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	// The next start would look into the lock file whether its process lives. In a
	// container whose first process does not collect the dead it seems to.
	return len(victims), os.Remove(lockFile)
}

// processes lists the processes that match, zombies left out.
func processes(match func(pid, parent int) bool) (found []int, err error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil, fmt.Errorf("ps: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		var pid, parent int
		var state string
		if _, err := fmt.Sscan(line, &pid, &parent, &state); err != nil {
			return nil, fmt.Errorf("ps: %q: %w", line, err)
		}
		if match(pid, parent) && !strings.HasPrefix(state, "Z") {
			found = append(found, pid)
		}
	}
	return found, nil
}

// dsn is where a schema of the server is found.
func (s *server) dsn(schema string) string {
	return (&url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("twophase", s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "postgres",
		RawQuery: url.Values{"sslmode": {"disable"}, "search_path": {schema}}.Encode(),
	}).String()
}

// createBanks makes a new schema of the given name at every server and opens as many
// accounts in each.
func (c *cluster) createBanks(ctx context.Context, schema string, accounts int, balance int64) ([]bank, error) {
	var banks []bank
	for _, s := range c.servers {
		b := bank{Name: s.name, DSN: s.dsn(schema)}
		err := visit(ctx, b, func(conn *pgx.Conn) error {
			if _, err := run(ctx, conn, "create schema "+pgx.Identifier{schema}.Sanitize()); err != nil {
				return err
			}
			return createTables(ctx, conn, accounts, balance)
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		banks = append(banks, b)
	}
	return banks, nil
}

// visit connects to a bank for one piece of work.
func visit(ctx context.Context, b bank, work func(*pgx.Conn) error) error {
	conn, err := dial(ctx, b, "twophase")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return work(conn)
}
