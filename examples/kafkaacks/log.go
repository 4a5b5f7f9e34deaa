package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sort"
	"sync"
)

// recordLog is one replica of one partition: a file of batches, one after the other,
// and where in it they are. As in Kafka nothing is synced: what is safe is safe because
// several brokers have it.
type recordLog struct {
	file *os.File

	mu      sync.RWMutex
	batches []placed // in order
	size    int64    // of the file; a write that failed may have left more, which the next overwrites
}

type placed struct {
	base, last int64
	pos        int64
	size       int
	maxTime    int64
}

// openLog opens or makes a log. What a crash has left half written at its end is cut
// off. seen is called with every batch.
func openLog(path string, seen func(batchInfo)) (*recordLog, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	l := &recordLog{file: file}
	if err := l.recover(seen); err != nil {
		file.Close()
		return nil, err
	}
	return l, nil
}

func (l *recordLog) recover(seen func(batchInfo)) error {
	r := bufio.NewReaderSize(l.file, 1<<16)
	var b []byte
	for {
		head, err := r.Peek(batchHead)
		if err == io.EOF {
			return l.file.Truncate(l.size)
		} else if err != nil {
			return err
		}
		size := batchPrefix + int(int32(uint32(head[8])<<24|uint32(head[9])<<16|uint32(head[10])<<8|uint32(head[11])))
		if size < batchHead || size > maxBatchSize {
			return l.file.Truncate(l.size)
		}
		b = append(b[:0], make([]byte, size)...)
		if _, err := io.ReadFull(r, b); err == io.ErrUnexpectedEOF {
			return l.file.Truncate(l.size)
		} else if err != nil {
			return err
		}
		info, err := parseBatch(b)
		if err != nil || info.base != l.endLocked() {
			return l.file.Truncate(l.size)
		}
		l.noteLocked(info)
		seen(info)
	}
}

func (l *recordLog) close() error { return l.file.Close() }

// end is the offset that the next record will have.
func (l *recordLog) end() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.endLocked()
}

func (l *recordLog) endLocked() int64 {
	if n := len(l.batches); n > 0 {
		return l.batches[n-1].last + 1
	}
	return 0
}

func (l *recordLog) noteLocked(i batchInfo) {
	l.batches = append(l.batches, placed{i.base, i.last(), l.size, i.size, i.maxTime})
	l.size += int64(i.size)
}

// append gives a batch its offsets and writes it at the end.
func (l *recordLog) append(b []byte, i batchInfo) (batchInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i.base = l.endLocked()
	place(b, i.base)
	if _, err := l.file.WriteAt(b, l.size); err != nil {
		return i, err
	}
	l.noteLocked(i)
	return i, nil
}

// appendCopy writes batches of the leader, which have their offsets.
func (l *recordLog) appendCopy(b []byte) error {
	for len(b) > 0 {
		i, err := parseBatch(b)
		if err != nil {
			return err
		}
		if err := l.appendOne(b[:i.size], i); err != nil {
			return err
		}
		b = b[i.size:]
	}
	return nil
}

func (l *recordLog) appendOne(b []byte, i batchInfo) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := l.endLocked(); i.base != end {
		return fmt.Errorf("the leader sent offset %d after %d", i.base, end-1)
	}
	if _, err := l.file.WriteAt(b, l.size); err != nil {
		return err
	}
	l.noteLocked(i)
	return nil
}

// rangeLocked finds the batches that hold the records from an offset up to and without
// another. Batches are never split, but the ends of what is committed, and of what
// somebody has fetched, are ends of batches.
func (l *recordLog) rangeLocked(from, to int64) []placed {
	first := sort.Search(len(l.batches), func(i int) bool { return l.batches[i].last >= from })
	past := sort.Search(len(l.batches), func(i int) bool { return l.batches[i].last >= to })
	return l.batches[min(first, past):past]
}

// bytes is how much read has without a limit.
func (l *recordLog) bytes(from, to int64) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	found := l.rangeLocked(from, to)
	if len(found) == 0 {
		return 0
	}
	last := found[len(found)-1]
	return last.pos + int64(last.size) - found[0].pos
}

// read returns the batches that hold the records from an offset up to and without
// another, as many as fit, or, if atLeastOne, the first even if it does not: else a
// batch that is too large for a reader would hold it up for ever.
func (l *recordLog) read(from, to int64, limit int, atLeastOne bool) ([]byte, error) {
	l.mu.RLock()
	found := l.rangeLocked(from, to)
	size := 0
	for i, b := range found {
		if size+b.size > limit && (i > 0 || !atLeastOne) {
			break
		}
		size += b.size
	}
	l.mu.RUnlock()
	if size == 0 {
		return nil, nil
	}
	// What is written does not change, so the lock is not needed.
	b := make([]byte, size)
	_, err := l.file.ReadAt(b, found[0].pos)
	return b, err
}

// at finds the first batch, before an offset, with a record no older than a time.
func (l *recordLog) at(millis, to int64) (offset, found int64, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, b := range l.batches {
		if b.maxTime >= millis && b.last < to {
			return b.base, b.maxTime, true
		}
	}
	return -1, -1, false
}
