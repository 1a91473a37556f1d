// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// vhostIndex indexes resources by cluster and vhost.
const vhostIndex = "posthorn.io/vhost"

// inVhosts is a resource that refers to several vhosts.
type inVhosts interface{ BrokerVhosts() []string }

// vhostsOf returns the vhosts that a resource refers to.
func vhostsOf(object Object) []string {
	switch o := object.(type) {
	case inVhost:
		return []string{o.BrokerVhost()}
	case inVhosts:
		return o.BrokerVhosts()
	}
	return nil
}

// vhostKeys returns the values of vhostIndex.
func vhostKeys(object Object) []string {
	var out []string
	for _, vhost := range vhostsOf(object) {
		out = append(out, vhostKey(ClusterKey(object), vhost))
	}
	return out
}

func vhostKey(cluster client.ObjectKey, vhost string) string {
	return cluster.String() + "|" + Identity(vhost)
}

// awaitVhost turns a refusal because of a missing vhost into a Pending when a Vhost creates it.
func (a *attempt[T]) awaitVhost(ctx context.Context, failure error) error {
	var refusal *Refusal
	missing := errors.As(failure, &refusal) && refusal.Reason == ReasonVhostNotFound
	if !missing && !broker.IsUnknownUser(failure) {
		return failure
	}
	for _, name := range vhostsOf(a.object) {
		var list posthornv1.VhostList
		// The identity of a Vhost is its name.
		if err := a.Client.List(ctx, &list, client.MatchingFields{identityIndex: vhostKey(ClusterKey(a.object), name)}); err != nil {
			return errors.Join(failure, fmt.Errorf("looking for the Vhost %q: %w", name, err))
		}
		for i := range list.Items {
			v := &list.Items[i]
			stalled := meta.IsStatusConditionTrue(v.Status.Conditions, posthornv1.ConditionStalled)
			if v.DeletionTimestamp != nil || stalled || !missing && IsReady(v) {
				continue
			}
			pending := &Pending{Reason: ReasonVhostNotFound, Message: fmt.Sprintf("%v; waits for Vhost %s", failure, client.ObjectKeyFromObject(v))}
			if IsReady(v) {
				pending.RetryAfter = unsettledResync
			}
			return pending
		}
	}
	return failure
}

// inVhostOf returns the resources of the kind that refer to the vhost of a Vhost.
func (r *Reconciler[T]) inVhostOf(ctx context.Context, object client.Object) []reconcile.Request {
	v, is := object.(*posthornv1.Vhost)
	if !is {
		return nil
	}
	list := r.Kind.NewList()
	if err := r.Client.List(ctx, list, client.MatchingFields{vhostIndex: vhostKey(ClusterKey(v), v.BrokerName())}); err != nil {
		return nil
	}
	return RequestsFor(r.Kind.Items(list))
}

// RequestsFor returns a request for each resource.
func RequestsFor[T client.Object](items []T) []reconcile.Request {
	requests := make([]reconcile.Request, 0, len(items))
	for _, item := range items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(item)})
	}
	return requests
}

// DeletedIn returns a resource of a vhost that is being deleted; nil when there is none.
func DeletedIn(ctx context.Context, reader client.Reader, cluster client.ObjectKey, vhost string) (client.Object, error) {
	var found client.Object
	for _, list := range []client.ObjectList{
		&posthornv1.QueueList{}, &posthornv1.BindingList{}, &posthornv1.ExchangeList{}, &posthornv1.PolicyList{},
		&posthornv1.PermissionList{}, &posthornv1.TopicPermissionList{}, &posthornv1.SuperStreamList{},
	} {
		if err := reader.List(ctx, list, client.MatchingFields{vhostIndex: vhostKey(cluster, vhost)}); err != nil {
			return nil, fmt.Errorf("listing the objects of vhost %q: %w", vhost, err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			if object, is := item.(client.Object); is && object.GetDeletionTimestamp() != nil {
				found = object
			}
			return nil
		})
		if err != nil || found != nil {
			return found, err
		}
	}
	return nil, nil // Nothing in the vhost is being deleted.
}

// IsReady reports whether the condition Ready of a resource is True.
func IsReady(object Object) bool {
	return meta.IsStatusConditionTrue(object.Topology().Conditions, posthornv1.ConditionReady)
}

// BecameReady passes resources whose condition Ready becomes True.
func BecameReady() predicate.Predicate {
	never := func(event.CreateEvent) bool { return false }
	return predicate.Funcs{
		CreateFunc: never,
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, is := e.ObjectOld.(Object)
			after, isToo := e.ObjectNew.(Object)
			return is && isToo && !IsReady(before) && IsReady(after)
		},
	}
}
