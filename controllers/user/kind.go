// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package user reconciles users in brokers.
package user

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

// +kubebuilder:rbac:groups=posthorn.io,resources=users,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=users/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=users/finalizers,verbs=update

// secretIndex indexes users by the Secrets of their passwords.
const secretIndex = "posthorn.io/secret"

// Kind is the part of the reconciler that is specific to users.
type Kind struct{}

var _ topology.Kind[*posthornv1.User] = Kind{}

// New returns an empty User.
func (Kind) New() *posthornv1.User { return &posthornv1.User{} }

// NewList returns an empty UserList.
func (Kind) NewList() client.ObjectList { return &posthornv1.UserList{} }

// Items returns the items of a UserList.
func (Kind) Items(list client.ObjectList) []*posthornv1.User {
	users, isList := list.(*posthornv1.UserList)
	if !isList {
		return nil
	}
	return topology.Pointers(users.Items)
}

// Identity returns the username.
func (Kind) Identity(u *posthornv1.User) string { return topology.Identity(u.BrokerName()) }

// Work starts a reconciliation.
func (Kind) Work(u *posthornv1.User, env topology.Env) topology.Work {
	return &work{user: u, env: env}
}

// Configure watches the Secrets of passwords and bindings, of which the cache keeps only the metadata, and the
// permissions that other objects set.
func (k Kind) Configure(mgr ctrl.Manager, b *builder.Builder) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &posthornv1.User{}, secretIndex, func(o client.Object) []string {
		user, isUser := o.(*posthornv1.User)
		if !isUser {
			return nil
		}
		secrets := []string{user.BindingName()}
		if ref := user.Spec.Credentials.SecretRef; ref != nil {
			secrets = append(secrets, ref.Name)
		}
		return secrets
	})
	if err != nil {
		return fmt.Errorf("indexing secrets: %w", err)
	}
	reader := mgr.GetClient()
	ofUser := handler.EnqueueRequestsFromMapFunc(topology.UserOf(reader))
	for _, grant := range []client.Object{&posthornv1.Permission{}, &posthornv1.TopicPermission{}} {
		b.Watches(grant, ofUser, builder.WithPredicates(topology.GrantChanged()))
	}
	b.WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, secret client.Object) []reconcile.Request {
		var list posthornv1.UserList
		err := reader.List(ctx, &list, client.InNamespace(secret.GetNamespace()), client.MatchingFields{secretIndex: secret.GetName()})
		if err != nil {
			return nil
		}
		return topology.RequestsFor(topology.Pointers(list.Items))
	}))
	return nil
}
