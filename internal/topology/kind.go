// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology is the one reconciler of everything that lives inside a broker: it observes,
// compares, applies, owns and forgets. What differs between queues, policies and users is a Kind.
package topology

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// Object is a custom resource that stands for something in a broker.
type Object interface {
	client.Object
	ClusterRef() posthornv1.ClusterReference
	Topology() *posthornv1.TopologyStatus
	BrokerName() string
}

// inVhost is an object whose thing is in a vhost.
type inVhost interface{ BrokerVhost() string }

// Kind is what differs between the kinds.
type Kind[T Object] interface {
	// New is an empty object.
	New() T
	// NewList is an empty list; Items takes it apart.
	NewList() client.ObjectList
	Items(list client.ObjectList) []T
	// Identity is the object's name inside its broker, unique for the kind.
	Identity(object T) string
	// Work starts an attempt for one object.
	Work(object T, env Env) Work
	// Configure adds the kind's own indexes and watches.
	Configure(mgr ctrl.Manager, b *builder.Builder) error
}

// Env is what an attempt may use beside the broker.
type Env struct {
	Client client.Client
	// Live reads from the API server, not from a cache.
	Live   client.Reader
	Scheme *runtime.Scheme
	// Cluster the object lives in.
	Cluster *posthornv1.BrokerCluster
	// Tell records an event about the object.
	Tell func(reason, action, format string, args ...any)
}

// Work is one attempt for one object. The reconciler calls Exists first.
type Work interface {
	// Check refuses what the schema cannot.
	Check(tenant Tenant) error
	// Adoption says what to do about a thing in the broker that is not owned yet.
	Adoption() posthornv1.AdoptionPolicy
	// Reclaim says what to do with the thing in the broker when the object goes.
	Reclaim() string
	// Exists asks the broker.
	Exists(ctx context.Context, b broker.Client) (bool, error)
	// Prepare makes what has to be in Kubernetes before the broker is changed.
	Prepare(ctx context.Context) error
	// Compare tells how the broker differs from the spec.
	Compare(ctx context.Context, b broker.Client) (Difference, error)
	// Create makes the thing.
	Create(ctx context.Context, b broker.Client) error
	// Update mends what differs.
	Update(ctx context.Context, b broker.Client, difference Difference) error
	// Report fills the status from what Compare saw.
	Report(ctx context.Context, b broker.Client) error
	// Impediment is why clients cannot use the thing although the broker has it as the spec says; nil when they
	// can. Report has been called.
	Impediment() *Impediment
	// Settled says that what the broker makes of the thing is as wanted; until then it is looked at
	// more often.
	Settled() bool
	// Forget deletes the thing.
	Forget(ctx context.Context, b broker.Client) error
	// Conditions sets the kind's own conditions; failure is why the attempt ended early.
	Conditions(set func(kind string, truth Truth, reason, message string), failure error)
}

// Impediment keeps clients from using a thing that is as the spec says.
type Impediment struct {
	// Reason of the condition Ready.
	Reason string
	// Message says what is wrong and what to do about it.
	Message string
}

// revoker is Work that gives access, which a tenant may lose.
type revoker interface {
	// Revoke takes away the access that the tenant may not have: all of it if the namespace is not admitted.
	// Repeating it after a failure completes it.
	Revoke(ctx context.Context, b broker.Client, tenant Tenant, admitted bool) error
}

// Difference between the broker and the spec.
type Difference struct {
	// Mutable are the properties that Update changes.
	Mutable []string
	// Immutable are the properties that only making the thing anew changes.
	Immutable []string
	// Expected: it comes from a change made in Kubernetes, not in the broker.
	Expected bool
}

// None says that there is no difference.
func (d Difference) None() bool { return len(d.Mutable) == 0 && len(d.Immutable) == 0 }

// All names every property that differs.
func (d Difference) All() []string {
	return append(append([]string{}, d.Mutable...), d.Immutable...)
}

// Truth of a condition.
type Truth int

// Values of Truth.
const (
	Unknown Truth = iota
	False
	True
)

// NoConfiguration is for kinds without indexes and watches of their own.
func NoConfiguration(ctrl.Manager, *builder.Builder) error { return nil }

// Kinds of event.
const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)
