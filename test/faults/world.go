package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"posthorn.io/posthorn/test/faults/network"
	"posthorn.io/posthorn/test/faults/nodes"
	"posthorn.io/posthorn/test/faults/record"
	"posthorn.io/posthorn/test/faults/streams"
	"posthorn.io/posthorn/test/faults/traffic"
)

const (
	// warm is the number of confirms before a fault, so that it meets traffic.
	warm = 300
	// again is the number of confirms of each queue after a fault.
	again = 30
	// healing bounds the recovery after a fault.
	healing = 60 * time.Second
	// writtenDown is how long after its last operation a classic queue has certainly written its acknowledgements; it
	// guarantees a fifth of this. Before that, kill -9 may bring messages back.
	writtenDown = time.Second
	// smallDisk is the size in MiB of a disk to be filled. Publishers always wait below 32 MiB of free space, so a
	// log file and that space must fit next to the ballast.
	smallDisk = 256
)

// options apply to all scenarios of a run.
type options struct {
	binary   string
	dir      string
	seed     uint64
	interval time.Duration // between two messages of a publisher
	confirms int           // how many of them a fault lasts
	longest  time.Duration // longest duration of a fault
	duration time.Duration // of the mixed scenario
	shards   int
	// storeServer is the program versitygw.
	storeServer string
}

// world is a cluster on its network with traffic, and the observations.
type world struct {
	ctx     context.Context
	o       options
	out     io.Writer
	net     *network.Network
	cluster *nodes.Cluster
	load    *traffic.Load
	stream  *streams.Load
	queues  []traffic.Queue
	random  *rand.Rand
	began   time.Time
	report  report
}

// report is the result of a scenario.
type report struct {
	verdict    record.Verdict
	stream     record.StreamVerdict
	problems   []string
	reconnects int
	// Of the clients of the stream.
	streamReconnects int
	silences         []silence
}

// silence is the time without confirms around a fault.
type silence struct {
	fault           string
	quorum, classic time.Duration
}

// queuesOf returns the queues for a cluster of this number of nodes.
func queuesOf(count int, home int) []traffic.Queue {
	q := []traffic.Queue{
		{Name: "quorum-1", Quorum: true, Replicas: 3},
		{Name: "quorum-2", Quorum: true, Replicas: 3, SingleActive: true},
		{Name: "quorum-3", Quorum: true, Replicas: count},
		{Name: "classic-1", Home: 0},
		{Name: "classic-2", Home: home, SingleActive: true},
	}
	return q
}

// build creates the world of a scenario.
func build(ctx context.Context, o options, s scenario, out io.Writer) (*world, error) {
	w := &world{ctx: ctx, o: o, out: out, queues: queuesOf(s.nodes, s.home), began: time.Now(),
		random: rand.New(rand.NewPCG(o.seed, 0))}
	dir := filepath.Join(o.dir, s.name)
	err := os.MkdirAll(o.dir, 0o755)
	if err == nil {
		// The remains of another run must not be part of the cluster.
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil {
		return nil, err
	}
	if w.net, err = network.New(s.nodes+1, o.seed); err != nil {
		return nil, err
	}
	settings := append([]string{"wal.file_size=2MiB", fmt.Sprintf("shards=%d", o.shards)}, s.settings...)
	w.cluster, err = nodes.Start(nodes.Options{Binary: o.binary, Dir: dir, Count: s.nodes, Network: w.net, Settings: settings, SmallDisk: s.smallDisk, Memory: s.memory})
	if err != nil {
		w.net.Close()
		return nil, err
	}
	if err = w.populate(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// populate waits for the cluster and starts the traffic, which is paused at first.
func (w *world) populate() error {
	if err := w.eventually("the cluster forms", w.cluster.Whole); err != nil {
		return err
	}
	var addresses []string
	for _, n := range w.cluster.Nodes {
		addresses = append(addresses, n.AMQP())
	}
	var err error
	w.load, err = traffic.Start(w.ctx, traffic.Options{Addresses: addresses, User: nodes.User, Password: nodes.Password, Queues: w.queues, Publishers: 2, Consumers: 2,
		Interval: w.o.interval, Window: 50, Prefetch: 20, Seed: w.o.seed})
	if err != nil {
		return err
	}
	var listeners []string
	for _, n := range w.cluster.Nodes {
		listeners = append(listeners, n.Stream())
	}
	w.stream, err = streams.Start(w.ctx, streams.Options{Addresses: listeners, User: nodes.User, Password: nodes.Password, Stream: "stream-1",
		Publishers: 2, Consumers: 3, Interval: w.o.interval})
	if err != nil {
		return err
	}
	return w.eventually("the queues are there", w.cluster.Whole)
}

func (w *world) close() {
	if w.load != nil {
		w.load.Stop()
	}
	if w.stream != nil {
		w.stream.Stop()
	}
	w.cluster.Close()
	w.net.Close()
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(w.out, "   %6.1f s  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

func (w *world) eventually(what string, holds func() error) error {
	return nodes.Eventually(w.ctx, healing, what, holds)
}

// fault has an action on the world and its reversal.
type fault struct {
	what  string
	begin func() error
	end   func() error
}

// suffer injects a fault under traffic, and waits until the world is whole again and at rest.
func (w *world) suffer(f fault) error {
	w.resume()
	if err := w.eventually("traffic before the fault", func() error { return w.atLeast(warm) }); err != nil {
		return err
	}
	w.say("%s", f.what)
	w.load.Watch()
	if err := f.begin(); err != nil {
		return fmt.Errorf("%s: %w", f.what, err)
	}
	if err := w.lasts(); err != nil {
		return err
	}
	during := w.load.AllConfirms()
	if err := f.end(); err != nil {
		return fmt.Errorf("end of %s: %w", f.what, err)
	}
	if err := w.everyQueueConfirms(); err != nil {
		return err
	}
	s := silence{fault: f.what}
	s.quorum, _ = w.load.Longest(true)
	s.classic, _ = w.load.Longest(false)
	w.report.silences = append(w.report.silences, s)
	w.say("over: %d confirms during it; longest without any: quorum queues %.1f s, classic queues %.1f s", during, s.quorum.Seconds(), s.classic.Seconds())
	return w.rest()
}

// resume starts all publishers.
func (w *world) resume() {
	w.load.Resume()
	w.stream.Resume()
}

// lasts waits for the duration of a fault: a number of confirms, or a time when they do not come.
func (w *world) lasts() error {
	// The time limits the wait here; it is no failed condition.
	err := nodes.Eventually(w.ctx, w.o.longest, "", func() error { return w.atLeast(w.o.confirms) })
	if w.ctx.Err() != nil {
		return err
	}
	return nil
}

func (w *world) atLeast(confirms int) error {
	if n := w.load.AllConfirms(); n < confirms {
		return fmt.Errorf("%d confirms", n)
	}
	return nil
}

// everyQueueConfirms waits until every queue and the stream have confirmed some messages from now on.
func (w *world) everyQueueConfirms() error {
	before := map[string]int{}
	for _, q := range w.queues {
		before[q.Name] = w.load.Confirms(q.Name)
	}
	stream := w.stream.Confirms()
	return w.eventually("every queue confirms again", func() error {
		for _, q := range w.queues {
			if n := w.load.Confirms(q.Name) - before[q.Name]; n < again {
				return fmt.Errorf("queue %s gave %d confirms", q.Name, n)
			}
		}
		if n := w.stream.Confirms() - stream; n < again {
			return fmt.Errorf("the stream gave %d confirms", n)
		}
		return nil
	})
}

// rest waits until the cluster is whole, every queue empty and the stream read by every consumer. Messages acknowledged until then must never come
// again.
func (w *world) rest() error {
	w.load.Pause()
	w.stream.Pause()
	steps := []struct {
		what  string
		holds func() error
	}{
		{"the cluster is whole", w.cluster.Whole},
		{"publishers have their answers", w.load.Idle},
		{"publishers of the stream have their confirms", w.stream.Idle},
		{"every consumer reads every confirmed message of the stream", w.stream.CaughtUp},
		{"every confirmed message arrives", w.nothingMissing},
		{"every queue is empty", w.empty},
	}
	for _, s := range steps {
		if err := w.eventually(s.what, s.holds); err != nil {
			return err
		}
	}
	empty := time.Now()
	err := w.eventually("acknowledgements are written down", func() error {
		if since := time.Since(empty); since < writtenDown {
			return fmt.Errorf("%v since the queues were empty", since)
		}
		return nil
	})
	for _, q := range w.queues {
		w.load.History.Empty(q.Name)
	}
	return err
}

// missing describes confirmed messages that a whole cluster does not deliver.
type missing struct {
	queue    string
	messages int
}

func (m *missing) Error() string {
	return fmt.Sprintf("%d confirmed messages of queue %s are missing", m.messages, m.queue)
}

func (w *world) nothingMissing() error {
	for _, q := range w.queues {
		if n := w.load.History.Missing(q.Name); n > 0 {
			return &missing{q.Name, n}
		}
	}
	return nil
}

func (w *world) empty() error {
	for _, q := range w.queues {
		if err := w.cluster.Empty(q.Name); err != nil {
			return err
		}
	}
	return nil
}

// afterlife kills all nodes and starts them again: acknowledged messages must not come back.
func (w *world) afterlife() error {
	for _, n := range w.cluster.Nodes {
		n.Kill()
	}
	for _, n := range w.cluster.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	w.resume()
	if err := w.everyQueueConfirms(); err != nil {
		return fmt.Errorf("after all were killed at the end: %w", err)
	}
	if err := w.rest(); err != nil {
		return fmt.Errorf("after all were killed at the end: %w", err)
	}
	// The whole stream from the log of every node.
	for _, n := range w.cluster.Nodes {
		err := w.eventually("the stream is read from "+n.Name, func() error { return w.stream.ReadAll(w.ctx, n.Stream()) })
		if err != nil {
			return err
		}
	}
	return nil
}

// judge closes the world and returns its violations; err is why the scenario was aborted, if it was.
func (w *world) judge(err error) report {
	w.close()
	r := &w.report
	var late *missing
	r.verdict = w.load.History.Judge(err == nil || errors.As(err, &late))
	r.stream = w.stream.History.Judge(err == nil)
	r.reconnects = w.load.Reconnects()
	r.streamReconnects = w.stream.Reconnects()
	if err != nil {
		r.problems = append(r.problems, err.Error())
	}
	if !r.verdict.OK() {
		r.problems = append(r.problems, r.verdict.Examples...)
	}
	if !r.stream.OK() {
		r.problems = append(r.problems, r.stream.Examples...)
	}
	r.problems = append(r.problems, w.load.Strange()...)
	r.problems = append(r.problems, w.stream.Strange()...)
	r.problems = append(r.problems, w.cluster.Faults()...)
	return *r
}
