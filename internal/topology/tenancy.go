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
	"k8s.io/apimachinery/pkg/util/validation"
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
	// UserLimits of the cluster for each user of a tenant; nil: none.
	UserLimits *posthornv1.UserLimits
	// Nearer is another namespace that may use the cluster, with a longer name than this one, after which
	// the object's name in the broker begins; empty when there is none.
	Nearer string
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
	return t.Home || (t.Nearer == "" && strings.HasPrefix(username, t.Namespace+"-"))
}

// CheckUser is a refusal when the namespace may not name the user.
func (t Tenant) CheckUser(username string) error {
	if t.MayNameUser(username) {
		return nil
	}
	if t.Nearer != "" {
		return Refuse(ReasonNotAllowed, "users that begin with %q are named by namespace %s, not by namespace %s", t.Nearer+"-", t.Nearer, t.Namespace)
	}
	return Refuse(ReasonNotAllowed, "usernames of namespace %s begin with %q", t.Namespace, t.Namespace+"-")
}

// CheckVhost is a refusal when the namespace may not name the vhost.
func (t Tenant) CheckVhost(vhost string) error {
	if t.MayUseVhost(vhost) {
		return nil
	}
	own := t.VhostPrefix + t.Namespace
	return Refuse(ReasonNotAllowed, "namespace %s may only name the vhost %q and vhosts that begin with %q, not %q", t.Namespace, own, own+".", vhost)
}

// Limits are those of a user that asks for some: a tenant's user may have lower limits than the cluster allows,
// and never higher ones.
func (t Tenant) Limits(asked posthornv1.UserLimits) posthornv1.UserLimits {
	if t.Home || t.UserLimits == nil {
		return asked
	}
	return posthornv1.UserLimits{
		Connections: lower(asked.Connections, t.UserLimits.Connections),
		Channels:    lower(asked.Channels, t.UserLimits.Channels),
	}
}

// lower gives the lower of two limits, of which 0 is none.
func lower(a, b int32) int32 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// admit finds out whether an object's namespace may use a cluster.
func admit(ctx context.Context, live client.Reader, cluster *posthornv1.BrokerCluster, namespace string) (Tenant, error) {
	tenant := Tenant{Home: namespace == cluster.Namespace, Namespace: namespace}
	if tenancy := cluster.Spec.Tenancy; tenancy != nil {
		tenant.VhostPrefix, tenant.UserLimits = tenancy.VhostPrefix, tenancy.UserLimits
	}
	allowed, err := mayUse(ctx, live, cluster, namespace)
	if err == nil && !allowed {
		err = Refuse(ReasonNotAllowed, "BrokerCluster %s/%s does not allow namespace %s (spec.tenancy.allowedNamespaces)", cluster.Namespace, cluster.Name, namespace)
	}
	return tenant, err
}

// mayUse says whether objects of a namespace may be in a cluster.
func mayUse(ctx context.Context, live client.Reader, cluster *posthornv1.BrokerCluster, namespace string) (bool, error) {
	if namespace == cluster.Namespace {
		return true, nil
	}
	if cluster.Spec.Tenancy == nil || cluster.Spec.Tenancy.AllowedNamespaces == nil {
		return false, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(cluster.Spec.Tenancy.AllowedNamespaces)
	if err != nil {
		return false, Refuse(ReasonNotAllowed, "spec.tenancy.allowedNamespaces of the BrokerCluster is invalid: %v", err)
	}
	var ns corev1.Namespace
	if err := live.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return false, fmt.Errorf("reading namespace %s: %w", namespace, err)
	}
	return selector.Matches(labels.Set(ns.Labels)), nil
}

// nearer finds the namespace with the longest name that is as near to a name as one can be: it may use
// the cluster, and the name begins with it and a dash, where that of the object's own namespace does too. a-b-x
// is x of namespace a-b then, and not b-x of namespace a.
func nearer(ctx context.Context, live client.Reader, cluster *posthornv1.BrokerCluster, namespace, name string) (string, error) {
	rest, begins := strings.CutPrefix(name, namespace+"-")
	for end := strings.LastIndexByte(rest, '-'); begins && end >= 0; end = strings.LastIndexByte(rest[:end], '-') {
		longer := namespace + "-" + rest[:end]
		if len(validation.IsDNS1123Label(longer)) > 0 {
			continue
		}
		allowed, err := mayUse(ctx, live, cluster, longer)
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		if allowed {
			return longer, nil
		}
	}
	return "", nil
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
