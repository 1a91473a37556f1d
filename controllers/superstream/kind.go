// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package superstream reconciles super streams in brokers.
package superstream

import (
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

// +kubebuilder:rbac:groups=posthorn.io,resources=superstreams,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=superstreams/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=superstreams/finalizers,verbs=update

// Kind is the part of the reconciler that is specific to super streams.
type Kind struct {
	// Watcher finds super streams whose state changed in the broker; nil leaves that to the resync.
	Watcher *queuestate.Watcher[*posthornv1.SuperStream]
}

var _ topology.Kind[*posthornv1.SuperStream] = Kind{}

// New returns an empty SuperStream.
func (Kind) New() *posthornv1.SuperStream { return &posthornv1.SuperStream{} }

// NewList returns an empty SuperStreamList.
func (Kind) NewList() client.ObjectList { return &posthornv1.SuperStreamList{} }

// Items returns the items of a SuperStreamList.
func (Kind) Items(list client.ObjectList) []*posthornv1.SuperStream {
	items, isList := list.(*posthornv1.SuperStreamList)
	if !isList {
		return nil
	}
	return topology.Pointers(items.Items)
}

// Identity returns vhost and name, like that of an Exchange.
func (Kind) Identity(s *posthornv1.SuperStream) string {
	return topology.Identity(s.Spec.Vhost, s.BrokerName())
}

// Work starts a reconciliation.
func (Kind) Work(s *posthornv1.SuperStream, env topology.Env) topology.Work {
	return &work{superStream: s, env: env, partitions: s.BrokerPartitions()}
}

// Configure adds the watcher.
func (k Kind) Configure(_ ctrl.Manager, b *builder.Builder) error {
	if k.Watcher != nil {
		b.WatchesRawSource(source.Func(k.Watcher.Start))
	}
	return nil
}

// NewWatcher returns a watcher for changes of the state of partitions.
func NewWatcher(reader client.Reader, brokers *connect.Connector, interval time.Duration) *queuestate.Watcher[*posthornv1.SuperStream] {
	return &queuestate.Watcher[*posthornv1.SuperStream]{
		Reader: reader, Brokers: brokers, Interval: interval, NewList: Kind{}.NewList, Items: Kind{}.Items, IsOutdated: isOutdated,
	}
}

// isOutdated reports whether the status of a SuperStream differs from the broker.
func isOutdated(s *posthornv1.SuperStream, find func(vhost, name string) *broker.Queue) bool {
	var streams []*broker.Queue
	for _, partition := range s.BrokerPartitions() {
		stream := find(s.Spec.Vhost, partition.Stream)
		if stream == nil {
			return true
		}
		streams = append(streams, stream)
	}
	reason := topology.ReasonInSync
	usable, impediment := summarize(streams)
	if impediment != nil {
		reason = impediment.Reason
	}
	ready := meta.FindStatusCondition(s.Status.Conditions, posthornv1.ConditionReady)
	return ready == nil || ready.Reason != reason || int(s.Status.UsablePartitions) != usable
}
