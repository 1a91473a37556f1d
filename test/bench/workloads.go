package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"posthorn.io/posthorn/test/bench/process"
)

// A workload: what is done to a fresh broker, in steps that are measured one by one.
type workload struct {
	name  string
	about string
	// Arguments of PerfTest, a step each. %d is the number of messages.
	steps []step
}

type step struct {
	name      string
	arguments string
	// Publish and receive of one message count as one message.
	messages int
}

const (
	quorum     = " --queue-args x-queue-type=quorum --auto-delete false"
	persistent = " --size 12 --flag persistent --flag mandatory"
)

// The flags are those of RabbitMQ's own comparison of its protocols for 12-byte messages.
var workloads = []workload{
	{
		name:  "amqp091-classic",
		about: "one publisher, one consumer, classic queue, 12 B persistent, 192 unconfirmed, prefetch 200",
		steps: []step{{
			"1:1", "--queue bench --auto-delete false --confirm 192 --qos 200 --multi-ack-every 200 --pmessages %d" + persistent, 1_000_000,
		}},
	},
	{
		name:  "amqp091-quorum",
		about: "the same with a quorum queue on one node",
		steps: []step{{
			"1:1", "--queue bench --confirm 192 --qos 200 --multi-ack-every 200 --pmessages %d" + persistent + quorum, 1_000_000,
		}},
	},
	{
		name:  "amqp091-quorum-backlog",
		about: "a quorum queue is filled, then emptied",
		steps: []step{
			{"publish", "--queue bench --consumers 0 --confirm 192 --pmessages %d" + persistent + quorum, 1_000_000},
			{"consume", "--queue bench --producers 0 --qos 200 --multi-ack-every 200 --cmessages %d" + persistent + quorum, 1_000_000},
		},
	},
	{
		name:  "amqp091-fanout10",
		about: "one publisher to 10 classic queues by a fanout exchange, a consumer each",
		steps: []step{{
			"1:10", "--exchange bench --type fanout --queue-pattern bench-%%d --queue-pattern-from 1 --queue-pattern-to 10 --producers 1 --consumers 10 --confirm 192 --qos 200 --multi-ack-every 200 --pmessages %d" + persistent, 200_000,
		}},
	},
}

// What one step came to.
type result struct {
	Workload string  `json:"workload"`
	Step     string  `json:"step"`
	Broker   string  `json:"broker"`
	Messages int     `json:"messages"`
	Rate     float64 `json:"messages_per_second"`
	CPU      float64 `json:"broker_cpu_seconds_per_million"`
	Client   float64 `json:"client_cpu_seconds_per_million"`
	Written  uint64  `json:"bytes_written"`
	Peak     uint64  `json:"peak_resident_bytes"`
	// Microseconds from publish to delivery, 99th percentile, as PerfTest has it; 0 where it has none.
	P99 float64 `json:"consumer_latency_p99_us"`
}

func (w workload) run(start func() (*process.Broker, error), perfTest string, scale float64) ([]result, error) {
	b, err := start()
	if err != nil {
		return nil, err
	}
	defer b.Remove()
	var all []result
	for _, s := range w.steps {
		r, err := s.run(b, perfTest, int(float64(s.messages)*scale))
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", w.name, s.name, err)
		}
		r.Workload, r.Broker = w.name, b.Name
		all = append(all, r)
	}
	return all, nil
}

func (s step) run(b *process.Broker, perfTest string, messages int) (result, error) {
	before, err := b.Usage()
	if err != nil {
		return result{}, err
	}
	java := []string{"-cp", filepath.Join(perfTest, "*"), "com.rabbitmq.perf.PerfTest",
		"--uri", fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d", b.Ports["amqp"]), "--id", "bench"}
	cmd := exec.Command("java", append(java, strings.Fields(fmt.Sprintf(s.arguments, messages))...)...)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("PerfTest: %w\n%s", err, out)
	}
	took := time.Since(began)
	after, err := b.Usage()
	if err != nil {
		return result{}, err
	}
	millions := float64(messages) / 1e6
	client := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	r := result{
		Step:     s.name,
		Messages: messages,
		Rate:     rate(string(out), float64(messages)/took.Seconds()),
		CPU:      (after.CPU - before.CPU).Seconds() / millions,
		Client:   client.Seconds() / millions,
		Written:  after.Written - before.Written,
		Peak:     after.Peak,
		P99:      latency(string(out)),
	}
	return r, nil
}

var (
	average = regexp.MustCompile(`(sending|receiving) rate avg: ([0-9]+) (?:msg|messages)/s`)
	delays  = regexp.MustCompile(`consumer latency [^\n]*99th [0-9./]*/([0-9.]+) (µs|ms)`)
)

// The slower of PerfTest's own averages; otherwise that of the whole run, the start of Java included.
func rate(out string, whole float64) float64 {
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

func latency(out string) float64 {
	all := delays.FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		return 0
	}
	last := all[len(all)-1]
	n, _ := strconv.ParseFloat(last[1], 64)
	if last[2] == "ms" {
		n *= 1000
	}
	return n
}
