// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"slices"
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

// Watcher compares the queues of each cluster with the status of their objects. It lists the queues of each cluster
// once in an interval, so that the reconciler does not have to query each queue that often.
type Watcher struct {
	// Reader reads objects from the cache.
	Reader client.Reader
	// Brokers creates clients.
	Brokers *connect.Connector
	// Interval between two lists.
	Interval time.Duration

	// failures counts, for each cluster, the lists in a row that failed.
	failures map[client.ObjectKey]int
}

// Run checks all clusters until the context ends, and enqueues the objects whose status is out of date.
func (w *Watcher) Run(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		requests, err := w.Look(ctx)
		if err != nil {
			log.FromContext(ctx).Error(err, "comparing queues with the status of their objects")
		}
		for _, request := range requests {
			queue.Add(request)
		}
	}, w.Interval)
}

// Look lists the queues of each cluster once and returns the objects whose status is out of date.
func (w *Watcher) Look(ctx context.Context) ([]reconcile.Request, error) {
	var list posthornv1.QueueList
	if err := w.Reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing Queues: %w", err)
	}
	objects := map[client.ObjectKey][]*posthornv1.Queue{}
	for i := range list.Items {
		q := &list.Items[i]
		if q.Status.Claim != "" && q.DeletionTimestamp == nil {
			objects[topology.ClusterKey(q)] = append(objects[topology.ClusterKey(q)], q)
		}
	}
	failures := map[client.ObjectKey]int{}
	var requests []reconcile.Request
	for cluster, queues := range objects {
		if !w.runs(ctx, cluster) {
			continue
		}
		found, err := w.list(ctx, cluster)
		if err != nil {
			failures[cluster] = w.failures[cluster] + 1
		}
		for _, q := range queues {
			if (err == nil && outdated(q, found[queueKey{q.Spec.Vhost, q.BrokerName()}])) ||
				(failures[cluster] >= maxFailedLists && isReady(q)) {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(q)})
			}
		}
	}
	w.failures = failures
	return requests, nil
}

// runs reports whether a cluster exists and is not hibernated.
func (w *Watcher) runs(ctx context.Context, key client.ObjectKey) bool {
	var cluster posthornv1.BrokerCluster
	err := w.Reader.Get(ctx, key, &cluster)
	return err == nil && cluster.DeletionTimestamp == nil && !cluster.Spec.Hibernated
}

// queueKey is the name of a queue inside its cluster.
type queueKey struct{ vhost, name string }

func (w *Watcher) list(ctx context.Context, cluster client.ObjectKey) (map[queueKey]*broker.Queue, error) {
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
	return found, nil
}

func isReady(q *posthornv1.Queue) bool {
	return meta.IsStatusConditionTrue(q.Status.Conditions, posthornv1.ConditionReady)
}

// outdated reports whether the status of an object differs from the broker. It compares only objects that were
// reconciled successfully: others are retried anyway.
func outdated(q *posthornv1.Queue, found *broker.Queue) bool {
	if !meta.IsStatusConditionTrue(q.Status.Conditions, posthornv1.ConditionSynced) {
		return false
	}
	if found == nil {
		return true
	}
	reason := topology.ReasonInSync
	if impediment := impedimentOf(found); impediment != nil {
		reason = impediment.Reason
	}
	ready := meta.FindStatusCondition(q.Status.Conditions, posthornv1.ConditionReady)
	return ready == nil || ready.Reason != reason ||
		!slices.Equal(q.Status.Members, sorted(found.Members)) || !slices.Equal(q.Status.OnlineMembers, sorted(found.Online))
}
