package waitlist

// Stats is a snapshot of a list's books. Always Added == Parked plus the sum of the
// counters from Reached to Closed: each shard's part is read whole.
type Stats struct {
	Parked  int // parked now
	Running int // claimed, and the callback not yet back; those that an Executor holds included

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
		added, live, running, ended := s.added, uint64(s.live), s.runningLocked(), s.ended
		late, duplicates, foreign := s.late, s.duplicates, s.foreign
		s.mu.Unlock()
		of := func(end End) uint64 { return ended[end-EndCompleted] }

		st.Parked += int(live)
		st.Running += running
		st.Added += added
		st.Reached += added - live
		for _, n := range ended {
			st.Reached -= n
		}
		st.Completed += of(EndCompleted)
		st.TimedOut += of(EndTimedOut)
		st.Unreachable += of(EndUnreachable)
		st.Failed += of(EndFailed)
		st.Truncated += of(EndTruncated)
		st.SessionEnded += of(EndSession)
		st.Canceled += of(EndCanceled)
		st.Closed += of(EndClosed)
		st.LateAcks += late
		st.DuplicateAcks += duplicates
		st.ForeignAcks += foreign
	}
	return st
}
