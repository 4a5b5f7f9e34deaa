package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// wal is the log on disk: one file, to which a frame is appended for each batch that
// raft wants stored.
//
//	frame   = length of the payload, checksum of that, checksum of the payload, payload
//	payload = a raftpb.Message with the hard state and the entries
//
// with four bytes for each number. The checksums go on from the frame before, so a frame
// that is left over from elsewhere does not fit.
//
// A frame is synced before the next one is written. That makes a damaged tail easy to
// judge: only the last frame can have been torn by a crash, and nobody was told that
// it is stored. A damaged frame with anything behind it was synced once; what it held
// may have been promised to a peer, and a node that forgets a promise can make the
// cluster lose data, so it must not start. The length has a checksum of its own, or one
// that is damaged could make the rest of the file look like a torn frame.
//
// It is owned by the node's loop.
type wal struct {
	f       *os.File
	last    uint32 // checksum of the last frame
	written int64  // where the file ends
	kept    int64  // up to where it is known to survive a crash
	buf     []byte
}

const (
	frameHeader = 12
	maxFrame    = 1 << 30
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errDamaged = errors.New("the log is damaged before its end")
)

// openWAL opens the log in dir, which is made if need be, and hands every batch in it to
// replay, oldest first. It cuts off a torn tail.
func openWAL(dir string, replay func(*raftpb.HardState, []*raftpb.Entry) error) (*wal, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "raft.wal"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	w := &wal{f: f}
	if err = w.load(replay); err == nil {
		err = syncDir(dir) // or the file's name might not survive what its contents do
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return w, nil
}

func (w *wal) load(replay func(*raftpb.HardState, []*raftpb.Entry) error) error {
	data, err := io.ReadAll(w.f)
	if err != nil {
		return err
	}
	rest := data
	for len(rest) > 0 {
		payload, sum, ok, err := cutFrame(w.last, rest)
		if err != nil {
			return fmt.Errorf("%w, at byte %d", err, w.written)
		}
		if !ok {
			break
		}
		m := new(raftpb.Message)
		if err := proto.Unmarshal(payload, m); err != nil {
			return fmt.Errorf("frame at byte %d: %w", w.written, err)
		}
		hard := &raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}
		if err := replay(hard, m.GetEntries()); err != nil {
			return fmt.Errorf("frame at byte %d: %w", w.written, err)
		}
		w.last = sum
		w.written += frameHeader + int64(len(payload))
		rest = data[w.written:]
	}
	// The tail has to go before anything is appended: new frames would make it look
	// like a damaged frame that is not the last.
	if err := w.f.Truncate(w.written); err != nil {
		return err
	}
	if _, err := w.f.Seek(w.written, io.SeekStart); err != nil {
		return err
	}
	if err := w.sync(); err != nil {
		return err
	}
	w.keep()
	return nil
}

// cutFrame takes the frame at the start of b. ok is false if it is torn, which only the
// last frame can be.
func cutFrame(last uint32, b []byte) (payload []byte, sum uint32, ok bool, err error) {
	if len(b) < frameHeader {
		return nil, 0, false, nil
	}
	size := binary.LittleEndian.Uint32(b)
	head := crc32.Update(last, castagnoli, b[:4])
	if size == 0 || head != binary.LittleEndian.Uint32(b[4:]) {
		// Zeros are what a file system shows where it has stored the file's length
		// and not the contents.
		if zeros(b) {
			return nil, 0, false, nil
		}
		return nil, 0, false, errDamaged
	}
	if uint64(size) > uint64(len(b)-frameHeader) {
		return nil, 0, false, nil
	}
	payload, rest := b[frameHeader:frameHeader+size], b[frameHeader+size:]
	sum = crc32.Update(head, castagnoli, payload)
	if sum != binary.LittleEndian.Uint32(b[8:]) {
		if zeros(rest) {
			return nil, 0, false, nil
		}
		return nil, 0, false, errDamaged
	}
	return payload, sum, true, nil
}

func zeros(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// write appends a batch, which is stored when sync has returned nil.
func (w *wal) write(hard *raftpb.HardState, entries []*raftpb.Entry) error {
	m := &raftpb.Message{
		Type: raftpb.MsgStorageAppend.Enum(),
		Term: hard.Term, Vote: hard.Vote, Commit: hard.Commit, Entries: entries,
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(append(w.buf[:0], make([]byte, frameHeader)...), m)
	if err != nil {
		return err
	}
	w.buf = b
	payload := b[frameHeader:]
	if len(payload) > maxFrame {
		return fmt.Errorf("a batch of %d bytes is too large for the log", len(payload))
	}
	binary.LittleEndian.PutUint32(b, uint32(len(payload)))
	head := crc32.Update(w.last, castagnoli, b[:4])
	w.last = crc32.Update(head, castagnoli, payload)
	binary.LittleEndian.PutUint32(b[4:], head)
	binary.LittleEndian.PutUint32(b[8:], w.last)
	n, err := w.f.Write(b)
	w.written += int64(n)
	return err
}

// sync makes what was written survive a crash. After an error nobody knows what the
// disk holds, and a second try may succeed without having stored anything: give up.
func (w *wal) sync() error { return w.f.Sync() }

// keep notes that the log was synced. From now on others may be told.
func (w *wal) keep() { w.kept = w.written }

func (w *wal) close() error { return w.f.Close() }

// crash closes the log as a power failure would: of what was not kept, only a part has
// reached the disk, and it may end anywhere.
func (w *wal) crash() (lost int64, err error) {
	lost = rand.Int64N(w.written - w.kept + 1)
	return lost, errors.Join(w.f.Truncate(w.written-lost), w.f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// firstIndex is where the log begins. The index before it stands for the state that all
// nodes start from: no data, and these voters.
const firstIndex = 2

// loadLog opens the log in dir and returns it along with its contents in memory, as raft
// wants them.
func loadLog(dir string, voters []uint64) (*wal, *raft.MemoryStorage, *raftpb.HardState, error) {
	storage := raft.NewMemoryStorage()
	err := storage.ApplySnapshot(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		Index: new(uint64(firstIndex - 1)), Term: new(uint64(1)), ConfState: &raftpb.ConfState{Voters: voters},
	}})
	if err != nil {
		return nil, nil, nil, err
	}
	hard := &raftpb.HardState{Term: new(uint64(1)), Commit: new(uint64(firstIndex - 1))}
	w, err := openWAL(dir, func(h *raftpb.HardState, entries []*raftpb.Entry) error {
		hard = h
		last, err := storage.LastIndex()
		if err != nil {
			return err
		}
		for i, e := range entries {
			// A batch may begin anywhere in the log, and replaces what is there.
			if index := e.GetIndex(); index < firstIndex || index > last+1 || index != entries[0].GetIndex()+uint64(i) {
				return fmt.Errorf("entry %d does not follow entry %d", index, last)
			}
			last = max(last, e.GetIndex())
		}
		return storage.Append(entries)
	})
	if err != nil {
		return nil, nil, nil, err
	}
	if last, err := storage.LastIndex(); err != nil || hard.GetCommit() > last {
		return nil, nil, nil, errors.Join(err, w.close(), fmt.Errorf("the log ends at %d, before its commit index %d", last, hard.GetCommit()))
	}
	return w, storage, hard, storage.SetHardState(hard)
}
