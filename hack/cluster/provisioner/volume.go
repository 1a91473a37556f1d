package main

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names in the protocol between the scheduler, the volume controller and an external provisioner.
const (
	provisionerName = "posthorn.io/local"
	selectedNode    = "volume.kubernetes.io/selected-node"
	claimProvider   = "volume.kubernetes.io/storage-provisioner"
	provisionedBy   = "pv.kubernetes.io/provisioned-by"
)

// wantsVolume reports whether a claim waits for this provisioner: it has our class and no volume yet, and the
// scheduler has chosen the node of its first consumer.
func wantsVolume(claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp == nil &&
		claim.Spec.VolumeName == "" &&
		claim.Spec.StorageClassName != nil &&
		claim.Annotations[claimProvider] == provisionerName &&
		claim.Annotations[selectedNode] != ""
}

// reclaimable reports whether a volume is this provisioner's and no claim uses it any more.
func reclaimable(pv *corev1.PersistentVolume) bool {
	return pv.DeletionTimestamp == nil &&
		pv.Annotations[provisionedBy] == provisionerName &&
		pv.Status.Phase == corev1.VolumeReleased &&
		pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

// newVolume returns the volume of a claim, without its directory. The name contains the claim's UID, so that a retry
// creates the same volume.
func newVolume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	policy := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	onNode := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
		Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
		Values: []string{claim.Annotations[selectedNode]},
	}}}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "pvc-" + string(claim.UID),
			Annotations: map[string]string{provisionedBy: provisionerName},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: policy,
			StorageClassName:              class.Name,
			VolumeMode:                    claim.Spec.VolumeMode,
			NodeAffinity:                  &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{onNode}}},
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
		},
	}
}
