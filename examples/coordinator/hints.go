package main

import (
	"cmp"
	"encoding/json"
	"slices"
	"sync"
)

// hints are the writes that replicas have missed, kept on disk until they are
// delivered. Only the newest version of a key is owed to a replica, so what is
// pending is bounded by the keys and not by the writes.
type hints struct {
	mu      sync.Mutex
	journal *journal                   // guarded by mu, as is all below
	owed    map[string]map[string]hint // by replica and key; no empty inner maps
	last    uint64
}

// A hint is one version of a key that one replica is owed.
type hint struct {
	key  string
	cell Cell
	seq  uint64 // of the record that holds it: tells it from a newer one for the key
}

// hintRecord is a hint on disk, or, without a cell, that it has been delivered.
type hintRecord struct {
	Seq  uint64   `json:"seq"`
	For  []string `json:"for"`
	Key  string   `json:"key"`
	Cell *Cell    `json:"cell,omitempty"`
}

func openHints(path string) (*hints, error) {
	h := &hints{owed: make(map[string]map[string]hint)}
	var err error
	h.journal, err = openJournal(path, func(payload []byte) error {
		var r hintRecord
		if err := json.Unmarshal(payload, &r); err != nil {
			return err
		}
		h.applyLocked(r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := h.tidyLocked(); err != nil {
		return nil, err
	}
	return h, nil
}

// add returns once the hints are on disk.
func (h *hints) add(replicas []string, key string, cell Cell) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	owing := slices.DeleteFunc(slices.Clone(replicas), func(name string) bool {
		old, ok := h.owed[name][key]
		return ok && !cell.newer(old.cell)
	})
	if len(owing) == 0 {
		return nil
	}
	r := hintRecord{Seq: h.last + 1, For: owing, Key: key, Cell: &cell}
	if err := h.writeLocked(r, true); err != nil {
		return err
	}
	h.applyLocked(r)
	return nil
}

// delivered lets go of a hint, unless a newer one for its key has taken its place.
func (h *hints) delivered(replica string, d hint) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.owed[replica][d.key].seq != d.seq {
		return nil
	}
	r := hintRecord{Seq: d.seq, For: []string{replica}, Key: d.key}
	h.applyLocked(r)
	// Not synced: if a crash loses this record the hint is delivered twice, which
	// changes nothing.
	if err := h.writeLocked(r, false); err != nil {
		return err
	}
	return h.tidyLocked()
}

// pending is a copy of what the replica is owed, oldest first.
func (h *hints) pending(replica string) []hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]hint, 0, len(h.owed[replica]))
	for _, d := range h.owed[replica] {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b hint) int { return cmp.Compare(a.seq, b.seq) })
	return list
}

func (h *hints) count(replica string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.owed[replica])
}

func (h *hints) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.journal.close()
}

func (h *hints) writeLocked(r hintRecord, sync bool) error {
	payload, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return h.journal.append(payload, sync)
}

func (h *hints) applyLocked(r hintRecord) {
	h.last = max(h.last, r.Seq)
	for _, name := range r.For {
		switch {
		case r.Cell != nil:
			if h.owed[name] == nil {
				h.owed[name] = make(map[string]hint)
			}
			h.owed[name][r.Key] = hint{key: r.Key, cell: *r.Cell, seq: r.Seq}
		case h.owed[name][r.Key].seq == r.Seq:
			delete(h.owed[name], r.Key)
			if len(h.owed[name]) == 0 {
				delete(h.owed, name)
			}
		}
	}
}

// tidyLocked rewrites the file when little of it is still wanted.
func (h *hints) tidyLocked() error {
	owed := 0
	for _, keys := range h.owed {
		owed += len(keys)
	}
	if h.journal.records == 0 || (owed > 0 && h.journal.records < slack+2*owed) {
		return nil
	}
	payloads := make([][]byte, 0, owed)
	for name, keys := range h.owed {
		for key, d := range keys {
			payload, err := json.Marshal(hintRecord{Seq: d.seq, For: []string{name}, Key: key, Cell: &d.cell})
			if err != nil {
				return err
			}
			payloads = append(payloads, payload)
		}
	}
	return h.journal.rewrite(payloads)
}
