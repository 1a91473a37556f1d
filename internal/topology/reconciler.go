// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
)

// unsettledResync is the interval at which a resource is reconciled whose members are not complete.
const unsettledResync = 5 * time.Second

// staleRetry is the time after which a resource is reconciled again whose cached version was old.
const staleRetry = 200 * time.Millisecond

// resyncPriority lets a changed resource overtake the resync of others.
const resyncPriority = handler.LowPriority

// Reconciler reconciles the resources of one kind.
type Reconciler[T Object] struct {
	Client  client.Client
	Live    client.Reader
	Scheme  *runtime.Scheme
	Events  events.EventRecorder
	Brokers *connect.Connector
	Kind    Kind[T]
	// Resync is the interval at which a resource is compared with the broker when nothing happens.
	Resync time.Duration
	// WatchNamespaces: changes of namespaces' labels take effect at once.
	WatchNamespaces bool
	// ForgetBound is how long after its deletion a resource waits for a broker that does not answer.
	ForgetBound time.Duration
	// Now is the clock.
	Now func() time.Time

	// invisible has, by object key, since when the broker has not shown an accepted change.
	invisible sync.Map
}

// attempt is one pass over one resource.
type attempt[T Object] struct {
	*Reconciler[T]
	object T
	claim  string
	work   Work
	// external is the broker that no operator runs; nil for a BrokerCluster.
	external *connect.External
	// drifted are properties that somebody changed in the broker.
	drifted []string
	// changed: the broker accepted a change in this pass.
	corrected bool
}

// Reconcile brings one resource a step nearer to its spec.
func (r *Reconciler[T]) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	object := r.Kind.New()
	if err := r.Client.Get(ctx, request.NamespacedName, object); err != nil {
		r.changeSeen(request.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	a := &attempt[T]{Reconciler: r, object: object, claim: claimOf(r.Kind, object)}
	before := r.copy(object)
	if object.GetDeletionTimestamp() != nil {
		failure := a.release(ctx)
		if failure == nil {
			return reconcile.Result{}, nil
		}
		a.setConditions(fmt.Errorf("deleting: %w", failure))
		err := r.patchStatus(ctx, object, before)
		var pending *Pending
		if errors.As(failure, &pending) && err == nil {
			return reconcile.Result{RequeueAfter: min(pending.RetryAfter, r.Resync)}, nil
		}
		return reconcile.Result{}, errors.Join(failure, err)
	}
	failure := a.awaitVhost(ctx, a.run(ctx, &before))
	if apierrors.IsConflict(failure) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	a.setConditions(failure)
	err := r.patchStatus(ctx, object, before)
	if apierrors.IsConflict(err) {
		a.reportDrift()
		return reconcile.Result{RequeueAfter: staleRetry}, nil
	}
	if err != nil {
		return reconcile.Result{}, errors.Join(failure, err)
	}
	a.reportDrift()
	if broker.IsUnauthorized(failure) {
		a.Brokers.Forget(ClusterKey(object))
	}
	if failure != nil && !a.classify(failure).quiet {
		return reconcile.Result{}, failure
	}
	period := r.Resync
	if failure == nil && !a.work.Settled() && unsettledResync < period {
		period = unsettledResync
	}
	var pending *Pending
	if errors.As(failure, &pending) && pending.RetryAfter > 0 {
		return reconcile.Result{RequeueAfter: pending.RetryAfter}, nil
	}
	return reconcile.Result{RequeueAfter: jitter(period), Priority: new(resyncPriority)}, nil
}

// jitter shortens a period by up to a fifth, so that resources of the same age are not reconciled together for
// ever.
func jitter(period time.Duration) time.Duration {
	return period - time.Duration(rand.Int64N(int64(period)/5+1))
}

func (r *Reconciler[T]) copy(object T) T {
	copied, isT := object.DeepCopyObject().(T)
	if !isT {
		// DeepCopyObject of a T always returns a T.
		return object
	}
	return copied
}

func (r *Reconciler[T]) patchStatus(ctx context.Context, object, before T) error {
	if reflect.DeepEqual(object, before) {
		return nil
	}
	// Only over the version that was read: a patch over a newer status would leave parts of both.
	over := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, object, over); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// run has all steps but the conditions. It advances before when it patches the resource.
func (a *attempt[T]) run(ctx context.Context, before *T) error {
	cluster, err := a.findCluster(ctx)
	if err != nil {
		return err
	}
	waits := a.resolveUser(ctx, a.object)
	if g, is := any(a.object).(grant); is && g.BrokerUser() == "" {
		return waits
	}
	a.claim = claimOf(a.Kind, a.object)
	tenant, err := a.tenant(ctx, cluster, a.object)
	if err != nil {
		return a.afterRefusal(ctx, cluster, tenant, false, err)
	}
	a.work = a.Kind.Work(a.object, a.env(cluster))
	if err := a.work.Check(tenant); err != nil {
		return a.afterRefusal(ctx, cluster, tenant, true, err)
	}
	if waits != nil {
		return waits
	}
	if err := a.yield(ctx, cluster); err != nil {
		return err
	}
	if err := a.addFinalizer(ctx, before); err != nil {
		return err
	}
	if cluster.Spec.Hibernated {
		return Wait(ReasonClusterHibernated, "the BrokerCluster %s is hibernated", ClusterKey(a.object))
	}
	client, err := a.Brokers.Cluster(ctx, ClusterKey(a.object))
	if err != nil {
		return err
	}
	return a.within(ctx, client, func() error { return a.apply(ctx, client, tenant, before) })
}

// within runs a step in the resource's vhost. If somebody else created the vhost, it grants the operator's user
// permissions there and repeats the step.
func (a *attempt[T]) within(ctx context.Context, b broker.Client, do func() error) error {
	err := do()
	object, is := any(a.object).(inVhost)
	// The user of an external broker gets no permissions that its owner did not give.
	if !is || a.isExternal() || !broker.IsShutOut(err) {
		return err
	}
	if err := b.EnterVhost(ctx, object.BrokerVhost()); err != nil {
		return fmt.Errorf("entering the vhost %q, which somebody else made: %w", object.BrokerVhost(), err)
	}
	return do()
}

func (a *attempt[T]) env(cluster *posthornv1.BrokerCluster) Env {
	tell := func(reason, action, format string, args ...any) {
		a.Events.Eventf(a.object, nil, normal, reason, action, format, args...)
	}
	return Env{Client: a.Client, Live: a.Live, Scheme: a.Scheme, Now: a.Now, Cluster: cluster, External: a.external, Tell: tell}
}

func (a *attempt[T]) findCluster(ctx context.Context) (*posthornv1.BrokerCluster, error) {
	key := ClusterKey(a.object)
	if secret, is := connect.SecretOf(key); is {
		return a.findExternal(ctx, key, secret)
	}
	var cluster posthornv1.BrokerCluster
	err := a.Client.Get(ctx, key, &cluster)
	if apierrors.IsNotFound(err) || (err == nil && cluster.DeletionTimestamp != nil) {
		return nil, Wait(ReasonClusterNotFound, "BrokerCluster %s does not exist", key)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the BrokerCluster: %w", err)
	}
	return &cluster, nil
}

// tenant returns the rights of a resource's namespace in a cluster.
func (a *attempt[T]) tenant(ctx context.Context, cluster *posthornv1.BrokerCluster, object T) (Tenant, error) {
	tenant, err := admit(ctx, a.Live, cluster, object.GetNamespace())
	// A name in a vhost belongs to one namespace. And an owner keeps a name when a namespace is created later whose
	// name is a longer prefix of it.
	username := object.BrokerName()
	g, isGrant := any(object).(grant)
	if isGrant {
		username = g.BrokerUser()
	}
	_, vhost := any(object).(inVhost)
	if err != nil || tenant.Home || vhost && !isGrant || object.Topology().Claim == a.claim {
		return tenant, err
	}
	tenant.Nearer, err = nearer(ctx, a.Live, cluster, object.GetNamespace(), username)
	return tenant, err
}

// yield ends the reconciliation when another resource has a better right to the name.
func (a *attempt[T]) yield(ctx context.Context, cluster *posthornv1.BrokerCluster) error {
	others, err := a.siblings(ctx, a.object)
	if err != nil {
		return err
	}
	for {
		winner, found := rival(a.object, a.claim, others)
		if !found {
			return a.yieldToOtherKind(ctx)
		}
		may, err := a.takesPrecedence(ctx, cluster, winner)
		if err != nil {
			return err
		}
		if may {
			a.object.Topology().Claim = ""
			return Refuse(ReasonConflict, "%s is claimed by %s", a.object.BrokerName(), client.ObjectKeyFromObject(winner))
		}
		others = slices.DeleteFunc(others, func(other T) bool { return other.GetUID() == winner.GetUID() })
	}
}

// yieldToOtherKind ends the reconciliation when a resource of another kind has a better right.
func (a *attempt[T]) yieldToOtherKind(ctx context.Context) error {
	work, is := a.work.(contender)
	if !is {
		return nil
	}
	winner, err := work.Winner(ctx)
	if err == nil && winner != "" {
		a.object.Topology().Claim = ""
		err = Refuse(ReasonConflict, "%s is set by %s", a.object.BrokerName(), winner)
	}
	return err
}

// takesPrecedence reports whether another resource takes precedence: it owns the object, or its namespace may use the name.
// Otherwise a tenant could block a name of another tenant with an older resource that is refused.
func (a *attempt[T]) takesPrecedence(ctx context.Context, cluster *posthornv1.BrokerCluster, other T) (bool, error) {
	if other.Topology().Claim == a.claim {
		return true, nil
	}
	tenant, err := a.tenant(ctx, cluster, other)
	if err == nil {
		err = a.Kind.Work(a.copy(other), a.env(cluster)).Check(tenant)
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal.Reason != ReasonNotAllowed, nil
	}
	return err == nil, err
}

func (a *attempt[T]) addFinalizer(ctx context.Context, before *T) error {
	if controllerutil.ContainsFinalizer(a.object, names.Finalizer) {
		return nil
	}
	patched := a.copy(a.object)
	controllerutil.AddFinalizer(patched, names.Finalizer)
	lock := client.MergeFromWithOptions(a.object, client.MergeFromWithOptimisticLock{})
	if err := a.Client.Patch(ctx, patched, lock); err != nil {
		return fmt.Errorf("adding the finalizer: %w", err)
	}
	// The answer has the stored status; the resource keeps the results of this pass.
	for _, o := range []T{a.object, *before} {
		o.SetFinalizers(patched.GetFinalizers())
		o.SetResourceVersion(patched.GetResourceVersion())
		o.SetManagedFields(patched.GetManagedFields())
	}
	return nil
}

// apply brings the broker to the spec.
func (a *attempt[T]) apply(ctx context.Context, b broker.Client, tenant Tenant, before *T) error {
	exists, err := a.work.Exists(ctx, b)
	if err != nil {
		return err
	}
	owned, err := a.owned(ctx, exists)
	if err != nil {
		return err
	}
	if exists && !owned {
		err := mayAdopt(a.work.Adoption(), tenant.Home, func() (Difference, error) { return a.work.Compare(ctx, b) })
		if err != nil {
			return err
		}
	}
	if err := a.work.Prepare(ctx); err != nil {
		return err
	}
	if !owned {
		if err := a.writeClaim(ctx, before); err != nil {
			return err
		}
	}
	changed, err := a.converge(ctx, b, exists)
	if err != nil {
		return err
	}
	if changed || !owned {
		now := metav1.NewTime(a.Now())
		a.object.Topology().LastSyncTime = &now
	}
	// A node that is behind may also miss the object, or its vhost, in the reads of the report.
	if err := a.work.Report(ctx, b); err != nil {
		return a.awaitChange(err)
	}
	a.changeSeen(client.ObjectKeyFromObject(a.object))
	return nil
}

// owned reports whether the resource owns its object. When the cache says no and the object exists, it asks the API
// server: the cache may be behind a claim that was just written.
func (a *attempt[T]) owned(ctx context.Context, exists bool) (bool, error) {
	if a.object.Topology().Claim == a.claim || !exists {
		return a.object.Topology().Claim == a.claim, nil
	}
	live := a.Kind.New()
	if err := a.Live.Get(ctx, client.ObjectKeyFromObject(a.object), live); err != nil {
		return false, fmt.Errorf("reading the claim: %w", err)
	}
	a.object.Topology().Claim = live.Topology().Claim
	return live.Topology().Claim == a.claim, nil
}

// writeClaim records the ownership before anything is created in the broker.
func (a *attempt[T]) writeClaim(ctx context.Context, before *T) error {
	a.object.Topology().Claim = a.claim
	patched := a.copy(a.object)
	if err := a.Client.Status().Patch(ctx, patched, client.MergeFrom(*before)); err != nil {
		return fmt.Errorf("writing the claim: %w", err)
	}
	a.object.SetResourceVersion(patched.GetResourceVersion())
	a.object.SetManagedFields(patched.GetManagedFields())
	*before = a.copy(a.object)
	return nil
}

// converge creates or updates the object, and checks that the broker shows the change.
func (a *attempt[T]) converge(ctx context.Context, b broker.Client, exists bool) (bool, error) {
	difference := Difference{}
	if exists {
		var err error
		if difference, err = a.work.Compare(ctx, b); err != nil || difference.None() {
			return false, err
		}
		a.noteDrift(difference)
		if err := a.work.Update(ctx, b, difference); err != nil {
			return false, a.awaitChange(err)
		}
	} else {
		a.noteDrift(Difference{Mutable: []string{"existence"}})
		if err := a.work.Create(ctx, b); err != nil {
			return false, a.awaitChange(err)
		}
	}
	a.corrected = true
	left, err := a.work.Compare(ctx, b)
	if err == nil && !left.None() {
		err = &Invisible{fmt.Errorf("it still differs in %s", join(left.All()))}
	}
	if err != nil {
		return false, a.awaitChange(err)
	}
	return true, nil
}

// noteDrift records a difference that no change in Kubernetes explains.
func (a *attempt[T]) noteDrift(difference Difference) {
	status := a.object.Topology()
	synced := meta.IsStatusConditionTrue(status.Conditions, posthornv1.ConditionSynced)
	if synced && status.ObservedGeneration == a.object.GetGeneration() && !difference.Expected {
		a.drifted = difference.All()
	}
}

// reportDrift records an Event about corrected drift, even when the object differs again afterwards: the next pass
// finds the resource out of sync and so reports no drift.
func (a *attempt[T]) reportDrift() {
	if a.corrected && len(a.drifted) > 0 {
		a.Events.Eventf(a.object, nil, normal, "DriftCorrected", "Sync", "corrected properties that were changed in the broker: %s", join(a.drifted))
	}
}

func join(properties []string) string { return strings.Join(properties, ", ") }

// setConditions sets the conditions at the end of every pass.
func (a *attempt[T]) setConditions(failure error) {
	status := a.object.Topology()
	status.ObservedGeneration = a.object.GetGeneration()
	set := func(kind string, truth Truth, reason, message string) {
		values := map[Truth]metav1.ConditionStatus{Unknown: metav1.ConditionUnknown, False: metav1.ConditionFalse, True: metav1.ConditionTrue}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: values[truth], Reason: reason, Message: OneLine(message), ObservedGeneration: status.ObservedGeneration,
		})
	}
	if a.work != nil {
		a.work.Conditions(set, failure)
	}
	if failure == nil {
		if impediment := a.work.Impediment(); impediment != nil {
			set(posthornv1.ConditionReady, False, impediment.Reason, impediment.Message)
		} else {
			set(posthornv1.ConditionReady, True, ReasonInSync, "")
		}
		set(posthornv1.ConditionSynced, True, ReasonInSync, "")
		set(posthornv1.ConditionConflict, False, "NoConflict", "")
		meta.RemoveStatusCondition(&status.Conditions, posthornv1.ConditionStalled)
		return
	}
	kind := a.classify(failure)
	set(posthornv1.ConditionReady, False, kind.reason, failure.Error())
	synced := False
	if !kind.stalled {
		synced = Unknown
	}
	set(posthornv1.ConditionSynced, synced, kind.reason, failure.Error())
	if kind.reason == ReasonConflict {
		set(posthornv1.ConditionConflict, True, ReasonConflict, failure.Error())
	} else {
		set(posthornv1.ConditionConflict, False, "NoConflict", "")
	}
	if kind.stalled {
		set(posthornv1.ConditionStalled, True, kind.reason, failure.Error())
	} else {
		meta.RemoveStatusCondition(&status.Conditions, posthornv1.ConditionStalled)
	}
}
