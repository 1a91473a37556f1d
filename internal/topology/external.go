// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
)

// isExternal reports whether no operator runs the resource's broker.
func (a *attempt[T]) isExternal() bool {
	_, is := connect.SecretOf(ClusterKey(a.object))
	return is
}

func (a *attempt[T]) classify(err error) class {
	if a.isExternal() {
		return classifyExternal(err)
	}
	return classify(err)
}

// findExternal reads the connection Secret of an external broker. The result stands for the BrokerCluster and has the
// tenancy of the Secret. A namespace that may not use the Secret does not learn whether it exists and is valid.
func (a *attempt[T]) findExternal(ctx context.Context, key, secret client.ObjectKey) (*posthornv1.BrokerCluster, error) {
	namespace := a.object.GetNamespace()
	external, err := a.Brokers.External(ctx, key)
	if apierrors.IsNotFound(err) {
		if namespace != secret.Namespace {
			return nil, refuseSecret(secret, namespace)
		}
		return nil, Wait(ReasonSecretNotFound, "Secret %s of spec.clusterRef.connectionSecret does not exist", secret)
	}
	if err != nil {
		return nil, err
	}
	cluster := &posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	cluster.Spec.Tenancy = external.Tenancy
	if external.Problem != nil {
		allowed, err := mayUse(ctx, a.Live, cluster, namespace)
		if err != nil {
			return nil, err
		}
		if !allowed {
			return nil, refuseSecret(secret, namespace)
		}
		return nil, Refuse(ReasonInvalidSecret, "%v", external.Problem)
	}
	a.external = &external
	return cluster, nil
}

// refuseSecret returns the refusal for a namespace that may not use a connection Secret.
func refuseSecret(secret client.ObjectKey, namespace string) error {
	return Refuse(ReasonNotAllowed, "Secret %s does not exist or does not allow namespace %s (annotation %s)", secret, namespace, names.AnnotationAllowedNamespaces)
}

// awaitSecret waits with the deletion of a resource until its connection Secret is usable, unless nothing is to be deleted
// in the broker.
func (a *attempt[T]) awaitSecret(ctx context.Context, failure error) error {
	key := ClusterKey(a.object)
	a.work = a.Kind.Work(a.object, a.env(&posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}))
	mine, err := a.mineToDelete(ctx)
	if err != nil || !mine {
		return err
	}
	var refusal *Refusal
	if errors.As(failure, &refusal) {
		failure = &Pending{Reason: refusal.Reason, Message: refusal.Message}
	}
	return RetryAfter(failure, unsettledResync)
}

// withSecret returns the resources whose connection Secret is the given one. Their next request uses its new content.
func (r *Reconciler[T]) withSecret(ctx context.Context, secret client.Object) []reconcile.Request {
	key := connect.KeyOfSecret(client.ObjectKeyFromObject(secret))
	list := r.Kind.NewList()
	if err := r.Client.List(ctx, list, client.MatchingFields{clusterIndex: key.String()}); err != nil {
		return nil
	}
	items := r.Kind.Items(list)
	if len(items) > 0 {
		r.Brokers.Forget(key)
	}
	return RequestsFor(items)
}
