package main

import (
	"fmt"
	"strings"

	"github.com/waitlist-go/waitlist"
)

// A Level is how many replicas, and where, have to answer before a request is
// answered.
type Level uint8

const (
	One         Level = 1 + iota // any replica
	Two                          // any two
	Quorum                       // more than half of all, wherever they are
	All                          // every one
	LocalQuorum                  // more than half of those in the coordinator's datacentre
	EachQuorum                   // more than half in every datacentre
)

var levelNames = [...]string{One: "ONE", Two: "TWO", Quorum: "QUORUM", All: "ALL", LocalQuorum: "LOCAL_QUORUM", EachQuorum: "EACH_QUORUM"}

// levels are all of them, in the order in which they are shown.
var levels = []Level{One, Two, Quorum, All, LocalQuorum, EachQuorum}

func (l Level) String() string {
	if l < One || int(l) >= len(levelNames) {
		return fmt.Sprintf("Level(%d)", uint8(l))
	}
	return levelNames[l]
}

func parseLevel(s string) (Level, error) {
	for _, l := range levels {
		if strings.EqualFold(s, l.String()) {
			return l, nil
		}
	}
	return 0, fmt.Errorf("no such level: %q (there are %s)", s, strings.Join(levelNames[One:], ", "))
}

// rules turns the levels into quorum trees over the replicas of each datacentre.
// A quorum sorts and allocates when it is built and is free to share afterwards, so
// this is done once and not for each request.
func rules(local string, members map[string][]waitlist.PeerID) (map[Level]waitlist.Quorum, error) {
	var everyone []waitlist.PeerID
	var majorities []waitlist.Quorum
	for _, peers := range members {
		everyone = append(everyone, peers...)
		majorities = append(majorities, waitlist.Majority(peers...))
	}
	rules := map[Level]waitlist.Quorum{
		One:         waitlist.AtLeast(1, everyone...),
		Two:         waitlist.AtLeast(2, everyone...),
		Quorum:      waitlist.Majority(everyone...),
		All:         waitlist.All(everyone...),
		LocalQuorum: waitlist.Majority(members[local]...),
		EachQuorum:  waitlist.AllOf(majorities...),
	}
	// A level that no set of answers can satisfy is a mistake in the configuration
	// and is found at the start, not by the first client that asks for it.
	for _, l := range levels {
		if err := rules[l].Err(); err != nil {
			return nil, fmt.Errorf("level %v: %w", l, err)
		}
	}
	return rules, nil
}
