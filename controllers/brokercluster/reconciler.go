// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
)

// concurrentClusters is the number of clusters that are reconciled at once; one whose nodes do not answer occupies a
// worker for some seconds.
const concurrentClusters = 8

// firstRetry and lastRetry bound the back-off after failures: a cluster that has failed for long is still reconciled
// about as often as one that has not.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// staleRetry is the time after which a cluster is reconciled again whose cached version was old.
const staleRetry = 200 * time.Millisecond

// Reconciler reconciles BrokerClusters.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache, where the previous reconciliation's write has to be seen.
	Live   client.Reader
	Scheme *runtime.Scheme
	Events events.EventRecorder
	// Brokers creates clients of the nodes' HTTP API.
	Brokers *connect.Connector
	// ImageRepository names the image of a version.
	ImageRepository string
	// DefaultImage runs where the spec has neither image nor version.
	DefaultImage string
	// DefaultProtocols of new clusters whose spec has none.
	DefaultProtocols []posthornv1.Protocol
	// OperatorNamespace is the namespace of the operator's pods; empty when it runs outside Kubernetes.
	OperatorNamespace string
	// Resync is the interval of reconciliations when nothing happens.
	Resync time.Duration
	// Now is the clock.
	Now func() time.Time

	// failing has, for each cluster (client.ObjectKey), since when its reconciliations have failed (time.Time).
	failing sync.Map
}

// +kubebuilder:rbac:groups=posthorn.io,resources=brokerclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=posthorn.io,resources=brokerclusters/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=brokerclusters/finalizers,verbs=update
// +kubebuilder:rbac:groups=posthorn.io,resources=queues,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=get;list;watch;create;update;patch
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=core,resources=services;configmaps;secrets;serviceaccounts,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=core,resources=configmaps,verbs=delete
// +kubebuilder:rbac:groups=core,resources=secrets,verbs=patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// Reconcile brings one cluster a step nearer to its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var cluster posthornv1.BrokerCluster
	if err := r.Client.Get(ctx, request.NamespacedName, &cluster); err != nil {
		r.Brokers.Drop(request.NamespacedName)
		r.failing.Delete(request.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if cluster.DeletionTimestamp != nil {
		// The garbage collector deletes the children; the StatefulSet says whether the volumes go with them.
		return reconcile.Result{}, nil
	}
	one := r.start(&cluster)
	err := one.run(ctx)
	if apierrors.IsConflict(err) {
		// The other writer's change arrives as an event. The status of a reconciliation that ended early would
		// contradict the one before and the one after it.
		r.recordEvents(&cluster, one.out.events, false)
		return reconcile.Result{RequeueAfter: staleRetry}, nil
	}
	one.out.decideStatus(&one.in, &one.seen, r.failureOf(one.in.key(), err, one.in.now))
	patchErr := r.patchStatus(ctx, &cluster, &one.out.status)
	r.recordEvents(&cluster, one.out.events, patchErr == nil)
	if apierrors.IsConflict(patchErr) {
		one.out.requeueWithin(staleRetry)
		patchErr = nil
	}
	if _, isTerminal := asTerminalError(err); isTerminal {
		err = nil
	}
	if err := errors.Join(err, patchErr); err != nil {
		return reconcile.Result{}, err
	}
	one.out.requeueWithin(r.Resync)
	return reconcile.Result{RequeueAfter: one.out.requeue}, nil
}

// failure of a reconciliation.
type failure struct {
	// err is nil when the reconciliation did not fail.
	err error
	// since is when the first of an unbroken series of failures began.
	since time.Time
}

func (r *Reconciler) failureOf(cluster client.ObjectKey, err error, now time.Time) failure {
	if err == nil {
		r.failing.Delete(cluster)
		return failure{}
	}
	since, _ := r.failing.LoadOrStore(cluster, now)
	at, _ := since.(time.Time)
	return failure{err: err, since: at}
}

// recordEvents records Events, those about a change of the status only if it is written.
func (r *Reconciler) recordEvents(cluster *posthornv1.BrokerCluster, all []event, isWritten bool) {
	for _, each := range all {
		if each.isOfStatus && !isWritten {
			continue
		}
		r.Events.Eventf(cluster, nil, each.kind, each.reason, each.action, "%s", each.message)
	}
}

// patchStatus writes the status over the version of the object that was read: the status remembers the progress of a
// roll, and a patch over a newer one would leave parts of both.
func (r *Reconciler) patchStatus(ctx context.Context, read *posthornv1.BrokerCluster, status *posthornv1.BrokerClusterStatus) error {
	// An empty list and an absent one, and two forms of one time, are the same in JSON.
	if equality.Semantic.DeepEqual(*status, read.Status) {
		return nil
	}
	wanted := read.DeepCopy()
	wanted.Status = *status
	patch := client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, wanted, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	toCluster := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		instance := o.GetLabels()[names.LabelInstance]
		if instance == "" || o.GetLabels()[names.LabelName] != names.Product {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: instance}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("brokercluster").
		For(&posthornv1.BrokerCluster{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{},
		))).
		Owns(&appsv1.StatefulSet{}).
		Owns(&corev1.Pod{}).
		Owns(&corev1.Service{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		Owns(&networkingv1.NetworkPolicy{}).
		Owns(&posthornv1.Restore{}).
		Owns(&corev1.ConfigMap{}, builder.OnlyMetadata).
		Owns(&corev1.ServiceAccount{}, builder.OnlyMetadata).
		Owns(&corev1.Secret{}, builder.OnlyMetadata).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.mountedBy), builder.OnlyMetadata).
		// The operator's access Secret outlives the cluster and has no owner.
		Watches(&corev1.Secret{}, toCluster, builder.OnlyMetadata).
		Watches(&corev1.Pod{}, toCluster).
		Watches(&corev1.PersistentVolumeClaim{}, toCluster).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrentClusters,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(r)
}
