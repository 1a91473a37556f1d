// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vhost reconciles virtual hosts in brokers.
package vhost

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

// +kubebuilder:rbac:groups=posthorn.io,resources=vhosts,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=vhosts/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=vhosts/finalizers,verbs=update

// Kind is the part of the reconciler that is specific to virtual hosts.
type Kind struct{}

var _ topology.Kind[*posthornv1.Vhost] = Kind{}

// New returns an empty Vhost.
func (Kind) New() *posthornv1.Vhost { return &posthornv1.Vhost{} }

// NewList returns an empty VhostList.
func (Kind) NewList() client.ObjectList { return &posthornv1.VhostList{} }

// Items returns the items of a VhostList.
func (Kind) Items(list client.ObjectList) []*posthornv1.Vhost {
	items, isList := list.(*posthornv1.VhostList)
	if !isList {
		return nil
	}
	return topology.Pointers(items.Items)
}

// Identity returns the name.
func (Kind) Identity(v *posthornv1.Vhost) string {
	return topology.Identity(v.BrokerName())
}

// Work starts a reconciliation.
func (Kind) Work(v *posthornv1.Vhost, env topology.Env) topology.Work {
	return &work{vhost: v, env: env}
}

// Configure adds nothing.
func (Kind) Configure(mgr ctrl.Manager, b *builder.Builder) error {
	return topology.NoConfiguration(mgr, b)
}
