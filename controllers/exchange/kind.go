// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package exchange reconciles exchanges in brokers.
package exchange

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

// +kubebuilder:rbac:groups=posthorn.io,resources=exchanges,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=exchanges/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=exchanges/finalizers,verbs=update

// Kind is the part of the reconciler that is specific to exchanges.
type Kind struct{}

var _ topology.Kind[*posthornv1.Exchange] = Kind{}

// New returns an empty Exchange.
func (Kind) New() *posthornv1.Exchange { return &posthornv1.Exchange{} }

// NewList returns an empty ExchangeList.
func (Kind) NewList() client.ObjectList { return &posthornv1.ExchangeList{} }

// Items returns the items of a ExchangeList.
func (Kind) Items(list client.ObjectList) []*posthornv1.Exchange {
	items, isList := list.(*posthornv1.ExchangeList)
	if !isList {
		return nil
	}
	return topology.Pointers(items.Items)
}

// Identity returns vhost and name.
func (Kind) Identity(x *posthornv1.Exchange) string {
	return topology.Identity(x.Spec.Vhost, x.BrokerName())
}

// Work starts a reconciliation.
func (Kind) Work(x *posthornv1.Exchange, env topology.Env) topology.Work {
	return &work{exchange: x, env: env}
}

// Configure adds nothing.
func (Kind) Configure(mgr ctrl.Manager, b *builder.Builder) error {
	return topology.NoConfiguration(mgr, b)
}
