//go:build unix

package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// errNotWritten says that a decision has not reached the file, not even in part, so
// that the transaction may still be aborted.
var errNotWritten = errors.New("the log takes no more decisions")

// decisionLog remembers which transactions were decided to commit, until every
// server has done so. Under presumed abort that is all there is to remember: what
// the log does not know is rolled back, so no abort is ever written, and a
// transaction that dies before its decision costs no disk access here.
//
// The file has one line per write: a checksum and a body. The first line names the
// log and the epoch; "+ID" in a later one says that ID commits, "-ID" that all
// servers have committed it. Every line is forced to the disk before the next is
// written. So only the last can be torn, and a torn one was never acted upon.
type decisionLog struct {
	id    string // random; in every transaction's id, so that no log decides what another began
	epoch uint64 // grows with each opening, so that no transaction's id is used twice
	probe probe

	folder string
	lock   *os.File
	file   *os.File // written by the writer goroutine alone
	wrote  chan struct{}

	mu      sync.Mutex
	wake    sync.Cond           // a decision is waiting, or closing has begun
	waiting []decision          // guarded by mu
	ended   []string            // guarded by mu; rides along with the next decision
	commits map[string]struct{} // guarded by mu; on disk as committed, not yet noted as ended
	closing bool                // guarded by mu
	broken  bool                // guarded by mu
}

// decision is one commit on its way to the disk.
type decision struct {
	id      string
	decided func(error)
}

// openLog opens the log of a folder, or makes one. It holds a lock on the folder
// until it is closed or the process dies: two coordinators over one log would each
// roll back what the other has in flight.
//
// What is left of the old file is copied to a new one, which takes its place only
// when it is on disk. That keeps the log as short as the list of what is unsettled.
// It is needed also because the old file may end with a decision that was written
// but not forced to disk before a crash: recovery will act on it, so it has to be
// durable first.
func openLog(folder string, p probe) (*decisionLog, error) {
	l := &decisionLog{folder: folder, probe: p, commits: map[string]struct{}{}, wrote: make(chan struct{})}
	l.wake.L = &l.mu
	if err := l.open(); err != nil {
		l.release()
		return nil, err
	}
	go l.write()
	return l, nil
}

func (l *decisionLog) open() (err error) {
	if err := os.MkdirAll(l.folder, 0o700); err != nil {
		return err
	}
	if l.lock, err = os.OpenFile(filepath.Join(l.folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(l.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another coordinator has the log in %s: %w", l.folder, err)
	}
	path := filepath.Join(l.folder, "decisions")
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		var id [4]byte
		rand.Read(id[:])
		l.id = hex.EncodeToString(id[:])
	case err != nil:
		return err
	default:
		if err := l.replay(string(old)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	l.epoch++
	return l.rewrite(path)
}

// replay reads an old file.
func (l *decisionLog) replay(old string) error {
	lines := strings.SplitAfter(old, "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" })
	for i, line := range lines {
		body, ok := unseal(line)
		if !ok && i > 0 && i == len(lines)-1 {
			break // torn by a crash, before anybody was told
		}
		if !ok {
			// Not the work of a crash: a decision may be missing. Going on would
			// roll back half of a transaction whose other half is committed.
			return fmt.Errorf("line %d is damaged; the log cannot be trusted", i+1)
		}
		if i == 0 {
			if _, err := fmt.Sscanf(body, "twophase %s %d", &l.id, &l.epoch); err != nil {
				return fmt.Errorf("line 1: %w", err)
			}
			continue
		}
		for word := range strings.FieldsSeq(body) {
			switch id := word[1:]; word[0] {
			case '+':
				l.commits[id] = struct{}{}
			case '-':
				delete(l.commits, id)
			}
		}
	}
	if len(lines) == 0 {
		return errors.New("the file is empty; the log cannot be trusted")
	}
	return nil
}

// rewrite puts a new file in the old one's place.
func (l *decisionLog) rewrite(path string) (err error) {
	fresh := path + ".new"
	if l.file, err = os.Create(fresh); err != nil {
		return err
	}
	head := seal(fmt.Sprintf("twophase %s %d", l.id, l.epoch))
	if len(l.commits) > 0 {
		head += seal("+" + strings.Join(slices.Sorted(maps.Keys(l.commits)), " +"))
	}
	if _, err := l.file.WriteString(head); err != nil {
		return err
	}
	if err := l.file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	// The new name has to be on disk too.
	dir, err := os.Open(l.folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// commit puts the decision to commit a transaction on its way to the disk, and
// returns at once. Later decided is called: with nil once the decision is durable,
// with errNotWritten if it is not in the file and never will be. Any other error
// means that nobody can tell what the disk has, and such a transaction must be left
// alone until the log is opened again and read. If commit itself returns an error,
// which is errNotWritten, decided will not be called.
//
// decided runs on the goroutine that writes, so it must not block.
func (l *decisionLog) commit(id string, decided func(error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing || l.broken {
		return errNotWritten
	}
	l.waiting = append(l.waiting, decision{id, decided})
	l.wake.Signal()
	return nil
}

// committed tells whether the log has the transaction's commit. The answer false
// means abort only for a transaction that is not in flight.
func (l *decisionLog) committed(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.commits[id]
	return ok
}

// unsettled returns the commits that have not been noted as ended.
func (l *decisionLog) unsettled() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.commits))
}

// end notes that every server has committed a transaction. It waits for no disk: a
// note that is lost costs the next recovery a look, and nothing else.
func (l *decisionLog) end(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.commits[id]; ok {
		delete(l.commits, id)
		l.ended = append(l.ended, id)
	}
}

// write is the writer goroutine. While one line is on its way to the disk the
// next decisions gather, so that the disk is paid for once per line and not once
// per transaction.
func (l *decisionLog) write() {
	defer close(l.wrote)
	for {
		l.mu.Lock()
		for len(l.waiting) == 0 && !l.closing {
			l.wake.Wait()
		}
		batch, ended := l.waiting, l.ended
		l.waiting, l.ended = nil, nil
		last, broken := l.closing && len(batch) == 0, l.broken
		l.mu.Unlock()

		var err error
		switch {
		case broken:
			err = errNotWritten
		case len(batch)+len(ended) > 0:
			err = l.writeLine(batch, ended)
		}
		l.mu.Lock()
		for _, d := range batch {
			if err == nil {
				l.commits[d.id] = struct{}{}
			}
		}
		// After a failed write or sync the file's end is anybody's guess, and a
		// second sync that succeeds would prove nothing about the first.
		l.broken = l.broken || err != nil
		l.mu.Unlock()
		for _, d := range batch {
			d.decided(err)
		}
		if last {
			return
		}
	}
}

func (l *decisionLog) writeLine(batch []decision, ended []string) error {
	var words []string
	for _, d := range batch {
		words = append(words, "+"+d.id)
	}
	for _, id := range ended {
		words = append(words, "-"+id)
	}
	if _, err := l.file.WriteString(seal(strings.Join(words, " "))); err != nil {
		return err
	}
	if len(batch) > 0 {
		l.probe.at(stepWritten)
	}
	return l.file.Sync()
}

// stop writes what is waiting; after it the log can still be asked. An error says
// that some decision is known to the disk alone.
func (l *decisionLog) stop() error {
	l.mu.Lock()
	l.closing = true
	l.wake.Signal()
	l.mu.Unlock()
	<-l.wrote
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return errNotWritten
	}
	return nil
}

// release lets go of the folder.
func (l *decisionLog) release() {
	if l.file != nil {
		l.file.Close()
	}
	if l.lock != nil {
		l.lock.Close() // and with it goes the lock
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal makes a line of a body.
func seal(body string) string {
	return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(body), castagnoli), body)
}

// unseal returns a line's body, unless the line is not what was written.
func unseal(line string) (body string, ok bool) {
	line, whole := strings.CutSuffix(line, "\n")
	sum, body, found := strings.Cut(line, " ")
	if !whole || !found || len(sum) != 8 {
		return "", false
	}
	want, err := strconv.ParseUint(sum, 16, 32)
	return body, err == nil && uint32(want) == crc32.Checksum([]byte(body), castagnoli)
}
