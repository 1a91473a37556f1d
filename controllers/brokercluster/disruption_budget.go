// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/names"
)

// ensureDisruptionBudget keeps a budget of one node, or none at all.
func (s *scope) ensureDisruptionBudget(ctx context.Context) error {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: s.cluster.Name}}
	if s.cluster.Spec.PodDisruptionBudget.Mode == "Off" {
		return s.removeDisruptionBudget(ctx, budget)
	}
	return s.ensure(ctx, budget, func() error {
		one := intstr.FromInt32(1)
		budget.Spec.MaxUnavailable = &one
		budget.Spec.MinAvailable = nil
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: names.Selector(s.cluster.Name)}
		return nil
	})
}

func (s *scope) removeDisruptionBudget(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: budget.Name}, budget)
	if apierrors.IsNotFound(err) || (err == nil && !ownedBy(budget, s.cluster)) {
		return nil
	}
	if err == nil {
		err = client.IgnoreNotFound(s.Client.Delete(ctx, budget))
	}
	if err != nil {
		return fmt.Errorf("removing the PodDisruptionBudget: %w", err)
	}
	return nil
}
