package main

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pumped sends frames with the ids 1 to n through the faults and returns the
// ids that arrive.
func pumped(t *testing.T, n uint64, f faults) (ids []uint64) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		box := newOutbox(boxLimit, func(buf []byte, items []uint64) ([]byte, int) {
			return appendIDs(buf, kindStored, items[0]), 1
		})
		for id := uint64(1); id <= n; id++ {
			box.put(id)
		}
		stop, gone := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(gone)
			assert.NoError(t, pump(near, box, f, stop))
			near.Close()
		}()
		go func() {
			time.Sleep(time.Minute) // of the bubble
			close(stop)
		}()
		in := newFrameReader(far)
		for {
			_, body, err := in.next()
			if err != nil {
				break
			}
			got, err := decodeIDs(body)
			require.NoError(t, err)
			ids = append(ids, got...)
		}
		<-gone
	})
	return ids
}

func TestPumpKeepsOrderWithoutFaults(t *testing.T) {
	ids := pumped(t, 1000, faults{})
	require.Len(t, ids, 1000)
	assert.True(t, slices.IsSorted(ids))
}

func TestPumpDropsAndDuplicatesTheShareItIsTold(t *testing.T) {
	assert.Empty(t, pumped(t, 1000, faults{drop: 1}))
	assert.Len(t, pumped(t, 1000, faults{duplicate: 1}), 2000)
	assert.InDelta(t, 5000, len(pumped(t, 10000, faults{drop: 0.5})), 500)
	assert.InDelta(t, 15000, len(pumped(t, 10000, faults{duplicate: 0.5})), 500)
}

func TestPumpDelaysSoThatFramesOvertakeAndNoneIsLost(t *testing.T) {
	ids := pumped(t, 1000, faults{delay: 20 * time.Millisecond})
	assert.False(t, slices.IsSorted(ids))
	slices.Sort(ids)
	require.Len(t, slices.Compact(ids), 1000)
}

func TestAFullOutboxLosesItsOldestAndSaysSo(t *testing.T) {
	box := newOutbox(3, func(buf []byte, items []int) ([]byte, int) {
		return fmt.Append(buf, items[0]), 1
	})
	assert.Zero(t, box.put(1, 2))
	assert.Equal(t, 2, box.put(3, 4, 5))
	assert.Equal(t, "3", string(box.next(nil)))
	assert.Equal(t, "4", string(box.next(nil)))
	assert.Equal(t, "5", string(box.next(nil)))
	assert.Empty(t, box.next(nil))
}
