package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waitlist-go/waitlist"
)

// cluster is the table that all brokers share, where Kafka has a controller: who is
// alive and where, and which topics there are. It outlives the brokers.
type cluster struct {
	config  config
	folder  string
	metrics *metrics

	mu         sync.Mutex // taken after a leader's isrMu, never before
	alive      map[int32]*broker
	addresses  map[int32]string // also of the dead, which return there if they can
	topics     map[string]*topic
	producerID int64
	past       waitlist.Stats // of lists that are closed
}

type config struct {
	brokers int

	// How long a follower may be without the end of the leader's log before it leaves
	// the in-sync set (replica.lag.time.max.ms).
	lagMax time.Duration
	// How long a follower's fetch waits for records (replica.fetch.wait.max.ms). It
	// has to be shorter, or an idle follower would lag by waiting.
	replicaWait time.Duration

	// inSync is told of changes of in-sync sets, in their order for each partition. It
	// must not call the leader.
	inSync func(isrChange)
}

type isrChange struct {
	at       partitionName
	old, now []int32
	mark     int64 // the high watermark: the offset that a consumer cannot see yet
	released int   // requests that were waiting for one that has left
}

type partitionName struct {
	topic string
	index int32
}

func (p partitionName) String() string { return fmt.Sprintf("%s/%d", p.topic, p.index) }

type topic struct {
	partitions []assignment
	minInSync  int
}

// assignment is who has a partition. The first replica leads it, for good.
type assignment struct {
	replicas []int32
	inSync   []int32 // as its leader has last said
}

func (a assignment) leader() int32 { return a.replicas[0] }

// leaderEpoch counts the leaders that a partition has had.
const leaderEpoch = 0

const maxPartitions = 1000

func newCluster(c config) (*cluster, error) {
	folder, err := os.MkdirTemp("", "kafkaacks-")
	if err != nil {
		return nil, err
	}
	cl := &cluster{
		config: c, folder: folder, metrics: newMetrics(), alive: make(map[int32]*broker),
		addresses: make(map[int32]string), topics: make(map[string]*topic),
	}
	for id := range int32(c.brokers) {
		if err := cl.start(id + 1); err != nil {
			cl.close()
			return nil, err
		}
	}
	return cl, nil
}

// close stops the brokers and removes their logs.
func (c *cluster) close() error {
	for id := range int32(c.config.brokers) {
		c.kill(id + 1)
	}
	return os.RemoveAll(c.folder)
}

// start starts a broker, with the logs that it left if it has lived before.
func (c *cluster) start(id int32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alive[id] != nil {
		return fmt.Errorf("broker %d is alive", id)
	}
	folder := filepath.Join(c.folder, fmt.Sprint("broker-", id))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	b, err := newBroker(c, id, folder, c.addresses[id])
	if err != nil {
		return err
	}
	for name, t := range c.topics {
		for i, a := range t.partitions {
			if err := b.host(partitionName{name, int32(i)}, a, t.minInSync); err != nil {
				b.kill()
				return err
			}
		}
	}
	b.run()
	c.alive[id], c.addresses[id] = b, b.address()
	return nil
}

// kill ends a broker with no warning to anybody: its connections break, nobody gets an
// answer, and what it has written is all that it leaves.
func (c *cluster) kill(id int32) {
	c.mu.Lock()
	b := c.alive[id]
	delete(c.alive, id)
	c.mu.Unlock()
	if b == nil {
		return
	}
	stats := b.kill()
	c.mu.Lock()
	c.past = addStats(c.past, stats)
	c.mu.Unlock()
}

// addressOf returns where a broker is, if it is alive.
func (c *cluster) addressOf(id int32) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.alive[id]
	return c.addresses[id], ok
}

func (c *cluster) living() []*broker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.alive), func(a, b *broker) int { return cmp.Compare(a.id, b.id) })
}

// seeds are the addresses that a client begins with.
func (c *cluster) seeds() []string {
	var s []string
	for _, b := range c.living() {
		s = append(s, b.address())
	}
	return s
}

// leading returns the leader of a partition, if its broker is alive.
func (c *cluster) leading(name partitionName) *leader {
	for _, b := range c.living() {
		if l := b.leaderOf(name); l != nil {
			return l
		}
	}
	return nil
}

// stats are the books of all lists there have been.
func (c *cluster) stats() waitlist.Stats {
	c.mu.Lock()
	sum := c.past
	c.mu.Unlock()
	for _, b := range c.living() {
		sum = addStats(sum, b.stats())
	}
	return sum
}

func (c *cluster) inSync(name partitionName) []int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.topics[name.topic].partitions[name.index].inSync
}

func (c *cluster) setInSync(name partitionName, isr []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.topics[name.topic]; t != nil { // nil: a topic that could not be made
		t.partitions[name.index].inSync = isr
	}
}

func (c *cluster) nextProducerID() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.producerID++
	return c.producerID
}

// metadata returns a copy of the assignments of a topic.
func (c *cluster) metadata(name string) ([]assignment, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.topics[name]
	if !ok {
		return nil, false
	}
	return slices.Clone(t.partitions), true
}

func (c *cluster) topicNames() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.topics))
}

// Names become names of files.
var legalName = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,200}$`)

// plan is a topic that somebody asks for.
type plan struct {
	name       string
	partitions int32 // if assigned is nil; -1: as many as usual
	copies     int16 // likewise
	assigned   [][]int32
	minInSync  int
}

// assign says who has which partition. The error is one of Kafka's.
func (c *cluster) assign(p plan) ([]assignment, error) {
	if !legalName.MatchString(p.name) {
		return nil, kerr.InvalidTopicException
	}
	brokers := int32(c.config.brokers)
	if p.assigned == nil {
		if p.partitions == -1 {
			p.partitions = 1
		}
		if p.copies == -1 {
			p.copies = int16(brokers)
		}
		if p.partitions < 1 || p.partitions > maxPartitions {
			return nil, kerr.InvalidPartitions
		}
		if p.copies < 1 || int32(p.copies) > brokers {
			return nil, kerr.InvalidReplicationFactor
		}
		for i := range p.partitions {
			var replicas []int32
			for j := range int32(p.copies) {
				replicas = append(replicas, (i+j)%brokers+1)
			}
			p.assigned = append(p.assigned, replicas)
		}
	}
	if len(p.assigned) > maxPartitions {
		return nil, kerr.InvalidPartitions
	}
	var all []assignment
	for _, replicas := range p.assigned {
		sorted := slices.Sorted(slices.Values(replicas))
		if len(sorted) == 0 || sorted[0] < 1 || sorted[len(sorted)-1] > brokers || len(slices.Compact(sorted)) < len(replicas) {
			return nil, kerr.InvalidReplicaAssignment
		}
		all = append(all, assignment{replicas: replicas, inSync: slices.Clone(sorted)})
	}
	return all, nil
}

// create makes a topic, and returns when every broker that is alive has its part.
func (c *cluster) create(p plan, onlyCheck bool) ([]assignment, error) {
	all, err := c.assign(p)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.topics[p.name] != nil {
		return nil, kerr.TopicAlreadyExists
	}
	if onlyCheck {
		return all, nil
	}
	for i, a := range all {
		for _, b := range c.alive {
			if err := b.host(partitionName{p.name, int32(i)}, a, p.minInSync); err != nil {
				return nil, err
			}
		}
	}
	c.topics[p.name] = &topic{partitions: all, minInSync: p.minInSync}
	for _, b := range c.alive {
		b.releaseFollowers()
	}
	return slices.Clone(all), nil
}

func addStats(a, b waitlist.Stats) waitlist.Stats {
	a.Parked += b.Parked
	a.Running += b.Running
	a.Added += b.Added
	a.Reached += b.Reached
	a.TimedOut += b.TimedOut
	a.SessionEnded += b.SessionEnded
	a.Closed += b.Closed
	a.Refused += b.Refused
	return a
}
