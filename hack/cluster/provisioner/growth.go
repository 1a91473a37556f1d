package main

import (
	"context"
	"log"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// wantsSpace reports whether a claim has a volume and requests a larger one, which the API server allows only if its
// class does.
func wantsSpace(claim *corev1.PersistentVolumeClaim) bool {
	asked, there := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	return claim.DeletionTimestamp == nil && claim.Status.Phase == corev1.ClaimBound && asked.Cmp(there) > 0
}

// grow takes the place of a CSI driver's resizer: it writes the same fields of volume and claim in the same order.
// The disk does not change, because a directory has no size of its own.
func (c *controller) grow(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	pv, err := c.volumes.Get(claim.Spec.VolumeName)
	if err != nil || pv.Annotations[provisionedBy] != provisionerName {
		return ignoreNotFound(err)
	}
	wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if has := pv.Spec.Capacity[corev1.ResourceStorage]; has.Cmp(wanted) < 0 {
		pv = pv.DeepCopy()
		pv.Spec.Capacity[corev1.ResourceStorage] = wanted
		if _, err := c.client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	claim = claim.DeepCopy()
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: wanted}
	claim.Status.Conditions = slices.DeleteFunc(claim.Status.Conditions, func(condition corev1.PersistentVolumeClaimCondition) bool {
		return condition.Type == corev1.PersistentVolumeClaimResizing || condition.Type == corev1.PersistentVolumeClaimFileSystemResizePending
	})
	if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return ignoreNotFound(err)
	}
	log.Printf("%s of %s/%s has %s", pv.Name, claim.Namespace, claim.Name, wanted.String())
	return nil
}
