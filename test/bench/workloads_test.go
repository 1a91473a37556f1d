package main

import "testing"

// The end of a run of PerfTest 2.22.
const output = `id: bench, sending rate avg: 5465 msg/s
id: bench, receiving rate avg: 5401 msg/s
id: bench, consumer latency min/median/75th/95th/99th 99/975/1320/1900/2799 µs
id: bench, confirm latency min/median/75th/95th/99th 193/1691/2113/2887/3358 µs
`

func TestFiguresOfPerfTest(t *testing.T) {
	if got := rate(output, 1); got != 5401 {
		t.Errorf("rate %v, want the slower average", got)
	}
	if got := latency(output); got != 2799 {
		t.Errorf("latency %v, want the consumers' 99th percentile in µs", got)
	}
	if got := rate("id: bench, sending rate avg: 7 msg/s\nid: bench, receiving rate avg: 0 msg/s\n", 1); got != 7 {
		t.Errorf("rate %v of a run without consumers", got)
	}
	if got := rate("nothing", 3.5); got != 3.5 || latency("nothing") != 0 {
		t.Errorf("rate %v, latency %v where PerfTest says nothing", got, latency("nothing"))
	}
}

func TestMedian(t *testing.T) {
	if median([]float64{1, 2, 9}) != 2 || median([]float64{1, 3}) != 2 {
		t.Error("median is wrong")
	}
}
