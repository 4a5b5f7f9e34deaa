package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// outcome is what became of an operation, as far as the client can know.
type outcome uint8

const (
	outcomeDone outcome = 1 + iota
	outcomeNone
	outcomeUnknown
)

// operation is one write or read, from the first attempt to the answer.
type operation struct {
	client  int
	put     bool
	key     string
	value   string // written or read; a read of an absent key gives ""
	outcome outcome
	call    time.Duration // since the workload began
	end     time.Duration
	slowest time.Duration // of its attempts
}

// client does operations, one at a time. It goes where it is sent, and tries again only
// what has certainly not been done: a write that is sent twice may be done twice.
type client struct {
	http   *http.Client
	addrs  []string
	target int // of addrs: who answered last
	limit  time.Duration
}

// newHTTPClient makes what clients share.
func newHTTPClient(clients int) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: clients},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// do fills in what becomes of op. The error is one that should not happen.
func (c *client) do(ctx context.Context, began time.Time, op *operation) error {
	op.call = time.Since(began)
	for {
		start := time.Now()
		a, err := c.attempt(ctx, op)
		op.slowest = max(op.slowest, time.Since(start))
		if err != nil {
			return err
		}
		op.outcome, op.end = a.outcome, time.Since(began)
		switch {
		case op.put && a.outcome != outcomeNone:
			return nil
		case a.outcome == outcomeDone:
			op.value = a.value
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("gave up on %s: %w", op.key, context.Cause(ctx))
		}
		if !c.follow(a.leader) {
			// Nobody leads, or that node is down. An election takes a while.
			c.target = (c.target + 1) % len(c.addrs)
			pause(ctx, 5*time.Millisecond)
		}
	}
}

// follow makes the client turn to addr, if that is a node and another one.
func (c *client) follow(addr string) bool {
	for i, a := range c.addrs {
		if a == addr && i != c.target {
			c.target = i
			return true
		}
	}
	return false
}

type answer struct {
	outcome outcome
	value   string
	leader  string
}

func (c *client) attempt(ctx context.Context, op *operation) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	method, body := http.MethodGet, io.Reader(nil)
	if op.put {
		method, body = http.MethodPut, strings.NewReader(op.value)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addrs[c.target]+"/kv/"+op.key, body)
	if err != nil {
		return answer{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			return answer{outcome: outcomeNone}, nil
		}
		return answer{outcome: outcomeUnknown}, nil
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return answer{outcome: outcomeUnknown}, nil
	case resp.StatusCode == http.StatusOK && op.put:
		return answer{outcome: outcomeDone}, nil
	case resp.StatusCode == http.StatusOK:
		return answer{outcome: outcomeDone, value: string(got)}, nil
	case resp.StatusCode == http.StatusNotFound && !op.put:
		return answer{outcome: outcomeDone}, nil
	}
	switch leader := resp.Header.Get("Kv-Leader"); resp.Header.Get("Kv-Outcome") {
	case "none":
		return answer{outcome: outcomeNone, leader: leader}, nil
	case "unknown":
		return answer{outcome: outcomeUnknown, leader: leader}, nil
	}
	return answer{}, fmt.Errorf("%s of %s: %s: %s", method, op.key, resp.Status, got)
}
