package main

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// A batch of records travels from producer to log to follower to consumer as the same
// bytes. The leader writes its first offset and the leader's epoch, which the checksum
// does not cover, and nobody touches the rest: records stay as they were compressed.
//
//	 0 first offset      8 length of what follows   12 leader's epoch   16 format (2)
//	17 checksum of all from 21 on                   21 attributes       23 last offset delta
//	27 first timestamp  35 largest timestamp        43 producer's id    51 and epoch
//	53 first sequence   57 number of records        61 records

const (
	batchHead    = 61
	batchPrefix  = 12 // what the length does not count
	maxBatchSize = 1 << 20

	attrTransactional = 1 << 4
	attrControl       = 1 << 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errCorrupt = errors.New("batch: its checksum or length is wrong")
	errRecord  = errors.New("batch: not one that a client may send")
)

// batchInfo is what a broker has to know of a batch.
type batchInfo struct {
	base     int64 // offset of the first record
	size     int   // all of it, in bytes
	count    int32 // records
	maxTime  int64 // largest timestamp, in milliseconds
	attrs    int16
	producer int64 // -1: not an idempotent one
	epoch    int16
	sequence int32 // of the first record
}

func (i batchInfo) last() int64 { return i.base + int64(i.count) - 1 }

// lastSequence wraps as sequences do.
func (i batchInfo) lastSequence() int32 {
	return int32((int64(i.sequence) + int64(i.count) - 1) & (1<<31 - 1))
}

// parseBatch reads the first batch in b.
func parseBatch(b []byte) (batchInfo, error) {
	if len(b) < batchHead {
		return batchInfo{}, errCorrupt
	}
	i := batchInfo{
		base:     int64(binary.BigEndian.Uint64(b)),
		size:     batchPrefix + int(int32(binary.BigEndian.Uint32(b[8:]))),
		count:    int32(binary.BigEndian.Uint32(b[57:])),
		maxTime:  int64(binary.BigEndian.Uint64(b[35:])),
		attrs:    int16(binary.BigEndian.Uint16(b[21:])),
		producer: int64(binary.BigEndian.Uint64(b[43:])),
		epoch:    int16(binary.BigEndian.Uint16(b[51:])),
		sequence: int32(binary.BigEndian.Uint32(b[53:])),
	}
	if i.size < batchHead || i.size > len(b) || b[16] != 2 {
		return i, errCorrupt
	}
	if crc32.Checksum(b[21:i.size], castagnoli) != binary.BigEndian.Uint32(b[17:]) {
		return i, errCorrupt
	}
	if delta := int32(binary.BigEndian.Uint32(b[23:])); i.count < 1 || delta != i.count-1 {
		return i, errRecord
	}
	return i, nil
}

// parseProduced reads what a client wants to have appended, which is one batch.
func parseProduced(b []byte) (batchInfo, error) {
	i, err := parseBatch(b)
	switch {
	case err != nil:
		return i, err
	case i.size != len(b) || i.attrs&(attrTransactional|attrControl) != 0:
		return i, errRecord
	case i.producer >= 0 && (i.epoch < 0 || i.sequence < 0):
		return i, errRecord
	}
	return i, nil
}

// place gives a batch its place in the log.
func place(b []byte, base int64) {
	binary.BigEndian.PutUint64(b, uint64(base))
	binary.BigEndian.PutUint32(b[12:], leaderEpoch)
}
