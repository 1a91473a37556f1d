// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"errors"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

// Reasons of the condition Ready of a binding that waits for one of its ends.
const (
	reasonSourceNotFound      = "SourceNotFound"
	reasonDestinationNotFound = "DestinationNotFound"
)

// errNotListed: the broker does not list a binding that it has accepted.
var errNotListed = errors.New("the binding is not in the broker's list")

type work struct {
	binding   *posthornv1.Binding
	arguments map[string]any
	found     *broker.Binding
}

// Check refuses names outside the tenancy, and other arguments than those with which the binding was created.
func (w *work) Check(tenant topology.Tenant) error {
	if err := tenant.CheckVhost(w.binding.Spec.Vhost); err != nil {
		return err
	}
	var err error
	if w.arguments, err = topology.Values(w.binding.Spec.Arguments); err != nil {
		return err
	}
	digest, status := digestOf(w.binding), &w.binding.Status
	if status.Claim != "" && status.ArgumentsDigest != digest {
		return topology.Refuse(topology.ReasonImmutable, "spec.arguments is immutable: delete this Binding and create another one, or restore the arguments")
	}
	status.ArgumentsDigest = digest
	return nil
}

func (w *work) Adoption() posthornv1.AdoptionPolicy { return w.binding.Spec.Adoption }

func (w *work) Reclaim() string { return string(w.binding.Spec.ReclaimPolicy) }

func (w *work) Prepare(context.Context) error { return nil }

func (w *work) ends() broker.BindingEnds {
	spec := &w.binding.Spec
	return broker.BindingEnds{
		Vhost: spec.Vhost, Source: spec.Source, Destination: spec.Destination, ToExchange: spec.DestinationType == posthornv1.DestinationExchange,
	}
}

func (w *work) Exists(ctx context.Context, b broker.Client) (bool, error) {
	list, err := b.ListBindings(ctx, w.ends())
	if broker.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for i := range list {
		if list[i].RoutingKey == w.binding.Spec.RoutingKey && len(topology.DifferentKeys("", w.arguments, list[i].Arguments)) == 0 {
			w.found = &list[i]
			return true, nil
		}
	}
	return false, nil
}

// Compare finds no difference in a binding that exists: its properties are its identity.
func (w *work) Compare(ctx context.Context, b broker.Client) (topology.Difference, error) {
	if w.found != nil {
		return topology.Difference{}, nil
	}
	exists, err := w.Exists(ctx, b)
	if err == nil && !exists {
		err = &topology.Invisible{Err: errNotListed}
	}
	return topology.Difference{}, err
}

func (w *work) Create(ctx context.Context, b broker.Client) error {
	w.found = nil
	err := b.Bind(ctx, w.ends(), w.binding.Spec.RoutingKey, w.arguments)
	if !broker.IsNotFound(err) {
		return err
	}
	return w.awaitEnds(ctx, b, err)
}

// awaitEnds returns for what a binding waits that the broker refused because something does not exist.
func (w *work) awaitEnds(ctx context.Context, b broker.Client, refusal error) error {
	spec := &w.binding.Spec
	_, err := b.GetVhost(ctx, spec.Vhost)
	if broker.IsNotFound(err) {
		return topology.Refuse(topology.ReasonVhostNotFound, "the broker has no vhost %q", spec.Vhost)
	}
	if err != nil {
		return err
	}
	_, err = b.GetExchange(ctx, spec.Vhost, spec.Source)
	if broker.IsNotFound(err) {
		return topology.Wait(reasonSourceNotFound, "waits for exchange %q in vhost %q", spec.Source, spec.Vhost)
	}
	if err != nil {
		return err
	}
	if spec.DestinationType == posthornv1.DestinationExchange {
		_, err = b.GetExchange(ctx, spec.Vhost, spec.Destination)
	} else {
		_, err = b.GetQueue(ctx, spec.Vhost, spec.Destination)
	}
	if broker.IsNotFound(err) {
		return topology.Wait(reasonDestinationNotFound, "waits for %s %q in vhost %q", spec.DestinationType, spec.Destination, spec.Vhost)
	}
	if err != nil {
		return err
	}
	// Another node answered than before, and it knows both ends.
	return &topology.Invisible{Err: refusal}
}

// Update is never called, because Compare finds no difference.
func (w *work) Update(context.Context, broker.Client, topology.Difference) error { return nil }

func (w *work) Report(context.Context, broker.Client) error {
	w.binding.Status.PropertiesKey = w.found.PropertiesKey
	return nil
}

// Impediment returns nil: every node can route messages by a binding.
func (w *work) Impediment() *topology.Impediment { return nil }

func (w *work) Settled() bool { return true }

// Forget deletes the binding by its last known key, because the spec may have other arguments by now.
func (w *work) Forget(ctx context.Context, b broker.Client) error {
	key := w.binding.Status.PropertiesKey
	if key == "" {
		var err error
		if w.arguments, err = topology.Values(w.binding.Spec.Arguments); err != nil {
			return err
		}
		exists, err := w.Exists(ctx, b)
		if err != nil || !exists {
			return err
		}
		key = w.found.PropertiesKey
	}
	return b.Unbind(ctx, w.ends(), key)
}

func (w *work) Conditions(func(kind string, truth topology.Truth, reason, message string), error) {}
