package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"posthorn.io/posthorn/test/bench/peers"
	"posthorn.io/posthorn/test/bench/process"
)

// The result of one step in one round.
type result struct {
	Workload string `json:"workload"`
	Step     string `json:"step"`
	Broker   string `json:"broker"`
	Round    int    `json:"round"`
	// Messages that arrived, and that were sent.
	Messages int `json:"messages"`
	Sent     int `json:"sent"`
	// The pace, 0 without one.
	Wanted  float64 `json:"wanted_messages_per_second,omitempty"`
	Rate    float64 `json:"messages_per_second"`
	CPU     float64 `json:"broker_cpu_seconds_per_million"`
	Client  float64 `json:"client_cpu_seconds_per_million"`
	Written uint64  `json:"bytes_written"`
	Peak    uint64  `json:"peak_resident_bytes"`
	// Calls that sync files, per thousand messages, from a separate trial; nil where they cannot be counted.
	Syncs *float64 `json:"syncs_per_thousand,omitempty"`
	// Microseconds from publish to delivery, 0 where it is not measured.
	Median  float64 `json:"latency_median_us,omitempty"`
	P95     float64 `json:"latency_p95_us,omitempty"`
	P99     float64 `json:"latency_p99_us,omitempty"`
	P999    float64 `json:"latency_p999_us,omitempty"`
	Longest float64 `json:"latency_max_us,omitempty"`
}

// A plan is how all workloads are measured.
type plan struct {
	program string
	tools   tools
	peers   []peers.Peer
	rounds  int
	// The duration of a step.
	seconds float64
	// The pace of workloads that have one; 0: half of the slowest broker's rate.
	rate float64
}

// A contender is a broker with a workload's clients.
type contender struct {
	broker *process.Broker
	loads  []connected
	// Of each step.
	messages []int
	can      []float64
	syncs    []*float64
}

func (c *contender) remove() {
	if c == nil {
		return
	}
	for _, l := range c.loads {
		l.close()
	}
	c.broker.Resume()
	c.broker.Remove()
}

// measure runs a workload: every broker once in each round, while the others are stopped. It also returns the
// brokers' versions.
func (p plan) measure(w workload) ([]result, map[string]string, error) {
	var all []*contender
	versions := map[string]string{}
	defer func() {
		for _, c := range all {
			c.remove()
		}
	}()
	for at, start := range p.starts(w) {
		c, err := p.enter(w, start)
		switch {
		case err == nil:
			all = append(all, c)
			versions[c.broker.Name] = c.broker.Version
		case at == 0:
			c.remove()
			return nil, nil, fmt.Errorf("%s: %w", w.name, err)
		default:
			c.remove()
			fmt.Fprintf(os.Stderr, "  left out: %v\n", err)
		}
	}
	rate := p.pace(w, all)
	var results []result
	for round := range p.rounds {
		for at := 0; at < len(all); at++ {
			c := all[at]
			fmt.Fprintf(os.Stderr, "  round %d of %d: %s\n", round+1, p.rounds, c.broker.Name)
			some, err := p.round(w, c, rate)
			switch {
			case err == nil:
			case at == 0:
				return nil, nil, fmt.Errorf("%s: %w", w.name, err)
			default:
				fmt.Fprintf(os.Stderr, "  left out from now on: %v\n", err)
				c.remove()
				all = slices.Delete(all, at, at+1)
				at--
				continue
			}
			for i := range some {
				some[i].Round = round + 1
			}
			results = append(results, some...)
		}
	}
	return results, versions, nil
}

// round runs all steps against one broker, which is stopped before and afterwards.
func (p plan) round(w workload, c *contender, rate float64) ([]result, error) {
	c.broker.Resume()
	defer c.broker.Pause()
	var results []result
	for at, s := range w.steps {
		messages := c.messages[at]
		if rate > 0 {
			messages = max(1, int(rate*p.seconds))
		}
		r, err := c.run(at, messages, rate)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", c.broker.Name, s.name, err)
		}
		if !s.latency {
			r.Median, r.P95, r.P99, r.P999, r.Longest = 0, 0, 0, 0, 0
		}
		r.Workload, r.Step, r.Syncs = w.name, s.name, c.syncs[at]
		results = append(results, r)
	}
	return results, nil
}

// Ours first, then the peers that support the protocol.
func (p plan) starts(w workload) []func() (*process.Broker, error) {
	starts := []func() (*process.Broker, error){func() (*process.Broker, error) { return p.ours(w) }}
	for _, peer := range p.peers {
		if peer.Knows(w.protocol) {
			starts = append(starts, func() (*process.Broker, error) { return peer.Start(p.tools.peers, w.demand) })
		}
	}
	return starts
}

func (p plan) ours(w workload) (*process.Broker, error) {
	var settings []string
	for _, setting := range w.settings {
		settings = append(settings, "--set", setting)
	}
	b, err := process.Start(p.program, settings...)
	if err == nil && w.queueType != "" {
		err = setQueueType(b, w.queueType)
	}
	return b, err
}

// enter starts a broker, connects the clients, and warms up: first a few messages, which determine the number for a
// round, then that number. The caller removes a contender even if it comes with an error.
func (p plan) enter(w workload, start func() (*process.Broker, error)) (*contender, error) {
	b, err := start()
	if b == nil {
		return nil, err
	}
	c := &contender{broker: b}
	if err != nil {
		return c, err
	}
	fmt.Fprintf(os.Stderr, "  %s %s warms up\n", b.Name, b.Version)
	for _, s := range w.steps {
		l, err := s.load.connect(b, p.tools)
		if err != nil {
			return c, fmt.Errorf("%s, %s: %w", b.Name, s.name, err)
		}
		c.loads = append(c.loads, l)
		c.messages = append(c.messages, s.first)
	}
	c.can, c.syncs = make([]float64, len(w.steps)), make([]*float64, len(w.steps))
	for range 2 {
		for at, s := range w.steps {
			count := countSyncs(b)
			r, err := c.run(at, c.messages[at], 0)
			if err != nil {
				return c, fmt.Errorf("%s, %s: %w", b.Name, s.name, err)
			}
			c.can[at], c.syncs[at] = r.Rate, count.end(r.Messages)
		}
		c.share(p.seconds)
	}
	c.broker.Pause()
	return c, nil
}

// share assigns each step the messages that all of them can handle in this time: the same number for each, because
// one step consumes the messages of another.
func (c *contender) share(seconds float64) {
	least := c.can[0]
	for _, rate := range c.can {
		least = min(least, rate)
	}
	for at := range c.messages {
		c.messages[at] = max(1000, int(least*seconds))
	}
}

// Half of the slowest broker's rate, to two digits, if the workload has a pace.
func (p plan) pace(w workload, all []*contender) float64 {
	if !w.paced {
		return 0
	}
	if p.rate > 0 {
		return p.rate
	}
	least := all[0].can[0]
	for _, c := range all {
		least = min(least, c.can[0])
	}
	return twoDigits(least / 2)
}

func twoDigits(n float64) float64 {
	unit := 1.0
	for n/unit >= 100 {
		unit *= 10
	}
	return max(1, float64(int(n/unit))*unit)
}

func (c *contender) run(step, messages int, rate float64) (result, error) {
	c.broker.ResetPeak()
	before, err := c.broker.Usage()
	if err != nil {
		return result{}, err
	}
	r, err := c.loads[step].run(messages, rate)
	if err != nil {
		return result{}, err
	}
	after, err := c.broker.Usage()
	if err != nil {
		return result{}, err
	}
	if r.Messages == 0 {
		return result{}, fmt.Errorf("none of %d messages arrived", r.Sent)
	}
	millions := float64(r.Messages) / 1e6
	r.Broker, r.Wanted = c.broker.Name, rate
	r.CPU = (after.CPU - before.CPU).Seconds() / millions
	r.Client /= millions
	r.Written = after.Written - before.Written
	r.Peak = after.Peak
	return r, nil
}

// Of the virtual host that all clients use.
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
