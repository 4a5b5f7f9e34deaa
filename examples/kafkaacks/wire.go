package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// This file is the outer layer of the protocol: frames and their headers. What is in
// them is the business of package kmsg.

// A span is the versions of one kind of request that a broker understands.
type span struct{ lowest, highest int16 }

// served is what ApiVersions tells clients. The upper ends are where topics begin to
// be addressed by id, the lower one of Produce is where batches begin to have the form
// that the log keeps.
var served = map[kmsg.Key]span{
	kmsg.Produce:        {3, 9},
	kmsg.Fetch:          {4, 12},
	kmsg.ListOffsets:    {1, 6},
	kmsg.Metadata:       {1, 9},
	kmsg.ApiVersions:    {0, 3},
	kmsg.CreateTopics:   {2, 6},
	kmsg.InitProducerID: {0, 4},
}

const (
	maxFrame = 16 << 20
	// Decoding can make a frame of nothing but array elements many times larger, and
	// only Produce has a reason to be large.
	maxSmallFrame = 256 << 10
	smallestFrame = 8 // kind, version, correlation id
)

var errMalformed = errors.New("malformed frame")

// header is what precedes every request.
type header struct {
	key         kmsg.Key
	version     int16
	correlation int32
}

// readFrame reads one frame. It believes the length only as far as bytes arrive, so
// that four bytes cannot claim megabytes.
func readFrame(r io.Reader) ([]byte, error) {
	var head [4 + smallestFrame]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := int64(int32(binary.BigEndian.Uint32(head[:])))
	limit := int64(maxSmallFrame)
	if kmsg.Key(binary.BigEndian.Uint16(head[4:])) == kmsg.Produce {
		limit = maxFrame
	}
	if size < smallestFrame || size > limit {
		return nil, fmt.Errorf("%w: %d bytes", errMalformed, size)
	}
	var b bytes.Buffer
	b.Write(head[4:])
	if _, err := io.CopyN(&b, r, size-smallestFrame); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// parseRequest takes a frame apart. The body is nil if it is a question for versions
// in a version that nobody here speaks, which has an answer nevertheless.
func parseRequest(frame []byte) (header, kmsg.Request, error) {
	b := kbin.Reader{Src: frame}
	h := header{kmsg.Key(b.Int16()), b.Int16(), b.Int32()}
	versions, ok := served[h.key]
	if !ok {
		return h, nil, fmt.Errorf("%w: unknown kind %d", errMalformed, h.key)
	}
	if h.version < versions.lowest || h.version > versions.highest {
		if h.key == kmsg.ApiVersions {
			return h, nil, nil
		}
		return h, nil, fmt.Errorf("%w: version %d of %s", errMalformed, h.version, h.key.Name())
	}
	b.NullableString() // the client's name for itself
	req := kmsg.RequestForKey(int16(h.key))
	req.SetVersion(h.version)
	if req.IsFlexible() {
		kmsg.SkipTags(&b)
	}
	if !b.Ok() {
		return h, nil, fmt.Errorf("%w: header of %s", errMalformed, h.key.Name())
	}
	if err := req.ReadFrom(b.Src); err != nil {
		return h, nil, fmt.Errorf("%w: %s: %w", errMalformed, h.key.Name(), err)
	}
	return h, req, nil
}

// appendResponse appends a frame with an answer.
func appendResponse(dst []byte, h header, resp kmsg.Response) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.correlation))
	// ApiVersions never has the newer header, since a client that asks for versions
	// knows none yet.
	if req := resp.RequestKind(); h.key != kmsg.ApiVersions {
		req.SetVersion(resp.GetVersion())
		if req.IsFlexible() {
			dst = append(dst, 0)
		}
	}
	dst = resp.AppendTo(dst)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}
