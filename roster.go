package waitlist

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Roster gives peers whose names are of another type (addresses, UUIDs) the
// [PeerID] values that quorums and answers are made of.
//
// Ids start at 1 and have no gaps. They come from the order in which this
// process met the names, so they are never stored and never sent: another
// process, or this one after a restart, numbers the same peers otherwise. A name
// is never forgotten. Enrol the peers that the configuration names, with
// [Roster.ID] or [Roster.IDs], and look up with [Roster.Lookup] what arrives
// from the network, so that strangers cannot fill the roster.
//
// Names are equal when == says so. One that is not equal to itself (a NaN) is
// new each time: each ID enrols it again, Lookup never finds it, and only Name
// knows it. A name whose dynamic type cannot be hashed panics, as it does as the
// key of a map; then nothing is enrolled and nothing is locked.
//
// A Roster may be used by several goroutines. Finding a known name costs one
// look into a map, allocates nothing and takes no lock; a call that enrols copies
// the whole roster once, so enrol many names with one call. The zero value is an
// empty roster. A Roster must not be copied.
type Roster[P comparable] struct {
	enrolling sync.Mutex // held by who replaces current; nothing that may panic is done under it

	// current is replaced, never changed. Readers on many cores therefore share
	// only cache lines that nobody writes, which the reader count of an RWMutex
	// would not give them. (A sync.Map would, but allocates for most types of
	// names in each look-up, and cannot hold both directions at once.)
	current atomic.Pointer[enrolled[P]]
}

// enrolled is what a roster knows at one moment.
type enrolled[P comparable] struct {
	ids   map[P]PeerID
	names []P // Invariant: names[id-1] has id; shares its array with later ones, which only append
}

// NewRoster returns a roster in which names have the ids 1, 2, 3 and so on; a
// repeated name keeps its first.
func NewRoster[P comparable](names ...P) *Roster[P] {
	r := new(Roster[P])
	r.IDs(names...)
	return r
}

// ID is the id of name, which is enrolled if it is new.
func (r *Roster[P]) ID(name P) PeerID {
	if id, known := r.Lookup(name); known {
		return id
	}
	return r.IDs(name)[0]
}

// IDs are the ids of names, in their order and one for each, so that a repeated
// name gives a repeated id. Those that are new are enrolled, in the same order
// and all at once.
func (r *Roster[P]) IDs(names ...P) []PeerID {
	ids := make([]PeerID, len(names)) // 0: not known
	old, known := r.snapshot(), 0
	for i, name := range names { // hashes every name before anything changes
		if id, ok := old.ids[name]; ok {
			ids[i] = id
			known++
		}
	}
	if known < len(names) {
		r.enrol(names, ids)
	}
	return ids
}

// enrol fills in the ids that are 0, for names that have been hashed before.
func (r *Roster[P]) enrol(names []P, ids []PeerID) {
	r.enrolling.Lock()
	defer r.enrolling.Unlock()
	old := r.snapshot()
	next := enrolled[P]{ids: make(map[P]PeerID, len(old.ids)+len(names)), names: old.names}
	maps.Copy(next.ids, old.ids)
	for i, name := range names {
		if ids[i] != 0 {
			continue
		}
		id, known := next.ids[name] // met by another goroutine, or earlier in names
		if !known {
			next.names = append(next.names, name)
			id = PeerID(len(next.names))
			next.ids[name] = id
		}
		ids[i] = id
	}
	r.current.Store(&next)
}

// Lookup is the id of name, if it has one. It never enrols: it is for names off
// the wire.
func (r *Roster[P]) Lookup(name P) (PeerID, bool) {
	id, known := r.snapshot().ids[name]
	return id, known
}

// Name is the name that was given id, if one was.
func (r *Roster[P]) Name(id PeerID) (P, bool) {
	names := r.snapshot().names
	if id == 0 || id > PeerID(len(names)) {
		var none P
		return none, false
	}
	return names[id-1], true
}

func (r *Roster[P]) snapshot() enrolled[P] {
	if known := r.current.Load(); known != nil {
		return *known
	}
	return enrolled[P]{}
}
