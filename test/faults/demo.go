package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"posthorn.io/posthorn/test/bench/stream"
	"posthorn.io/posthorn/test/faults/network"
	"posthorn.io/posthorn/test/faults/nodes"
	"posthorn.io/posthorn/test/faults/record"
	"posthorn.io/posthorn/test/faults/streams"
)

const (
	superStream     = "orders"
	demoNodes       = 3
	demoPartitions  = 3
	demoPublishers  = 2 // of each partition
	demoConsumers   = 2 // of each partition
	demoInterval    = 2 * time.Millisecond
	demoBefore      = 3000 // confirms before the leader is killed
	demoAfter       = 3000 // confirms while it is down
	demoReport      = time.Second
	demoBarConfirms = 100 // confirms in a second for each # of a bar
)

// partition is one stream of the super stream with its clients.
type partition struct {
	name          string
	load          *streams.Load
	before, after string // the node of its leader
	// The number of confirms at the last report and at the last look, and the time when it last grew.
	reported, seen int
	grew           time.Time
	longest        time.Duration // without a confirm since the kill
}

// demo is a super stream of three partitions on three nodes. It loses the leader of one of them.
type demo struct {
	ctx        context.Context
	out        io.Writer
	cluster    *nodes.Cluster
	partitions []*partition
	began      time.Time
}

// demoStreams runs the demonstration and returns an error if a confirmed message is lost, or anything else is wrong.
func demoStreams(ctx context.Context, o options, out io.Writer) error {
	d := &demo{ctx: ctx, out: out, began: time.Now()}
	dir := filepath.Join(o.dir, "demo-streams")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	net, err := network.New(demoNodes+1, o.seed)
	if err != nil {
		return err
	}
	defer net.Close()
	settings := []string{fmt.Sprintf("shards=%d", o.shards)}
	d.cluster, err = nodes.Start(nodes.Options{Binary: o.binary, Dir: dir, Count: demoNodes, Network: net, Settings: settings})
	if err != nil {
		return err
	}
	defer d.cluster.Close()
	defer func() {
		for _, p := range d.partitions {
			p.load.Stop()
		}
	}()
	if err := d.prepare(); err != nil {
		return err
	}
	if err := d.killLeader(); err != nil {
		return err
	}
	if err := d.rest(); err != nil {
		return err
	}
	return d.account()
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "   %5.1f s  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) eventually(what string, holds func() error) error {
	return nodes.Eventually(d.ctx, healing, what, holds)
}

func (d *demo) dial(n *nodes.Node) (*stream.Client, error) {
	conn, err := net.DialTimeout("tcp", n.Stream(), time.Second)
	if err != nil {
		return nil, err
	}
	return stream.Over(conn, stream.Options{User: nodes.User, Password: nodes.Password, Patience: 5 * time.Second})
}

// prepare creates the super stream and starts its clients.
func (d *demo) prepare() error {
	if err := d.eventually("the cluster forms", d.cluster.Whole); err != nil {
		return err
	}
	d.say("three nodes form a cluster: n1, n2, n3")
	c, err := d.dial(d.cluster.Nodes[0])
	if err != nil {
		return err
	}
	defer c.Close()
	arguments := map[string]string{"stream-max-segment-size-bytes": "1000000", "queue-leader-locator": "balanced"}
	if err := c.CreateSuper(superStream, demoPartitions, arguments); err != nil {
		return err
	}
	names, err := c.Partitions(superStream)
	if err != nil {
		return err
	}
	if len(names) != demoPartitions {
		return fmt.Errorf("the super stream has the partitions %q", names)
	}
	var addresses []string
	for _, n := range d.cluster.Nodes {
		addresses = append(addresses, n.Stream())
	}
	for _, name := range names {
		load, err := streams.Start(d.ctx, streams.Options{Addresses: addresses, User: nodes.User, Password: nodes.Password, Stream: name, Exists: true,
			Publishers: demoPublishers, Consumers: demoConsumers, Interval: demoInterval})
		if err != nil {
			return err
		}
		p := &partition{name: name, load: load}
		d.partitions = append(d.partitions, p)
		if p.before, err = d.leader(p); err != nil {
			return err
		}
	}
	d.say("super stream %s has %d partitions, each with %d publishers, %d consumers and a copy on every node", superStream, len(names), demoPublishers, demoConsumers)
	for _, p := range d.partitions {
		d.say("    %s is led by %s", p.name, p.before)
	}
	return d.eventually("every node has its copies", d.cluster.Whole)
}

// leader waits for a leader of a partition that runs, and returns the name of its node.
func (d *demo) leader(p *partition) (name string, err error) {
	err = d.eventually("a leader of "+p.name, func() error {
		for _, asked := range d.cluster.Nodes {
			if !asked.Running() {
				continue
			}
			c, err := d.dial(asked)
			if err != nil {
				continue
			}
			address, err := c.Leader(p.name)
			c.Close()
			for _, n := range d.cluster.Nodes {
				if err == nil && n.Stream() == address && n.Running() {
					name = n.Name
					return nil
				}
			}
		}
		return errors.New("no node names one that runs")
	})
	return name, err
}

// killLeader kills the leader of the first partition under traffic, and starts it again after some confirms.
func (d *demo) killLeader() error {
	d.say("publishing begins; each # is %d confirmed messages in a second", demoBarConfirms)
	for _, p := range d.partitions {
		p.load.Resume()
	}
	if err := d.watch("confirms before the kill", demoBefore); err != nil {
		return err
	}
	first := d.partitions[0]
	var victim *nodes.Node
	for _, n := range d.cluster.Nodes {
		if n.Name == first.before {
			victim = n
		}
	}
	victim.Kill()
	d.say("kill -9 %s, the leader of %s", victim.Name, strings.Join(d.ledBy(victim.Name), " and "))
	now := time.Now()
	for _, p := range d.partitions {
		p.grew, p.longest = now, 0
	}
	if err := d.watch("confirms while a node is down", demoAfter); err != nil {
		return err
	}
	for _, p := range d.partitions {
		var err error
		if p.after, err = d.leader(p); err != nil {
			return err
		}
		d.say("    %s is led by %s; longest time without a confirm: %.1f s", p.name, p.after, p.longest.Seconds())
	}
	d.say("%s starts again", victim.Name)
	return victim.Start()
}

func (d *demo) ledBy(node string) (names []string) {
	for _, p := range d.partitions {
		if p.before == node {
			names = append(names, p.name)
		}
	}
	return names
}

// watch waits until every partition has had a number of confirms from now on, and reports them each second.
func (d *demo) watch(what string, confirms int) error {
	began := map[*partition]int{}
	next := time.Now().Add(demoReport)
	for _, p := range d.partitions {
		began[p] = p.load.Confirms()
		p.reported, p.seen, p.grew = began[p], began[p], time.Now()
	}
	return d.eventually(what, func() error {
		now := time.Now()
		var late error
		for _, p := range d.partitions {
			n := p.load.Confirms()
			if n > p.seen {
				p.seen, p.grew = n, now
			}
			p.longest = max(p.longest, now.Sub(p.grew))
			if n-began[p] < confirms/demoPartitions {
				late = fmt.Errorf("%s has confirmed %d messages", p.name, n-began[p])
			}
		}
		if !now.Before(next) {
			next = now.Add(demoReport)
			var bars []string
			for _, p := range d.partitions {
				n := p.load.Confirms()
				bars = append(bars, fmt.Sprintf("%s %5d %-12s", p.name, n-p.reported, bar(n-p.reported)))
				p.reported = n
			}
			d.say("    %s", strings.TrimRight(strings.Join(bars, " "), " "))
		}
		return late
	})
}

// bar shows a number of confirms.
func bar(confirms int) string {
	if confirms == 0 {
		return "."
	}
	return strings.Repeat("#", min(12, (confirms+demoBarConfirms-1)/demoBarConfirms))
}

// rest stops the publishers, and waits until every consumer has read everything and each node was read.
func (d *demo) rest() error {
	for _, p := range d.partitions {
		p.load.Pause()
	}
	d.say("publishing ends; every consumer reads to the end, and then every partition is read from each node")
	if err := d.eventually("the cluster is whole", d.cluster.Whole); err != nil {
		return err
	}
	for _, p := range d.partitions {
		if err := d.eventually("confirms", p.load.Idle); err != nil {
			return err
		}
		if err := d.eventually("every consumer reads everything", p.load.CaughtUp); err != nil {
			return err
		}
		for _, n := range d.cluster.Nodes {
			err := d.eventually(p.name+" is read from "+n.Name, func() error { return p.load.ReadAll(d.ctx, n.Stream()) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// account prints a table of all messages. An error says which rule was broken.
func (d *demo) account() error {
	var problems []string
	var total record.StreamVerdict
	fmt.Fprintf(d.out, "\n   %-10s  %-12s %8s %10s %8s %6s %8s %10s\n", "partition", "leader", "sent", "confirmed", "read", "lost", "doubled", "reordered")
	for _, p := range d.partitions {
		v := p.load.History.Judge(true)
		fmt.Fprintf(d.out, "   %-10s  %-12s %8d %10d %8d %6d %8d %10d\n", p.name, p.before+" -> "+p.after, v.Sent, v.Confirmed, v.Arrived, v.Lost, v.Doubled, v.Reordered)
		total.Confirmed += v.Confirmed
		if !v.OK() {
			problems = append(problems, v.Examples...)
		}
		problems = append(problems, p.load.Strange()...)
		if p.before == d.partitions[0].before && p.after == p.before {
			problems = append(problems, fmt.Sprintf("%s is still led by %s, which was killed", p.name, p.before))
		}
	}
	problems = append(problems, d.cluster.Faults()...)
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n   | "))
	}
	fmt.Fprintf(d.out, "\n   All %d confirmed messages are in the super stream: once, in the order of their publishers,\n"+
		"   and at the same offset on every node.\n", total.Confirmed)
	return nil
}
