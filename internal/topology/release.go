// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// release applies the reclaim policy and removes the finalizer. A non-nil error means that it has to be repeated.
func (a *attempt[T]) release(ctx context.Context) error {
	if !controllerutil.ContainsFinalizer(a.object, names.Finalizer) {
		return nil
	}
	if err := a.forget(ctx); err != nil {
		letGo, why := a.giveUp(ctx, err)
		if !letGo {
			return err
		}
		what := "stays in the broker"
		if !isTerminal(err) {
			if failure := a.recordLeftover(ctx); failure == nil {
				what = "stays in the broker, and the operator deletes it later"
			} else if !errors.Is(failure, errLeftoversFull) && !errors.Is(failure, errNoRecord) {
				return errors.Join(err, failure)
			}
		}
		a.Events.Eventf(a.object, nil, warning, "LeftBehind", "Delete", "%s %s: %s: %v", a.object.BrokerName(), what, why, err)
	}
	base := a.copy(a.object)
	controllerutil.RemoveFinalizer(a.object, names.Finalizer)
	if err := a.Client.Patch(ctx, a.object, client.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	return nil
}

// forget deletes the object in the broker if this resource owns it.
func (a *attempt[T]) forget(ctx context.Context) error {
	cluster, err := a.findCluster(ctx)
	if err != nil && a.isExternal() {
		return a.awaitSecret(ctx, err)
	}
	var gone *Pending
	if errors.As(err, &gone) {
		return a.leaveOnVolumes(ctx)
	}
	if err != nil {
		return err
	}
	a.work = a.Kind.Work(a.object, a.env(cluster))
	mine, err := a.mineToDelete(ctx)
	if err != nil || !mine {
		return err
	}
	b, err := a.Brokers.Cluster(ctx, ClusterKey(a.object))
	if err != nil {
		return err
	}
	err = a.within(ctx, b, func() error { return a.work.Forget(ctx, b) })
	if err != nil && !broker.IsNotFound(err) {
		return err
	}
	return nil
}

// leaveOnVolumes records the object of a cluster that does not exist, if the cluster's volumes do: its broker would have the
// object again, and a user's password would be valid again.
func (a *attempt[T]) leaveOnVolumes(ctx context.Context) error {
	key := ClusterKey(a.object)
	absent := &posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	a.work = a.Kind.Work(a.object, a.env(absent))
	mine, err := a.mineToDelete(ctx)
	if err != nil || !mine {
		return err
	}
	what := "the operator deletes it if the BrokerCluster is created again"
	recorded, err := a.recordOnVolumes(ctx)
	switch {
	case errors.Is(err, errLeftoversFull):
		what = err.Error()
	case err != nil:
		return err
	case !recorded:
		return nil
	}
	a.Events.Eventf(a.object, nil, warning, "LeftBehind", "Delete", "%s stays on the volumes of the deleted BrokerCluster %s: %s", a.object.BrokerName(), key, what)
	return nil
}

func (a *attempt[T]) mineToDelete(ctx context.Context) (bool, error) {
	if a.work.Reclaim() == posthornv1.ReclaimRetain {
		return false, nil
	}
	owned, err := a.owned(ctx, true)
	if err != nil || !owned {
		return false, client.IgnoreNotFound(err)
	}
	others, err := a.siblings(ctx, a.object)
	if err != nil {
		return false, err
	}
	for _, other := range others {
		if other.Topology().Claim == a.claim {
			return false, nil
		}
	}
	return true, nil
}

// giveUp reports whether the resource is deleted although its object could not be.
//
//	it is refused, by the broker (4xx) or by us   | yes
//	it waits for other resources to be deleted    | after the bound; external brokers have rows 3 to 5 only
//	the resource's namespace is being deleted     | yes
//	its deletion is longer ago than the bound     | yes
//	otherwise                                     | no, retry
func (a *attempt[T]) giveUp(ctx context.Context, failure error) (bool, string) {
	if broker.IsTerminal(failure) {
		return true, "the broker refuses"
	}
	if isTerminal(failure) {
		return true, "its reclaimPolicy does not allow the deletion"
	}
	var pending *Pending
	if waits := errors.As(failure, &pending); waits && !a.isExternal() {
		return a.isPastBound()
	}
	if going, err := isBeingDeleted(ctx, a.Live, a.object.GetNamespace()); err == nil && going {
		return true, "the namespace is going"
	}
	return a.isPastBound()
}

// isPastBound reports whether the deletion is longer ago than the bound.
func (a *attempt[T]) isPastBound() (bool, string) {
	if deleted := a.object.GetDeletionTimestamp(); deleted != nil && a.Now().Sub(deleted.Time) > a.ForgetBound {
		return true, fmt.Sprintf("it could not be deleted for %s", a.ForgetBound)
	}
	return false, ""
}
