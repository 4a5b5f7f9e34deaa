package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/waitlist-go/waitlist"
)

// This file is a node as its clients see it, and the place where requests wait.
//
//	PUT /kv/KEY   200, and Kv-Index: where in the log the write is
//	GET /kv/KEY   200 and the value, or 404
//	GET /status   what the node knows, in JSON
//
// A request that did not end well is answered with what became of it, in Kv-Outcome:
//
//	none      nothing was done and nothing will be: try again. 307 if another node
//	          leads (Location), 503 if nobody is known to
//	unknown   the write may have been done or may yet be: 503, or 504 at the deadline
//
// and Kv-Leader is the leader's address, if it is known.

const maxValue = 1 << 20

// notDone is why a request had no effect and will have none.
type notDone struct {
	cause  error
	leader string // its address, if it is known
}

func (e *notDone) Error() string { return "nothing was done: " + e.cause.Error() }
func (e *notDone) Unwrap() error { return e.cause }

// unknown is why nobody can tell whether a write will have an effect.
type unknown struct {
	cause  error
	leader string
}

func (e *unknown) Error() string { return "it may have been done or not: " + e.cause.Error() }
func (e *unknown) Unwrap() error { return e.cause }

func (n *node) serve() {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /kv/{key...}", n.servePut)
	mux.HandleFunc("GET /kv/{key...}", n.serveGet)
	mux.HandleFunc("GET /status", n.serveStatus)
	n.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       n.timeout + 10*time.Second, // or it would cut off those who wait
		// Close cuts connections and waits for none of their goroutines: count them.
		ConnState: func(_ net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				n.sessions.Add(1)
			case http.StateClosed, http.StateHijacked:
				n.sessions.Done()
			}
		},
	}
	// Serve counts as well, or it could take a connection after the last count.
	n.sessions.Go(func() { _ = n.server.Serve(n.httpListener) })
}

func (n *node) servePut(w http.ResponseWriter, r *http.Request) {
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxValue))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		http.Error(w, "the value is too large", http.StatusRequestEntityTooLarge)
		return
	} else if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	index, err := n.put(r.Context(), r.PathValue("key"), value)
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	w.Header().Set("Kv-Index", strconv.FormatUint(index, 10))
}

// put sets a key and returns the index of the write. The error is a *notDone or an
// *unknown.
func (n *node) put(ctx context.Context, key string, value []byte) (index uint64, err error) {
	if n.leader.Load() != n.id {
		return 0, n.notLeader()
	}
	c := command{id: n.nextID(), key: key, value: value}
	// Parked first and submitted second: the command may be applied before submit
	// returns. No ack ends this entry; the loop does, when it has applied the command
	// or knows that it will not find out.
	out, err := n.writes.Wait(ctx, c.id, waitlist.External(), func() error {
		select {
		case n.proposals <- c:
			return nil
		case <-n.stopped:
		case <-ctx.Done():
		}
		return errNotSubmitted
	})
	switch {
	case err == nil:
		n.metrics.writes.add(time.Since(out.Since))
		return out.Value.(uint64), nil
	case out.End == 0: // too many are parked, or the node is stopping
		return 0, &notDone{cause: err}
	case out.End == waitlist.EndFailed: // the loop said what became of it
		return 0, err
	case errors.Is(err, errNotSubmitted):
		return 0, &notDone{cause: err}
	}
	return 0, &unknown{cause: err, leader: n.address(n.leader.Load())}
}

func (n *node) serveGet(w http.ResponseWriter, r *http.Request) {
	value, ok, err := n.get(r.Context(), r.PathValue("key"))
	switch {
	case err != nil:
		n.refuse(w, r, err)
	case !ok:
		http.Error(w, "there is no such key", http.StatusNotFound)
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(value) // who does not take the answer has hung up
	}
}

// get reads a key, on any node: it sees every write that was answered before get was
// called. The error is a *notDone.
func (n *node) get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	id := n.nextID()
	out, err := n.reads.Wait(ctx, id, waitlist.External(), func() error {
		select {
		case n.readers <- id:
			return nil
		case <-n.stopped:
		case <-ctx.Done():
		}
		return errNotSubmitted
	})
	if err != nil {
		// Whatever it was: a read that was not answered has not happened.
		if said := (*notDone)(nil); errors.As(err, &said) {
			return nil, false, said
		}
		return nil, false, &notDone{cause: err}
	}
	n.metrics.reads.add(time.Since(out.Since))
	value, ok = n.store.get(key)
	return value, ok, nil
}

// refuse answers a request that did not end well.
func (n *node) refuse(w http.ResponseWriter, r *http.Request, err error) {
	h := w.Header()
	status, leader := http.StatusServiceUnavailable, ""
	if lost := (*unknown)(nil); errors.As(err, &lost) {
		h.Set("Kv-Outcome", "unknown")
		leader = lost.leader
		if errors.Is(err, waitlist.ErrTimeout) {
			status = http.StatusGatewayTimeout
		}
	} else {
		h.Set("Kv-Outcome", "none")
		if nothing := (*notDone)(nil); errors.As(err, &nothing) {
			leader = nothing.leader
		}
		if leader != "" && leader != n.address(n.id) {
			h.Set("Location", "http://"+leader+r.URL.EscapedPath())
			status = http.StatusTemporaryRedirect
		} else {
			h.Set("Retry-After", "1")
		}
	}
	if leader != "" {
		h.Set("Kv-Leader", leader)
	}
	http.Error(w, err.Error(), status)
}

func (n *node) serveStatus(w http.ResponseWriter, _ *http.Request) {
	leader := n.leader.Load()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"node": n.id, "leader": leader, "leaderAddress": n.address(leader),
		"applied": n.applied.Watermark(), "lists": n.stats(),
	})
}
