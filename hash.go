package waitlist

import (
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"unsafe"
)

// hasher hashes keys with a seed of its own, so that a client who chooses keys
// cannot make them collide.
type hasher[K comparable] struct {
	seed   maphash.Seed
	word   bool      // K is an integer of 64 bits
	secret [2]uint64 // for such keys
}

func newHasher[K comparable]() hasher[K] {
	h := hasher[K]{seed: maphash.MakeSeed(), secret: [2]uint64{rand.Uint64(), rand.Uint64() | 1}}
	switch t := reflect.TypeFor[K](); t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64, reflect.Uintptr:
		h.word = t.Size() == 8
	}
	return h
}

// hash panics for a key whose dynamic type cannot be hashed, as a map would.
//
// Most correlation ids are integers of 64 bits. For them two folded multiplications (the
// mixing step of wyhash, by Wang Yi) replace maphash.Comparable and save 5 of its 8 ns,
// four times in a request. One multiplication was refused: with some secrets consecutive
// ids then share few shards. unsafe is needed because a type parameter cannot be converted;
// it reads the key as the uint64 that it is.
func (h *hasher[K]) hash(key K) uint64 {
	if !h.word {
		return maphash.Comparable(h.seed, key)
	}
	high, low := bits.Mul64(*(*uint64)(unsafe.Pointer(&key))^h.secret[0], h.secret[1])
	high, low = bits.Mul64(high^low, h.secret[1])
	return high ^ low
}
