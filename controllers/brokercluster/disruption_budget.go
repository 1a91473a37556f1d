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

// disruptions is how many nodes may go at once: none unless every node said just now that no queue needs it. A single
// node has no majority that could be kept.
func (s *scope) disruptions() int32 {
	if t := s.tally(); len(s.members) > 1 && !t.isQuorumSafe(len(s.members)) {
		return 0
	}
	return 1
}

// ensureDisruptionBudget keeps the budget, or none at all.
func (s *scope) ensureDisruptionBudget(ctx context.Context) error {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: s.cluster.Name}}
	if s.cluster.Spec.PodDisruptionBudget.Mode == "Off" {
		return s.remove(ctx, budget)
	}
	// It follows the health of the nodes: its changes are no repairs.
	_, err := s.apply(ctx, budget, func() error {
		allowed := intstr.FromInt32(s.disruptions())
		budget.Spec.MaxUnavailable = &allowed
		budget.Spec.MinAvailable = nil
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: names.Selector(s.cluster.Name)}
		return nil
	})
	return err
}
