package main

import (
	"encoding/binary"
	"errors"
	"maps"
	"sync"
)

// requestID names one request of one life of one node. The first half is drawn at
// random when the node starts: commands of an earlier life are still in the log, and
// applying them must not answer somebody who asks today.
type requestID struct{ boot, seq uint64 }

const requestIDSize = 16

func (id requestID) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, id.boot)
	return binary.LittleEndian.AppendUint64(b, id.seq)
}

// cutRequestID takes the id at the start of b, which is long enough.
func cutRequestID(b []byte) (id requestID, rest []byte) {
	id.boot = binary.LittleEndian.Uint64(b)
	id.seq = binary.LittleEndian.Uint64(b[8:])
	return id, b[requestIDSize:]
}

// command is what the log replicates: set a key, on behalf of a request.
type command struct {
	id    requestID
	key   string
	value []byte
}

func (c command) encode() []byte {
	b := make([]byte, 0, requestIDSize+binary.MaxVarintLen32+len(c.key)+len(c.value))
	b = c.id.append(b)
	b = binary.AppendUvarint(b, uint64(len(c.key)))
	b = append(b, c.key...)
	return append(b, c.value...)
}

var errBadCommand = errors.New("the log holds something that is not a command")

func decodeCommand(b []byte) (command, error) {
	if len(b) < requestIDSize {
		return command{}, errBadCommand
	}
	id, b := cutRequestID(b)
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return command{}, errBadCommand
	}
	b = b[n:]
	return command{id: id, key: string(b[:size]), value: b[size:]}, nil
}

// store is the state machine: what the applied part of the log amounts to. It is kept
// in memory; a node that starts applies its log from the beginning.
type store struct {
	mu     sync.RWMutex
	values map[string][]byte
}

func (s *store) apply(c command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[c.key] = c.value
}

func (s *store) get(key string) (value []byte, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, ok = s.values[key]
	return value, ok
}

func (s *store) snapshot() map[string][]byte {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.values)
}
