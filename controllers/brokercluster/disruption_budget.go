// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"posthorn.io/posthorn/internal/names"
)

// ensureDisruptionBudget keeps a budget of one node, or none at all.
func (s *scope) ensureDisruptionBudget(ctx context.Context) error {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: s.cluster.Name}}
	if s.cluster.Spec.PodDisruptionBudget.Mode == "Off" {
		return s.remove(ctx, budget)
	}
	return s.ensure(ctx, budget, func() error {
		one := intstr.FromInt32(1)
		budget.Spec.MaxUnavailable = &one
		budget.Spec.MinAvailable = nil
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: names.Selector(s.cluster.Name)}
		return nil
	})
}
