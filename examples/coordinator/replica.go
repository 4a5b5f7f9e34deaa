package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// A replica keeps cells in memory and in a journal, and serves them to the
// coordinator over HTTP:
//
//	GET /replicas/NAME                   204: it is there
//	GET /replicas/NAME/cells?key=KEY     its version of the key; the zero cell if none
//	PUT /replicas/NAME/cells?key=KEY     keeps the newer of this version and its own
//
// The name is in the path because an address outlives the process that had it: an
// answer from whoever listens there now must not be counted as this replica's.
type replica struct {
	name string

	mu      sync.Mutex
	journal *journal // guarded by mu
	cells   map[string]Cell
}

type replicaRecord struct {
	Key  string `json:"key"`
	Cell Cell   `json:"cell"`
}

// stored is the answer to a PUT.
type stored struct {
	Newer bool `json:"newer"` // this version has replaced what was there
}

func openReplica(name, path string) (*replica, error) {
	r := &replica{name: name, cells: make(map[string]Cell)}
	var err error
	r.journal, err = openJournal(path, func(payload []byte) error {
		var rec replicaRecord
		if err := json.Unmarshal(payload, &rec); err != nil {
			return err
		}
		r.cells[rec.Key] = rec.Cell
		return nil
	})
	if err != nil {
		return nil, err
	}
	if r.journal.records > slack+2*len(r.cells) {
		err = r.rewrite()
	}
	return r, err
}

func (r *replica) rewrite() error {
	payloads := make([][]byte, 0, len(r.cells))
	for key, cell := range r.cells {
		payload, err := json.Marshal(replicaRecord{key, cell})
		if err != nil {
			return err
		}
		payloads = append(payloads, payload)
	}
	return r.journal.rewrite(payloads)
}

func (r *replica) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.journal.close()
}

func (r *replica) get(key string) Cell {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cells[key]
}

// put returns once the newer version is on disk.
func (r *replica) put(key string, cell Cell) (newer bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !cell.newer(r.cells[key]) {
		return false, nil
	}
	payload, err := json.Marshal(replicaRecord{key, cell})
	if err != nil {
		return false, err
	}
	if err := r.journal.append(payload, true); err != nil {
		return false, err
	}
	r.cells[key] = cell
	return true, nil
}

func (r *replica) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /replicas/{name}", func(w http.ResponseWriter, req *http.Request) {
		if r.addressed(w, req) {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.HandleFunc("GET /replicas/{name}/cells", func(w http.ResponseWriter, req *http.Request) {
		if r.addressed(w, req) {
			writeJSON(w, http.StatusOK, r.get(req.URL.Query().Get("key")))
		}
	})
	mux.HandleFunc("PUT /replicas/{name}/cells", func(w http.ResponseWriter, req *http.Request) {
		if r.addressed(w, req) {
			r.servePut(w, req)
		}
	})
	return mux
}

// addressed says whether the request is meant for this replica, and answers it if
// not.
func (r *replica) addressed(w http.ResponseWriter, req *http.Request) bool {
	if name := req.PathValue("name"); name != r.name {
		http.Error(w, fmt.Sprintf("this is %s, not %s", r.name, name), http.StatusMisdirectedRequest)
		return false
	}
	return true
}

func (r *replica) servePut(w http.ResponseWriter, req *http.Request) {
	key := req.URL.Query().Get("key")
	var cell Cell
	err := decodeCell(http.MaxBytesReader(w, req.Body, maxBody), &cell)
	if err == nil {
		err = errors.Join(checkKey(key), cell.check())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	newer, err := r.put(key, cell)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
		return
	}
	writeJSON(w, http.StatusOK, stored{Newer: newer})
}

func decodeCell(body io.Reader, cell *Cell) error {
	dec := json.NewDecoder(body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(cell); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the cell")
	}
	return nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // whoever asked has gone
}
