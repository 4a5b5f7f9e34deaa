package main

import (
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// This file answers the requests that wait for nothing.

// versions says which requests there are. asked is nil if the question itself came in a
// version that is too new; then the answer is in the oldest, which everybody can read.
func versions(asked *kmsg.ApiVersionsRequest) kmsg.Response {
	resp := kmsg.NewPtrApiVersionsResponse()
	if asked == nil {
		resp.ErrorCode = kerr.UnsupportedVersion.Code
	} else {
		resp.Version = asked.Version
	}
	for key, s := range served {
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = key.Int16(), s.lowest, s.highest
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	return resp
}

// lookUp returns a partition if this broker leads it, or an error that sends the client
// to the one that does.
func (b *broker) lookUp(topic string, index int32) (*leader, error) {
	if l := b.leaderOf(partitionName{topic, index}); l != nil {
		return l, nil
	}
	if all, ok := b.cluster.metadata(topic); !ok || index < 0 || int(index) >= len(all) {
		return nil, kerr.UnknownTopicOrPartition
	}
	return nil, kerr.NotLeaderForPartition
}

func (b *broker) serveMetadata(req *kmsg.MetadataRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	living := b.cluster.living()
	var alive []int32
	for _, other := range living {
		host, port := other.hostPort()
		mb := kmsg.NewMetadataResponseBroker()
		mb.NodeID, mb.Host, mb.Port = other.id, host, port
		resp.Brokers = append(resp.Brokers, mb)
		alive = append(alive, other.id)
	}
	resp.ClusterID = new("kafkaacks")
	resp.ControllerID = b.id // anyone can do what a controller is asked for

	var names []string
	if req.Topics == nil {
		names = b.cluster.topicNames()
	}
	for _, t := range req.Topics {
		if t.Topic != nil {
			names = append(names, *t.Topic)
		}
	}
	for _, name := range names {
		out := kmsg.NewMetadataResponseTopic()
		out.Topic = new(name)
		all, ok := b.cluster.metadata(name)
		if !ok {
			out.ErrorCode = kerr.UnknownTopicOrPartition.Code
		}
		for i, a := range all {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader, p.LeaderEpoch = int32(i), a.leader(), leaderEpoch
			p.Replicas, p.ISR = a.replicas, a.inSync
			for _, id := range a.replicas {
				if !slices.Contains(alive, id) {
					p.OfflineReplicas = append(p.OfflineReplicas, id)
				}
			}
			if !slices.Contains(alive, p.Leader) {
				p.Leader, p.ErrorCode = -1, kerr.LeaderNotAvailable.Code
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func (b *broker) serveCreateTopics(req *kmsg.CreateTopicsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	for _, t := range req.Topics {
		out := kmsg.NewCreateTopicsResponseTopic()
		out.Topic = t.Topic
		plan, err := planOf(t)
		if err == nil {
			var all []assignment
			if all, err = b.cluster.create(plan, req.ValidateOnly); err == nil {
				out.NumPartitions, out.ReplicationFactor = int32(len(all)), int16(len(all[0].replicas))
			}
		}
		if err != nil {
			out.ErrorCode, out.ErrorMessage = codeOf(err), new(err.Error())
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func planOf(t kmsg.CreateTopicsRequestTopic) (plan, error) {
	p := plan{name: t.Topic, partitions: t.NumPartitions, copies: t.ReplicationFactor, minInSync: 1}
	if n := len(t.ReplicaAssignment); n > 0 {
		p.assigned = make([][]int32, n)
		for _, a := range t.ReplicaAssignment {
			if a.Partition < 0 || int(a.Partition) >= n || p.assigned[a.Partition] != nil {
				return p, kerr.InvalidReplicaAssignment
			}
			p.assigned[a.Partition] = a.Replicas
		}
	}
	for _, c := range t.Configs {
		// A setting that would be ignored is one that somebody relies on.
		if c.Name != "min.insync.replicas" || c.Value == nil {
			return p, kerr.InvalidConfig
		}
		n, err := strconv.Atoi(*c.Value)
		if err != nil || n < 1 {
			return p, kerr.InvalidConfig
		}
		p.minInSync = n
	}
	return p, nil
}

// serveInitProducerID gives an idempotent producer its id.
func (b *broker) serveInitProducerID(req *kmsg.InitProducerIDRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID = -1
	if req.TransactionalID != nil {
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return resp
	}
	resp.ProducerID = b.cluster.nextProducerID()
	return resp
}

const (
	latestOffset   = -1
	earliestOffset = -2
)

func (b *broker) serveListOffsets(req *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for _, t := range req.Topics {
		out := kmsg.NewListOffsetsResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			o := kmsg.NewListOffsetsResponseTopicPartition()
			o.Partition = p.Partition
			o.Offset, o.Timestamp = -1, -1
			l, err := b.lookUp(t.Topic, p.Partition)
			switch {
			case err != nil:
				o.ErrorCode = codeOf(err)
			case p.Timestamp == earliestOffset:
				o.Offset, o.LeaderEpoch = 0, leaderEpoch
			case p.Timestamp == latestOffset:
				o.Offset, o.LeaderEpoch = l.highWatermark(), leaderEpoch
			case p.Timestamp < 0:
				o.ErrorCode = kerr.UnsupportedForMessageFormat.Code
			default:
				// Records may be compressed, so this knows batches only.
				if offset, millis, ok := l.log.at(p.Timestamp, l.highWatermark()); ok {
					o.Offset, o.Timestamp, o.LeaderEpoch = offset, millis, leaderEpoch
				}
			}
			out.Partitions = append(out.Partitions, o)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}
