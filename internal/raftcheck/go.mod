module github.com/waitlist-go/waitlist/internal/raftcheck

go 1.25.0

require (
	github.com/waitlist-go/waitlist v0.0.0
	go.etcd.io/raft/v3 v3.6.0
)

replace github.com/waitlist-go/waitlist => ../../
