package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/waitlist-go/waitlist"
)

var (
	someOps     = []op{{1, "a", "1"}, {1 << 40, "", strings.Repeat("x", 300)}, {0, "key", ""}}
	someAnswers = []answer{{1, 2, waitlist.EndReached}, {3, 1 << 63, waitlist.EndClosed}, {4, 0, 0}}
	someIDs     = []uint64{0, 1, 127, 128, 1<<64 - 1}
	someHello   = hello{token: 1 << 60, client: true, peer: 3}
)

func TestFramesComeBackAsTheyWereSent(t *testing.T) {
	var stream []byte
	stream = appendHello(stream, someHello)
	stream = appendOps(stream, kindWrite, someOps)
	stream = appendAnswers(stream, someAnswers)
	stream = appendIDs(stream, kindStored, someIDs...)
	stream = appendOps(stream, kindAppend, nil)

	// However the network cuts the stream.
	for name, r := range map[string]io.Reader{
		"whole":          bytes.NewReader(stream),
		"byte by byte":   iotest.OneByteReader(bytes.NewReader(stream)),
		"error with eof": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		t.Run(name, func(t *testing.T) {
			in := newFrameReader(r)
			next := func(want kind) []byte {
				k, body, err := in.next()
				require.NoError(t, err)
				require.Equal(t, want, k)
				return body
			}
			h, err := decodeHello(next(kindHello))
			require.NoError(t, err)
			assert.Equal(t, someHello, h)
			ops, err := decodeOps(next(kindWrite))
			require.NoError(t, err)
			assert.Equal(t, someOps, ops)
			answers, err := decodeAnswers(next(kindAnswer))
			require.NoError(t, err)
			assert.Equal(t, someAnswers, answers)
			ids, err := decodeIDs(next(kindStored))
			require.NoError(t, err)
			assert.Equal(t, someIDs, ids)
			ops, err = decodeOps(next(kindAppend))
			require.NoError(t, err)
			assert.Empty(t, ops)
			_, _, err = in.next()
			assert.Equal(t, io.EOF, err)
		})
	}
}

func TestATruncatedStreamIsNotAnOrderlyEnd(t *testing.T) {
	stream := appendOps(nil, kindWrite, someOps)
	for n := 1; n < len(stream); n++ {
		_, _, err := newFrameReader(bytes.NewReader(stream[:n])).next()
		assert.Equal(t, io.ErrUnexpectedEOF, err, "after %d bytes", n)
	}
}

func TestFramesOfNoLengthOrTooMuchAreRefused(t *testing.T) {
	for _, n := range []uint32{0, maxFrame + 1, 1<<31 - 1, 1<<32 - 1} {
		in := newFrameReader(bytes.NewReader(binary.BigEndian.AppendUint32(nil, n)))
		_, _, err := in.next()
		assert.ErrorIs(t, err, errMalformed)
		assert.Empty(t, in.buf, "nothing is allocated for it")
	}
}

func TestABodyThatIsCutOrTooLongIsMalformed(t *testing.T) {
	for name, c := range map[string]struct {
		frame  []byte
		decode func([]byte) error
	}{
		"hello":   {appendHello(nil, someHello), func(b []byte) error { _, err := decodeHello(b); return err }},
		"ops":     {appendOps(nil, kindWrite, someOps), func(b []byte) error { _, err := decodeOps(b); return err }},
		"answers": {appendAnswers(nil, someAnswers), func(b []byte) error { _, err := decodeAnswers(b); return err }},
		"ids":     {appendIDs(nil, kindStored, someIDs...), func(b []byte) error { _, err := decodeIDs(b); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			body := c.frame[5:]
			require.NoError(t, c.decode(body))
			for n := range len(body) {
				assert.ErrorIs(t, c.decode(body[:n]), errMalformed, "after %d bytes", n)
			}
			assert.ErrorIs(t, c.decode(append(bytes.Clone(body), 0)), errMalformed)
		})
	}
}

func TestACountIsNotBelieved(t *testing.T) {
	body := append(binary.AppendUvarint(nil, 1<<62), "xxxxxx"...)
	assert.Less(t, testing.AllocsPerRun(10, func() {
		_, err := decodeOps(body)
		assert.ErrorIs(t, err, errMalformed)
		_, err = decodeIDs(body)
		assert.ErrorIs(t, err, errMalformed)
		_, err = decodeAnswers(body)
		assert.ErrorIs(t, err, errMalformed)
	}), 50.0)
}

func TestWhatFitsIntoAFrameIsAccepted(t *testing.T) {
	large := op{1, "k", strings.Repeat("x", maxOp-1)}
	for name, ops := range map[string][]op{
		"many small": make([]op, 10*maxBatch),
		"many large": {large, large, large, large, large, large, large},
		"one":        {large},
	} {
		t.Run(name, func(t *testing.T) {
			sent := 0
			for rest := ops; len(rest) > 0; {
				n := fit(rest)
				require.Positive(t, n)
				require.LessOrEqual(t, n, maxBatch)
				_, body, err := newFrameReader(bytes.NewReader(appendOps(nil, kindStore, rest[:n]))).next()
				require.NoError(t, err)
				got, err := decodeOps(body)
				require.NoError(t, err)
				require.Equal(t, rest[:n], got)
				sent += n
				rest = rest[n:]
			}
			assert.Equal(t, len(ops), sent)
		})
	}
}

// FuzzFrames gives any bytes to every decoder. None may panic, and what one
// accepts must come back the same when it is sent again.
func FuzzFrames(f *testing.F) {
	f.Add(appendHello(nil, someHello))
	f.Add(appendOps(nil, kindWrite, someOps))
	f.Add(appendAnswers(nil, someAnswers))
	f.Add(appendIDs(nil, kindStored, someIDs...))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, stream []byte) {
		in := newFrameReader(bytes.NewReader(stream))
		again := func(frame []byte) []byte {
			_, body, err := newFrameReader(bytes.NewReader(frame)).next()
			require.NoError(t, err)
			return body
		}
		for {
			k, body, err := in.next()
			if err != nil {
				return
			}
			if h, err := decodeHello(body); err == nil {
				got, err := decodeHello(again(appendHello(nil, h)))
				require.NoError(t, err)
				require.Equal(t, h, got)
			}
			if ops, err := decodeOps(body); err == nil {
				got, err := decodeOps(again(appendOps(nil, k, ops)))
				require.NoError(t, err)
				require.Equal(t, ops, got)
			}
			if answers, err := decodeAnswers(body); err == nil {
				got, err := decodeAnswers(again(appendAnswers(nil, answers)))
				require.NoError(t, err)
				require.Equal(t, answers, got)
			}
			if ids, err := decodeIDs(body); err == nil {
				got, err := decodeIDs(again(appendIDs(nil, k, ids...)))
				require.NoError(t, err)
				require.Equal(t, ids, got)
			}
		}
	})
}

func TestAStoreAcksNothingBehindAGap(t *testing.T) {
	for range 200 {
		s := newStore()
		held := make(map[uint64]bool)
		for range 60 {
			id := 1 + rand.Uint64N(20)
			held[id] = true
			want := uint64(0)
			for held[want+1] {
				want++
			}
			require.Equal(t, want, s.extend([]op{{id: id}}))
		}
		require.Equal(t, len(held), s.len())
	}
}
