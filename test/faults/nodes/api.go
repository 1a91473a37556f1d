package nodes

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"posthorn.io/posthorn/test/faults/network"
)

// maxAnswer bounds an answer of the HTTP API, in bytes.
const maxAnswer = 4 << 20

// api sends requests to nodes; a node that is cut off or frozen does not hold up the test.
var api = &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// Queue is a queue as a node reports it.
type Queue struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	State    string   `json:"state"`
	Leader   string   `json:"leader"`
	Members  []string `json:"members"`
	Online   []string `json:"online"`
	Messages *int     `json:"messages"` // ready and out; nil: nobody answers for the queue
}

// Peer is a node as another node reports it.
type Peer struct {
	Name    string `json:"name"`
	Running bool   `json:"running"`
}

// ask sends a GET to the node's HTTP API, and decodes the JSON of the answer into a value.
func (n *Node) ask(path string, into any) error {
	return n.call(http.MethodGet, path, "", into)
}

// call sends a request with a JSON body to the node's HTTP API, and decodes the JSON of the answer into a value.
func (n *Node) call(method, path, content string, into any) error {
	address := fmt.Sprintf("http://%s:%d%s", network.Address(n.Number+1), HTTPPort, path)
	request, err := http.NewRequest(method, address, strings.NewReader(content))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.SetBasicAuth(User, Password)
	answer, err := api.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return err
	}
	if answer.StatusCode >= 300 {
		return fmt.Errorf("%s: %s %s: %s %s", n.Name, method, path, answer.Status, body)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

// Ready returns nil when the node serves clients.
func (n *Node) Ready() error { return n.ask("/readyz", nil) }

// Queue returns a queue as this node reports it.
func (n *Node) Queue(name string) (Queue, error) {
	var q Queue
	return q, n.ask("/api/queues/%2F/"+name, &q)
}

// DeclareClassic declares a durable classic queue whose only copy is on this node.
func (n *Node) DeclareClassic(name string) error {
	return n.call(http.MethodPut, "/api/queues/%2F/"+name, `{"durable":true,"arguments":{"x-queue-type":"classic"}}`, nil)
}

// Delete deletes a queue.
func (n *Node) Delete(name string) error {
	return n.call(http.MethodDelete, "/api/queues/%2F/"+name, "", nil)
}

// Uncritical returns nil when no group would lose its majority without this node.
func (n *Node) Uncritical() error { return n.ask("/api/health/checks/node-is-quorum-critical", nil) }

// NothingLost returns nil when no queue has lost its only copy.
func (n *Node) NothingLost() error { return n.ask("/api/health/checks/lost-queues", nil) }

// Leader returns the node that leads a queue according to the nodes of a majority.
func (c *Cluster) Leader(queue string) (*Node, error) {
	votes := map[string]int{}
	var last error
	for _, n := range c.Nodes {
		q, err := n.Queue(queue)
		if err != nil {
			last = err
			continue
		}
		votes[q.Leader]++
	}
	for _, n := range c.Nodes {
		if 2*votes[n.Name] > len(c.Nodes) {
			return n, nil
		}
	}
	return nil, fmt.Errorf("queue %s: no leader that a majority knows: %v, last error: %w", queue, votes, last)
}

// Whole returns nil when every node serves, sees every other, and sees a leader and all members of each queue.
func (c *Cluster) Whole() error {
	for _, n := range c.Nodes {
		if err := n.Ready(); err != nil {
			return err
		}
		var peers []Peer
		if err := n.ask("/api/nodes", &peers); err != nil {
			return err
		}
		if !slices.EqualFunc(peers, c.Nodes, func(p Peer, n *Node) bool { return p.Running && p.Name == n.Name }) {
			return fmt.Errorf("%s sees %+v", n.Name, peers)
		}
		var queues []Queue
		if err := n.ask("/api/queues", &queues); err != nil {
			return err
		}
		for _, q := range queues {
			if err := c.queueWhole(q); err != nil {
				return fmt.Errorf("%s says: %w", n.Name, err)
			}
		}
	}
	return nil
}

func (c *Cluster) queueWhole(q Queue) error {
	if slices.Contains(c.Lost, q.Name) {
		if q.State != "lost" {
			return fmt.Errorf("queue %s has state %s, not lost", q.Name, q.State)
		}
		return nil
	}
	names := map[string]bool{}
	for _, n := range c.Nodes {
		names[n.Name] = true
	}
	want := 1
	if q.Type == "quorum" {
		want = min(3, len(c.Nodes))
	}
	for _, m := range q.Members {
		if !names[m] {
			return fmt.Errorf("queue %s has a strange member: %+v", q.Name, q)
		}
	}
	if q.State != "running" || q.Leader == "" || q.Messages == nil || len(q.Members) < want || len(q.Online) != len(q.Members) {
		return fmt.Errorf("queue %s is not whole: state %s, leader %q, members %s, online %s", q.Name, q.State, q.Leader,
			strings.Join(q.Members, " "), strings.Join(q.Online, " "))
	}
	return nil
}

// Empty returns nil when the leader reports that the queue has no message, neither ready nor unacknowledged.
func (c *Cluster) Empty(queue string) error {
	q, err := c.Nodes[0].Queue(queue)
	switch {
	case err != nil:
		return err
	case q.Messages == nil:
		return fmt.Errorf("nobody answers for queue %s", queue)
	case *q.Messages > 0:
		return fmt.Errorf("queue %s holds %d messages", queue, *q.Messages)
	}
	return nil
}
