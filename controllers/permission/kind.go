// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package permission reconciles permissions and topic permissions in brokers.
package permission

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

// +kubebuilder:rbac:groups=posthorn.io,resources=permissions,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=permissions/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=permissions/finalizers,verbs=update

// Kind is the part of the reconciler that is specific to permissions.
type Kind struct{}

var _ topology.Kind[*posthornv1.Permission] = Kind{}

// New returns an empty Permission.
func (Kind) New() *posthornv1.Permission { return &posthornv1.Permission{} }

// NewList returns an empty PermissionList.
func (Kind) NewList() client.ObjectList { return &posthornv1.PermissionList{} }

// Items returns the items of a PermissionList.
func (Kind) Items(list client.ObjectList) []*posthornv1.Permission {
	items, isList := list.(*posthornv1.PermissionList)
	if !isList {
		return nil
	}
	return topology.Pointers(items.Items)
}

// Identity returns vhost and user.
func (Kind) Identity(p *posthornv1.Permission) string {
	return topology.Identity(p.Spec.Vhost, p.BrokerUser())
}

// Work starts a reconciliation.
func (Kind) Work(p *posthornv1.Permission, env topology.Env) topology.Work {
	return &work{permission: p, env: env}
}

// Configure adds nothing.
func (Kind) Configure(mgr ctrl.Manager, b *builder.Builder) error {
	return topology.NoConfiguration(mgr, b)
}
