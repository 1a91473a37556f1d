// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/names"
)

// settleSize decides how many nodes and pods there are to be.
func (s *scope) settleSize(ctx context.Context) error {
	retained, err := s.retainedVolumes(ctx)
	if err != nil {
		return err
	}
	s.sizes = decideSize(&s.cluster.Spec, nodesOf(s.sts), retained)
	return nil
}

// nodesOf is how many nodes a cluster has, also while it sleeps.
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

// retainedVolumes are the volumes of forgotten nodes, by ordinal.
func (s *scope) retainedVolumes(ctx context.Context) (map[int32]string, error) {
	claims, err := s.listClaims(ctx)
	if err != nil {
		return nil, err
	}
	out := map[int32]string{}
	for i := range claims {
		if claims[i].Annotations[names.AnnotationForgotten] == "" {
			continue
		}
		if ordinal, is := s.ordinalOf(strings.TrimPrefix(claims[i].Name, dataVolume+"-")); is {
			out[ordinal] = claims[i].Name
		}
	}
	return out, nil
}

func (s *scope) listClaims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	var claims corev1.PersistentVolumeClaimList
	err := s.Client.List(ctx, &claims, client.InNamespace(s.cluster.Namespace), client.MatchingLabels(names.Selector(s.cluster.Name)))
	if err != nil {
		return nil, fmt.Errorf("listing volumes: %w", err)
	}
	return claims.Items, nil
}

// ordinalOf a pod; false when the name is not one of the cluster's pods.
func (s *scope) ordinalOf(pod string) (int32, bool) {
	digits, found := strings.CutPrefix(pod, s.cluster.Name+"-")
	ordinal, err := strconv.ParseInt(digits, 10, 32)
	if !found || err != nil || s.podName(int32(ordinal)) != pod {
		return 0, false
	}
	return int32(ordinal), true
}

// applySizes sets the number of pods. A StatefulSet that deletes the volumes of pods that are scaled
// away must not do so for pods that only sleep.
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
