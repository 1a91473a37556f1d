// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/topology"
)

// RestoreReconciler reconciles Restores.
type RestoreReconciler struct{ *Jobs }

// +kubebuilder:rbac:groups=posthorn.io,resources=restores,verbs=get;list;watch
// +kubebuilder:rbac:groups=posthorn.io,resources=restores/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=restores/finalizers,verbs=update

// Reconcile runs a Restore once.
func (r *RestoreReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var restore posthornv1.Restore
	if err := r.Client.Get(ctx, request.NamespacedName, &restore); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if restore.DeletionTimestamp != nil {
		// The garbage collector deletes the Job.
		return reconcile.Result{}, nil
	}
	before := restore.DeepCopy()
	if !restore.Status.Phase.IsFinished() {
		out, err := r.step(ctx, oneShot{
			object: &restore, work: workRestore, phase: restore.Status.Phase,
			isUntouched: func(o client.Object) bool {
				fresh, is := o.(*posthornv1.Restore)
				return is && fresh.DeletionTimestamp == nil && (fresh.Status.Phase == "" || fresh.Status.Phase == posthornv1.JobPending)
			},
			task: func(ctx context.Context) (task, error) { return r.task(ctx, &restore) },
		})
		if err != nil {
			return retryIfStale(err)
		}
		setStatus(&restore.Status.JobStatus, restore.Generation, names.JobOf(restore.Name, string(restore.UID), workRestore), out)
		restore.Status.QueuesSkipped = out.result.Skipped
	}
	if err := r.patchStatus(ctx, before, &restore); err != nil {
		return retryIfStale(err)
	}
	r.recordEnd(&restore, before.Status.Phase, restore.Status.JobStatus, "Restore")
	if !restore.Status.Phase.IsFinished() {
		return reconcile.Result{RequeueAfter: r.pollInterval()}, nil
	}
	return reconcile.Result{}, r.finish(ctx, &restore, &restore.Status.JobStatus)
}

// task returns the task of a Restore.
func (r *RestoreReconciler) task(ctx context.Context, restore *posthornv1.Restore) (task, error) {
	source, err := r.findSource(ctx, restore)
	if err != nil {
		return task{}, err
	}
	found, err := r.findEnvironment(ctx, restore.Namespace, restore.Spec.ClusterRef)
	if err != nil {
		return task{}, err
	}
	if err := r.checkDestination(ctx, restore.Namespace, source.Destination); err != nil {
		return task{}, err
	}
	return task{
		owner: restore, work: workRestore, cluster: restore.Spec.ClusterRef.Name, pods: found.pods, node: found.node,
		destination: source.Destination, args: restoreArgs(&restore.Spec, source), settings: restore.Spec.JobSettings,
	}, nil
}

// findSource returns the backup that is restored.
func (r *RestoreReconciler) findSource(ctx context.Context, restore *posthornv1.Restore) (posthornv1.RestoreSource, error) {
	if restore.Spec.Source != nil {
		return *restore.Spec.Source, nil
	}
	name := restore.Spec.BackupRef.Name
	var backup posthornv1.Backup
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: restore.Namespace, Name: name}, &backup)
	switch {
	case apierrors.IsNotFound(err):
		return posthornv1.RestoreSource{}, topology.Wait(reasonBackupNotFound, "Backup %s does not exist in namespace %s: create it, or use spec.source for a backup in a store without a Backup", name, restore.Namespace)
	case err != nil:
		return posthornv1.RestoreSource{}, fmt.Errorf("reading the Backup %s: %w", name, err)
	}
	return sourceOf(&backup)
}

// sourceOf returns the backup of a Backup, if it is completed.
func sourceOf(backup *posthornv1.Backup) (posthornv1.RestoreSource, error) {
	switch {
	case backup.Status.Phase == posthornv1.JobFailed:
		message := ""
		if ready := meta.FindStatusCondition(backup.Status.Conditions, posthornv1.ConditionReady); ready != nil {
			message = ": " + ready.Message
		}
		return posthornv1.RestoreSource{}, topology.Refuse(reasonBackupFailed, "Backup %s has failed, so create a Restore of another one%s", backup.Name, message)
	case backup.DeletionTimestamp != nil:
		return posthornv1.RestoreSource{}, topology.Refuse(reasonBackupNotReady, "Backup %s is being deleted: create a Restore of another one", backup.Name)
	case backup.Status.Phase != posthornv1.JobCompleted:
		return posthornv1.RestoreSource{}, topology.Wait(reasonBackupNotReady, "Backup %s is not completed yet", backup.Name)
	}
	return posthornv1.RestoreSource{Destination: backup.Spec.Destination, Name: backup.Status.Name}, nil
}

// SetupWithManager registers the controller.
func (r *RestoreReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("restore").For(&posthornv1.Restore{}).Owns(&batchv1.Job{}).Complete(r)
}
