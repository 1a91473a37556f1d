// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokertest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

	"posthorn.io/posthorn/internal/broker"
)

// predeclared are the exchanges of every vhost, by name; the default exchange has the empty name.
var predeclared = map[string]string{
	"": "direct", "amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers",
	"amq.match": "headers", "amq.rabbitmq.trace": "topic",
}

// addVhost creates a vhost with its predeclared exchanges, unless it exists.
func (s *Server) addVhost(v broker.Vhost) {
	if s.vhosts[v.Name] != nil {
		return
	}
	if v.DefaultQueueType == "" {
		v.DefaultQueueType = "classic"
	}
	if v.Tags == nil {
		v.Tags = broker.Tags{}
	}
	v.Limits = map[string]int64{}
	s.vhosts[v.Name] = &v
	for name, kind := range predeclared {
		s.exchanges[key{v.Name, name}] = &broker.Exchange{
			Name: name, Vhost: v.Name, Type: kind, Durable: true, Internal: name == "amq.rabbitmq.trace", Arguments: map[string]any{},
		}
	}
}

// Vhost returns a copy of a vhost.
func (s *Server) Vhost(name string) (broker.Vhost, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, found := s.vhosts[name]
	if !found {
		return broker.Vhost{}, false
	}
	out := *v
	out.Limits = maps.Clone(v.Limits)
	return out, true
}

// SetVhost creates or replaces a vhost without a request.
func (s *Server) SetVhost(v broker.Vhost) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addVhost(v)
	if v.Limits == nil {
		v.Limits = map[string]int64{}
	}
	*s.vhosts[v.Name] = v
}

// RemoveVhost deletes a vhost without a request.
func (s *Server) RemoveVhost(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeVhost(name)
}

// removeVhost deletes a vhost and everything in it.
func (s *Server) removeVhost(name string) {
	delete(s.vhosts, name)
	maps.DeleteFunc(s.queues, func(at key, _ *broker.Queue) bool { return at.vhost == name })
	maps.DeleteFunc(s.exchanges, func(at key, _ *broker.Exchange) bool { return at.vhost == name })
	maps.DeleteFunc(s.bindings, func(at broker.BindingEnds, _ []broker.Binding) bool { return at.Vhost == name })
	maps.DeleteFunc(s.permissions, func(at key, _ broker.Permission) bool { return at.vhost == name })
	maps.DeleteFunc(s.topics, func(at topicKey, _ broker.TopicPermission) bool { return at.vhost == name })
	for _, policies := range s.policies {
		maps.DeleteFunc(policies, func(at key, _ broker.Policy) bool { return at.vhost == name })
	}
}

func (s *Server) serveVhosts(r *request) reply {
	if len(r.parts) != 2 {
		return notFound()
	}
	name := r.parts[1]
	vhost, exists := s.vhosts[name]
	switch {
	case r.Method == http.MethodPut:
		return s.putVhost(r, name, exists)
	case !exists:
		return notFound()
	case r.Method == http.MethodDelete:
		s.removeVhost(name)
		return noContent
	}
	return ok(vhost)
}

// putVhost creates a vhost, or changes the properties in the request.
func (s *Server) putVhost(r *request, name string, exists bool) reply {
	var in struct {
		DefaultQueueType string       `json:"default_queue_type"`
		Tags             *broker.Tags `json:"tags"`
		Tracing          *bool        `json:"tracing"`
	}
	if r.ContentLength != 0 {
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return badRequest("json")
		}
	}
	if !contains([]string{"", "classic", "quorum", "stream"}, in.DefaultQueueType) {
		return badRequest(fmt.Sprintf("Unsupported default queue type: '%s'", in.DefaultQueueType))
	}
	s.addVhost(broker.Vhost{Name: name})
	vhost := s.vhosts[name]
	if in.DefaultQueueType != "" {
		vhost.DefaultQueueType = in.DefaultQueueType
	}
	if in.Tags != nil {
		vhost.Tags = *in.Tags
	}
	if in.Tracing != nil {
		vhost.Tracing = *in.Tracing
	}
	if exists {
		return noContent
	}
	return created
}

func (s *Server) serveVhostLimits(r *request) reply {
	if len(r.parts) != 3 {
		return notFound()
	}
	vhost, limit := s.vhosts[r.parts[1]], r.parts[2]
	if vhost == nil {
		return failure(http.StatusNotFound, "not_found", "vhost_not_found")
	}
	if r.Method == http.MethodDelete {
		delete(vhost.Limits, limit)
		return noContent
	}
	var in struct {
		Value int64 `json:"value"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return badRequest("json")
	}
	if !contains([]string{"max-connections", "max-queues", "max-channels", "max-message-rate", "max-byte-rate", "max-stored-bytes"}, limit) {
		return badRequest(fmt.Sprintf("Validation failed\n\nUnrecognised terms [{<<\"%s\">>,%d}] in limits\n", limit, in.Value))
	}
	vhost.Limits[limit] = in.Value
	return noContent
}

// paged answers with a list, or with its first page when the request asks for pages.
func paged[T any](r *request, list []T) reply {
	if !r.URL.Query().Has("page") {
		return ok(list)
	}
	return ok(map[string]any{"filtered_count": len(list), "total_count": len(list), "items": list[:min(1, len(list))]})
}
