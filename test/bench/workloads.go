package main

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"posthorn.io/posthorn/test/bench/mqtt"
	"posthorn.io/posthorn/test/bench/process"
)

// A workload: what is done to a fresh broker, in steps that are measured one by one.
type workload struct {
	name  string
	about string
	steps []step
	// More of the broker's configuration.
	settings []string
	// Of queues that name no type.
	queueType string
}

type step struct {
	name string
	// Arguments of PerfTest; %d is the number of messages.
	arguments string
	// Publish and receive of one message count as one message.
	messages int
	// In place of PerfTest: it knows no MQTT.
	load *mqtt.Load
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
			"1:1", "--queue bench --auto-delete false --confirm 192 --qos 200 --multi-ack-every 200 --pmessages %d" + persistent, 1_000_000, nil,
		}},
	},
	{
		name:  "amqp091-quorum",
		about: "the same with a quorum queue on one node",
		steps: []step{{
			"1:1", "--queue bench --confirm 192 --qos 200 --multi-ack-every 200 --pmessages %d" + persistent + quorum, 1_000_000, nil,
		}},
	},
	{
		name:  "amqp091-quorum-backlog",
		about: "a quorum queue is filled, then emptied",
		steps: []step{
			{"publish", "--queue bench --consumers 0 --confirm 192 --pmessages %d" + persistent + quorum, 1_000_000, nil},
			{"consume", "--queue bench --producers 0 --qos 200 --multi-ack-every 200 --cmessages %d" + persistent + quorum, 1_000_000, nil},
		},
	},
	{
		name:  "amqp091-fanout10",
		about: "one publisher to 10 classic queues by a fanout exchange, a consumer each",
		steps: []step{{
			"1:10", "--exchange bench --type fanout --queue-pattern bench-%%d --queue-pattern-from 1 --queue-pattern-to 10 --producers 1 --consumers 10 --confirm 192 --qos 200 --multi-ack-every 200 --pmessages %d" + persistent, 200_000, nil,
		}},
	},
	{
		name:     "mqtt-qos1",
		about:    "100 pairs, QoS 1, one message in flight, sessions that end with their connection",
		steps:    []step{{"1:1", "", 500_000, &mqtt.Load{Pairs: 100, QoS: 1, Size: 12}}},
		settings: mqttSettings,
	},
	{
		name:     "mqtt-qos1-classic",
		about:    "the same, sessions that are kept: a classic queue each",
		steps:    []step{{"1:1", "", 500_000, &mqtt.Load{Pairs: 100, QoS: 1, Size: 12, Kept: true}}},
		settings: mqttSettings,
	},
	{
		name:     "mqtt-qos1-quorum",
		about:    "the same, a quorum queue each: on disk before PUBACK",
		steps:    []step{{"1:1", "", 500_000, &mqtt.Load{Pairs: 100, QoS: 1, Size: 12, Kept: true}}},
		settings: mqttSettings, queueType: "quorum",
	},
	{
		name:     "mqtt-qos0",
		about:    "100 pairs, QoS 0, as fast as the broker reads",
		steps:    []step{{"1:1", "", 5_000_000, &mqtt.Load{Pairs: 100, Size: 12}}},
		settings: mqttSettings,
	},
}

var mqttSettings = []string{"mqtt.listeners.tcp.default=127.0.0.1:0"}

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

func (w workload) run(program, perfTest string, scale float64) ([]result, error) {
	var settings []string
	for _, setting := range w.settings {
		settings = append(settings, "--set", setting)
	}
	b, err := process.Start(program, settings...)
	if err != nil {
		return nil, err
	}
	defer b.Remove()
	if w.queueType != "" {
		if err := setQueueType(b, w.queueType); err != nil {
			return nil, err
		}
	}
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
	put := s.perfTest
	if s.load != nil {
		put = s.ownLoad
	}
	r, err := put(b, perfTest, messages)
	if err != nil {
		return result{}, err
	}
	after, err := b.Usage()
	if err != nil {
		return result{}, err
	}
	millions := float64(r.Messages) / 1e6
	r.Step = s.name
	r.CPU = (after.CPU - before.CPU).Seconds() / millions
	r.Client /= millions
	r.Written = after.Written - before.Written
	r.Peak = after.Peak
	return r, nil
}

// Of the virtual host that all use.
func setQueueType(b *process.Broker, kind string) error {
	body := strings.NewReader(fmt.Sprintf(`{"default_queue_type": %q}`, kind))
	request, err := http.NewRequest(http.MethodPut, b.URL("/api/vhosts/%2F"), body)
	if err != nil {
		return err
	}
	request.SetBasicAuth("guest", "guest")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the virtual host's queue type: %s", answer.Status)
	}
	return nil
}

// The client's seconds are those of all messages.
func (s step) perfTest(b *process.Broker, perfTest string, messages int) (result, error) {
	java := []string{"-cp", filepath.Join(perfTest, "*"), "com.rabbitmq.perf.PerfTest",
		"--uri", fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d", b.Ports["amqp"]), "--id", "bench"}
	cmd := exec.Command("java", append(java, strings.Fields(fmt.Sprintf(s.arguments, messages))...)...)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("PerfTest: %w\n%s", err, out)
	}
	took := time.Since(began)
	return result{
		Messages: messages,
		Rate:     rate(string(out), float64(messages)/took.Seconds()),
		Client:   (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(),
		P99:      latency(string(out)),
	}, nil
}

func (s step) ownLoad(b *process.Broker, _ string, messages int) (result, error) {
	before := ownCPU()
	outcome, err := s.load.Run(fmt.Sprintf("127.0.0.1:%d", b.Ports["mqtt"]), messages)
	if err != nil {
		return result{}, err
	}
	return result{
		Messages: outcome.Messages,
		Rate:     float64(outcome.Messages) / outcome.Took.Seconds(),
		Client:   (ownCPU() - before).Seconds(),
	}, nil
}

func ownCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
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
