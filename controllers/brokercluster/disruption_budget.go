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

// allowedDisruptions returns the number of nodes that may go at once: none unless every node has just answered that no
// queue needs it. A single node has no majority to keep.
func allowedDisruptions(seen *observed) int32 {
	if n := len(seen.members); n > 1 && !seen.count().isQuorumSafe(n) {
		return 0
	}
	return 1
}

// ensureDisruptionBudget keeps the PodDisruptionBudget, or deletes it when the spec turns it off.
func (r *reconciliation) ensureDisruptionBudget(ctx context.Context) error {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: r.in.cluster.Name}}
	if r.in.cluster.Spec.PodDisruptionBudget.Mode == "Off" {
		return r.remove(ctx, budget)
	}
	// The budget follows the health of the nodes; its changes are no repairs.
	_, err := r.apply(ctx, budget, func() error {
		allowed := intstr.FromInt32(allowedDisruptions(&r.seen))
		budget.Spec.MaxUnavailable = &allowed
		budget.Spec.MinAvailable = nil
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: names.Selector(r.in.cluster.Name)}
		return nil
	})
	return err
}
