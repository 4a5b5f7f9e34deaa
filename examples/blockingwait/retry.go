//go:build unix

package main

import (
	"context"
	"time"
)

// pause lets a server come back. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// retryEvery is how often what failed is tried again.
const retryEvery = 20 * time.Millisecond

// turn is a lock for which one can stop waiting.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t turn) giveBack() { <-t }
