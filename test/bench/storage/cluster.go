package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"posthorn.io/posthorn/test/bench/process"
	"posthorn.io/posthorn/test/bench/wire"
)

const nodes = 3

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 16 << 20

// cluster starts three nodes on loopback.
func (r *report) cluster() ([]*process.Broker, error) {
	return process.Cluster(r.program, nodes)
}

func remove(all []*process.Broker) {
	for _, b := range all {
		b.Remove()
	}
}

var client = &http.Client{Timeout: 10 * time.Second}

// ask reads from the HTTP API.
func ask(b *process.Broker, path string, into any) error {
	request, err := http.NewRequest(http.MethodGet, b.URL(path), nil)
	if err != nil {
		return err
	}
	request.SetBasicAuth("guest", "guest")
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return err
	}
	if answer.StatusCode >= 300 {
		return fmt.Errorf("GET %s: %s %s", path, answer.Status, body)
	}
	return json.Unmarshal(body, into)
}

// led returns the number of queues that a node leads.
func led(b *process.Broker) (int, error) {
	answer, err := client.Get(b.MetricsURL())
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, "rabbitmq_queues "); ok {
			return strconv.Atoi(strings.TrimSpace(rest))
		}
	}
	return 0, fmt.Errorf("no rabbitmq_queues in the metrics of %s", b.Dir)
}

func allLed(some []*process.Broker, count int) func() (bool, error) {
	return func() (bool, error) {
		sum := 0
		for _, b := range some {
			n, err := led(b)
			if err != nil {
				return false, err
			}
			sum += n
		}
		return sum == count, nil
	}
}

// idle declares many quorum queues, a third on each node, measures them at rest, and kills a node.
func idle(r *report) error {
	all, err := r.cluster()
	if err != nil {
		return err
	}
	defer remove(all)
	queues := names(r.times(10_000))
	if err := spread(all, queues); err != nil {
		return err
	}
	if _, err := until(process.Patience, 100*time.Millisecond, allLed(all, len(queues))); err != nil {
		return err
	}
	if err := r.quiet(all, "idle"); err != nil {
		return err
	}
	survivors := all[:nodes-1]
	before, err := sum(survivors)
	if err != nil {
		return err
	}
	all[nodes-1].Kill()
	took, err := until(time.Minute, 50*time.Millisecond, allLed(survivors, len(queues)))
	if err != nil {
		return err
	}
	after, err := sum(survivors)
	if err != nil {
		return err
	}
	r.add("all led after a node's death", took.Seconds(), "s", 3)
	r.add("CPU of the two others until then", (after - before).Seconds(), "s", 0)
	return r.quiet(survivors, "idle, a node gone")
}

// spread declares queues on all nodes at once.
func spread(all []*process.Broker, queues []string) error {
	var wait sync.WaitGroup
	errs := make([]error, len(all))
	for n, b := range all {
		from, to := n*len(queues)/len(all), (n+1)*len(queues)/len(all)
		wait.Go(func() {
			errs[n] = with(b, func(c *wire.Conn) error { return c.DeclareAll(queues[from:to], "quorum") })
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func sum(all []*process.Broker) (time.Duration, error) {
	var sum time.Duration
	for _, b := range all {
		u, err := b.Usage()
		if err != nil {
			return 0, err
		}
		sum += u.CPU
	}
	return sum, nil
}

// quiet waits until a settled cluster is at rest, and measures half a minute of it.
func (r *report) quiet(all []*process.Broker, what string) error {
	const rest, watched = 10 * time.Second, 30 * time.Second
	time.Sleep(rest)
	before, err := sum(all)
	if err != nil {
		return err
	}
	time.Sleep(watched)
	after, err := sum(all)
	if err != nil {
		return err
	}
	share := (after - before).Seconds() / watched.Seconds() / float64(len(all)) * 100
	r.add(what+", CPU of a node, mean", share, "% of a core", 1)
	u, err := all[0].Usage()
	if err != nil {
		return err
	}
	r.add(what+", resident bytes of a node", float64(u.Resident)/1e6, "MB", 0)
	return nil
}

// replica is a member's line in the status of a quorum queue.
type replica struct {
	Node string `json:"Node Name"`
	Last any    `json:"Last Log Index"`
}

// behind returns the number of log entries that a member lacks, below 0 when it is unknown.
func behind(b *process.Broker, queue, node string) (float64, error) {
	var status []replica
	if err := ask(b, "/api/queues/quorum/%2F/"+queue+"/status", &status); err != nil {
		return -1, err
	}
	most, own := -1.0, -1.0
	for _, s := range status {
		last, ok := s.Last.(float64)
		if !ok {
			continue
		}
		most = max(most, last)
		if s.Node == node {
			own = last
		}
	}
	if own < 0 {
		return -1, nil
	}
	return most - own, nil
}

// catchUp kills a node, queues messages meanwhile and starts it again.
func catchUp(r *report) error {
	all, err := r.cluster()
	if err != nil {
		return err
	}
	defer remove(all)
	if err := declare(all[0], "q", "quorum"); err != nil {
		return err
	}
	if err := declare(all[1], "other", "quorum"); err != nil {
		return err
	}
	if err := publish(all[0], "q", 1000, small); err != nil {
		return err
	}
	away := all[nodes-1]
	away.Kill()
	messages := r.times(3 * million)
	if err := publish(all[0], "q", messages, small); err != nil {
		return err
	}
	alone, err := rate(all[1], nil)
	if err != nil {
		return err
	}
	before, err := sum(all[:nodes-1])
	if err != nil {
		return err
	}
	began := time.Now()
	if err := away.Launch(); err != nil {
		return err
	}
	done := make(chan error, 1)
	caught := make(chan struct{})
	go func() {
		_, err := until(process.Patience, 20*time.Millisecond, func() (bool, error) {
			n, err := behind(all[0], "q", "n3")
			return n == 0, err
		})
		close(caught)
		done <- err
	}()
	meanwhile, err := rate(all[1], caught)
	if err != nil {
		return err
	}
	if err := <-done; err != nil {
		return err
	}
	took := time.Since(began)
	after, err := sum(all[:nodes-1])
	if err != nil {
		return err
	}
	usage, err := away.Usage()
	if err != nil {
		return err
	}
	millions := float64(messages) / million
	r.add("messages that it missed", millions, "M", 0)
	r.add("from its start until it has them", took.Seconds(), "s", 0)
	r.add("rate", float64(messages)/took.Seconds(), "messages/s", 0)
	r.add("CPU of the node, start included", usage.CPU.Seconds()/millions, "s per million", 0)
	r.add("CPU of the two others, other traffic included", (after-before).Seconds()/millions, "s per million", 0)
	r.add("other traffic before", alone, "messages/s", 0)
	r.add("other traffic meanwhile", meanwhile, "messages/s", 0)
	return nil
}

// rate publishes to the other queue until a condition holds or for some seconds, and returns the rate.
func rate(b *process.Broker, over <-chan struct{}) (float64, error) {
	const piece = 2000
	published := 0
	limit := time.After(3 * time.Second)
	if over != nil {
		limit = nil
	}
	began := time.Now()
	err := with(b, func(c *wire.Conn) error {
		if err := c.Confirms(); err != nil {
			return err
		}
		message := wire.NewMessage("other", small)
		for {
			if err := c.Publish(message, piece, piece); err != nil {
				return err
			}
			published += piece
			select {
			case <-over:
				return nil
			case <-limit:
				return nil
			default:
			}
		}
	})
	return float64(published) / time.Since(began).Seconds(), err
}
