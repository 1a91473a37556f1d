// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology has the reconciler of all objects inside a broker: it observes, compares, applies, claims and
// forgets. A Kind has the properties of one kind, for example of queues.
package topology

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
)

// Object is a custom resource for an object in a broker.
type Object interface {
	client.Object
	ClusterRef() posthornv1.ClusterReference
	Topology() *posthornv1.TopologyStatus
	BrokerName() string
}

// inVhost is a resource whose object belongs to one vhost.
type inVhost interface{ BrokerVhost() string }

// Kind is the part of the reconciler that is specific to one kind.
type Kind[T Object] interface {
	// New returns an empty resource.
	New() T
	// NewList returns an empty list; Items returns its items.
	NewList() client.ObjectList
	Items(list client.ObjectList) []T
	// Identity returns the object's name inside its broker, unique for the kind.
	Identity(object T) string
	// Work starts a reconciliation of one resource.
	Work(object T, env Env) Work
	// Configure adds the kind's own indexes and watches.
	Configure(mgr ctrl.Manager, b *builder.Builder) error
}

// Env has the dependencies of a reconciliation beside the broker.
type Env struct {
	Client client.Client
	// Live reads from the API server, without a cache.
	Live   client.Reader
	Scheme *runtime.Scheme
	// Now is the clock.
	Now func() time.Time
	// Cluster of the resource. For an external broker it has only the tenancy.
	Cluster *posthornv1.BrokerCluster
	// External is the broker that no operator runs; nil for a BrokerCluster.
	External *connect.External
	// Tell records an Event about the resource.
	Tell func(reason, action, format string, args ...any)
}

// Work is one reconciliation of one resource. The reconciler calls Exists first.
type Work interface {
	// Check refuses what the schema cannot refuse.
	Check(tenant Tenant) error
	// Adoption returns the policy for an existing object in the broker that the resource does not own.
	Adoption() posthornv1.AdoptionPolicy
	// Reclaim returns the policy for the object in the broker when the resource is deleted.
	Reclaim() string
	// Exists queries the broker.
	Exists(ctx context.Context, b broker.Client) (bool, error)
	// Prepare creates the objects in Kubernetes that have to exist before the broker is changed.
	Prepare(ctx context.Context) error
	// Compare returns the differences between the broker and the spec.
	Compare(ctx context.Context, b broker.Client) (Difference, error)
	// Create creates the object in the broker.
	Create(ctx context.Context, b broker.Client) error
	// Update corrects the differences.
	Update(ctx context.Context, b broker.Client, difference Difference) error
	// Report fills the status from the result of Compare.
	Report(ctx context.Context, b broker.Client) error
	// Impediment returns why clients cannot use the object although it is as the spec says; nil when they can. Report
	// has been called before.
	Impediment() *Impediment
	// Settled reports whether the broker's own state of the object, such as its members, is as wanted; until then the
	// reconciler checks it more often.
	Settled() bool
	// Forget deletes the object in the broker.
	Forget(ctx context.Context, b broker.Client) error
	// Conditions sets the kind's own conditions; failure is why the reconciliation ended early.
	Conditions(set func(kind string, truth Truth, reason, message string), failure error)
}

// Impediment keeps clients from using an object that is as the spec says.
type Impediment struct {
	// Reason of the condition Ready.
	Reason string
	// Message has the problem and its remedy.
	Message string
}

// revoker is Work that grants access, which a tenant may lose.
type revoker interface {
	// Revoke revokes the access that the tenant is no longer allowed: all of it if the namespace may not use the
	// cluster. A retry after a failure completes it.
	Revoke(ctx context.Context, b broker.Client, tenant Tenant, admitted bool) error
}

// Difference between the broker and the spec.
type Difference struct {
	// Mutable are the properties that Update changes.
	Mutable []string
	// Immutable are the properties that only a new object changes.
	Immutable []string
	// Expected: a change in Kubernetes caused the difference, not a change in the broker.
	Expected bool
}

// None reports whether there is no difference.
func (d Difference) None() bool { return len(d.Mutable) == 0 && len(d.Immutable) == 0 }

// All lists every property that differs.
func (d Difference) All() []string {
	return append(append([]string{}, d.Mutable...), d.Immutable...)
}

// Truth is the status of a condition.
type Truth int

// Values of Truth.
const (
	Unknown Truth = iota
	False
	True
)

// Pointers returns pointers to the items of a list.
func Pointers[V any](items []V) []*V {
	out := make([]*V, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// NoConfiguration is for kinds without their own indexes and watches.
func NoConfiguration(ctrl.Manager, *builder.Builder) error { return nil }

// Types of Events.
const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)
