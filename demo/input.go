package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A source hands out writes, each a key and a value.
type source interface {
	// run sends every write, until ctx ends, and closes the channel.
	run(ctx context.Context, writes chan<- op) error
	// total is how many there will be; 0: nobody knows yet.
	total() int
	String() string
}

// generated writes are as many as the number says.
type generated int

func (g generated) total() int     { return int(g) }
func (g generated) String() string { return thousands(int(g)) + " generated writes" }

func (g generated) run(ctx context.Context, writes chan<- op) error {
	defer close(writes)
	for i := range int(g) {
		o := op{key: fmt.Sprintf("key-%06d", i+1), value: fmt.Sprintf("value of write %d", i+1)}
		select {
		case writes <- o:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// lines are writes in the form key=value, one a line. Empty lines are skipped.
type lines struct {
	name string
	r    io.ReadCloser
}

func (l lines) total() int     { return 0 }
func (l lines) String() string { return "the lines of " + l.name }

func (l lines) run(ctx context.Context, writes chan<- op) error {
	defer close(writes)
	defer l.r.Close()
	scan := bufio.NewScanner(l.r)
	scan.Buffer(nil, maxOp)
	n := 1
	for ; scan.Scan(); n++ {
		if len(bytes.TrimSpace(scan.Bytes())) == 0 {
			continue
		}
		key, value, ok := strings.Cut(scan.Text(), "=")
		switch {
		case !ok:
			return fmt.Errorf("%s, line %d: no \"=\" in %.40q", l.name, n, scan.Text())
		case key == "":
			return fmt.Errorf("%s, line %d: no key before the \"=\"", l.name, n)
		}
		select {
		case writes <- op{key: key, value: value}:
		case <-ctx.Done():
			return nil
		}
	}
	if err := scan.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("%s, line %d: longer than %d bytes", l.name, n, maxOp)
	} else if err != nil {
		return fmt.Errorf("%s, line %d: %w", l.name, n, err)
	}
	return nil
}
