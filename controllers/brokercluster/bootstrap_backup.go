// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// Reasons of Ready before the backup of spec.bootstrap is restored.
const (
	reasonRestoring         = "Restoring"
	reasonBackupNotRestored = "BackupNotRestored"
)

// +kubebuilder:rbac:groups=posthorn.io,resources=restores,verbs=get;list;watch;create

// restoreBackup creates the Restore of spec.bootstrap.backupRef and reports whether it is completed. Deleting a Restore
// that failed starts another one.
func (r *reconciliation) restoreBackup(ctx context.Context) (bool, error) {
	name := names.BootstrapRestore(r.in.cluster.Name)
	restore := &posthornv1.Restore{}
	err := r.Client.Get(ctx, r.in.keyOf(name), restore)
	switch {
	case apierrors.IsNotFound(err):
		r.seen.restore = restoreFinding(restore, name)
		return false, r.createRestore(ctx, name)
	case err != nil:
		return false, fmt.Errorf("reading the Restore %s: %w", name, err)
	}
	if err := mayChange(restore, r.in.cluster); err != nil {
		return false, err
	}
	if restore.Status.Phase == posthornv1.JobCompleted {
		r.out.note("BackupRestored", "Bootstrap", "restored Backup %s", r.in.cluster.Spec.Bootstrap.BackupRef.Name)
		return true, nil
	}
	r.seen.restore = restoreFinding(restore, name)
	return false, nil
}

// restoreFinding is why the backup of spec.bootstrap is not restored yet.
func restoreFinding(restore *posthornv1.Restore, name string) bootstrapRestore {
	out := bootstrapRestore{finding: finding{reason: reasonRestoring, message: "Restore " + name + " restores the backup"}}
	ready := meta.FindStatusCondition(restore.Status.Conditions, posthornv1.ConditionReady)
	if ready != nil {
		out.message = "Restore " + name + ": " + ready.Message
	}
	if restore.Status.Phase == posthornv1.JobFailed {
		out.reason, out.stalled = reasonBackupNotRestored, true
		out.message += "; to repeat it, purge the queues that have messages and delete the Restore; or delete this BrokerCluster with its volumes and create it again"
	}
	return out
}

func (r *reconciliation) createRestore(ctx context.Context, name string) error {
	restore := &posthornv1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.in.cluster.Namespace, Name: name, Labels: names.Labels(r.in.cluster.Name)},
		Spec: posthornv1.RestoreSpec{
			ClusterRef: posthornv1.ClusterReference{Name: r.in.cluster.Name}, BackupRef: r.in.cluster.Spec.Bootstrap.BackupRef,
			Conflict: posthornv1.ConflictFail,
		},
	}
	if err := controllerutil.SetControllerReference(r.in.cluster, restore, r.Scheme); err != nil {
		return fmt.Errorf("setting the owner of the Restore %s: %w", name, err)
	}
	err := r.Client.Create(ctx, restore)
	if apierrors.IsAlreadyExists(err) {
		// The cache does not have it yet.
		r.out.requeueWithin(staleRetry)
		return nil
	}
	if err != nil {
		return refused(err, "creating the Restore "+name)
	}
	return nil
}
