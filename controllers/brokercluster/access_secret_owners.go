// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// accessSecretOwners returns the owners of the operator's access Secret: the volumes and the cluster. The garbage collector
// deletes an object with the last of its owners. Without a volume there is no owner, or else the Secret would be deleted
// with a cluster whose first volume was created after this reconciliation.
func accessSecretOwners(in *inputs, claims []corev1.PersistentVolumeClaim) []metav1.OwnerReference {
	if len(claims) == 0 || in.cluster.Spec.Storage.WhenDeleted == string(appsv1.DeletePersistentVolumeClaimRetentionPolicyType) {
		return nil
	}
	var owners []metav1.OwnerReference
	for i := range claims {
		owners = append(owners, metav1.OwnerReference{
			APIVersion: corev1.SchemeGroupVersion.String(), Kind: "PersistentVolumeClaim", Name: claims[i].Name, UID: claims[i].UID,
		})
	}
	slices.SortFunc(owners, func(a, b metav1.OwnerReference) int { return strings.Compare(a.Name, b.Name) })
	return append(owners, metav1.OwnerReference{
		APIVersion: posthornv1.GroupVersion.String(), Kind: "BrokerCluster", Name: in.cluster.Name, UID: in.cluster.UID,
	})
}
