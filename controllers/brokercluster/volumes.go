// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// growthAction is the next action on the size of one volume.
type growthAction string

const (
	growthNone    growthAction = "None"    // the volume has the wanted size, or more
	growthAsk     growthAction = "Ask"     // the wanted size has to be requested
	growthWaiting growthAction = "Waiting" // the wanted size was requested and is not there yet
)

// volumeGrowth is the state of growing volumes.
type volumeGrowth struct {
	// growing are the volumes that do not have the wanted size yet.
	growing []string
	// refused is why Kubernetes refuses to let them grow.
	refused string
}

// decideGrowth compares the size of a volume with the wanted size.
//
//	requested | capacity  | bound | then
//	as wanted | as wanted | any   | None
//	as wanted | less      | yes   | Waiting
//	less      | any       | yes   | Ask
//	any       | any       | no    | None: a volume can only grow after it was bound
func decideGrowth(claim *corev1.PersistentVolumeClaim, wanted resource.Quantity) growthAction {
	if claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil {
		return growthNone
	}
	if asked := claim.Spec.Resources.Requests[corev1.ResourceStorage]; asked.Cmp(wanted) < 0 {
		return growthAsk
	}
	if there, told := claim.Status.Capacity[corev1.ResourceStorage]; told && there.Cmp(wanted) < 0 {
		return growthWaiting
	}
	return growthNone
}

// growVolumes requests larger volumes. The API server refuses it when the storage class does not allow expansion; the
// status reports the refusal, and the rest of the spec is still applied.
func (r *reconciliation) growVolumes(ctx context.Context) error {
	for i := range r.seen.claims {
		claim := &r.seen.claims[i]
		ordinal, ours := r.in.ordinalOfClaim(claim.Name)
		if !ours || ordinal >= r.out.sizes.Nodes {
			continue
		}
		switch decideGrowth(claim, r.in.cluster.Spec.Storage.Size) {
		case growthNone:
			continue
		case growthAsk:
			before := client.MergeFrom(claim.DeepCopy())
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = r.in.cluster.Spec.Storage.Size
			err := r.Client.Patch(ctx, claim, before)
			switch {
			case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
				r.seen.volumes.refused = err.Error()
				return nil
			case client.IgnoreNotFound(err) != nil:
				return fmt.Errorf("growing volume %s: %w", claim.Name, err)
			}
			r.out.note("VolumeGrows", "Expand", "volume %s grows to %s", claim.Name, r.in.cluster.Spec.Storage.Size.String())
		case growthWaiting:
		}
		r.seen.volumes.growing = append(r.seen.volumes.growing, claim.Name+resizeState(claim))
	}
	return nil
}

// resizeState describes the progress of a growing volume.
func resizeState(claim *corev1.PersistentVolumeClaim) string {
	for _, condition := range claim.Status.Conditions {
		switch condition.Type {
		case corev1.PersistentVolumeClaimFileSystemResizePending:
			return " (the file system grows when its pod uses it next)"
		case corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return " (" + condition.Message + ")"
		default:
		}
	}
	return ""
}
