package main

import (
	"math"
	"slices"
)

// results holds what was measured: for every column and rival one value per round, in the order of the rounds.
type results struct {
	columns map[string]map[string][]float64
}

func newResults() *results { return &results{columns: make(map[string]map[string][]float64)} }

func (r *results) add(column, rival string, value float64) {
	c := r.columns[column]
	if c == nil {
		c = make(map[string][]float64)
		r.columns[column] = c
	}
	c[rival] = append(c[rival], value)
}

func (r *results) median(column, rival string) (float64, bool) {
	s := summarize(r.columns[column][rival])
	return s.median, s.n > 0
}

// summary is a distribution: its median, and its spread from the 10th to the 90th percentile, which are the
// least and the greatest value where there are few.
type summary struct {
	n                 int
	median, low, high float64
}

func summarize(values []float64) summary {
	n := len(values)
	if n == 0 {
		return summary{}
	}
	s := slices.Sorted(slices.Values(values))
	return summary{
		n:      n,
		median: (s[(n-1)/2] + s[n/2]) / 2,
		low:    s[int(math.Floor(0.1*float64(n-1)))],
		high:   s[int(math.Ceil(0.9*float64(n-1)))],
	}
}

// ratio compares the rounds of one rival with the same rounds of another.
func (r *results) ratio(column, rival, to string) summary {
	a, b := r.columns[column][rival], r.columns[column][to]
	var quotients []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			quotients = append(quotients, a[i]/b[i])
		}
	}
	return summarize(quotients)
}
