// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sort"

	"posthorn.io/posthorn/internal/broker"
)

// forget removes a node from the cluster, unless a queue still has a member on it.
func (s *Server) forget(r *request) reply {
	name := r.parts[1]
	if s.nodes[name] == nil || s.nodes[name].forgotten {
		return notFound()
	}
	if s.forgetStopped && s.nodes[name].running {
		return badRequest(fmt.Sprintf("node '%s' is running; stop it before it is forgotten", name))
	}
	for _, q := range s.queues {
		if contains(q.Members, name) {
			return badRequest(fmt.Sprintf("node '%s' holds a member of queue '%s' in vhost '%s'", name, q.Name, q.Vhost))
		}
	}
	s.nodes[name].forgotten = true
	return noContent
}

// recovery is a lost majority of the fake cluster.
type recovery struct {
	// refusal answers every step, with its status; empty when steps are carried out.
	refusal string
	status  int
	// survivor is the node whose copy of the metadata continues, once hasMetadata is set.
	survivor    string
	hasMetadata bool
	// results of queues, one answer each.
	results [][]broker.RecoveredQueue
}

// recoverMajority does one step: the metadata continue, a named node is removed with its members, or queues continue.
func (s *Server) recoverMajority(r *request) reply {
	var in struct {
		Lost []string `json:"lost"`
	}
	if r.Method != http.MethodPost || len(r.parts) != 2 || r.parts[1] != "majority" || json.NewDecoder(r.Body).Decode(&in) != nil {
		return notFound()
	}
	m := &s.majority
	if m.refusal != "" {
		return failure(m.status, "refused", m.refusal)
	}
	for _, name := range in.Lost {
		switch n := s.nodes[name]; {
		case n == nil || n.forgotten:
			return notFound()
		case n.running || name == r.node:
			return badRequest(fmt.Sprintf("node '%s' is running, so it is not lost", name))
		}
	}
	switch {
	case !m.hasMetadata:
		m.hasMetadata, m.survivor = true, r.node
		return ok(broker.RecoveryStep{Step: broker.RecoveryMetadata, Node: r.node})
	case len(in.Lost) > 0:
		s.nodes[in.Lost[0]].forgotten = true
		for _, q := range s.queues {
			q.Members, q.Online = removed(q.Members, in.Lost[0]), removed(q.Online, in.Lost[0])
			if q.Leader == in.Lost[0] {
				q.Leader = m.survivor
			}
		}
		return ok(broker.RecoveryStep{Step: broker.RecoveryForgotten})
	case len(m.results) > 0:
		step := broker.RecoveryStep{Step: broker.RecoveryQueues, Queues: m.results[0], Left: int64(len(m.results) - 1)}
		m.results = m.results[1:]
		return ok(step)
	}
	return ok(broker.RecoveryStep{Step: broker.RecoveryQueues, Queues: []broker.RecoveredQueue{}})
}

// LoseMajority makes the metadata have no leader until a recovery. Each answer about queues has one of the results.
func (s *Server) LoseMajority(results ...[]broker.RecoveredQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.majority = recovery{results: results}
}

// RefuseRecovery makes every step of a recovery fail with a status and a reason; an empty reason ends that.
func (s *Server) RefuseRecovery(status int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.majority.status, s.majority.refusal = status, reason
}

// serveReplicas handles /api/queues/quorum/{vhost}/{name}/replicas.
func (s *Server) serveReplicas(r *request) reply {
	queue, exists := s.queues[key{r.parts[2], r.parts[3]}]
	if !exists || queue.Type == "classic" {
		return notFound()
	}
	var in struct {
		Node string `json:"node"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return badRequest("json")
	}
	node := s.nodes[in.Node]
	switch {
	case s.refuseMoves != "":
		return failure(http.StatusServiceUnavailable, "service_unavailable", s.refuseMoves)
	case r.Method == http.MethodPost && r.parts[5] == "add":
		if node == nil || node.forgotten || !node.running || contains(queue.Members, in.Node) {
			return badRequest("node_not_running or already_a_member")
		}
		queue.Members = with(queue.Members, in.Node)
		queue.Online = with(queue.Online, in.Node)
		return noContent
	case r.Method == http.MethodDelete && r.parts[5] == "delete":
		if len(queue.Members) == 1 || !contains(queue.Members, in.Node) {
			return badRequest("last_node or not a member")
		}
		queue.Members, queue.Online = removed(queue.Members, in.Node), removed(queue.Online, in.Node)
		if queue.Leader == in.Node {
			queue.Leader = queue.Members[0]
		}
		return noContent
	}
	return notFound()
}

// quorumStatus handles /api/queues/quorum/{vhost}/{name}/status.
func (s *Server) quorumStatus(r *request) reply {
	queue, exists := s.queues[key{r.parts[2], r.parts[3]}]
	if !exists {
		return notFound()
	}
	out := []broker.Replica{}
	for _, member := range queue.Members {
		replica := broker.Replica{Node: member, Membership: broker.MembershipVoter}
		if member == s.catchingUp {
			replica.Membership = "promotable"
		}
		out = append(out, replica)
	}
	return ok(out)
}

// SetCatchingUp makes the members on a node catch up until the next call; an empty name ends that.
func (s *Server) SetCatchingUp(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchingUp = node
}

func (s *Server) rebalance(r *request) reply {
	if r.Method != http.MethodPost || len(r.parts) != 2 || r.parts[1] != "queues" {
		return notFound()
	}
	return noContent
}

func (s *Server) serveFlags(r *request) reply {
	switch {
	case len(r.parts) == 1:
		out := make([]broker.FeatureFlag, 0, len(s.flags))
		for _, flag := range s.flags {
			out = append(out, flag)
		}
		sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
		return ok(out)
	case len(r.parts) == 3 && r.Method == http.MethodPut && r.parts[2] == "enable":
		flag, known := s.flags[r.parts[1]]
		if !known || flag.State == broker.FlagUnavailable {
			return badRequest("unsupported")
		}
		if s.onFlag != nil {
			s.onFlag(flag.Name)
		}
		flag.State = broker.FlagEnabled
		s.flags[flag.Name] = flag
		return noContent
	}
	return notFound()
}

// definitions declares the queues and vhosts of a definitions file, and refuses a file with a queue in an unknown
// vhost.
func (s *Server) definitions(r *request) reply {
	var in struct {
		Vhosts []struct{ Name string }
		Queues []broker.Queue
	}
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&in) != nil {
		return badRequest("json")
	}
	for _, vhost := range in.Vhosts {
		s.addVhost(broker.Vhost{Name: vhost.Name})
	}
	for _, q := range in.Queues {
		if s.vhosts[q.Vhost] == nil {
			return badRequest(fmt.Sprintf("vhost '%s' does not exist", q.Vhost))
		}
		s.queues[key{q.Vhost, q.Name}] = s.place(q)
	}
	return noContent
}

// with and removed return copies: callers may still hold a queue with the old list.
func with(list []string, word string) []string {
	return append(append([]string{}, list...), word)
}

func removed(list []string, word string) []string {
	out := []string{}
	for _, each := range list {
		if each != word {
			out = append(out, each)
		}
	}
	return out
}

// ForgetOnlyStopped makes the server refuse to forget running nodes.
func (s *Server) ForgetOnlyStopped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetStopped = true
}

// RefuseMoves makes every change of a queue's members fail with a reason; an empty reason ends that.
func (s *Server) RefuseMoves(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuseMoves = reason
}

// Forgotten reports whether a node was removed from the cluster.
func (s *Server) Forgotten(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	return n != nil && n.forgotten
}

// SetFlag creates or replaces a feature flag.
func (s *Server) SetFlag(flag broker.FeatureFlag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flags[flag.Name] = flag
}

// Flag returns the state of a feature flag.
func (s *Server) Flag(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flags[name].State
}

// Forget removes a node from the cluster without a request.
func (s *Server) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[name].forgotten = true
}
