// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brokertest has an HTTP server that behaves like the broker's management API, in memory, for tests. It
// answers like RabbitMQ: 201 for a created object, 204 for an existing one, 400 for a declaration that is not
// equivalent or an invalid definition, 401 for wrong credentials, and 404.
package brokertest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sort"
	"strings"
	"sync"
	"time"

	"posthorn.io/posthorn/internal/broker"
)

// nodePrefix precedes the node's name in NodeURL.
const nodePrefix = "/node/"

// Server is the fake broker. A lock guards its fields; use the methods.
type Server struct {
	http *httptest.Server

	mu sync.Mutex
	// secure are the listeners with TLS.
	secure map[doorway]*httptest.Server
	// listens returns the listeners of a node; nil stands for the one without TLS.
	listens     func(node string) Listens
	vhosts      map[string]*broker.Vhost
	foreign     map[string]bool
	exchanges   map[key]*broker.Exchange
	bindings    map[broker.BindingEnds][]broker.Binding
	queues      map[key]*broker.Queue
	policies    map[broker.PolicyScope]map[key]broker.Policy
	users       map[string]broker.User
	permissions map[key]broker.Permission
	topics      map[topicKey]broker.TopicPermission
	limits      map[string]map[string]int64
	nodes       map[string]*node
	// configuration of the nodes; nil: they cannot reload it.
	configuration *configuration
	lost          []broker.LostQueue
	version       string
	down          bool
	calls         []Call
	flags         map[string]broker.FeatureFlag
	onFlag        func(name string)
	refuseMoves   string
	// catchingUp is a node whose members do not count for majorities.
	catchingUp string
	// hidden has, for each path prefix, the number of reads that still answer 404.
	hidden map[string]int
	// lag is how long reads of a new object with the prefix lagPrefix answer 404; shown has when each can be read.
	lag       time.Duration
	lagPrefix string
	shown     map[string]time.Time
	// refuseClosing makes requests to close connections fail.
	refuseClosing bool
	// majority is the state of a lost majority.
	majority recovery
	// forgetStopped makes the server forget only stopped nodes.
	forgetStopped bool
}

type key struct{ vhost, name string }

type topicKey struct{ vhost, user, exchange string }

type node struct {
	running bool
	drained bool
	leaders int64
	// forgotten: the node was removed from the cluster.
	forgotten bool
	critical  []broker.QueueRef
	// memoryAlarm and diskAlarm are the alarms of the node.
	memoryAlarm, diskAlarm bool
	// notReady is why the node does not serve clients; empty when it does.
	notReady string
}

// Call is an answered request.
type Call struct {
	Method string
	// Path as the client sent it, escaped, without the node prefix.
	Path string
	// Node that received the request; empty for the Service.
	Node string
	// Secure: the request came over TLS.
	Secure bool
	// Operator: the client used the operator's certificate, without a password.
	Operator bool
	// Status of the answer.
	Status int
}

// Start starts a server with the vhost / and an administrator.
func Start(username, password string) *Server {
	s := &Server{
		vhosts:    map[string]*broker.Vhost{},
		foreign:   map[string]bool{},
		exchanges: map[key]*broker.Exchange{},
		bindings:  map[broker.BindingEnds][]broker.Binding{},
		queues:    map[key]*broker.Queue{},
		policies: map[broker.PolicyScope]map[key]broker.Policy{
			broker.UserPolicies: {}, broker.OperatorPolicies: {},
		},
		users:       map[string]broker.User{},
		permissions: map[key]broker.Permission{},
		topics:      map[topicKey]broker.TopicPermission{},
		limits:      map[string]map[string]int64{},
		nodes:       map[string]*node{},
		flags:       map[string]broker.FeatureFlag{},
		hidden:      map[string]int{},
		shown:       map[string]time.Time{},
		version:     "1.0.0",
	}
	s.AddVhost("/")
	s.SetUser(username, password, "administrator")
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	return s
}

// Close stops the server.
func (s *Server) Close() {
	s.http.Close()
	for _, listener := range s.secureListeners() {
		listener.Close()
	}
}

// URL returns the URL of the server, in the place of the client Service.
func (s *Server) URL() string { return s.http.URL }

// NodeURL returns the URL of one node.
func (s *Server) NodeURL(name string) string { return s.http.URL + nodePrefix + name }

// request is one request with the input of the handlers.
type request struct {
	*http.Request
	node string
	// parts are the unescaped elements of the path below /api.
	parts []string
}

// reply is an answer: a status and, if not nil, a JSON body.
type reply struct {
	status int
	body   any
}

var (
	created   = reply{status: http.StatusCreated}
	noContent = reply{status: http.StatusNoContent}
)

func ok(body any) reply { return reply{http.StatusOK, body} }

func failure(status int, code, reason string) reply {
	return reply{status, map[string]string{"error": code, "reason": reason}}
}

func notFound() reply { return failure(http.StatusNotFound, "not_found", "Object Not Found") }

func badRequest(reason string) reply {
	return failure(http.StatusBadRequest, "bad_request", reason)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	escaped := r.URL.EscapedPath()
	nodeName := ""
	if rest, found := strings.CutPrefix(escaped, nodePrefix); found {
		nodeName, escaped, _ = strings.Cut(rest, "/")
		escaped = "/" + escaped
	}
	answer := s.route(&request{Request: r, node: nodeName}, escaped)
	if s.lag > 0 && r.Method == http.MethodPut && answer.status == http.StatusCreated && strings.HasPrefix(escaped, s.lagPrefix) {
		s.shown[escaped] = time.Now().Add(s.lag)
	}
	s.calls = append(s.calls, Call{r.Method, escaped, nodeName, r.TLS != nil, fromOperator(r), answer.status})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.status)
	if answer.body != nil {
		_ = json.NewEncoder(w).Encode(answer.body)
	}
}

func (s *Server) route(r *request, escaped string) reply {
	if s.down {
		return reply{http.StatusServiceUnavailable, nil}
	}
	if n, known := s.nodes[r.node]; r.node != "" && (!known || !n.running) {
		return reply{http.StatusServiceUnavailable, nil}
	}
	if !s.open(r) {
		return reply{http.StatusServiceUnavailable, nil}
	}
	name, password, _ := r.BasicAuth()
	user, known := s.users[name]
	isOperator := fromOperator(r.Request)
	if !isOperator && (!known || user.CheckPassword(password) != broker.PasswordSame) {
		return failure(http.StatusUnauthorized, "not_authorized", "Not_Authorized")
	}
	below, found := strings.CutPrefix(escaped, "/api/")
	if !found {
		return notFound()
	}
	for _, part := range strings.Split(below, "/") {
		plain, err := url.PathUnescape(part)
		if err != nil {
			return badRequest("bad path")
		}
		r.parts = append(r.parts, plain)
	}
	if r.Method == http.MethodGet && s.hides(escaped) {
		return notFound()
	}
	if !isOperator && s.shutOut(name, r.Method, r.parts) {
		return failure(http.StatusUnauthorized, "not_authorized", "User not authorised to access virtual host")
	}
	handlers := map[string]func(*request) reply{
		"overview": s.overview, "nodes": s.serveNodes, "health": s.health, "whoami": s.whoami,
		"queues": s.serveQueues, "policies": s.servePolicies, "operator-policies": s.servePolicies,
		"users": s.serveUsers, "permissions": s.servePermissions, "topic-permissions": s.serveTopics,
		"user-limits": s.serveLimits, "connections": s.serveConnections, "vhosts": s.serveVhosts,
		"vhost-limits": s.serveVhostLimits, "exchanges": s.serveExchanges, "bindings": s.serveBindings,
		"rebalance": s.rebalance, "feature-flags": s.serveFlags, "definitions": s.definitions,
		"recovery": s.recoverMajority,
	}
	handler, known := handlers[r.parts[0]]
	if !known {
		return notFound()
	}
	return handler(r)
}

func (s *Server) overview(r *request) reply {
	return ok(broker.Overview{ClusterName: "fake", Node: r.node, ProductVersion: s.version})
}

func (s *Server) whoami(r *request) reply {
	if fromOperator(r.Request) {
		return ok(map[string]any{"name": operatorName, "tags": []string{"administrator"}})
	}
	name, _, _ := r.BasicAuth()
	return ok(map[string]any{"name": name, "tags": s.users[name].Tags})
}

func (s *Server) health(r *request) reply {
	if len(r.parts) == 3 && r.parts[2] == "lost-queues" {
		if len(s.lost) == 0 {
			return ok(map[string]string{"status": "ok"})
		}
		return reply{http.StatusServiceUnavailable, map[string]any{
			"status": "failed", "reason": "queues were lost with a disk", "queues": s.lost,
		}}
	}
	if len(r.parts) == 3 && r.parts[2] == "ready-to-serve-clients" {
		if n := s.nodes[r.node]; n != nil && n.notReady != "" {
			return reply{http.StatusServiceUnavailable, map[string]any{"status": "failed", "reason": n.notReady}}
		}
		return ok(map[string]string{"status": "ok"})
	}
	if len(r.parts) != 3 || r.parts[2] != "node-is-quorum-critical" {
		return notFound()
	}
	if n := s.nodes[r.node]; n != nil && len(n.critical) > 0 {
		return reply{http.StatusServiceUnavailable, map[string]any{
			"status": "failed", "reason": "queues would lose their quorum", "queues": n.critical,
		}}
	}
	return ok(map[string]string{"status": "ok"})
}

func (s *Server) serveNodes(r *request) reply {
	switch {
	case len(r.parts) == 1:
		out := []broker.Node{}
		for name, n := range s.nodes {
			if n.forgotten {
				continue
			}
			out = append(out, broker.Node{Name: name, Running: n.running, BeingDrained: n.drained, MemoryAlarm: n.memoryAlarm, DiskAlarm: n.diskAlarm})
		}
		sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
		return ok(out)
	case len(r.parts) == 2 && r.Method == http.MethodDelete:
		return s.forget(r)
	case len(r.parts) >= 3 && r.parts[2] == "configuration":
		return s.serveConfiguration(r)
	case len(r.parts) == 3 && r.parts[2] == "maintenance":
		return s.maintenance(r)
	}
	return notFound()
}

func (s *Server) maintenance(r *request) reply {
	n, known := s.nodes[r.parts[1]]
	if !known {
		return notFound()
	}
	if r.Method == http.MethodDelete {
		n.drained = false
		return noContent
	}
	n.drained = true
	state := broker.MaintenanceState{State: "drained", Leaders: n.leaders}
	if n.leaders > 0 {
		state.State = "draining"
	}
	return ok(state)
}
