// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// ownersOfNote are the volumes and the cluster: the garbage collector deletes an object when the last of its
// owners is gone. A note has no owner as long as there is no volume: it would go with a cluster whose first volume
// came after this attempt.
func (s *scope) ownersOfNote(ctx context.Context) ([]metav1.OwnerReference, error) {
	if s.cluster.Spec.Storage.WhenDeleted == string(appsv1.DeletePersistentVolumeClaimRetentionPolicyType) {
		return nil, nil
	}
	claims, err := s.listClaims(ctx)
	if err != nil || len(claims) == 0 {
		return nil, err
	}
	var owners []metav1.OwnerReference
	for i := range claims {
		owners = append(owners, metav1.OwnerReference{
			APIVersion: corev1.SchemeGroupVersion.String(), Kind: "PersistentVolumeClaim", Name: claims[i].Name, UID: claims[i].UID,
		})
	}
	slices.SortFunc(owners, func(a, b metav1.OwnerReference) int { return strings.Compare(a.Name, b.Name) })
	return append(owners, metav1.OwnerReference{
		APIVersion: posthornv1.GroupVersion.String(), Kind: "BrokerCluster", Name: s.cluster.Name, UID: s.cluster.UID,
	}), nil
}
