package main

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// someRequests are one of each kind, in old and new versions.
func someRequests() [][]byte {
	at := partitionName{"orders", 0}
	produce := produceRequest(at, acksAll, 100*time.Millisecond, newBatch("a", "b"))
	create := kmsg.NewPtrCreateTopicsRequest()
	ct := kmsg.NewCreateTopicsRequestTopic()
	ct.Topic, ct.NumPartitions, ct.ReplicationFactor = "more", 1, 3
	create.Topics = append(create.Topics, ct)
	metadata := kmsg.NewPtrMetadataRequest()
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = new("orders")
	metadata.Topics = append(metadata.Topics, mt)
	offsets := kmsg.NewPtrListOffsetsRequest()
	ot := kmsg.NewListOffsetsRequestTopic()
	ot.Topic, ot.Partitions = "orders", append(ot.Partitions, kmsg.NewListOffsetsRequestTopicPartition())
	offsets.Topics = append(offsets.Topics, ot)

	var frames [][]byte
	for _, req := range []kmsg.Request{
		produce, create, metadata, offsets, fetchRequest(at, 0, 1, 10*time.Millisecond),
		kmsg.NewPtrApiVersionsRequest(), kmsg.NewPtrInitProducerIDRequest(),
	} {
		s := served[kmsg.Key(req.Key())]
		for _, version := range []int16{s.lowest, s.highest} {
			req.SetVersion(version)
			frames = append(frames, kmsg.NewRequestFormatter(kmsg.FormatterClientID("test")).AppendRequest(nil, req, 1))
		}
	}
	return frames
}

func TestMalformedFramesDoNotHarmABroker(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1)
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))

	send := func(frame []byte) {
		conn := w.dial(1)
		_, _ = conn.Write(frame) // the broker may have hung up in the middle
		// It answers, hangs up, or waits for the rest, which never comes.
		_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, _ = conn.Read(make([]byte, 1))
		conn.Close()
	}
	for _, frame := range [][]byte{
		{},
		{0},
		{0, 0, 0, 0},
		{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0},
		{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0},
		{0x00, 0xff, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 0}, // a long Produce that stops here
		{0, 0, 0, 8, 0x7f, 0xff, 0, 0, 0, 0, 0, 0},       // a kind that does not exist
		{0, 0, 0, 8, 0, 3, 0x7f, 0xff, 0, 0, 0, 0},       // a version that does not
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
	} {
		send(frame)
	}
	frames := someRequests()
	for range 300 {
		frame := append([]byte(nil), frames[rnd.IntN(len(frames))]...)
		for range 1 + rnd.IntN(4) {
			frame[4+rnd.IntN(len(frame)-4)] = byte(rnd.Uint32())
		}
		if rnd.IntN(4) == 0 {
			frame = frame[:4+rnd.IntN(len(frame)-4)]
			binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
		}
		send(frame)
	}
	// Still there, and what it has taken in is sound.
	require.NoError(t, w.produce(partitionName{"orders", 0}, acksAll, patience, "fine"))
	require.NoError(t, sameOnAll(w.cluster, partitionName{"orders", 0}))
}

// FuzzParseRequest looks for bytes that a broker cannot stand.
func FuzzParseRequest(f *testing.F) {
	for _, frame := range someRequests() {
		f.Add(frame[4:])
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < smallestFrame {
			return
		}
		h, req, err := parseRequest(frame)
		if err == nil && req != nil {
			require.Equal(t, h.version, req.GetVersion())
		}
		_, _ = parseProduced(frame)
	})
}

// A client that is newer than the broker has to find out.
func TestVersionsAreToldInAnyVersion(t *testing.T) {
	w := newWorld(t, never)
	conn := w.dial(1)
	_, err := conn.Write([]byte{0, 0, 0, 8, 0, 18, 0x7f, 0xff, 0, 0, 0, 5})
	require.NoError(t, err)
	asked := kmsg.NewPtrApiVersionsRequest()
	resp := conn.receive(asked, 5).(*kmsg.ApiVersionsResponse)
	require.Equal(t, kerr.UnsupportedVersion.Code, resp.ErrorCode)
	require.Len(t, resp.ApiKeys, len(served))
}

func TestBadBatchesAreRefusedAndNotStored(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1)
	name := partitionName{"orders", 0}
	good := func() []byte { return newBatch("a", "b", "c") }
	reseal := func(b []byte) []byte {
		binary.BigEndian.PutUint32(b[17:], checksum(b))
		return b
	}
	for _, bad := range []struct {
		what  string
		batch []byte
		err   error
	}{
		{"empty", nil, kerr.CorruptMessage},
		{"short", good()[:batchHead-1], kerr.CorruptMessage},
		{"cut off", good()[:len(good())-1], kerr.CorruptMessage},
		{"two in one", append(good(), good()...), kerr.InvalidRecord},
		{"bit flipped", change(good(), len(good())-1, 1), kerr.CorruptMessage},
		{"old format", change(good(), 16, 1), kerr.CorruptMessage},
		{"wrong count", reseal(change(good(), 60, 7)), kerr.InvalidRecord},
		{"no records", reseal(change(change(good(), 60, 0), 26, 0xff)), kerr.InvalidRecord},
		{"transaction marker", reseal(change(good(), 22, attrControl)), kerr.InvalidRecord},
		{"too large", newBatch(string(make([]byte, maxBatchSize))), kerr.MessageTooLarge},
	} {
		err := w.produceBatch(1, name, acksAll, patience, bad.batch)
		require.ErrorIs(t, err, bad.err, bad.what)
	}
	require.ErrorIs(t, w.produceBatch(1, name, 2, patience, good()), kerr.InvalidRequiredAcks)
	require.ErrorIs(t, w.produceBatch(2, name, 1, patience, good()), kerr.NotLeaderForPartition)
	require.ErrorIs(t, w.produceBatch(1, partitionName{"nothing", 0}, 1, patience, good()), kerr.UnknownTopicOrPartition)
	require.ErrorIs(t, w.produceBatch(1, partitionName{"orders", 1}, 1, patience, good()), kerr.UnknownTopicOrPartition)
	require.Zero(t, w.leading(name).log.end())
}

func change(b []byte, at int, to byte) []byte {
	if b[at] == to {
		to++
	}
	b[at] = to
	return b
}

// Without acks an error has no answer, so the connection says it.
func TestFailureWithoutAcksEndsTheConnection(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1)
	conn := w.dial(1)
	conn.send(produceRequest(partitionName{"orders", 0}, acksNone, patience, []byte("no batch")))
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestTopicsThatCannotBe(t *testing.T) {
	w := newWorld(t, never)
	w.topic("orders", 1, led1)
	c := w.client()
	for name, replicas := range map[string][][]int32{
		"../orders": {led1}, "..": {led1}, "": {led1},
		"twice": {{1, 1}}, "stranger": {{1, 4}}, "nobody": {{}},
	} {
		require.Error(t, createTopic(w.ctx, c, name, 1, replicas), name)
	}
	require.ErrorIs(t, createTopic(w.ctx, c, "orders", 1, [][]int32{led1}), kerr.TopicAlreadyExists)
	require.Equal(t, []string{"orders"}, w.topicNames())
}
