// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"strings"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

// reservedPrefix begins the names of exchanges that only the broker declares.
const reservedPrefix = "amq."

type work struct {
	exchange *posthornv1.Exchange
	env      topology.Env
	// arguments of the declaration.
	arguments map[string]any
	found     *broker.Exchange
}

// Check refuses names outside the tenancy and names of the broker's own exchanges.
func (w *work) Check(tenant topology.Tenant) error {
	if err := tenant.CheckVhost(w.exchange.Spec.Vhost); err != nil {
		return err
	}
	if name := w.exchange.BrokerName(); strings.HasPrefix(name, reservedPrefix) {
		return topology.Refuse(topology.ReasonInvalid, "exchange name %q is reserved for the broker: set spec.name to a name that does not begin with %s", name, reservedPrefix)
	}
	var err error
	w.arguments, err = topology.Values(w.exchange.Spec.Arguments)
	return err
}

// Winner returns the SuperStream that owns the exchange.
func (w *work) Winner(ctx context.Context) (string, error) {
	return topology.SuperStreamOwner(ctx, w.env.Client, w.exchange, w.exchange.BrokerName())
}

func (w *work) Adoption() posthornv1.AdoptionPolicy { return w.exchange.Spec.Adoption }

func (w *work) Reclaim() string { return string(w.exchange.Spec.ReclaimPolicy) }

func (w *work) Prepare(context.Context) error { return nil }

func (w *work) get(ctx context.Context, b broker.Client) error {
	found, err := b.GetExchange(ctx, w.exchange.Spec.Vhost, w.exchange.BrokerName())
	if err == nil {
		w.found = &found
	}
	return err
}

func (w *work) Exists(ctx context.Context, b broker.Client) (bool, error) {
	err := w.get(ctx, b)
	if broker.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Compare returns the differences, all of which are immutable in the broker.
func (w *work) Compare(ctx context.Context, b broker.Client) (topology.Difference, error) {
	if w.found == nil {
		if err := w.get(ctx, b); err != nil {
			return topology.Difference{}, err
		}
	}
	return topology.Difference{Immutable: differences(w.exchange, w.arguments, w.found)}, nil
}

func differences(x *posthornv1.Exchange, arguments map[string]any, found *broker.Exchange) []string {
	var out []string
	for _, property := range []struct {
		name    string
		differs bool
	}{
		{"type", found.Type != x.Spec.Type},
		{"durable", found.Durable != x.IsDurable()},
		{"autoDelete", found.AutoDelete != x.Spec.AutoDelete},
		{"internal", found.Internal != x.Spec.Internal},
	} {
		if property.differs {
			out = append(out, property.name)
		}
	}
	return append(out, topology.DifferentKeys("arguments", arguments, found.Arguments)...)
}

func (w *work) Create(ctx context.Context, b broker.Client) error {
	w.found = nil
	spec := &w.exchange.Spec
	err := b.DeclareExchange(ctx, spec.Vhost, w.exchange.BrokerName(), broker.ExchangeDeclaration{
		Type: spec.Type, Durable: w.exchange.IsDurable(), AutoDelete: spec.AutoDelete, Internal: spec.Internal, Arguments: w.arguments,
	})
	if broker.IsNotFound(err) {
		return topology.Refuse(topology.ReasonVhostNotFound, "the broker has no vhost %q", spec.Vhost)
	}
	return err
}

// Update refuses: the broker cannot change an exchange, and a new declaration would lose its bindings.
func (w *work) Update(_ context.Context, _ broker.Client, difference topology.Difference) error {
	return topology.Refuse(topology.ReasonImmutable,
		"the exchange in the broker differs in %v, which cannot be changed; delete the exchange in the broker, and the operator declares it again without its bindings, or change this object",
		difference.Immutable)
}

func (w *work) Report(context.Context, broker.Client) error {
	w.exchange.Status.EffectivePolicy = w.found.Policy
	return nil
}

// Impediment returns nil: every node can route messages of an exchange.
func (w *work) Impediment() *topology.Impediment { return nil }

func (w *work) Settled() bool { return true }

func (w *work) Forget(ctx context.Context, b broker.Client) error {
	return b.DeleteExchange(ctx, w.exchange.Spec.Vhost, w.exchange.BrokerName())
}

func (w *work) Conditions(func(kind string, truth topology.Truth, reason, message string), error) {}
