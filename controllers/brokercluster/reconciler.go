// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brokercluster makes and keeps clusters of Posthorn nodes.
package brokercluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
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

// concurrentClusters is how many clusters are looked at at once; one that does not answer holds its
// place for some seconds.
const concurrentClusters = 8

// firstRetry and lastRetry bound the back-off from failures: a cluster that has failed for long is still
// looked at about as often as one that has not.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// behind is after how long a cluster is looked at again that the cache had an old version of.
const behind = 200 * time.Millisecond

// Reconciler makes and keeps clusters.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache, where what was noted a moment ago has to count.
	Live   client.Reader
	Scheme *runtime.Scheme
	Events events.EventRecorder
	// Brokers makes clients that ask nodes.
	Brokers *connect.Connector
	// ImageRepository names the image of a version.
	ImageRepository string
	// DefaultImage runs where the spec names neither image nor version.
	DefaultImage string
	// DefaultProtocols of new clusters whose spec names none.
	DefaultProtocols []posthornv1.Protocol
	// OperatorNamespace is where the operator's pods are; empty when it runs in none.
	OperatorNamespace string
	// Resync is how often a cluster is looked at when nothing happens.
	Resync time.Duration
	// Now is the clock.
	Now func() time.Time

	// failing is since when attempts for a cluster (client.ObjectKey) have failed (time.Time).
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
		// The children go with their owner; what becomes of the volumes is in the StatefulSet.
		return reconcile.Result{}, nil
	}
	before := cluster.DeepCopy()
	s := &scope{Reconciler: r, cluster: &cluster}
	failure := s.run(ctx)
	if apierrors.IsConflict(failure) {
		// Somebody was quicker; what they did comes as an event. An attempt that ended early would tell
		// another story than the one before and the one after it.
		return reconcile.Result{RequeueAfter: behind}, nil
	}
	s.setStatus(failure)
	patchErr := r.patchStatus(ctx, &cluster, before)
	if apierrors.IsConflict(patchErr) {
		s.lookAgain(behind)
		patchErr = nil
	}
	if _, stalled := isTerminal(failure); stalled {
		failure = nil
	}
	if err := errors.Join(failure, patchErr); err != nil {
		return reconcile.Result{}, err
	}
	s.lookAgain(r.Resync)
	return reconcile.Result{RequeueAfter: s.requeue}, nil
}

func (r *Reconciler) patchStatus(ctx context.Context, cluster, before *posthornv1.BrokerCluster) error {
	if reflect.DeepEqual(cluster.Status, before.Status) {
		return nil
	}
	// Only over what was read: the status remembers what a roll has come to, and a patch over a newer one would leave parts of both.
	over := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, cluster, over); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// run goes through the phases. The cluster is looked at also when a phase failed, for the status.
func (s *scope) run(ctx context.Context) error {
	failure := s.load(ctx)
	if failure == nil {
		if !s.cluster.Spec.Paused {
			failure = s.change(ctx)
		}
		failure = errors.Join(failure, s.keepTrust(ctx))
	}
	if err := s.observe(ctx); err != nil {
		return errors.Join(failure, err)
	}
	if !s.cluster.Spec.Paused {
		failure = errors.Join(failure, s.ensureDisruptionBudget(ctx))
	}
	switch {
	case failure != nil:
		return failure
	case s.cluster.Spec.Paused:
		s.decision = decideRoll(s.rollStateOf())
		return nil
	case s.cluster.Spec.Hibernated:
		return nil
	}
	return s.tend(ctx)
}

// load reads what decisions are made from.
func (s *scope) load(ctx context.Context) error {
	if err := s.loadStatefulSet(ctx); err != nil {
		return err
	}
	return s.settleReach(ctx)
}

// tend removes a node that is too many, else replaces pods that are not what they are to be.
func (s *scope) tend(ctx context.Context) error {
	for _, step := range []func(context.Context) (bool, error){s.forgetLeftover, s.scaleDown} {
		if held, err := step(ctx); held || err != nil {
			return err
		}
	}
	if err := s.mendDefaultUser(ctx); err != nil {
		return err
	}
	if err := s.roll(ctx); err != nil {
		return err
	}
	if err := s.balance(ctx); err != nil {
		return err
	}
	if err := s.bootstrap(ctx); err != nil {
		return err
	}
	if err := s.keepFlags(ctx); err != nil {
		return err
	}
	return s.collectSettings(ctx)
}

// change keeps the children, in the order in which they need each other.
func (s *scope) change(ctx context.Context) error {
	for _, phase := range []func(context.Context) error{
		s.ensureServiceAccount,
		s.ensureAccess,
		s.ensureDefaultUser,
		s.ensureInternode,
		s.ensureOperatorCertificate,
		s.ensureServing,
		s.ensureConfigMap,
		s.ensureNodesService,
		s.ensureClientService,
		s.ensureOperatorService,
		s.ensureStatefulSet,
		s.growVolumes,
		s.rotateDefaultUser,
		s.ensureNetworkPolicy,
		s.ensureMonitoring,
	} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *scope) event(kind, reason, action, format string, args ...any) {
	s.Events.Eventf(s.cluster, nil, kind, reason, action, format, args...)
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
		For(&posthornv1.BrokerCluster{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&appsv1.StatefulSet{}).
		Owns(&corev1.Pod{}).
		Owns(&corev1.Service{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		Owns(&networkingv1.NetworkPolicy{}).
		Owns(&corev1.ConfigMap{}, builder.OnlyMetadata).
		Owns(&corev1.ServiceAccount{}, builder.OnlyMetadata).
		Owns(&corev1.Secret{}, builder.OnlyMetadata).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.mountedBy), builder.OnlyMetadata).
		// The operator's note outlives the cluster and has no owner.
		Watches(&corev1.Secret{}, toCluster, builder.OnlyMetadata).
		Watches(&corev1.Pod{}, toCluster).
		Watches(&corev1.PersistentVolumeClaim{}, toCluster).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrentClusters,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(r)
}
