package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/waitlist-go/waitlist"
)

// A frame is a length of four bytes, big endian, a byte that names the kind,
// and a body; the length counts the kind and the body. Numbers in a body are
// uvarints, strings follow their length. Every kind but the first carries a
// batch, and its body starts with the number of elements.
type kind byte

const (
	kindHello    kind = 1 + iota // both ways, first on every connection: who is there
	kindWrite                    // client to leader: ops, under the client's own ids
	kindAnswer                   // leader to client: how each write ended
	kindStore                    // leader to peer: ops, under correlation ids
	kindStored                   // peer to leader: correlation ids that it now holds
	kindRefused                  // peer to leader: correlation ids that it will not hold
	kindAppend                   // leader to peer: ops, under log indexes
	kindAppended                 // peer to leader: the log index up to which it holds everything
)

const (
	maxFrame      = 1 << 20   // the longest frame that a reader accepts
	maxBatch      = 64        // the most elements that a writer puts into one frame
	maxBatchBytes = 256 << 10 // the most bytes of ops, unless a single op is longer
	maxOp         = 64 << 10  // the longest key and value together; leaves a frame room to spare
)

var errMalformed = errors.New("malformed frame")

// op is one write. Its id is the client's on the way to the leader, and the
// leader's from there on: a correlation id or a log index.
type op struct {
	id         uint64
	key, value string
}

// answer tells a client how its write ended. Stored is the leader's id for it.
// An end of 0 says that the write was never parked, so no peer has seen it.
type answer struct {
	id, stored uint64
	end        waitlist.End
}

// hello opens a connection, from both sides. The token is the cluster's: ports
// of loopback are reused quickly, and a peer that was killed must not be
// mistaken for another run's.
type hello struct {
	token  uint64
	client bool
	peer   waitlist.PeerID
}

// frameReader cuts a stream into frames.
type frameReader struct {
	r   *bufio.Reader
	buf []byte
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, 64<<10)}
}

// next returns the next frame. The body is valid until the next call. The
// error is io.EOF only between two frames.
func (f *frameReader) next() (kind, []byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n < 1 || n > maxFrame {
		return 0, nil, fmt.Errorf("%w: its length is %d", errMalformed, n)
	}
	if cap(f.buf) < n {
		f.buf = make([]byte, n)
	}
	f.buf = f.buf[:n]
	if _, err := io.ReadFull(f.r, f.buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind(f.buf[0]), f.buf[1:], nil
}

// appendFrame appends a frame whose body is what fill appends.
func appendFrame(buf []byte, k kind, fill func([]byte) []byte) []byte {
	start := len(buf)
	buf = fill(append(buf, 0, 0, 0, 0, byte(k)))
	binary.BigEndian.PutUint32(buf[start:], uint32(len(buf)-start-4))
	return buf
}

func appendString(buf []byte, s string) []byte {
	return append(binary.AppendUvarint(buf, uint64(len(s))), s...)
}

func appendHello(buf []byte, h hello) []byte {
	return appendFrame(buf, kindHello, func(b []byte) []byte {
		b = binary.AppendUvarint(b, h.token)
		role := byte(0)
		if h.client {
			role = 1
		}
		return binary.AppendUvarint(append(b, role), uint64(h.peer))
	})
}

func decodeHello(body []byte) (hello, error) {
	d := decoder{rest: body}
	h := hello{token: d.uvarint()}
	h.client = d.byte() == 1
	h.peer = waitlist.PeerID(d.uvarint())
	return h, d.end()
}

// fit says how many of the ops go into one frame.
func fit(ops []op) int {
	bytes := 0
	for i, o := range ops {
		bytes += len(o.key) + len(o.value)
		if i == maxBatch || i > 0 && bytes > maxBatchBytes {
			return i
		}
	}
	return len(ops)
}

func appendOps(buf []byte, k kind, ops []op) []byte {
	return appendFrame(buf, k, func(b []byte) []byte {
		b = binary.AppendUvarint(b, uint64(len(ops)))
		for _, o := range ops {
			b = binary.AppendUvarint(b, o.id)
			b = appendString(b, o.key)
			b = appendString(b, o.value)
		}
		return b
	})
}

func decodeOps(body []byte) ([]op, error) {
	d := decoder{rest: body}
	ops := make([]op, d.count(3))
	for i := range ops {
		ops[i] = op{id: d.uvarint(), key: d.string(), value: d.string()}
	}
	return ops, d.end()
}

func appendAnswers(buf []byte, answers []answer) []byte {
	return appendFrame(buf, kindAnswer, func(b []byte) []byte {
		b = binary.AppendUvarint(b, uint64(len(answers)))
		for _, a := range answers {
			b = binary.AppendUvarint(b, a.id)
			b = binary.AppendUvarint(b, a.stored)
			b = append(b, byte(a.end))
		}
		return b
	})
}

func decodeAnswers(body []byte) ([]answer, error) {
	d := decoder{rest: body}
	answers := make([]answer, d.count(3))
	for i := range answers {
		answers[i] = answer{id: d.uvarint(), stored: d.uvarint(), end: waitlist.End(d.byte())}
	}
	return answers, d.end()
}

func appendIDs(buf []byte, k kind, ids ...uint64) []byte {
	return appendFrame(buf, k, func(b []byte) []byte {
		b = binary.AppendUvarint(b, uint64(len(ids)))
		for _, id := range ids {
			b = binary.AppendUvarint(b, id)
		}
		return b
	})
}

func decodeIDs(body []byte) ([]uint64, error) {
	d := decoder{rest: body}
	ids := make([]uint64, d.count(1))
	for i := range ids {
		ids[i] = d.uvarint()
	}
	return ids, d.end()
}

// decoder reads a body from the front. The first thing that does not fit fails
// it; from then on it returns zeros, so that callers check once, with end.
type decoder struct {
	rest   []byte
	failed bool
}

func (d *decoder) fail() { d.rest, d.failed = nil, true }

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.fail()
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) string() string {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.fail()
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

// count reads the number of elements that follow, of at least size bytes each.
// It is checked against what is there before anything is allocated for it.
func (d *decoder) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.rest)/size) {
		d.fail()
		return 0
	}
	return int(n)
}

// end reports whether the body was as it had to be, to its last byte.
func (d *decoder) end() error {
	if d.failed || len(d.rest) > 0 {
		return errMalformed
	}
	return nil
}
