package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// A journal is an append-only file of records. Replicas keep their cells in one,
// the coordinator its hints. Its owner's lock guards it.
//
// A record is its length and its checksum, four bytes each, and the payload.
type journal struct {
	path    string
	file    *os.File
	size    int64 // Invariant: all below is whole records
	records int   // since the last rewrite: what rewriting could save
	broken  error // set once the file can no longer be trusted
}

const journalHeader = 8

// slack is how many records a file may hold beyond twice those that are wanted, before
// it is worth rewriting.
const slack = 200

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openJournal opens or creates the file and hands every record to replay. A last
// record that a crash cut short is dropped: nobody was told that it is there. Damage
// with something behind it is no such thing, and is an error.
func openJournal(path string, replay func(payload []byte) error) (*journal, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	j := &journal{path: path, file: file}
	if err := j.load(replay); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return j, nil
}

func (j *journal) load(replay func([]byte) error) error {
	data, err := io.ReadAll(j.file)
	if err != nil {
		return err
	}
	for rest := data; ; {
		payload, n, err := cutRecord(rest)
		if err != nil {
			return fmt.Errorf("at byte %d: %w", j.size, err)
		}
		if n == 0 {
			break
		}
		if err := replay(payload); err != nil {
			return fmt.Errorf("at byte %d: %w", j.size, err)
		}
		rest = rest[n:]
		j.size += int64(n)
		j.records++
	}
	if j.size < int64(len(data)) {
		if err := j.file.Truncate(j.size); err != nil {
			return err
		}
	}
	// Whoever reads a record acts on it, so it had better be on disk, and the file
	// itself in its directory.
	if err := j.file.Sync(); err != nil {
		return err
	}
	return syncDir(j.path)
}

// cutRecord takes the first record off data: n is its length, 0 if there is none or
// only the beginning of one.
func cutRecord(data []byte) (payload []byte, n int, err error) {
	if len(data) < journalHeader {
		return nil, 0, nil
	}
	n = journalHeader + int(binary.LittleEndian.Uint32(data))
	if n > len(data) {
		return nil, 0, nil
	}
	payload = data[journalHeader:n]
	if n > journalHeader && crc32.Checksum(payload, castagnoli) == binary.LittleEndian.Uint32(data[4:]) {
		return payload, n, nil
	}
	// The file may have grown before its last pages were written.
	if n == len(data) || allZero(data) {
		return nil, 0, nil
	}
	return nil, 0, errors.New("damaged record")
}

func allZero(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}

func appendRecord(buf, payload []byte) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(payload)))
	buf = binary.LittleEndian.AppendUint32(buf, crc32.Checksum(payload, castagnoli))
	return append(buf, payload...)
}

// append writes one record, and with sync returns only once it is on disk. After an
// error nothing of it counts.
func (j *journal) append(payload []byte, sync bool) error {
	if j.broken != nil {
		return j.broken
	}
	buf := appendRecord(nil, payload)
	_, err := j.file.WriteAt(buf, j.size)
	if err != nil {
		// Half a record in the middle would hide all later ones.
		if undo := j.file.Truncate(j.size); undo != nil {
			j.broken = undo
		}
		return err
	}
	if sync {
		if err := j.file.Sync(); err != nil {
			// The kernel may have dropped the pages and will not say so twice, so
			// what later calls report would be worth nothing.
			j.broken = fmt.Errorf("an earlier sync failed: %w", err)
			return err
		}
	}
	j.size += int64(len(buf))
	j.records++
	return nil
}

// rewrite replaces all records by these, in one step: a crash leaves the old file or
// the new one.
func (j *journal) rewrite(payloads [][]byte) error {
	if j.broken != nil {
		return j.broken
	}
	var buf []byte
	for _, p := range payloads {
		buf = appendRecord(buf, p)
	}
	file, err := os.OpenFile(j.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(buf)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = os.Rename(j.path+".new", j.path)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	old := j.file
	j.file, j.size, j.records = file, int64(len(buf)), len(payloads)
	return errors.Join(old.Close(), syncDir(j.path))
}

func (j *journal) close() error {
	if j.broken == nil {
		j.broken = os.ErrClosed
	}
	return j.file.Close()
}

func syncDir(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
