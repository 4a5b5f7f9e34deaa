package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/waitlist-go/waitlist"
)

// maxAhead is how far in the future a client's timestamp may be. A value from next
// year could not be overwritten until then.
const maxAhead = time.Minute

// handler is what clients talk to:
//
//	PUT    /kv/KEY?level=LEVEL&timestamp=MICROSECONDS   the body is the value
//	DELETE /kv/KEY?level=LEVEL&timestamp=MICROSECONDS
//	GET    /kv/KEY?level=LEVEL                          answers with the value
//	GET    /status
//
// Both parameters may be left out: the level is then QUORUM, and the time now.
func (c *coordinator) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /kv/{key}", func(w http.ResponseWriter, req *http.Request) {
		value, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxValue))
		if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
			writeError(w, http.StatusRequestEntityTooLarge, err)
			return
		} else if err != nil {
			writeError(w, http.StatusBadRequest, err)
			return
		}
		c.serveWrite(w, req, Cell{Value: value})
	})
	mux.HandleFunc("DELETE /kv/{key}", func(w http.ResponseWriter, req *http.Request) {
		c.serveWrite(w, req, Cell{Deleted: true})
	})
	mux.HandleFunc("GET /kv/{key}", c.serveRead)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, c.status())
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !c.enter() {
			writeError(w, http.StatusServiceUnavailable, errClosing)
			return
		}
		defer c.leave()
		mux.ServeHTTP(w, req)
	})
}

// report is the answer to a write, and to a read that has failed: who has done what
// by the time the request was decided.
type report struct {
	Error     string            `json:"error,omitempty"`
	Stored    string            `json:"stored,omitempty"` // writes only: yes, no, or unknown
	Level     string            `json:"level"`
	Timestamp int64             `json:"timestamp,omitempty"`
	Decider   string            `json:"decider,omitempty"`
	Acked     []string          `json:"acked"`
	Missing   []string          `json:"missing"` // of those that the level counts
	Refused   map[string]string `json:"refused"`
}

func (c *coordinator) report(level Level, v result) report {
	r := report{
		Level:   level.String(),
		Acked:   c.names(v.Tally.Acked()),
		Missing: c.names(v.Tally.Missing()),
		Refused: make(map[string]string),
	}
	if v.Err != nil {
		r.Error = v.Err.Error()
	}
	for peer, reason := range v.Tally.Refused() {
		r.Refused[c.remote(peer).Name] = reason.Error()
	}
	if peer, ok := v.Tally.Decider(); ok {
		r.Decider = c.remote(peer).Name
	}
	return r
}

func (c *coordinator) serveWrite(w http.ResponseWriter, req *http.Request, cell Cell) {
	key, level, at, err := c.parse(req, true)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	cell.Time = at
	v := c.write(req.Context(), level, key, cell)
	r := c.report(level, v)
	r.Timestamp = cell.Time
	switch {
	case v.End == waitlist.EndReached:
		r.Stored = "yes"
	case v.sent:
		r.Stored = "unknown" // some replica may have it, and then in time all will
	default:
		r.Stored = "no"
	}
	writeJSON(w, statusOf(v), r)
}

func (c *coordinator) serveRead(w http.ResponseWriter, req *http.Request) {
	key, level, _, err := c.parse(req, false)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	cell, v := c.read(req.Context(), level, key)
	if v.End != waitlist.EndReached {
		writeJSON(w, statusOf(v), c.report(level, v))
		return
	}
	if cell.Time != 0 {
		w.Header().Set("X-Timestamp", strconv.FormatInt(cell.Time, 10))
	}
	if cell.Time == 0 || cell.Deleted {
		writeError(w, http.StatusNotFound, errors.New("no such key"))
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(cell.Value) // whoever asked has gone
}

// parse finds out what is asked for. What it does not understand it refuses: a
// misspelt level that silently became the default would be a broken promise.
func (c *coordinator) parse(req *http.Request, write bool) (key string, level Level, timestamp int64, err error) {
	key, level = req.PathValue("key"), Quorum
	if err := checkKey(key); err != nil {
		return "", 0, 0, err
	}
	query, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return "", 0, 0, err
	}
	for name, values := range query {
		switch {
		case len(values) > 1:
			err = fmt.Errorf("parameter %s is given twice", name)
		case name == "level":
			level, err = parseLevel(values[0])
		case name == "timestamp" && write:
			timestamp, err = strconv.ParseInt(values[0], 10, 64)
			if err == nil && (timestamp <= 0 || timestamp > c.now()+maxAhead.Microseconds()) {
				err = fmt.Errorf("timestamp %d is not in microseconds since 1970, or too far ahead", timestamp)
			}
		default:
			err = fmt.Errorf("no such parameter: %s", name)
		}
		if err != nil {
			return "", 0, 0, err
		}
	}
	if write && timestamp == 0 {
		timestamp = c.timestamp()
	}
	return key, level, timestamp, nil
}

// statusOf goes by how the request ended and never by its error, which carries
// errors of replicas too.
func statusOf(v result) int {
	switch v.End {
	case waitlist.EndReached:
		return http.StatusOK
	case waitlist.EndTimedOut:
		return http.StatusGatewayTimeout
	default: // unreachable, closing, or a client that no longer listens
		return http.StatusServiceUnavailable
	}
}

func writeError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, map[string]string{"error": err.Error()})
}

// status is the answer to GET /status.
type status struct {
	Replicas []replicaStatus `json:"replicas"`
	Replayed uint64          `json:"replayed"` // hints delivered
	Repaired uint64          `json:"repaired"` // stale versions replaced because of a read
	Deciding waitlist.Stats  `json:"deciding"`
	Settling waitlist.Stats  `json:"settling"`
}

type replicaStatus struct {
	Name       string `json:"name"`
	Datacentre string `json:"datacentre"`
	Down       bool   `json:"down"`
	Hints      int    `json:"hints"`   // keys of which it is owed a version
	Decided    uint64 `json:"decided"` // requests that its answer decided
}

func (c *coordinator) status() status {
	s := status{
		Replayed: c.replayed.Load(),
		Repaired: c.repaired.Load(),
		Deciding: c.deciding.Stats(),
		Settling: c.settling.Stats(),
	}
	for _, r := range c.remotes {
		s.Replicas = append(s.Replicas, replicaStatus{
			Name:       r.Name,
			Datacentre: r.Datacentre,
			Down:       r.down(),
			Hints:      c.hints.count(r.Name),
			Decided:    r.decided.Load(),
		})
	}
	return s
}
