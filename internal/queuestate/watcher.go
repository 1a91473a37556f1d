// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package queuestate

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/topology"
)

// maxFailedLists is the number of failed lists in a row after which the queues of a cluster are reconciled one by
// one.
const maxFailedLists = 2

// Watcher compares the queues of each cluster with the status of the objects of a kind. It lists the queues of each
// cluster once in an interval, so that the reconciler does not have to query each queue that often.
type Watcher[T topology.Object] struct {
	// Reader reads objects from the cache.
	Reader client.Reader
	// Brokers creates clients.
	Brokers *connect.Connector
	// Interval between two lists.
	Interval time.Duration
	// NewList returns an empty list of the kind; Items returns its items.
	NewList func() client.ObjectList
	Items   func(client.ObjectList) []T
	// IsOutdated reports whether the status of a synced object differs from the queues in the broker. find returns nil for a
	// queue that does not exist.
	IsOutdated func(object T, find func(vhost, name string) *broker.Queue) bool

	// failures counts, for each cluster, the lists in a row that failed.
	failures map[client.ObjectKey]int
}

// Start checks all clusters until the context ends, and enqueues the objects whose status is out of date. It does not
// wait, as a source.Func must not.
func (w *Watcher[T]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		requests, err := w.Look(ctx)
		if err != nil {
			log.FromContext(ctx).Error(err, "comparing queues with the status of their objects")
		}
		for _, request := range requests {
			queue.Add(request)
		}
	}, w.Interval)
	return nil
}

// Look lists the queues of each cluster once and returns the objects whose status is out of date.
func (w *Watcher[T]) Look(ctx context.Context) ([]reconcile.Request, error) {
	list := w.NewList()
	if err := w.Reader.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing %T: %w", list, err)
	}
	clusters := map[client.ObjectKey][]T{}
	for _, object := range w.Items(list) {
		if object.Topology().Claim != "" && object.GetDeletionTimestamp() == nil {
			clusters[topology.ClusterKey(object)] = append(clusters[topology.ClusterKey(object)], object)
		}
	}
	failures := map[client.ObjectKey]int{}
	var requests []reconcile.Request
	for cluster, objects := range clusters {
		if !w.runs(ctx, cluster) {
			continue
		}
		find, err := w.list(ctx, cluster)
		if err != nil {
			failures[cluster] = w.failures[cluster] + 1
		}
		for _, object := range objects {
			if (err == nil && isSynced(object) && w.IsOutdated(object, find)) ||
				(failures[cluster] >= maxFailedLists && topology.IsReady(object)) {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
			}
		}
	}
	w.failures = failures
	return requests, nil
}

// runs reports whether a cluster exists and is not hibernated. An external broker may always run.
func (w *Watcher[T]) runs(ctx context.Context, key client.ObjectKey) bool {
	if _, is := connect.SecretOf(key); is {
		return true
	}
	var cluster posthornv1.BrokerCluster
	err := w.Reader.Get(ctx, key, &cluster)
	return err == nil && cluster.DeletionTimestamp == nil && !cluster.Spec.Hibernated
}

// queueKey is the name of a queue inside its cluster.
type queueKey struct{ vhost, name string }

// list returns a function that finds a queue of a cluster.
func (w *Watcher[T]) list(ctx context.Context, cluster client.ObjectKey) (func(vhost, name string) *broker.Queue, error) {
	b, err := w.Brokers.Cluster(ctx, cluster)
	if err != nil {
		return nil, err
	}
	queues, err := b.QueueStates(ctx)
	if broker.IsUnauthorized(err) {
		w.Brokers.Forget(cluster)
	}
	if err != nil {
		return nil, err
	}
	found := make(map[queueKey]*broker.Queue, len(queues))
	for i := range queues {
		found[queueKey{queues[i].Vhost, queues[i].Name}] = &queues[i]
	}
	return func(vhost, name string) *broker.Queue { return found[queueKey{vhost, name}] }, nil
}

// isSynced reports whether an object was reconciled successfully. Others are retried anyway.
func isSynced(object topology.Object) bool {
	return meta.IsStatusConditionTrue(object.Topology().Conditions, posthornv1.ConditionSynced)
}
