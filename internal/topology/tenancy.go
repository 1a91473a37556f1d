// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// Tenant is the namespace an object is in, seen from its cluster.
type Tenant struct {
	// Home: it is the cluster's own namespace, which may do everything.
	Home bool
	// Namespace of the object.
	Namespace string
	// VhostPrefix of the cluster.
	VhostPrefix string
}

// MayUseVhost says whether objects of the namespace may name a vhost: in other namespaces than the
// cluster's only <prefix><namespace> and what begins with that and a dot. No namespace has a dot in
// its name, so no two namespaces share a vhost.
func (t Tenant) MayUseVhost(vhost string) bool {
	own := t.VhostPrefix + t.Namespace
	return t.Home || vhost == own || strings.HasPrefix(vhost, own+".")
}

// MayNameUser says whether objects of the namespace may name a user.
func (t Tenant) MayNameUser(username string) bool {
	return t.Home || t.Namespace == namerOf(username)
}

// CheckUser is a refusal when the namespace may not name the user.
func (t Tenant) CheckUser(username string) error {
	if t.MayNameUser(username) {
		return nil
	}
	return Refuse(ReasonNotAllowed, "namespace %s may only name users that begin with %q, or with %q and have neither dash nor dot after that, not %q",
		t.Namespace, t.Namespace+".", t.Namespace+"-", username)
}

// namerOf is the one namespace beside the cluster's that may name a user, empty when there is none. A
// namespace has dashes in its name and no dots. So what is before the first dot can be one whole, and
// where there is no dot what is before the last dash: namespace a cannot take a-b-x, which is b-x to
// it and x to namespace a-b, whether there is a namespace a-b yet or not.
func namerOf(username string) string {
	if before, _, dotted := strings.Cut(username, "."); dotted {
		return before
	}
	return username[:max(strings.LastIndexByte(username, '-'), 0)]
}

// CheckVhost is a refusal when the namespace may not name the vhost.
func (t Tenant) CheckVhost(vhost string) error {
	if t.MayUseVhost(vhost) {
		return nil
	}
	own := t.VhostPrefix + t.Namespace
	return Refuse(ReasonNotAllowed, "namespace %s may only name the vhost %q and vhosts that begin with %q, not %q", t.Namespace, own, own+".", vhost)
}

// admit finds out whether an object's namespace may use a cluster.
func admit(ctx context.Context, live client.Reader, cluster *posthornv1.BrokerCluster, namespace string) (Tenant, error) {
	tenant := Tenant{Home: namespace == cluster.Namespace, Namespace: namespace}
	if tenancy := cluster.Spec.Tenancy; tenancy != nil {
		tenant.VhostPrefix = tenancy.VhostPrefix
	}
	if tenant.Home {
		return tenant, nil
	}
	refusal := Refuse(ReasonNotAllowed, "BrokerCluster %s/%s does not allow namespace %s (spec.tenancy.allowedNamespaces)", cluster.Namespace, cluster.Name, namespace)
	if cluster.Spec.Tenancy == nil || cluster.Spec.Tenancy.AllowedNamespaces == nil {
		return tenant, refusal
	}
	selector, err := metav1.LabelSelectorAsSelector(cluster.Spec.Tenancy.AllowedNamespaces)
	if err != nil {
		return tenant, Refuse(ReasonNotAllowed, "spec.tenancy.allowedNamespaces of the BrokerCluster is invalid: %v", err)
	}
	var ns corev1.Namespace
	if err := live.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return tenant, fmt.Errorf("reading namespace %s: %w", namespace, err)
	}
	if !selector.Matches(labels.Set(ns.Labels)) {
		return tenant, refusal
	}
	return tenant, nil
}

// namespaceGoes says whether a namespace is being deleted. Where the operator may not read
// namespaces it is not known to be.
func namespaceGoes(ctx context.Context, live client.Reader, name string) (bool, error) {
	var ns corev1.Namespace
	err := live.Get(ctx, client.ObjectKey{Name: name}, &ns)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsForbidden(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading namespace %s: %w", name, err)
	}
	return ns.DeletionTimestamp != nil, nil
}
