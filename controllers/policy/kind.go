// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy reconciles policies and operator policies in brokers.
package policy

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

// +kubebuilder:rbac:groups=posthorn.io,resources=policies,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=policies/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=policies/finalizers,verbs=update

// Kind is the part of the reconciler that is specific to policies.
type Kind struct{}

var _ topology.Kind[*posthornv1.Policy] = Kind{}

// New returns an empty Policy.
func (Kind) New() *posthornv1.Policy { return &posthornv1.Policy{} }

// NewList returns an empty PolicyList.
func (Kind) NewList() client.ObjectList { return &posthornv1.PolicyList{} }

// Items returns the items of a PolicyList.
func (Kind) Items(list client.ObjectList) []*posthornv1.Policy {
	policies, isList := list.(*posthornv1.PolicyList)
	if !isList {
		return nil
	}
	return topology.Pointers(policies.Items)
}

// Identity returns scope, vhost and name.
func (Kind) Identity(p *posthornv1.Policy) string {
	return topology.Identity(p.Spec.Scope, p.Spec.Vhost, p.BrokerName())
}

// Work starts a reconciliation.
func (Kind) Work(p *posthornv1.Policy, _ topology.Env) topology.Work { return &work{policy: p} }

// Configure adds nothing.
func (Kind) Configure(mgr ctrl.Manager, b *builder.Builder) error {
	return topology.NoConfiguration(mgr, b)
}
