// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue reconciles queues in brokers.
package queue

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/queuestate"
	"posthorn.io/posthorn/internal/topology"
)

// +kubebuilder:rbac:groups=posthorn.io,resources=queues,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=queues/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=queues/finalizers,verbs=update
// +kubebuilder:rbac:groups=core,resources=namespaces,verbs=get;list;watch

// Kind is the part of the reconciler that is specific to queues.
type Kind struct {
	// Watcher finds queues whose state changed in the broker; nil leaves that to the resync.
	Watcher *queuestate.Watcher[*posthornv1.Queue]
}

var _ topology.Kind[*posthornv1.Queue] = Kind{}

// New returns an empty Queue.
func (Kind) New() *posthornv1.Queue { return &posthornv1.Queue{} }

// NewList returns an empty QueueList.
func (Kind) NewList() client.ObjectList { return &posthornv1.QueueList{} }

// Items returns the items of a QueueList.
func (Kind) Items(list client.ObjectList) []*posthornv1.Queue {
	queues, isList := list.(*posthornv1.QueueList)
	if !isList {
		return nil
	}
	return topology.Pointers(queues.Items)
}

// Identity returns vhost and name.
func (Kind) Identity(q *posthornv1.Queue) string {
	return topology.Identity(q.Spec.Vhost, q.BrokerName())
}

// Work starts a reconciliation.
func (Kind) Work(q *posthornv1.Queue, env topology.Env) topology.Work {
	return &work{queue: q, env: env}
}

// Configure adds the watcher.
func (k Kind) Configure(_ ctrl.Manager, b *builder.Builder) error {
	if k.Watcher != nil {
		b.WatchesRawSource(source.Func(k.Watcher.Start))
	}
	return nil
}

// NewWatcher returns a watcher for changes of the state of queues.
func NewWatcher(reader client.Reader, brokers *connect.Connector, interval time.Duration) *queuestate.Watcher[*posthornv1.Queue] {
	return &queuestate.Watcher[*posthornv1.Queue]{
		Reader: reader, Brokers: brokers, Interval: interval, NewList: Kind{}.NewList, Items: Kind{}.Items, IsOutdated: isOutdated,
	}
}

// isOutdated reports whether the status of a Queue differs from the broker.
func isOutdated(q *posthornv1.Queue, find func(vhost, name string) *broker.Queue) bool {
	found := find(q.Spec.Vhost, q.BrokerName())
	if found == nil {
		return true
	}
	reason := topology.ReasonInSync
	if impediment := queuestate.ImpedimentOf(found); impediment != nil {
		reason = impediment.Reason
	}
	ready := meta.FindStatusCondition(q.Status.Conditions, posthornv1.ConditionReady)
	return ready == nil || ready.Reason != reason ||
		!slices.Equal(q.Status.Members, queuestate.Names(found.Members)) ||
		!slices.Equal(q.Status.OnlineMembers, queuestate.Names(found.Online))
}
