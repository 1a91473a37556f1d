// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// afterRefusal revokes in the broker what an owned resource is no longer allowed, and returns the refusal. The access
// was granted while the cluster still allowed it, and the refusal alone would not end it.
func (a *attempt[T]) afterRefusal(ctx context.Context, cluster *posthornv1.BrokerCluster, tenant Tenant, admitted bool, err error) error {
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.Reason != ReasonNotAllowed || a.object.Topology().Claim != a.claim || cluster.Spec.Hibernated {
		return err
	}
	a.work = a.Kind.Work(a.object, a.env(cluster))
	work, is := a.work.(revoker)
	if !is {
		return err
	}
	b, failure := a.Brokers.Cluster(ctx, ClusterKey(a.object))
	if failure == nil {
		failure = work.Revoke(ctx, b, tenant, admitted)
	}
	if failure != nil {
		return fmt.Errorf("%s; its access is not revoked yet, retrying: %w", refusal.Message, failure)
	}
	return err
}

// labelsChanged passes namespaces whose labels changed: these decide which clusters they may use.
func labelsChanged() predicate.Predicate {
	return predicate.And(predicate.LabelChangedPredicate{}, predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	})
}

// inNamespace returns the resources of a namespace.
func (r *Reconciler[T]) inNamespace(ctx context.Context, namespace client.Object) []reconcile.Request {
	list := r.Kind.NewList()
	if err := r.Client.List(ctx, list, client.InNamespace(namespace.GetName())); err != nil {
		return nil
	}
	return RequestsFor(r.Kind.Items(list))
}
