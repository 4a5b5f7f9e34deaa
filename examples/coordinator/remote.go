package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/waitlist-go/waitlist"
)

// A remote is one replica as the coordinator sees it.
type remote struct {
	Node
	id      waitlist.PeerID
	client  *http.Client
	decided atomic.Uint64 // requests that its answer has decided
	replay  sync.Mutex    // held while its hints are delivered

	turning sync.Mutex    // held while life changes, and with it what is parked
	life    atomic.Uint64 // even while it seems to live, odd while it seems dead
}

// down says what the last probe or connection has shown.
func (r *remote) down() bool { return r.life.Load()%2 != 0 }

// newClient makes the client that all replicas share.
func newClient() *http.Client {
	return &http.Client{
		// No timeout of its own: every call has a context that ends.
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 64,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (r *remote) ping(ctx context.Context) error {
	return r.do(ctx, http.MethodGet, "", http.StatusNoContent, nil, nil)
}

func (r *remote) get(ctx context.Context, key string) (cell Cell, err error) {
	err = r.do(ctx, http.MethodGet, "/cells?key="+url.QueryEscape(key), http.StatusOK, nil, &cell)
	return cell, err
}

func (r *remote) put(ctx context.Context, key string, cell Cell) (newer bool, err error) {
	var s stored
	err = r.do(ctx, http.MethodPut, "/cells?key="+url.QueryEscape(key), http.StatusOK, cell, &s)
	return s.Newer, err
}

func (r *remote) do(ctx context.Context, method, path string, want int, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL+"/replicas/"+url.PathEscape(r.Name)+path, body)
	if err != nil {
		return err
	}
	// A pooled connection may have died with the replica's last life. All calls can
	// be repeated, so the transport may try a new one, and what is reported as a
	// refusal is never a mere stale connection. The empty value stays off the wire.
	req.Header["Idempotency-Key"] = nil
	resp, err := r.client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	defer func() {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)) // so that the connection is used again
		_ = resp.Body.Close()
	}()
	if resp.StatusCode != want {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return fmt.Errorf("%s: %s: %s", r.Name, resp.Status, strings.TrimSpace(string(text)))
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(out); err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	return nil
}

// nobodyThere says whether no connection could be made at all, which is true of the
// replica and not only of the request that found out.
func nobodyThere(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
