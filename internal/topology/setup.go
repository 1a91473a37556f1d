// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

const (
	// concurrentObjects is the number of resources of a kind that are reconciled at once.
	concurrentObjects = 8
	// firstRetry and lastRetry bound the back-off from transient failures.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// SetupWithManager registers the controller of the kind.
func (r *Reconciler[T]) SetupWithManager(mgr ctrl.Manager, name string) error {
	if err := r.index(mgr); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(r.Kind.New(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(r.Kind.New(), r.siblingsOnDelete()).
		Watches(&posthornv1.BrokerCluster{}, handler.EnqueueRequestsFromMapFunc(r.inCluster), builder.WithPredicates(clusterChanged())).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrentObjects,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		})
	b.WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.withSecret))
	if r.WatchNamespaces {
		b.WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.inNamespace), builder.WithPredicates(labelsChanged()))
	}
	if r.usesVhosts() {
		b.Watches(&posthornv1.Vhost{}, handler.EnqueueRequestsFromMapFunc(r.inVhostOf), builder.WithPredicates(BecameReady()))
	}
	if _, is := any(r.Kind.New()).(grant); is {
		b.Watches(&posthornv1.User{}, handler.EnqueueRequestsFromMapFunc(r.grantsOf), builder.WithPredicates(userChanged()))
	}
	if err := r.Kind.Configure(mgr, b); err != nil {
		return fmt.Errorf("configuring the controller %s: %w", name, err)
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		r.sweepLoop(ctx)
		return nil
	})); err != nil {
		return fmt.Errorf("adding the sweep of leftovers: %w", err)
	}
	return b.Complete(r)
}

func (r *Reconciler[T]) index(mgr ctrl.Manager) error {
	indexes := map[string]func(T) []string{
		identityIndex: func(object T) []string { return []string{claimOf(r.Kind, object)} },
		clusterIndex:  func(object T) []string { return []string{ClusterKey(object).String()} },
	}
	if r.usesVhosts() {
		indexes[vhostIndex] = func(object T) []string { return vhostKeys(object) }
	}
	if _, is := any(r.Kind.New()).(partitioned); is {
		indexes[partitionIndex] = func(object T) []string {
			if p, is := any(object).(partitioned); is {
				return partitionKeys(p)
			}
			return nil
		}
	}
	if _, is := any(r.Kind.New()).(grant); is {
		indexes[userIndex] = func(object T) []string {
			if g, is := any(object).(grant); is {
				return usersOf(g)
			}
			return nil
		}
	}
	for field, values := range indexes {
		err := mgr.GetFieldIndexer().IndexField(context.Background(), r.Kind.New(), field, func(o client.Object) []string {
			object, isT := o.(T)
			if !isT {
				return nil
			}
			return values(object)
		})
		if err != nil {
			return fmt.Errorf("indexing %s: %w", field, err)
		}
	}
	return nil
}

// usesVhosts reports whether resources of the kind refer to vhosts.
func (r *Reconciler[T]) usesVhosts() bool {
	_, one := any(r.Kind.New()).(inVhost)
	_, several := any(r.Kind.New()).(inVhosts)
	return one || several
}

// siblingsOnDelete enqueues the resources that lost a name to one that is now deleted.
func (r *Reconciler[T]) siblingsOnDelete() handler.EventHandler {
	return handler.Funcs{DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		object, isT := e.Object.(T)
		if !isT {
			return
		}
		others, err := r.siblings(ctx, object)
		if err != nil {
			return
		}
		for _, other := range others {
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(other)})
		}
	}}
}

// inCluster returns the resources of a cluster.
func (r *Reconciler[T]) inCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	list := r.Kind.NewList()
	key := client.ObjectKeyFromObject(cluster).String()
	if err := r.Client.List(ctx, list, client.MatchingFields{clusterIndex: key}); err != nil {
		return nil
	}
	return RequestsFor(r.Kind.Items(list))
}

// clusterChanged passes changes of a cluster that matter to its resources: its creation, deletion and availability, a
// node that stops or starts, its tenancy, the number of members of queues, and the address for clients.
func clusterChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, isCluster := e.ObjectOld.(*posthornv1.BrokerCluster)
		after, isToo := e.ObjectNew.(*posthornv1.BrokerCluster)
		if !isCluster || !isToo {
			return false
		}
		available := func(c *posthornv1.BrokerCluster) bool {
			return meta.IsStatusConditionTrue(c.Status.Conditions, posthornv1.ConditionAvailable)
		}
		return available(before) != available(after) ||
			before.Status.ReadyReplicas != after.Status.ReadyReplicas ||
			(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
			before.Spec.Hibernated != after.Spec.Hibernated ||
			before.Spec.Placement.QuorumReplicas != after.Spec.Placement.QuorumReplicas ||
			before.Spec.TLSOnly() != after.Spec.TLSOnly() ||
			!reflect.DeepEqual(before.Status.Protocols, after.Status.Protocols) ||
			!reflect.DeepEqual(before.Spec.Tenancy, after.Spec.Tenancy)
	}}
}
