// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/connect"
)

// identityIndex indexes resources by cluster and name in the broker.
const identityIndex = "posthorn.io/identity"

// clusterIndex indexes resources by cluster.
const clusterIndex = "posthorn.io/cluster"

// ClusterKey returns the key of the cluster, or of the external broker, that a resource refers to.
func ClusterKey(object Object) client.ObjectKey {
	ref := object.ClusterRef()
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	if key.Namespace == "" {
		key.Namespace = object.GetNamespace()
	}
	if secret := ref.ConnectionSecret; secret != nil {
		return connect.KeyOfSecret(client.ObjectKey{Namespace: key.Namespace, Name: secret.Name})
	}
	return key
}

// Identity joins the parts of a name so that two different lists of parts never have the same result.
func Identity(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = url.PathEscape(part)
	}
	return strings.Join(escaped, "/")
}

// claimOf returns the value of status.claim of a resource that owns its object.
func claimOf[T Object](kind Kind[T], object T) string {
	return ClusterKey(object).String() + "|" + kind.Identity(object)
}

// ClaimOf returns the claim of a resource that owns its object.
func ClaimOf[T Object](kind Kind[T], object T) string { return claimOf(kind, object) }

// siblings returns the other resources for the same object.
func (r *Reconciler[T]) siblings(ctx context.Context, object T) ([]T, error) {
	list := r.Kind.NewList()
	if err := r.Client.List(ctx, list, client.MatchingFields{identityIndex: claimOf(r.Kind, object)}); err != nil {
		return nil, fmt.Errorf("looking for others of the same name: %w", err)
	}
	var others []T
	for _, each := range r.Kind.Items(list) {
		if each.GetUID() != object.GetUID() {
			others = append(others, each)
		}
	}
	return others, nil
}

// rival returns a resource that has a better right to the same object: the one that owns it, else the older one. The
// names decide between two of the same second.
func rival[T Object](object T, claim string, others []T) (T, bool) {
	for _, other := range others {
		mine, theirs := object.Topology().Claim == claim, other.Topology().Claim == claim
		if theirs && !mine || theirs == mine && older(other, object) {
			return other, true
		}
	}
	var none T
	return none, false
}

func older(a, b client.Object) bool {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if !at.Equal(&bt) {
		return at.Before(&bt)
	}
	return client.ObjectKeyFromObject(a).String() < client.ObjectKeyFromObject(b).String()
}

// mayAdopt decides about an object in the broker that the resource does not own.
//
//	adoption   | as the spec says | in the cluster's namespace | then
//	Never      | any              | any                        | conflict
//	IfMatching | yes              | any                        | adopt
//	IfMatching | no               | any                        | conflict
//	Takeover   | any              | yes                        | adopt
//	Takeover   | any              | no                         | refused
func mayAdopt(policy posthornv1.AdoptionPolicy, home bool, difference func() (Difference, error)) error {
	switch policy {
	case posthornv1.AdoptTakeover:
		if !home {
			return Refuse(ReasonNotAllowed, "adoption: Takeover works only in the BrokerCluster's own namespace")
		}
		return nil
	case posthornv1.AdoptIfMatching:
		d, err := difference()
		if err != nil {
			return err
		}
		if d.None() {
			return nil
		}
		return Refuse(ReasonConflict, "it exists in the broker and this resource did not create it; not adopted because it differs in %s", join(d.All()))
	default:
		return Refuse(ReasonConflict, "it exists in the broker and this resource did not create it; set spec.adoption to adopt it")
	}
}
