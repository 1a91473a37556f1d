package main

import "testing"

var small = machine{cores: 4, memory: 1e9, full: 0.5, busy: 0.5}

func TestMemoryDecidesTheNodes(t *testing.T) {
	c := cost{connection: 600, kernel: 400, claim: 0, route: 100, message: 1e-9}
	s := scenario{publish: 100, ping: 100}
	// 2 M connections of 1,000 B are 2 GB; a node uses half a GB.
	n, ok := c.needs(2e6, small, s)
	if !ok || n.nodes != 4 || n.shards != 1 || n.limit != "memory" {
		t.Errorf("%+v, %v", n, ok)
	}
}

func TestProcessorDecidesTheNodes(t *testing.T) {
	c := cost{connection: 1, message: 1e-3}
	// 100,000 messages per second of 1 ms are 100 cores; a node of 4 provides 2.
	n, ok := c.needs(1e6, small, scenario{publish: 20, ping: 20})
	if !ok || n.nodes != 50 || n.shards != 4 || n.limit != "processor" {
		t.Errorf("%+v, %v", n, ok)
	}
}

func TestRoutesLimitTheNumberOfConnections(t *testing.T) {
	c := cost{connection: 1, route: 100, message: 1e-9}
	s := scenario{filters: 1, publish: 100, ping: 100}
	if n, ok := c.needs(4.9e6, small, s); !ok || n.shards != 1 {
		t.Errorf("%+v, %v: 490 MB of routes fit", n, ok)
	}
	if n, ok := c.needs(5.1e6, small, s); ok {
		t.Errorf("%+v: 510 MB of routes fit into half a GB of a node however many there are", n)
	}
}

func TestLeastFindsTheSmallestNumber(t *testing.T) {
	for _, want := range []int{1, 2, 7, 100} {
		if got := least(100, func(n int) bool { return n >= want }); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
}
