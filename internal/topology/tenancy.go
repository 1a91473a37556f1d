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
	"posthorn.io/posthorn/internal/connect"
)

// Tenant has the rights of a resource's namespace in its cluster.
type Tenant struct {
	// Home: the namespace is the cluster's own, which has all rights.
	Home bool
	// Namespace of the resource.
	Namespace string
	// VhostPrefix of the cluster.
	VhostPrefix string
	// UserLimits of the cluster for each user of a tenant; nil for none.
	UserLimits *posthornv1.UserLimits
	// VhostLimits of the cluster for each vhost of a tenant; nil for none.
	VhostLimits *posthornv1.VhostLimits
	// Nearer is another namespace that may use the cluster and whose longer name is also a prefix of the resource's
	// name in the broker; empty when there is none.
	Nearer string
}

// MayUseVhost reports whether resources of the namespace may use a vhost. Outside the cluster's namespace only
// <prefix><namespace> and names that begin with that and a dot are allowed. No namespace has a dot in its name, so no
// two namespaces share a vhost.
func (t Tenant) MayUseVhost(vhost string) bool {
	own := t.VhostPrefix + t.Namespace
	return t.Home || vhost == own || strings.HasPrefix(vhost, own+".")
}

// MayNameUser reports whether resources of the namespace may use a username.
func (t Tenant) MayNameUser(username string) bool {
	return t.Home || (t.Nearer == "" && strings.HasPrefix(username, t.Namespace+"-"))
}

// CheckUser returns a refusal when the namespace may not use the username.
func (t Tenant) CheckUser(username string) error {
	if t.MayNameUser(username) {
		return nil
	}
	if t.Nearer != "" {
		return Refuse(ReasonNotAllowed, "users that begin with %q are named by namespace %s, not by namespace %s", t.Nearer+"-", t.Nearer, t.Namespace)
	}
	return Refuse(ReasonNotAllowed, "usernames of namespace %s begin with %q", t.Namespace, t.Namespace+"-")
}

// CheckVhost returns a refusal when the namespace may not use the vhost.
func (t Tenant) CheckVhost(vhost string) error {
	if t.MayUseVhost(vhost) {
		return nil
	}
	own := t.VhostPrefix + t.Namespace
	return Refuse(ReasonNotAllowed, "namespace %s may only name the vhost %q and vhosts that begin with %q, not %q", t.Namespace, own, own+".", vhost)
}

// Limits returns the effective limits of a user: a tenant's user may have lower limits than the cluster allows, and
// never higher ones.
func (t Tenant) Limits(asked posthornv1.UserLimits) posthornv1.UserLimits {
	if t.Home || t.UserLimits == nil {
		return asked
	}
	return posthornv1.UserLimits{
		Connections: lower(asked.Connections, t.UserLimits.Connections),
		Channels:    lower(asked.Channels, t.UserLimits.Channels),
		MessageRate: lower(asked.MessageRate, t.UserLimits.MessageRate),
		ByteRate:    lower(asked.ByteRate, t.UserLimits.ByteRate),
	}
}

// LimitsOfVhost returns the effective limits of a vhost: a tenant's vhost may have lower limits than the cluster allows, and
// never higher ones.
func (t Tenant) LimitsOfVhost(asked posthornv1.VhostLimits) posthornv1.VhostLimits {
	if t.Home || t.VhostLimits == nil {
		return asked
	}
	return posthornv1.VhostLimits{
		MaxConnections: lowerOf(asked.MaxConnections, t.VhostLimits.MaxConnections),
		MaxQueues:      lowerOf(asked.MaxQueues, t.VhostLimits.MaxQueues),
		MaxChannels:    lowerOf(asked.MaxChannels, t.VhostLimits.MaxChannels),
		MaxMessageRate: lowerOf(asked.MaxMessageRate, t.VhostLimits.MaxMessageRate),
		MaxByteRate:    lowerOf(asked.MaxByteRate, t.VhostLimits.MaxByteRate),
		MaxStoredBytes: lowerOf(asked.MaxStoredBytes, t.VhostLimits.MaxStoredBytes),
	}
}

// lowerOf returns the lower of two limits, of which nil is none.
func lowerOf[T int32 | int64](a, b *T) *T {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

// lower returns the lower of two limits, of which 0 is none.
func lower[T int32 | int64](a, b T) T {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// admit returns the rights of a resource's namespace, or a refusal when it may not use the cluster.
func admit(ctx context.Context, live client.Reader, cluster *posthornv1.BrokerCluster, namespace string) (Tenant, error) {
	tenant := Tenant{Home: namespace == cluster.Namespace, Namespace: namespace}
	if tenancy := cluster.Spec.Tenancy; tenancy != nil {
		tenant.VhostPrefix, tenant.UserLimits, tenant.VhostLimits = tenancy.VhostPrefix, tenancy.UserLimits, tenancy.VhostLimits
	}
	allowed, err := mayUse(ctx, live, cluster, namespace)
	if err == nil && !allowed {
		if secret, is := connect.SecretOf(client.ObjectKeyFromObject(cluster)); is {
			return tenant, refuseSecret(secret, namespace)
		}
		err = Refuse(ReasonNotAllowed, "BrokerCluster %s/%s does not allow namespace %s (spec.tenancy.allowedNamespaces)", cluster.Namespace, cluster.Name, namespace)
	}
	return tenant, err
}

// mayUse reports whether resources of a namespace may be in a cluster.
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

// nearer returns the namespace with the longest name that may use the cluster and whose name and a dash are a prefix
// of the given name, if it is longer than the resource's own namespace. Then a-b-x is x of namespace a-b, and not b-x
// of namespace a.
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

// isBeingDeleted reports whether a namespace is being deleted; false when the operator may not read namespaces.
func isBeingDeleted(ctx context.Context, live client.Reader, name string) (bool, error) {
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
