//go:build unix

package main

import (
	"sync/atomic"
	"syscall"
	"time"
)

// A step is a place in the protocol where a crash leaves the servers and the log in
// a state of their own. The tests crash at every one.
type step string

const (
	stepParked     step = "parked"      // parked; no server has been told
	stepPrepared   step = "prepared"    // a server has prepared; its vote has not been counted
	stepFirstVote  step = "first-vote"  // one vote is counted, another is missing
	stepAllVoted   step = "all-voted"   // every server has voted yes; nothing is on disk
	stepWritten    step = "written"     // the decision is in the file, but not yet forced to the disk
	stepDecided    step = "decided"     // the decision is on disk; nobody has been told
	stepHalfSent   step = "half-sent"   // one server is told the decision, another is not
	stepAllSent    step = "all-sent"    // every server has committed; the log has not noted it
	stepVotedNo    step = "voted-no"    // a server has refused; nothing has been rolled back
	stepRolledBack step = "rolled-back" // a server has rolled back what it had prepared
	stepRecovering step = "recovering"  // after a crash: the first leftover has been settled
)

var steps = []step{
	stepParked, stepPrepared, stepFirstVote, stepAllVoted, stepWritten, stepDecided,
	stepHalfSent, stepAllSent, stepVotedNo, stepRolledBack, stepRecovering,
}

// A probe is told of every step of every transaction, on the goroutine that takes
// it, which goes on when the probe returns. Without crashes to cause it is nil.
type probe func(step)

func (p probe) at(s step) {
	if p != nil {
		p(s)
	}
}

// crashAt is how a crash is ordered: when the step is taken for the given time.
type crashAt struct {
	Step  step `json:"step,omitempty"`
	After int  `json:"after,omitempty"` // 1: the first time
}

// probe returns one that calls crash once, at the ordered moment.
func (c crashAt) probe(crash func()) probe {
	if c.Step == "" {
		return nil
	}
	var taken atomic.Int64
	return func(s step) {
		if s == c.Step && taken.Add(1) == int64(max(c.After, 1)) {
			crash()
		}
	}
}

// killSelf is kill -9: no deferred call, no flush and no closing of connections that
// the process itself could still do. It comes a moment after the step has been taken.
// The transaction goes no further meanwhile, but what it has set going does, and
// other transactions get to other steps.
func killSelf() {
	time.Sleep(20 * time.Millisecond)
	syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {} // the signal may take a moment, and the step must not be passed
}
