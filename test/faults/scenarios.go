package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"posthorn.io/posthorn/test/faults/nodes"
)

// scenario is one cluster and its faults.
type scenario struct {
	name, about string
	nodes       int
	home        int         // the node of the second classic queue; the first's is node 0
	smallDisk   map[int]int // MiB
	memory      int64       // bytes of each node; 0: no limit
	settings    []string
	long        bool // not in the selection of a run without names
	run         func(*world) error
	// alone runs instead of run: the scenario has a cluster and clients of its own.
	alone func(context.Context, options, io.Writer) error
}

// one returns a scenario of one fault that depends on the leader of the first queue.
func one(f func(w *world, leader *nodes.Node) fault) func(*world) error {
	return func(w *world) error {
		leader, err := w.leader()
		if err != nil {
			return err
		}
		return w.suffer(f(w, leader))
	}
}

// each returns a scenario of several faults one after the other, each for the leader at that time.
func each(fs ...func(w *world, leader *nodes.Node) fault) func(*world) error {
	return func(w *world) error {
		for _, f := range fs {
			if err := one(f)(w); err != nil {
				return err
			}
		}
		return nil
	}
}

// leader returns the leader of the first queue.
func (w *world) leader() (found *nodes.Node, err error) {
	err = w.eventually("a leader", func() error {
		var err error
		found, err = w.cluster.Leader(w.queues[0].Name)
		return err
	})
	return found, err
}

// all are the scenarios, in the order in which they run.
func all() []scenario {
	three := func(name, about string, run func(*world) error) scenario {
		return scenario{name: name, about: about, nodes: 3, home: 1, run: run}
	}
	full := three("full-disk", "no byte free on a node's disk", fullDisk)
	full.home, full.smallDisk = 2, map[int]int{2: smallDisk}
	// The alarm is for a disk that fills slowly; it must not come first here.
	full.settings = []string{"disk_free_limit.absolute=0"}
	// The classic queues are on the node that keeps its data.
	wipe := three("wipe", "one node after another loses its data directory", each(
		func(w *world, _ *nodes.Node) fault { return w.wiped(w.cluster.Nodes[2]) },
		func(w *world, _ *nodes.Node) fault { return w.wiped(w.cluster.Nodes[1]) }))
	wipe.home = 0
	lastCopy := three("last-copy", "a node loses its data directory and with it the only copy of a queue; then another node is killed", lastCopy)
	lastCopy.home = 0
	// The client's classic queues live on the node that is starved.
	descriptors := three("descriptors", "a node without any descriptor left, with classic queues that are declared and published to there",
		one(func(w *world, _ *nodes.Node) fault { return w.starved(w.cluster.Nodes[0]) }))
	mixed := three("mixed", "faults by the seed, one or two at a time, for -duration", mixed)
	mixed.smallDisk, mixed.long = map[int]int{2: smallDisk}, true
	mixed.settings = full.settings
	return []scenario{
		three("leader-cut", "the leader's node off the network", one(func(w *world, l *nodes.Node) fault { return w.isolated(l) })),
		three("follower-cut", "a follower's node off the network", one(func(w *world, l *nodes.Node) fault { return w.isolated(w.others(l)[0]) })),
		{name: "partition", about: "five nodes, the leader in the smaller half", nodes: 5, home: 1, run: one(minority)},
		{name: "no-majority", about: "five nodes in three parts, none a majority", nodes: 5, home: 1, run: one(noMajority)},
		three("one-way", "the leader is not heard; then does not hear", each(
			func(w *world, l *nodes.Node) fault { return w.mute(l) },
			func(w *world, l *nodes.Node) fault { return w.deaf(l) })),
		three("bridge", "the leader and a follower do not reach each other, the third reaches both",
			one(func(w *world, l *nodes.Node) fault { return w.apart(l, w.others(l)[0]) })),
		three("kill", "kill -9 of a follower, the leader, all at once", each(
			func(w *world, l *nodes.Node) fault { return w.killed(w.others(l)[0]) },
			func(w *world, l *nodes.Node) fault { return w.killed(l) },
			func(w *world, _ *nodes.Node) fault { return w.restartedAll() })),
		three("freeze", "the leader's process stopped and continued", one(func(w *world, l *nodes.Node) fault { return w.frozen(l) })),
		full,
		wipe,
		lastCopy,
		descriptors,
		three("rolling", "each node restarted with SIGTERM", rolling),
		three("poor-links", "slow, then lossy links", each(
			func(w *world, _ *nodes.Node) fault { return w.slow() },
			func(w *world, _ *nodes.Node) fault { return w.lossy() })),
		{name: "memory", about: "clients that leave everything unauthenticated, unfinished or unread, on a node of 256 MiB", nodes: 1, memory: smallMemory,
			settings: []string{fmt.Sprintf("mqtt.listeners.tcp.default=%d", mqttPort)}, run: attacked},
		{name: "demo-streams", about: "a super stream of three partitions on three nodes; the leader of one is killed", nodes: demoNodes, alone: demoStreams},
		{name: "object-store", about: "tiered storage of a stream: the S3 server is killed, a node loses its data; needs -store-server", nodes: storeNodes,
			long: true, alone: objectStore},
		mixed,
	}
}

func minority(w *world, leader *nodes.Node) fault {
	small := []*nodes.Node{leader, w.others(leader)[0]}
	return w.split(small, w.others(small...))
}

func noMajority(w *world, leader *nodes.Node) fault {
	rest := w.others(leader)
	return w.split([]*nodes.Node{leader, rest[0]}, rest[1:3], rest[3:])
}

func rolling(w *world) error {
	for _, n := range w.cluster.Nodes {
		if err := w.suffer(w.restarted(n)); err != nil {
			return err
		}
	}
	return nil
}

// lastCopy also checks that the two remaining nodes continue, and that the lost queue only waits for its deletion.
func lastCopy(w *world) error {
	const queue = "only-copy"
	first, victim, third := w.cluster.Nodes[0], w.cluster.Nodes[1], w.cluster.Nodes[2]
	if err := victim.DeclareClassic(queue); err != nil {
		return err
	}
	if err := w.eventually("every node knows the queue", w.cluster.Whole); err != nil {
		return err
	}
	w.cluster.Lost = []string{queue}
	if err := w.suffer(w.wiped(victim)); err != nil {
		return err
	}
	for _, n := range w.cluster.Nodes {
		if err := w.eventually("no vote of the old node counts", n.Uncritical); err != nil {
			return err
		}
	}
	kill := w.killed(third)
	begin := kill.begin
	kill.begin = func() error {
		if err := begin(); err != nil {
			return err
		}
		return w.everyQueueConfirms()
	}
	if err := w.suffer(kill); err != nil {
		return err
	}
	if first.NothingLost() == nil {
		return fmt.Errorf("%s reports no lost queue", first.Name)
	}
	if err := first.Delete(queue); err != nil {
		return err
	}
	w.cluster.Lost = nil
	if err := victim.DeclareClassic(queue); err != nil {
		return err
	}
	return w.eventually("nothing is lost any more", first.NothingLost)
}

// fullDisk also checks that the node neither confirms nor loses messages.
func fullDisk(w *world) error {
	return w.suffer(w.full(w.cluster.Nodes[2]))
}

// mixed injects random faults from the seed for a time.
func mixed(w *world) error {
	end := time.Now().Add(w.o.duration)
	for round := 1; time.Now().Before(end); round++ {
		f := w.draw()
		if w.random.IntN(3) == 0 {
			f = both(f, w.draw())
		}
		f.what = fmt.Sprintf("round %d: %s", round, f.what)
		if err := w.suffer(f); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// both injects two faults at the same time, or only the first if they exclude each other.
func both(a, b fault) fault {
	began := false
	return fault{a.what + " and " + b.what, func() error {
		if err := a.begin(); err != nil {
			return err
		}
		began = b.begin() == nil
		return nil
	}, func() error {
		var second error
		if began {
			second = b.end()
		}
		return errors.Join(a.end(), second)
	}}
}

// draw returns a random fault from the seed.
func (w *world) draw() fault {
	n := w.cluster.Nodes
	order := w.random.Perm(len(n))
	a, b := n[order[0]], n[order[1]]
	small := n[2]
	faults := []func() fault{
		func() fault { return w.isolated(a) },
		func() fault { return w.isolated(a, b) },
		func() fault { return w.split([]*nodes.Node{a}, w.others(a)) },
		func() fault { return w.split([]*nodes.Node{n[0]}, []*nodes.Node{n[1]}, []*nodes.Node{n[2]}) },
		func() fault { return w.mute(a) },
		func() fault { return w.deaf(a) },
		func() fault { return w.apart(a, b) },
		w.slow,
		w.lossy,
		func() fault { return w.killed(a) },
		func() fault { return w.killed(a, b) },
		func() fault { return w.killed(n...) },
		w.restartedAll,
		func() fault { return w.frozen(a) },
		func() fault { return w.frozen(a, b) },
		func() fault { return w.restarted(a) },
		func() fault { return w.full(small) },
		func() fault { return w.wiped(small) },
	}
	return faults[w.random.IntN(len(faults))]()
}
