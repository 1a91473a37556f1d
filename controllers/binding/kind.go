// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package binding reconciles bindings in brokers.
package binding

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

// +kubebuilder:rbac:groups=posthorn.io,resources=bindings,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=bindings/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=bindings/finalizers,verbs=update

// endsIndex indexes bindings by source and by destination.
const endsIndex = "posthorn.io/binding-ends"

// Kind is the part of the reconciler that is specific to bindings.
type Kind struct{}

var _ topology.Kind[*posthornv1.Binding] = Kind{}

// New returns an empty Binding.
func (Kind) New() *posthornv1.Binding { return &posthornv1.Binding{} }

// NewList returns an empty BindingList.
func (Kind) NewList() client.ObjectList { return &posthornv1.BindingList{} }

// Items returns the items of a BindingList.
func (Kind) Items(list client.ObjectList) []*posthornv1.Binding {
	items, isList := list.(*posthornv1.BindingList)
	if !isList {
		return nil
	}
	return topology.Pointers(items.Items)
}

// Identity returns every property, because a binding has no name. An owned binding keeps the arguments with which it was
// created.
func (Kind) Identity(b *posthornv1.Binding) string {
	spec, digest := &b.Spec, b.Status.ArgumentsDigest
	if b.Status.Claim == "" {
		digest = digestOf(b)
	}
	return topology.Identity(spec.Vhost, spec.Source, spec.DestinationType, spec.Destination, spec.RoutingKey, digest)
}

// digestOf returns a digest of the arguments; empty when there are none.
func digestOf(b *posthornv1.Binding) string {
	if len(b.Spec.Arguments) == 0 {
		return ""
	}
	// Decoding removes differences of spelling, and encoding sorts the keys.
	values, err := topology.Values(b.Spec.Arguments)
	if err != nil {
		return "invalid"
	}
	text, err := json.Marshal(values)
	if err != nil {
		return "invalid"
	}
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:16])
}

// Work starts a reconciliation.
func (Kind) Work(b *posthornv1.Binding, _ topology.Env) topology.Work { return &work{binding: b} }

// endKey returns the value of endsIndex for a queue or an exchange.
func endKey(object topology.Object, vhost, kind, name string) string {
	return topology.ClusterKey(object).String() + "|" + topology.Identity(vhost, kind, name)
}

// Configure watches the queues, exchanges and super streams for which bindings wait.
func (Kind) Configure(mgr ctrl.Manager, b *builder.Builder) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &posthornv1.Binding{}, endsIndex, func(o client.Object) []string {
		binding, is := o.(*posthornv1.Binding)
		if !is {
			return nil
		}
		spec := &binding.Spec
		return []string{
			endKey(binding, spec.Vhost, posthornv1.DestinationExchange, spec.Source),
			endKey(binding, spec.Vhost, spec.DestinationType, spec.Destination),
		}
	})
	if err != nil {
		return fmt.Errorf("indexing ends: %w", err)
	}
	reader := mgr.GetClient()
	ofEnd := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		var requests []reconcile.Request
		for _, key := range endsOf(object) {
			var list posthornv1.BindingList
			if err := reader.List(ctx, &list, client.MatchingFields{endsIndex: key}); err != nil {
				return nil
			}
			requests = append(requests, topology.RequestsFor(topology.Pointers(list.Items))...)
		}
		return requests
	})
	for _, object := range []client.Object{&posthornv1.Queue{}, &posthornv1.Exchange{}, &posthornv1.SuperStream{}} {
		b.Watches(object, ofEnd, builder.WithPredicates(topology.BecameReady()))
	}
	return nil
}

// endsOf returns the values of endsIndex for the queues and exchanges of a resource.
func endsOf(object client.Object) []string {
	switch o := object.(type) {
	case *posthornv1.Queue:
		return []string{endKey(o, o.Spec.Vhost, posthornv1.DestinationQueue, o.BrokerName())}
	case *posthornv1.Exchange:
		return []string{endKey(o, o.Spec.Vhost, posthornv1.DestinationExchange, o.BrokerName())}
	case *posthornv1.SuperStream:
		out := []string{endKey(o, o.Spec.Vhost, posthornv1.DestinationExchange, o.BrokerName())}
		for _, partition := range o.BrokerPartitions() {
			out = append(out, endKey(o, o.Spec.Vhost, posthornv1.DestinationQueue, partition.Stream))
		}
		return out
	}
	return nil
}
