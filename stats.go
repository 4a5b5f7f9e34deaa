package waitlist

// Stats is a snapshot of a list's books. Always Added == Parked plus the sum of the
// counters from Reached to Closed: each shard's part is read whole.
type Stats struct {
	Parked  int // parked now
	Running int // claimed, and the callback not yet back

	Added uint64 // Adds and Waits that were not refused

	// How they ended: one counter per End.
	Reached      uint64
	Completed    uint64
	TimedOut     uint64
	Unreachable  uint64
	Failed       uint64
	Truncated    uint64
	SessionEnded uint64
	Canceled     uint64
	Closed       uint64

	Refused        uint64 // Adds and Waits that parked nothing
	DuplicateAcks  uint64 // answers of peers that had answered
	ForeignAcks    uint64 // answers of peers that are not members
	LateAcks       uint64 // answers under unknown keys: the third of a majority of three is always one
	CallbackPanics uint64 // panics of callbacks, recovered or not
}

// Stats returns the list's books. It takes each shard's lock in turn.
func (l *core[K]) Stats() Stats {
	st := Stats{Refused: l.refused.Load(), CallbackPanics: l.panics.Load()}
	for _, s := range l.shards {
		s.mu.Lock()
		live, running, c := uint64(s.live), s.running.Load(), s.counters
		s.mu.Unlock()

		st.Parked += int(live)
		st.Running += int(running)
		st.Added += live
		for _, n := range c.ended {
			st.Added += n
		}
		st.Reached += c.ended[EndReached-1]
		st.Completed += c.ended[EndCompleted-1]
		st.TimedOut += c.ended[EndTimedOut-1]
		st.Unreachable += c.ended[EndUnreachable-1]
		st.Failed += c.ended[EndFailed-1]
		st.Truncated += c.ended[EndTruncated-1]
		st.SessionEnded += c.ended[EndSession-1]
		st.Canceled += c.ended[EndCanceled-1]
		st.Closed += c.ended[EndClosed-1]
		st.DuplicateAcks += c.duplicates
		st.ForeignAcks += c.foreign
		st.LateAcks += c.late
	}
	return st
}
