package rivals

import (
	"math/bits"
	"sync/atomic"
)

// votes is the state of a request that is found without a lock: a bit for every peer that has answered and one
// for whoever has given it up. The goroutine that moves it from undecided to decided owns the end.
type votes struct{ word atomic.Uint32 }

const givenUp = 1 << 31

func decided(word uint32) bool { return word&givenUp != 0 || bits.OnesCount32(word) >= Need }

// ack counts a peer's answer and reports whether it decided.
func (v *votes) ack(peer int) bool {
	bit := uint32(1) << peer
	before := v.word.Or(bit)
	return !decided(before) && decided(before|bit)
}

// giveUp reports whether the request was still undecided.
func (v *votes) giveUp() bool { return !decided(v.word.Or(givenUp)) }
