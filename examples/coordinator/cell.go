package main

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

const (
	maxKey   = 1 << 10
	maxValue = 1 << 20
	maxBody  = 2 << 20 // a cell of the longest value, as JSON
)

// A Cell is one version of one key. Replicas exchange whole versions and never
// changes to them, so it does not matter how often or in which order they arrive:
// each replica keeps the newest, and hints, repairs and late writes can overtake
// each other freely. The zero Cell is that of a key that was never written.
type Cell struct {
	Value   []byte `json:"value,omitempty"`
	Deleted bool   `json:"deleted,omitempty"` // kept, so that an older value cannot come back
	Time    int64  `json:"time,omitempty"`    // microseconds since 1970, by the coordinator or the client
}

// newer says whether c replaces d. Two clients may pick the same time, and then
// every replica must still pick the same winner, whichever it saw first: a deletion
// wins over a value, and of two values the greater.
func (c Cell) newer(d Cell) bool {
	if c.Time != d.Time {
		return c.Time > d.Time
	}
	if c.Deleted != d.Deleted {
		return c.Deleted
	}
	return bytes.Compare(c.Value, d.Value) > 0
}

func (c Cell) same(d Cell) bool { return !c.newer(d) && !d.newer(c) }

// check says why a version is not fit to be stored.
func (c Cell) check() error {
	switch {
	case c.Time <= 0:
		return fmt.Errorf("time %d is not positive", c.Time)
	case len(c.Value) > maxValue:
		return fmt.Errorf("value is longer than %d bytes", maxValue)
	case c.Deleted && len(c.Value) > 0:
		return errors.New("a deletion has no value")
	}
	return nil
}

// checkKey says why a key is refused. The journals hold keys as JSON strings,
// which can carry nothing but UTF-8.
func checkKey(key string) error {
	switch {
	case key == "":
		return errors.New("empty key")
	case len(key) > maxKey:
		return fmt.Errorf("key is longer than %d bytes", maxKey)
	case !utf8.ValidString(key):
		return errors.New("key is not UTF-8")
	}
	return nil
}
