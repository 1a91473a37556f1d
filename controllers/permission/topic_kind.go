// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package permission

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

// +kubebuilder:rbac:groups=posthorn.io,resources=topicpermissions,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=topicpermissions/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=topicpermissions/finalizers,verbs=update

// TopicKind is the part of the reconciler that is specific to topic permissions.
type TopicKind struct{}

var _ topology.Kind[*posthornv1.TopicPermission] = TopicKind{}

// New returns an empty TopicPermission.
func (TopicKind) New() *posthornv1.TopicPermission { return &posthornv1.TopicPermission{} }

// NewList returns an empty TopicPermissionList.
func (TopicKind) NewList() client.ObjectList { return &posthornv1.TopicPermissionList{} }

// Items returns the items of a TopicPermissionList.
func (TopicKind) Items(list client.ObjectList) []*posthornv1.TopicPermission {
	items, isList := list.(*posthornv1.TopicPermissionList)
	if !isList {
		return nil
	}
	return topology.Pointers(items.Items)
}

// Identity returns vhost, exchange and user.
func (TopicKind) Identity(p *posthornv1.TopicPermission) string {
	return topology.Identity(p.Spec.Vhost, p.Spec.Exchange, p.BrokerUser())
}

// Work starts a reconciliation.
func (TopicKind) Work(p *posthornv1.TopicPermission, env topology.Env) topology.Work {
	return &topicWork{permission: p, env: env}
}

// Configure adds nothing.
func (TopicKind) Configure(mgr ctrl.Manager, b *builder.Builder) error {
	return topology.NoConfiguration(mgr, b)
}
