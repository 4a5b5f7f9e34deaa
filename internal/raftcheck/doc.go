// Package raftcheck compares the rules of package waitlist with those of etcd's Raft:
// the same verdicts and the same commit indexes, for single and joint configurations.
// It has tests only, and a module of its own so that the root imports nothing for it.
//
// There is one difference, and it is meant: to etcd a configuration without members is
// won, and commits everything, so that a joint configuration with an empty half is the
// other half alone. Here a rule without members is invalid, and so is a joint rule with
// such a half. What stands for etcd's is the majority of the half that is not empty.
package raftcheck
