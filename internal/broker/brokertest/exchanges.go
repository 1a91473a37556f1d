// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokertest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"posthorn.io/posthorn/internal/broker"
)

// exchangeTypes are the known types of exchanges.
var exchangeTypes = []string{"direct", "fanout", "topic", "headers", "x-consistent-hash", "x-local-random", "x-modulus-hash", "x-random", "x-delayed-message"}

// Exchange returns a copy of an exchange.
func (s *Server) Exchange(vhost, name string) (broker.Exchange, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, found := s.exchanges[key{vhost, name}]
	if !found {
		return broker.Exchange{}, false
	}
	return *x, true
}

// SetExchange creates or replaces an exchange without a request.
func (s *Server) SetExchange(x broker.Exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.Arguments == nil {
		x.Arguments = map[string]any{}
	}
	s.exchanges[key{x.Vhost, x.Name}] = &x
}

// RemoveExchange deletes an exchange and its bindings without a request.
func (s *Server) RemoveExchange(vhost, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeExchange(key{vhost, name})
}

func (s *Server) removeExchange(at key) {
	delete(s.exchanges, at)
	maps.DeleteFunc(s.bindings, func(ends broker.BindingEnds, _ []broker.Binding) bool {
		return ends.Vhost == at.vhost && (ends.Source == at.name || ends.ToExchange && ends.Destination == at.name)
	})
}

// removeQueue deletes a queue and its bindings.
func (s *Server) removeQueue(at key) {
	delete(s.queues, at)
	maps.DeleteFunc(s.bindings, func(ends broker.BindingEnds, _ []broker.Binding) bool {
		return ends.Vhost == at.vhost && !ends.ToExchange && ends.Destination == at.name
	})
}

// Bindings returns the bindings between a source and a destination.
func (s *Server) Bindings(between broker.BindingEnds) []broker.Binding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bindings[between])
}

// AddBinding creates a binding without arguments, without a request.
func (s *Server) AddBinding(between broker.BindingEnds, routingKey string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bindings[between] = append(s.bindings[between], broker.Binding{
		RoutingKey: routingKey, Arguments: map[string]any{}, PropertiesKey: propertiesKey(routingKey, nil),
	})
}

// RemoveBindings deletes the bindings between a source and a destination without a request.
func (s *Server) RemoveBindings(between broker.BindingEnds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.bindings, between)
}

// exchangeName returns the name of an exchange in a path, in which the default exchange is amq.default.
func exchangeName(name string) string {
	if name == "amq.default" {
		return ""
	}
	return name
}

func vhostNotFound(r *request) reply {
	if r.Method == http.MethodPut || r.Method == http.MethodPost {
		return failure(http.StatusNotFound, "not_found", "vhost_not_found")
	}
	return notFound()
}

func (s *Server) serveExchanges(r *request) reply {
	isList := len(r.parts) == 5 && r.parts[3] == "bindings" && r.parts[4] == "source" && r.Method == http.MethodGet
	if len(r.parts) != 3 && !isList {
		return notFound()
	}
	if s.vhosts[r.parts[1]] == nil {
		return vhostNotFound(r)
	}
	at := key{r.parts[1], exchangeName(r.parts[2])}
	existing, exists := s.exchanges[at]
	switch {
	case isList:
		return ok(s.bindingsFrom(at))
	case r.Method == http.MethodPut:
		return s.declareExchange(r, at, existing)
	case !exists:
		return notFound()
	case r.Method == http.MethodDelete:
		if _, reserved := predeclared[at.name]; reserved {
			return failure(http.StatusUnauthorized, "not_authorised", fmt.Sprintf("deletion of system exchange '%s' in vhost '%s' not allowed", at.name, at.vhost))
		}
		s.removeExchange(at)
		return noContent
	}
	return ok(existing)
}

func (s *Server) declareExchange(r *request, at key, existing *broker.Exchange) reply {
	var in broker.ExchangeDeclaration
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return badRequest("json")
	}
	if existing == nil && strings.HasPrefix(at.name, "amq.") {
		return failure(http.StatusUnauthorized, "not_authorised", fmt.Sprintf("exchange name '%s' contains reserved prefix 'amq.*'", at.name))
	}
	if !contains(exchangeTypes, in.Type) {
		return badRequest(fmt.Sprintf("unknown exchange type '%s'", in.Type))
	}
	if at.name == "" {
		return failure(http.StatusUnauthorized, "not_authorised", "operation not permitted on the default exchange")
	}
	if existing == nil {
		s.exchanges[at] = &broker.Exchange{
			Name: at.name, Vhost: at.vhost, Type: in.Type, Durable: in.Durable, AutoDelete: in.AutoDelete, Internal: in.Internal, Arguments: in.Arguments,
		}
		return created
	}
	for name, values := range map[string][2]any{
		"type": {in.Type, existing.Type}, "durable": {in.Durable, existing.Durable}, "auto_delete": {in.AutoDelete, existing.AutoDelete},
		"internal": {in.Internal, existing.Internal}, "alternate-exchange": {in.Arguments["alternate-exchange"], existing.Arguments["alternate-exchange"]},
	} {
		if values[0] != values[1] {
			return badRequest(fmt.Sprintf("inequivalent arg '%s' for exchange '%s' in vhost '%s': received '%v' but current is '%v'", name, at.name, at.vhost, values[0], values[1]))
		}
	}
	return noContent
}

// bindingsFrom lists the bindings with an exchange as source, in the order of their destinations.
func (s *Server) bindingsFrom(exchange key) []broker.SourceBinding {
	out := []broker.SourceBinding{}
	for ends, bindings := range s.bindings {
		if ends.Vhost != exchange.vhost || ends.Source != exchange.name {
			continue
		}
		kind := "queue"
		if ends.ToExchange {
			kind = "exchange"
		}
		for _, each := range bindings {
			out = append(out, broker.SourceBinding{Binding: each, Destination: ends.Destination, DestinationType: kind})
		}
	}
	slices.SortStableFunc(out, func(a, b broker.SourceBinding) int { return strings.Compare(a.Destination, b.Destination) })
	return out
}

// propertiesKey returns the escaped routing key and a digest of the arguments.
func propertiesKey(routingKey string, arguments map[string]any) string {
	escaped := strings.NewReplacer("+", "%20", "~", "%7E").Replace(url.QueryEscape(routingKey))
	if len(arguments) == 0 {
		if escaped == "" {
			return "~"
		}
		return escaped
	}
	text, _ := json.Marshal(arguments)
	digest := sha256.Sum256(text)
	return escaped + "~" + hex.EncodeToString(digest[:8])
}

func (s *Server) serveBindings(r *request) reply {
	if len(r.parts) < 6 || r.parts[2] != "e" {
		return notFound()
	}
	ends := broker.BindingEnds{Vhost: r.parts[1], Source: exchangeName(r.parts[3]), Destination: r.parts[5], ToExchange: r.parts[4] == "e"}
	if s.vhosts[ends.Vhost] == nil {
		return vhostNotFound(r)
	}
	switch {
	case r.Method == http.MethodPost && len(r.parts) == 6:
		return s.bind(r, ends)
	case r.Method == http.MethodDelete && len(r.parts) == 7:
		kept := slices.DeleteFunc(slices.Clone(s.bindings[ends]), func(b broker.Binding) bool { return b.PropertiesKey == r.parts[6] })
		if len(kept) == len(s.bindings[ends]) {
			return notFound()
		}
		s.bindings[ends] = kept
		return noContent
	case r.Method == http.MethodGet && len(r.parts) == 6:
		return ok(append([]broker.Binding{}, s.bindings[ends]...))
	}
	return notFound()
}

func (s *Server) bind(r *request, ends broker.BindingEnds) reply {
	var in broker.Binding
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return badRequest("json")
	}
	if ends.Source == "" {
		return failure(http.StatusUnauthorized, "not_authorised", "operation not permitted on the default exchange")
	}
	exchange := s.exchanges[key{ends.Vhost, ends.Source}]
	if exchange == nil {
		return failure(http.StatusNotFound, "not_found", fmt.Sprintf("no exchange '%s' in vhost '%s'", ends.Source, ends.Vhost))
	}
	if match, given := in.Arguments["x-match"].(string); exchange.Type == "headers" && given && !contains([]string{"all", "any", "all-with-x", "any-with-x"}, match) {
		return badRequest(fmt.Sprintf("Invalid x-match field value <<\"%s\">>; expected all, any, all-with-x, or any-with-x", match))
	}
	kind, found := "queue", s.queues[key{ends.Vhost, ends.Destination}] != nil
	if ends.ToExchange {
		kind, found = "exchange", s.exchanges[key{ends.Vhost, ends.Destination}] != nil
	}
	if !found {
		return failure(http.StatusNotFound, "not_found", fmt.Sprintf("no %s '%s' in vhost '%s'", kind, ends.Destination, ends.Vhost))
	}
	for _, b := range s.bindings[ends] {
		if b.RoutingKey == in.RoutingKey && reflect.DeepEqual(b.Arguments, in.Arguments) {
			return created
		}
	}
	in.PropertiesKey = propertiesKey(in.RoutingKey, in.Arguments)
	s.bindings[ends] = append(s.bindings[ends], in)
	return created
}
