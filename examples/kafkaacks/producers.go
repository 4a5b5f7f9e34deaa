package main

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
)

// producers is what a leader knows of the idempotent producers of a partition. A
// producer numbers its records and sends a batch again if it has heard nothing; by the
// number the leader knows one that it has. The table is made from the log when the
// leader starts, so it is as safe as the records.
type producers map[int64]*producer

type producer struct {
	epoch  int16
	recent []batchInfo // the last ones, as many as a client may have under way
}

const clientsWindow = 5

// check tells whether a batch is the next one, or which earlier one it repeats.
func (p producers) check(i batchInfo) (repeated *batchInfo, err error) {
	if i.producer < 0 {
		return nil, nil
	}
	known := p[i.producer]
	switch {
	case known != nil && i.epoch < known.epoch:
		return nil, kerr.InvalidProducerEpoch
	case known == nil || i.epoch > known.epoch:
		// Something new begins at 0. Anything else means that an earlier batch has
		// not arrived.
		if i.sequence != 0 {
			return nil, kerr.OutOfOrderSequenceNumber
		}
		return nil, nil
	}
	at := slices.IndexFunc(known.recent, func(r batchInfo) bool {
		return r.sequence == i.sequence && r.count == i.count
	})
	if at >= 0 {
		return &known.recent[at], nil
	}
	last := known.recent[len(known.recent)-1].lastSequence()
	if i.sequence != int32((int64(last)+1)&(1<<31-1)) {
		return nil, kerr.OutOfOrderSequenceNumber
	}
	return nil, nil
}

// note adds a batch that is in the log.
func (p producers) note(i batchInfo) {
	if i.producer < 0 {
		return
	}
	known := p[i.producer]
	if known == nil || known.epoch != i.epoch {
		known = &producer{epoch: i.epoch}
		p[i.producer] = known
	}
	if len(known.recent) == clientsWindow {
		known.recent = append(known.recent[:0], known.recent[1:]...)
	}
	known.recent = append(known.recent, i)
}
