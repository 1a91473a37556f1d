// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokertest

import (
	"net/http"
	"strings"
	"time"

	"posthorn.io/posthorn/internal/broker"
)

// SetDown makes every request fail with 503 and no body, as a Service without endpoints would fail.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// HideReads makes the next reads of paths with a prefix fail with 404, like a node that has not applied a change yet.
func (s *Server) HideReads(prefix string, reads int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden[prefix] = reads
}

// LagReads makes reads of each new object whose path has a prefix fail with 404 for a time, like nodes that are behind.
func (s *Server) LagReads(prefix string, lag time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lagPrefix, s.lag = prefix, lag
}

// hides counts a read of a path and reports whether it is hidden.
func (s *Server) hides(path string) bool {
	if time.Now().Before(s.shown[path]) {
		return true
	}
	for prefix, reads := range s.hidden {
		if strings.HasPrefix(path, prefix) && reads > 0 {
			s.hidden[prefix]--
			return true
		}
	}
	return false
}

// SetVersion sets the version that nodes report.
func (s *Server) SetVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

// OnFlag sets a function that is called before a feature flag is enabled. It must not call the server.
func (s *Server) OnFlag(call func(name string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onFlag = call
}

// AddVhost creates a vhost.
func (s *Server) AddVhost(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addVhost(broker.Vhost{Name: name})
}

// AddForeignVhost creates a vhost in which only users with explicit permissions have access.
func (s *Server) AddForeignVhost(name string) {
	s.AddVhost(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foreign[name] = true
}

// shutOut reports whether a request changes a vhost in which the user has no permissions. Administrators may read it.
func (s *Server) shutOut(user, method string, parts []string) bool {
	if method == http.MethodGet || len(parts) < 2 || !contains([]string{"queues", "exchanges", "bindings", "policies", "operator-policies"}, parts[0]) || !s.foreign[parts[1]] {
		return false
	}
	_, permitted := s.permissions[key{parts[1], user}]
	return !permitted
}

// SetNode creates a node, or starts or stops it.
func (s *Server) SetNode(name string, running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[name] == nil {
		s.nodes[name] = &node{}
	}
	s.nodes[name].running = running
}

// SetLeaders sets the number of leaders on a node; a drain finishes when it is 0.
func (s *Server) SetLeaders(name string, leaders int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[name].leaders = leaders
}

// SetAlarms sets the alarms of a node.
func (s *Server) SetAlarms(name string, memory, disk bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[name].memoryAlarm, s.nodes[name].diskAlarm = memory, disk
}

// SetCritical sets the queues that need a node.
func (s *Server) SetCritical(name string, queues ...broker.QueueRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[name].critical = queues
}

// SetNotReady sets why a node does not serve clients; empty when it does.
func (s *Server) SetNotReady(name, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[name].notReady = reason
}

// SetLostQueues sets the queues whose only copy was lost.
func (s *Server) SetLostQueues(queues ...broker.LostQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = queues
}

// StartNode starts a node: a new one joins, and an existing one leaves maintenance mode.
func (s *Server) StartNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[name] == nil {
		s.nodes[name] = &node{}
	}
	n := s.nodes[name]
	n.drained, n.running, n.forgotten = false, true, false
	s.configuration.start(name)
}

// Drained reports whether a node is in maintenance mode.
func (s *Server) Drained(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	return n != nil && n.drained
}

// SetUser creates or replaces a user without a request.
func (s *Server) SetUser(name, password string, tags ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[name] = newUser(name, password, tags)
}

// DeleteUser deletes a user.
func (s *Server) DeleteUser(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.users, name)
}

// User returns a copy of a user.
func (s *Server) User(name string) (broker.User, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	user, found := s.users[name]
	return user, found
}

// Accepts reports whether a user can log in with a password.
func (s *Server) Accepts(name, password string) bool {
	user, found := s.User(name)
	return found && user.CheckPassword(password) == broker.PasswordSame
}

// Permission returns a user's permission in a vhost.
func (s *Server) Permission(vhost, user string) (broker.Permission, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, found := s.permissions[key{vhost, user}]
	return p, found
}

// SetPermission sets a permission without a request.
func (s *Server) SetPermission(p broker.Permission) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permissions[key{p.Vhost, p.User}] = p
}

// TopicPermission returns a user's topic permission for an exchange.
func (s *Server) TopicPermission(vhost, user, exchange string) (broker.TopicPermission, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, found := s.topics[topicKey{vhost, user, exchange}]
	return p, found
}

// RemoveTopicPermission removes a topic permission without a request.
func (s *Server) RemoveTopicPermission(vhost, user, exchange string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.topics, topicKey{vhost, user, exchange})
}

// Limit returns a user's limit, 0 when it has none.
func (s *Server) Limit(user, name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits[user][name]
}

// Queue returns a copy of a queue.
func (s *Server) Queue(vhost, name string) (broker.Queue, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q, found := s.queues[key{vhost, name}]; found {
		return s.withPolicy(q), true
	}
	return broker.Queue{}, false
}

// SetQueue creates or replaces a queue without a request.
func (s *Server) SetQueue(q broker.Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(q.Members) == 0 {
		q = *s.place(q)
	}
	s.queues[key{q.Vhost, q.Name}] = &q
}

// RemoveQueue deletes a queue without a request.
func (s *Server) RemoveQueue(vhost, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeQueue(key{vhost, name})
}

// Policy returns a policy.
func (s *Server) Policy(scope broker.PolicyScope, vhost, name string) (broker.Policy, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, found := s.policies[scope][key{vhost, name}]
	return p, found
}

// SetPolicy creates or replaces a policy without a request.
func (s *Server) SetPolicy(scope broker.PolicyScope, p broker.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policies[scope][key{p.Vhost, p.Name}] = p
}

// Calls returns the calls so far whose path has a prefix and that have one of the methods; without methods, any.
func (s *Server) Calls(prefix string, methods ...string) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Call
	for _, call := range s.calls {
		if strings.HasPrefix(call.Path, prefix) && (len(methods) == 0 || contains(methods, call.Method)) {
			out = append(out, call)
		}
	}
	return out
}

func contains(list []string, word string) bool {
	for _, each := range list {
		if each == word {
			return true
		}
	}
	return false
}
