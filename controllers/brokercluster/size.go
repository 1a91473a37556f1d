// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"posthorn.io/posthorn/internal/names"
)

// nodesOf returns the number of nodes of a cluster, also while it is hibernated.
func nodesOf(sts *appsv1.StatefulSet) int32 {
	if sts == nil {
		return 0
	}
	if nodes, err := strconv.ParseInt(sts.Annotations[names.AnnotationNodes], 10, 32); err == nil && nodes > 0 {
		return int32(nodes)
	}
	if sts.Spec.Replicas == nil {
		return 1
	}
	return *sts.Spec.Replicas
}

// isHibernated reports whether a cluster has nodes but was last scaled to no pods.
func isHibernated(sts *appsv1.StatefulSet) bool {
	return sts.Annotations[names.AnnotationNodes] != "" && sts.Spec.Replicas != nil && *sts.Spec.Replicas == 0
}

// retainedVolumes returns the volumes of forgotten nodes, by ordinal.
func retainedVolumes(in *inputs, claims []corev1.PersistentVolumeClaim) map[int32]string {
	out := map[int32]string{}
	for i := range claims {
		if claims[i].Annotations[names.AnnotationForgotten] == "" {
			continue
		}
		if ordinal, ours := in.ordinalOfClaim(claims[i].Name); ours {
			out[ordinal] = claims[i].Name
		}
	}
	return out
}

// applySizes sets the number of pods. A StatefulSet that deletes the volumes of removed pods must keep those of a
// hibernated cluster.
func applySizes(sts *appsv1.StatefulSet, wanted sizes) {
	pods := wanted.Pods
	sts.Spec.Replicas = &pods
	if pods > 0 {
		delete(sts.Annotations, names.AnnotationNodes)
		return
	}
	metav1.SetMetaDataAnnotation(&sts.ObjectMeta, names.AnnotationNodes, strconv.Itoa(int(wanted.Nodes)))
	sts.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
}

// stayHibernated keeps the numbers of nodes and pods of a hibernated cluster that must not wake yet.
func (s *sizes) stayHibernated(sts *appsv1.StatefulSet) {
	s.Nodes, s.Pods = nodesOf(sts), 0
}
