// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// growth is what there is to do about the size of one volume.
type growth string

const (
	growthNone    growth = "None"    // it is as large as wanted, or larger
	growthAsk     growth = "Ask"     // it has to be asked for
	growthWaiting growth = "Waiting" // it was asked for and is not there yet
)

// volumes is what an attempt finds about growing volumes.
type volumes struct {
	// growing are the volumes that are not as large as wanted yet.
	growing []string
	// refused is why Kubernetes does not let them grow.
	refused string
}

// decideGrowth compares a volume with the wanted size.
//
//	asked for | there     | bound | then
//	as wanted | as wanted | any   | None
//	as wanted | less      | yes   | Waiting
//	less      | any       | yes   | Ask
//	any       | any       | no    | None: a volume can only grow after it was bound
func decideGrowth(claim *corev1.PersistentVolumeClaim, wanted resource.Quantity) growth {
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

// growVolumes asks for larger volumes. Whether a storage class lets volumes grow is the API server's
// to say; a refusal is told in the status and holds up nothing else.
func (s *scope) growVolumes(ctx context.Context) error {
	claims, err := s.listClaims(ctx)
	if err != nil {
		return err
	}
	for i := range claims {
		claim := &claims[i]
		ordinal, ours := s.ordinalOf(strings.TrimPrefix(claim.Name, dataVolume+"-"))
		if !ours || ordinal >= s.sizes.Nodes {
			continue
		}
		switch decideGrowth(claim, s.cluster.Spec.Storage.Size) {
		case growthNone:
			continue
		case growthAsk:
			before := client.MergeFrom(claim.DeepCopy())
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = s.cluster.Spec.Storage.Size
			err := s.Client.Patch(ctx, claim, before)
			switch {
			case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
				s.volumes.refused = err.Error()
				return nil
			case client.IgnoreNotFound(err) != nil:
				return fmt.Errorf("growing volume %s: %w", claim.Name, err)
			}
			s.event(corev1.EventTypeNormal, "VolumeGrows", "Expand", "volume %s is to have %s", claim.Name, s.cluster.Spec.Storage.Size.String())
		case growthWaiting:
		}
		s.volumes.growing = append(s.volumes.growing, claim.Name+resizeState(claim))
	}
	return nil
}

// resizeState says what the storage system says about a volume that grows.
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
