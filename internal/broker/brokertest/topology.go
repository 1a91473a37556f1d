// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"sort"

	"posthorn.io/posthorn/internal/broker"
)

// settings are the known policy settings.
var settings = map[string]bool{
	"max-length": true, "max-length-bytes": true, "message-ttl": true, "expires": true,
	"delivery-limit": true, "overflow": true, "dead-letter-exchange": true, "target-group-size": true,
	"dead-letter-routing-key": true, "dead-letter-strategy": true, "max-age": true, "stream-max-segment-size-bytes": true,
	"stream-filter-size-bytes": true, "delayed-retry-type": true, "delayed-retry-min": true, "delayed-retry-max": true,
}

func (s *Server) serveQueues(r *request) reply {
	if len(r.parts) < 2 {
		return ok(s.list(func(*broker.Queue) bool { return true }))
	}
	if len(r.parts) == 6 && r.parts[1] == "quorum" && r.parts[4] == "replicas" {
		return s.serveReplicas(r)
	}
	if len(r.parts) == 5 && r.parts[1] == "quorum" && r.parts[4] == "status" {
		return s.quorumStatus(r)
	}
	vhost := r.parts[1]
	if s.vhosts[vhost] == nil {
		return notFound()
	}
	if len(r.parts) == 2 {
		return paged(r, s.list(func(q *broker.Queue) bool { return q.Vhost == vhost }))
	}
	at := key{vhost, r.parts[2]}
	queue, exists := s.queues[at]
	switch {
	case r.Method == http.MethodPut:
		return s.declare(r, at, queue)
	case !exists:
		return notFound()
	case r.Method == http.MethodDelete:
		// As in RabbitMQ, the deletion of a stream ignores the flag.
		if r.URL.Query().Get("if-empty") == "true" && queue.Messages > 0 && queue.Type != "stream" {
			return badRequest(fmt.Sprintf("queue '%s' in vhost '%s' is not empty", at.name, at.vhost))
		}
		s.removeQueue(at)
		return noContent
	}
	return ok(s.withPolicy(queue))
}

func (s *Server) declare(r *request, at key, existing *broker.Queue) reply {
	var in broker.QueueDeclaration
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return badRequest("json")
	}
	if existing != nil {
		for name := range union(in.Arguments, existing.Arguments) {
			if !reflect.DeepEqual(in.Arguments[name], existing.Arguments[name]) {
				return badRequest(fmt.Sprintf("inequivalent arg '%s' for queue '%s' in vhost '%s'", name, at.name, at.vhost))
			}
		}
		return noContent
	}
	kind, _ := in.Arguments["x-queue-type"].(string)
	for name, value := range in.Arguments {
		if number, isNumber := value.(float64); name == "x-max-length" && (!isNumber || number < 0) {
			return badRequest(fmt.Sprintf("invalid arg 'x-max-length' for queue '%s' in vhost '%s'", at.name, at.vhost))
		}
	}
	s.queues[at] = s.place(broker.Queue{
		Name: at.name, Vhost: at.vhost, Type: kind, Durable: in.Durable, AutoDelete: in.AutoDelete,
		Arguments: in.Arguments, State: "running",
	})
	return created
}

// place assigns members to a queue: the requested number of nodes, in name order.
func (s *Server) place(q broker.Queue) *broker.Queue {
	names := make([]string, 0, len(s.nodes))
	for name, n := range s.nodes {
		if n.forgotten {
			continue
		}
		names = append(names, name)
	}
	sort.Strings(names)
	want := len(names)
	for _, argument := range []string{"x-quorum-initial-group-size", "x-initial-cluster-size"} {
		if n, isNumber := q.Arguments[argument].(float64); isNumber && int(n) < want {
			want = int(n)
		}
	}
	if q.Type == "classic" && want > 1 {
		want = 1
	}
	q.Members, q.Online = names[:want], names[:want]
	if want > 0 {
		q.Leader, q.Node = names[0], names[0]
	}
	return &q
}

func union(a, b map[string]any) map[string]bool {
	out := map[string]bool{}
	for name := range a {
		out[name] = true
	}
	for name := range b {
		out[name] = true
	}
	return out
}

func (s *Server) list(want func(*broker.Queue) bool) []broker.Queue {
	out := []broker.Queue{}
	for _, q := range s.queues {
		if want(q) {
			out = append(out, s.withPolicy(q))
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Vhost+out[i].Name < out[j].Vhost+out[j].Name })
	return out
}

// withPolicy adds the policies that apply to a queue.
func (s *Server) withPolicy(q *broker.Queue) broker.Queue {
	out := *q
	out.Policy = s.effective(broker.UserPolicies, q)
	out.OperatorPolicy = s.effective(broker.OperatorPolicies, q)
	return out
}

func (s *Server) effective(scope broker.PolicyScope, q *broker.Queue) string {
	best, name := int32(0), ""
	for at, p := range s.policies[scope] {
		match, err := regexp.MatchString(p.Pattern, q.Name)
		applies := p.ApplyTo == "all" || p.ApplyTo == "queues" || p.ApplyTo == q.Type+"_queues" || p.ApplyTo == "streams" && q.Type == "stream"
		if at.vhost == q.Vhost && err == nil && match && applies && (name == "" || p.Priority > best) {
			best, name = p.Priority, at.name
		}
	}
	return name
}

func (s *Server) servePolicies(r *request) reply {
	if len(r.parts) < 2 || s.vhosts[r.parts[1]] == nil {
		return notFound()
	}
	policies := s.policies[broker.PolicyScope(r.parts[0])]
	if len(r.parts) == 2 {
		out := []broker.Policy{}
		for at, p := range policies {
			if at.vhost == r.parts[1] {
				out = append(out, p)
			}
		}
		return ok(out)
	}
	at := key{r.parts[1], r.parts[2]}
	existing, exists := policies[at]
	switch {
	case r.Method == http.MethodPut:
		return s.putPolicy(r, policies, at, exists)
	case !exists:
		return notFound()
	case r.Method == http.MethodDelete:
		delete(policies, at)
		return noContent
	}
	return ok(existing)
}

func (s *Server) putPolicy(r *request, policies map[key]broker.Policy, at key, exists bool) reply {
	var in broker.Policy
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return badRequest("json")
	}
	for name := range in.Definition {
		if !settings[name] {
			return badRequest(fmt.Sprintf("Validation failed\n\n[<<\"%s\">>] are not recognised policy settings\n", name))
		}
	}
	if _, err := regexp.Compile(in.Pattern); err != nil {
		return badRequest("Validation failed\n\npattern should be regular expression, actually was invalid\n")
	}
	in.Vhost, in.Name = at.vhost, at.name
	policies[at] = in
	if exists {
		return noContent
	}
	return created
}
