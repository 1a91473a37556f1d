package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"posthorn.io/posthorn/test/bench/amqp10"
	"posthorn.io/posthorn/test/bench/mqtt"
	"posthorn.io/posthorn/test/bench/process"
	"posthorn.io/posthorn/test/bench/stream"
	"posthorn.io/posthorn/test/bench/wire"
)

// A load is the work of the clients.
type load interface {
	connect(b *process.Broker, t tools) (connected, error)
}

// connected is a load with its clients, if they stay from run to run.
type connected interface {
	// run sends and receives a number of messages, at a rate per second or, with 0, as fast as possible. The outcome
	// has messages, rate, latencies, and the client's processor seconds, all for the whole run.
	run(messages int, rate float64) (result, error)
	close()
}

// patience is how long one run of a foreign program may take.
const patience = 5 * time.Minute

// tools are directories.
type tools struct {
	// PerfTest's libraries.
	perfTest string
	// The installation of peers/install.
	peers string
}

// perfTest has PerfTest's arguments, with %d for the number of messages.
type perfTest struct{ arguments string }

type perfTestOn struct {
	perfTest
	java []string
}

func (p perfTest) connect(b *process.Broker, t tools) (connected, error) {
	return perfTestOn{p, []string{"-cp", filepath.Join(t.perfTest, "*"), "com.rabbitmq.perf.PerfTest",
		"--uri", "amqp://guest:guest@" + b.Address(), "--id", "bench"}}, nil
}

func (p perfTestOn) close() {}

func (p perfTestOn) run(messages int, rate float64) (result, error) {
	words := strings.Fields(fmt.Sprintf(p.arguments, messages))
	if rate > 0 {
		words = append(words, "--rate", strconv.Itoa(int(rate)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "java", append(p.java, words...)...)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("PerfTest: %w\n%s", err, out)
	}
	took := time.Since(began)
	r := result{
		Messages: messages,
		Sent:     messages,
		Rate:     averageRate(string(out), float64(messages)/took.Seconds()),
		Client:   spent(cmd).Seconds(),
	}
	r.Median, r.P95, r.P99 = latencies(string(out))
	return r, nil
}

// The processor time of a program that has exited.
func spent(cmd *exec.Cmd) time.Duration {
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

var (
	average = regexp.MustCompile(`(sending|receiving) rate avg: ([0-9]+) (?:msg|messages)/s`)
	delays  = regexp.MustCompile(`consumer latency [^\n]*95th/99th ([0-9./]+) (µs|ms)`)
)

// The lower of PerfTest's own averages, or else the average of the whole run, including the start of Java.
func averageRate(out string, whole float64) float64 {
	slowest := 0.0
	for _, m := range average.FindAllStringSubmatch(out, -1) {
		n, _ := strconv.ParseFloat(m[2], 64)
		if n > 0 && (slowest == 0 || n < slowest) {
			slowest = n
		}
	}
	if slowest == 0 {
		return whole
	}
	return slowest
}

// The consumers' median, 95th and 99th percentile in microseconds from PerfTest's summary of a run; 0 where it has
// none.
func latencies(out string) (median, p95, p99 float64) {
	all := delays.FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		return 0, 0, 0
	}
	last := all[len(all)-1]
	var values []float64
	for text := range strings.SplitSeq(last[1], "/") {
		n, _ := strconv.ParseFloat(text, 64)
		if last[2] == "ms" {
			n *= 1000
		}
		values = append(values, n)
	}
	if len(values) != 5 {
		return 0, 0, 0
	}
	return values[1], values[3], values[4]
}

// ownMQTT is a client of our own, because PerfTest does not support MQTT.
type ownMQTT struct{ mqtt.Load }

type ownMQTTOn struct{ *mqtt.Rig }

func (l ownMQTT) connect(b *process.Broker, _ tools) (connected, error) {
	rig, err := l.Connect(fmt.Sprintf("127.0.0.1:%d", b.Ports["mqtt"]))
	return ownMQTTOn{rig}, err
}

func (l ownMQTTOn) close() { l.Close() }

func (l ownMQTTOn) run(messages int, rate float64) (result, error) {
	before := ownCPU()
	outcome, err := l.Run(messages, rate)
	if err != nil {
		return result{}, err
	}
	r := result{
		Messages: outcome.Messages,
		Sent:     outcome.Sent,
		Rate:     float64(outcome.Messages) / outcome.Took.Seconds(),
		Client:   (ownCPU() - before).Seconds(),
	}
	if h := outcome.Latency; h != nil {
		r.Median, r.P95, r.P99 = float64(h.ValueAtPercentile(50)), float64(h.ValueAtPercentile(95)), float64(h.ValueAtPercentile(99))
		r.P999, r.Longest = float64(h.ValueAtPercentile(99.9)), float64(h.Max())
	}
	return r, nil
}

// ownStream is a client of our own for the stream protocol, because RabbitMQ's PerfTest for streams costs several
// times as much processor time as the broker.
type ownStream struct{ stream.Load }

type ownStreamOn struct{ *stream.Rig }

func (l ownStream) connect(b *process.Broker, _ tools) (connected, error) {
	rig, err := l.Connect(fmt.Sprintf("127.0.0.1:%d", b.Ports["stream"]))
	return ownStreamOn{rig}, err
}

func (l ownStreamOn) close() {
	if l.Rig != nil {
		l.Close()
	}
}

func (l ownStreamOn) run(messages int, rate float64) (result, error) {
	if rate > 0 {
		return result{}, fmt.Errorf("this load has no pace")
	}
	before := ownCPU()
	outcome, err := l.Run(messages)
	if err != nil {
		return result{}, err
	}
	r := result{
		Messages: outcome.Messages,
		Sent:     outcome.Messages,
		Rate:     float64(outcome.Messages) / outcome.Took.Seconds(),
		Client:   (ownCPU() - before).Seconds(),
	}
	if h := outcome.Latency; h != nil {
		r.Median, r.P95, r.P99 = float64(h.ValueAtPercentile(50)), float64(h.ValueAtPercentile(95)), float64(h.ValueAtPercentile(99))
		r.P999, r.Longest = float64(h.ValueAtPercentile(99.9)), float64(h.Max())
	}
	return r, nil
}

func ownCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// ownAMQP is the client of bench-storage, one publisher and one consumer of a durable classic queue.
type ownAMQP struct {
	queue       string
	unconfirmed int
	prefetch    uint16
}

type ownAMQPOn struct {
	ownAMQP
	publisher, consumer *wire.Conn
}

func (l ownAMQP) connect(b *process.Broker, _ tools) (connected, error) {
	on := ownAMQPOn{ownAMQP: l}
	var err error
	if on.publisher, err = wire.Dial(b.Address()); err != nil {
		return nil, err
	}
	if err = on.publisher.Declare(l.queue, "classic"); err == nil {
		err = on.publisher.Confirms()
	}
	if err == nil {
		on.consumer, err = wire.Dial(b.Address())
	}
	if err == nil {
		err = on.consumer.Consume(l.queue, "bench", l.prefetch)
	}
	if err != nil {
		on.close()
		return nil, err
	}
	return on, nil
}

func (l ownAMQPOn) close() {
	l.publisher.Close()
	if l.consumer != nil {
		l.consumer.Close()
	}
}

func (l ownAMQPOn) run(messages int, rate float64) (result, error) {
	if rate > 0 {
		return result{}, fmt.Errorf("this load has no pace")
	}
	before, began := ownCPU(), time.Now()
	taken := make(chan error, 1)
	go func() { taken <- l.consumer.Take(messages, int(l.prefetch)) }()
	if err := l.publisher.Publish(wire.NewMessage(l.queue, 12), messages, l.unconfirmed); err != nil {
		return result{}, err
	}
	if err := <-taken; err != nil {
		return result{}, err
	}
	return result{
		Messages: messages,
		Sent:     messages,
		Rate:     float64(messages) / time.Since(began).Seconds(),
		Client:   (ownCPU() - before).Seconds(),
	}, nil
}

// ownAMQPPublish is the publisher of bench-storage alone.
type ownAMQPPublish struct {
	queue, kind string
	unconfirmed int
}

type ownAMQPPublishOn struct {
	ownAMQPPublish
	publisher *wire.Conn
}

func (l ownAMQPPublish) connect(b *process.Broker, _ tools) (connected, error) {
	publisher, err := wire.Dial(b.Address())
	if err != nil {
		return nil, err
	}
	if err = publisher.Declare(l.queue, l.kind); err == nil {
		err = publisher.Confirms()
	}
	if err != nil {
		publisher.Close()
		return nil, err
	}
	return ownAMQPPublishOn{l, publisher}, nil
}

func (l ownAMQPPublishOn) close() { l.publisher.Close() }

func (l ownAMQPPublishOn) run(messages int, rate float64) (result, error) {
	if rate > 0 {
		return result{}, fmt.Errorf("this load has no pace")
	}
	before, began := ownCPU(), time.Now()
	if err := l.publisher.Publish(wire.NewMessage(l.queue, 12), messages, l.unconfirmed); err != nil {
		return result{}, err
	}
	return result{
		Messages: messages,
		Sent:     messages,
		Rate:     float64(messages) / time.Since(began).Seconds(),
		Client:   (ownCPU() - before).Seconds(),
	}, nil
}

// ownAMQP10 publishes to a stream over AMQP 1.0.
type ownAMQP10 struct {
	stream    string
	size      int
	unsettled int
}

type ownAMQP10On struct {
	ownAMQP10
	publisher *amqp10.Publisher
}

func (l ownAMQP10) connect(b *process.Broker, _ tools) (connected, error) {
	c, err := stream.Dial(fmt.Sprintf("127.0.0.1:%d", b.Ports["stream"]))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.Create(l.stream, map[string]string{"max-length-bytes": stream.Retention}); err != nil {
		return nil, err
	}
	publisher, err := amqp10.Dial(b.Address(), amqp10.Queue(l.stream))
	if err != nil {
		return nil, err
	}
	return ownAMQP10On{l, publisher}, nil
}

func (l ownAMQP10On) close() { l.publisher.Close() }

func (l ownAMQP10On) run(messages int, rate float64) (result, error) {
	if rate > 0 {
		return result{}, fmt.Errorf("this load has no pace")
	}
	before, began := ownCPU(), time.Now()
	if err := l.publisher.Publish(l.size, messages, l.unsettled); err != nil {
		return result{}, err
	}
	return result{
		Messages: messages,
		Sent:     messages,
		Rate:     float64(messages) / time.Since(began).Seconds(),
		Client:   (ownCPU() - before).Seconds(),
	}, nil
}

// ownAMQP10Queue is one publisher and one consumer of a durable queue over AMQP 1.0. The publisher gets the credit of the broker, the
// consumer settles in ranges.
type ownAMQP10Queue struct {
	queue, kind string
	size        int
	unsettled   int
	prefetch    uint32
}

type ownAMQP10QueueOn struct {
	ownAMQP10Queue
	publisher *amqp10.Publisher
	consumer  *amqp10.Consumer
}

func (l ownAMQP10Queue) connect(b *process.Broker, _ tools) (connected, error) {
	terminus := amqp10.Queue(l.queue)
	if b.Name == "artemis" {
		// It declares the queue for the first link.
		terminus = amqp10.Terminus{Address: l.queue, Capability: "queue"}
	} else {
		c, err := wire.Dial(b.Address())
		if err != nil {
			return nil, err
		}
		defer c.Close()
		if err := c.Declare(l.queue, l.kind); err != nil {
			return nil, err
		}
	}
	consumer, err := amqp10.Receive(amqp10Address(b), terminus, l.prefetch)
	if err != nil {
		return nil, err
	}
	publisher, err := amqp10.Dial(amqp10Address(b), terminus)
	if err != nil {
		consumer.Close()
		return nil, err
	}
	publisher.Durable = true
	return ownAMQP10QueueOn{l, publisher, consumer}, nil
}

// ownAMQP10Links is one publisher with a link to each of several durable queues, all in one session. Every link sends as fast as it
// may. Messages per second are those that the first queue accepts; processor time is that of all messages.
type ownAMQP10Links struct {
	kinds []string
	size  byte
}

type ownAMQP10LinksOn struct{ links *amqp10.Links }

func (l ownAMQP10Links) connect(b *process.Broker, _ tools) (connected, error) {
	declaring, err := wire.Dial(b.Address())
	if err != nil {
		return nil, err
	}
	defer declaring.Close()
	var queues []amqp10.Terminus
	for n, kind := range l.kinds {
		name := fmt.Sprintf("of-%d-%d", len(l.kinds), n)
		if err := declaring.Declare(name, kind); err != nil {
			return nil, err
		}
		queues = append(queues, amqp10.Queue(name))
	}
	links, err := amqp10.DialLinks(amqp10Address(b), l.size, queues...)
	if err != nil {
		return nil, err
	}
	return ownAMQP10LinksOn{links}, nil
}

func (l ownAMQP10LinksOn) close() { l.links.Close() }

func (l ownAMQP10LinksOn) run(messages int, rate float64) (result, error) {
	if rate > 0 {
		return result{}, fmt.Errorf("this load has no pace")
	}
	before, began := ownCPU(), time.Now()
	accepted, err := l.links.Publish(messages)
	if err != nil {
		return result{}, err
	}
	all := 0
	for _, count := range accepted {
		all += count
	}
	return result{
		Messages: all,
		Sent:     all,
		Rate:     float64(accepted[0]) / time.Since(began).Seconds(),
		Client:   (ownCPU() - before).Seconds(),
	}, nil
}

// amqp10Address returns the address of AMQP 1.0: that of AMQP 0.9.1, or a port of its own.
func amqp10Address(b *process.Broker) string {
	if port, ok := b.Ports["amqp10"]; ok {
		return fmt.Sprintf("127.0.0.1:%d", port)
	}
	return b.Address()
}

func (l ownAMQP10QueueOn) close() {
	l.publisher.Close()
	l.consumer.Close()
}

func (l ownAMQP10QueueOn) run(messages int, rate float64) (result, error) {
	if rate > 0 {
		return result{}, fmt.Errorf("this load has no pace")
	}
	before, began := ownCPU(), time.Now()
	taken := make(chan error, 1)
	go func() { taken <- l.consumer.Take(messages) }()
	if err := l.publisher.Publish(l.size, messages, l.unsettled); err != nil {
		return result{}, err
	}
	if err := <-taken; err != nil {
		return result{}, err
	}
	return result{
		Messages: messages,
		Sent:     messages,
		Rate:     float64(messages) / time.Since(began).Seconds(),
		Client:   (ownCPU() - before).Seconds(),
	}, nil
}

// mosquittoTools are the programs of mosquitto: one pair, QoS 1, 20 in flight.
type mosquittoTools struct{}

type mosquittoToolsOn struct{ root, port string }

func (mosquittoTools) connect(b *process.Broker, t tools) (connected, error) {
	root := filepath.Join(t.peers, "debian")
	if _, err := os.Stat(filepath.Join(root, "usr/bin/mosquitto_pub")); err != nil {
		return nil, fmt.Errorf("mosquitto_pub is not installed: make bench-peers")
	}
	return mosquittoToolsOn{root, strconv.Itoa(b.Ports["mqtt"])}, nil
}

func (mosquittoToolsOn) close() {}

func (m mosquittoToolsOn) command(ctx context.Context, program string, words ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "chroot", append([]string{m.root, "/usr/bin/" + program, "-h", "127.0.0.1", "-p", m.port, "-u", "guest", "-P", "guest",
		"-V", "mqttv311", "-q", "1", "-t", "bench/tools"}, words...)...)
}

func (m mosquittoToolsOn) run(messages int, rate float64) (result, error) {
	if rate > 0 {
		return result{}, fmt.Errorf("this load has no pace")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// A persistent session has its subscription as soon as its client is connected, which is visible from outside.
	session := []string{"-c", "-i", "tools"}
	if err := m.command(ctx, "mosquitto_sub", append(session, "-E")...).Run(); err != nil {
		return result{}, fmt.Errorf("mosquitto_sub: %w", err)
	}
	idle := m.established()
	subscriber := m.command(ctx, "mosquitto_sub", append(session, "-C", strconv.Itoa(messages))...)
	if err := subscriber.Start(); err != nil {
		return result{}, err
	}
	for end := time.Now().Add(10 * time.Second); m.established() <= idle; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return result{}, fmt.Errorf("mosquitto_sub does not connect")
		}
	}
	publisher := m.command(ctx, "mosquitto_pub", "-l")
	publisher.Stdin = io.LimitReader(endless("hello world!\n"), int64(messages)*int64(len("hello world!\n")))
	began := time.Now()
	if err := publisher.Run(); err != nil {
		return result{}, fmt.Errorf("mosquitto_pub: %w", err)
	}
	if err := subscriber.Wait(); err != nil {
		return result{}, fmt.Errorf("mosquitto_sub: %w", err)
	}
	return result{
		Messages: messages,
		Sent:     messages,
		Rate:     float64(messages) / time.Since(began).Seconds(),
		Client:   (spent(publisher) + spent(subscriber)).Seconds(),
	}, nil
}

// connections returns the number of connections to the broker's port.
func (m mosquittoToolsOn) established() int {
	port, _ := strconv.Atoi(m.port)
	text, _ := os.ReadFile("/proc/net/tcp")
	// The local address, the remote one, and the state; see proc(5).
	return len(regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]{8}:%04X [0-9A-F:]{13} 01 `, port)).FindAll(text, -1))
}

// endless is a text repeated for ever.
type endless string

func (e endless) Read(to []byte) (int, error) {
	n := 0
	for n+len(e) <= len(to) {
		n += copy(to[n:], e)
	}
	return n, nil
}
