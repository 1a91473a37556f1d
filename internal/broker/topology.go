// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"net/http"
)

// GetQueue returns one queue.
func (c *HTTPClient) GetQueue(ctx context.Context, vhost, name string) (Queue, error) {
	var out Queue
	return out, c.call(ctx, http.MethodGet, path("queues", vhost, name), nil, &out)
}

// QueueStates lists the queues of all vhosts with name, type, state, leader and members only.
func (c *HTTPClient) QueueStates(ctx context.Context) ([]Queue, error) {
	var out []Queue
	where := path("queues") + "?columns=name,vhost,type,state,node,leader,members,online"
	limit := maxAnswer
	if c.access.External {
		limit = maxExternalList
	}
	return out, c.callWithin(ctx, limit, http.MethodGet, where, nil, &out)
}

// ListQueues lists the queues of a vhost.
func (c *HTTPClient) ListQueues(ctx context.Context, vhost string) ([]Queue, error) {
	var out []Queue
	return out, c.call(ctx, http.MethodGet, path("queues", vhost), nil, &out)
}

// DeclareQueue creates a queue, or checks that an existing one has these properties.
func (c *HTTPClient) DeclareQueue(ctx context.Context, vhost, name string, declaration QueueDeclaration) error {
	if declaration.Arguments == nil {
		declaration.Arguments = map[string]any{}
	}
	return c.call(ctx, http.MethodPut, path("queues", vhost, name), declaration, nil)
}

// DeleteQueue deletes a queue; with onlyIfEmpty the broker refuses when the queue has messages.
func (c *HTTPClient) DeleteQueue(ctx context.Context, vhost, name string, onlyIfEmpty bool) error {
	where := path("queues", vhost, name)
	if onlyIfEmpty {
		where += "?if-empty=true"
	}
	return c.call(ctx, http.MethodDelete, where, nil, nil)
}

// GetPolicy returns one policy.
func (c *HTTPClient) GetPolicy(ctx context.Context, scope PolicyScope, vhost, name string) (Policy, error) {
	var out Policy
	return out, c.call(ctx, http.MethodGet, path(string(scope), vhost, name), nil, &out)
}

// ListPolicies lists the policies of a vhost.
func (c *HTTPClient) ListPolicies(ctx context.Context, scope PolicyScope, vhost string) ([]Policy, error) {
	var out []Policy
	return out, c.call(ctx, http.MethodGet, path(string(scope), vhost), nil, &out)
}

// PutPolicy creates or replaces a policy.
func (c *HTTPClient) PutPolicy(ctx context.Context, scope PolicyScope, vhost, name string, policy Policy) error {
	policy.Vhost, policy.Name = "", ""
	return c.call(ctx, http.MethodPut, path(string(scope), vhost, name), policy, nil)
}

// DeletePolicy deletes a policy.
func (c *HTTPClient) DeletePolicy(ctx context.Context, scope PolicyScope, vhost, name string) error {
	return c.call(ctx, http.MethodDelete, path(string(scope), vhost, name), nil, nil)
}

// GetExchange returns one exchange.
func (c *HTTPClient) GetExchange(ctx context.Context, vhost, name string) (Exchange, error) {
	var out Exchange
	return out, c.call(ctx, http.MethodGet, path("exchanges", vhost, name), nil, &out)
}

// DeclareExchange creates an exchange, or checks that an existing one has these properties.
func (c *HTTPClient) DeclareExchange(ctx context.Context, vhost, name string, declaration ExchangeDeclaration) error {
	if declaration.Arguments == nil {
		declaration.Arguments = map[string]any{}
	}
	return c.call(ctx, http.MethodPut, path("exchanges", vhost, name), declaration, nil)
}

// DeleteExchange deletes an exchange and its bindings.
func (c *HTTPClient) DeleteExchange(ctx context.Context, vhost, name string) error {
	return c.call(ctx, http.MethodDelete, path("exchanges", vhost, name), nil, nil)
}

// path returns the path of all bindings between the ends, or of the binding with a properties key.
func (e BindingEnds) path(propertiesKey ...string) string {
	kind := "q"
	if e.ToExchange {
		kind = "e"
	}
	return path(append([]string{"bindings", e.Vhost, "e", e.Source, kind, e.Destination}, propertiesKey...)...)
}

// ListBindings lists the bindings between a source and a destination. The list is empty when one of them does not
// exist.
func (c *HTTPClient) ListBindings(ctx context.Context, between BindingEnds) ([]Binding, error) {
	var out []Binding
	return out, c.call(ctx, http.MethodGet, between.path(), nil, &out)
}

// BindingsFrom lists the bindings with an exchange as source. The list is empty when the exchange does not exist.
func (c *HTTPClient) BindingsFrom(ctx context.Context, vhost, exchange string) ([]SourceBinding, error) {
	var out []SourceBinding
	return out, c.call(ctx, http.MethodGet, path("exchanges", vhost, exchange, "bindings", "source"), nil, &out)
}

// Bind creates a binding. An equal one stays as it is.
func (c *HTTPClient) Bind(ctx context.Context, between BindingEnds, routingKey string, arguments map[string]any) error {
	if arguments == nil {
		arguments = map[string]any{}
	}
	body := struct {
		RoutingKey string         `json:"routing_key"`
		Arguments  map[string]any `json:"arguments"`
	}{routingKey, arguments}
	return c.call(ctx, http.MethodPost, between.path(), body, nil)
}

// Unbind deletes a binding.
func (c *HTTPClient) Unbind(ctx context.Context, between BindingEnds, propertiesKey string) error {
	return c.call(ctx, http.MethodDelete, between.path(propertiesKey), nil, nil)
}
