// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// Reconciler reconciles Backups.
type Reconciler struct{ *Jobs }

// +kubebuilder:rbac:groups=posthorn.io,resources=backups,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=posthorn.io,resources=backups/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=backups/finalizers,verbs=update
// +kubebuilder:rbac:groups=posthorn.io,resources=brokerclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims;secrets,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile runs a Backup once.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var backup posthornv1.Backup
	if err := r.Client.Get(ctx, request.NamespacedName, &backup); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if backup.DeletionTimestamp != nil {
		return r.release(ctx, &backup)
	}
	if err := r.ensureFinalizer(ctx, &backup); err != nil {
		return retryIfStale(err)
	}
	before := backup.DeepCopy()
	if !backup.Status.Phase.IsFinished() {
		out, err := r.step(ctx, oneShot{
			object: &backup, work: workBackup, phase: backup.Status.Phase,
			isUntouched: func(o client.Object) bool {
				fresh, is := o.(*posthornv1.Backup)
				return is && fresh.DeletionTimestamp == nil && (fresh.Status.Phase == "" || fresh.Status.Phase == posthornv1.JobPending)
			},
			task: func(ctx context.Context) (task, error) { return r.task(ctx, &backup) },
		})
		if err != nil {
			return retryIfStale(err)
		}
		setBackupStatus(&backup, out)
	}
	backup.Status.ObservedGeneration = backup.Generation
	if err := r.patchStatus(ctx, before, &backup); err != nil {
		return retryIfStale(err)
	}
	r.recordEnd(&backup, before.Status.Phase, backup.Status.JobStatus, "Backup")
	if !backup.Status.Phase.IsFinished() {
		return reconcile.Result{RequeueAfter: r.pollInterval()}, nil
	}
	return reconcile.Result{}, r.finish(ctx, &backup, &backup.Status.JobStatus)
}

// retryIfStale turns a conflict with another writer into a retry.
func retryIfStale(err error) (reconcile.Result, error) {
	if errors.Is(err, errStale) || apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: staleRetry}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// task returns the task of a Backup.
func (r *Reconciler) task(ctx context.Context, backup *posthornv1.Backup) (task, error) {
	found, err := r.findEnvironment(ctx, backup.Namespace, backup.Spec.ClusterRef)
	if err != nil {
		return task{}, err
	}
	if err := r.checkDestination(ctx, backup.Namespace, backup.Spec.Destination); err != nil {
		return task{}, err
	}
	return task{
		owner: backup, work: workBackup, cluster: backup.Spec.ClusterRef.Name, pods: found.pods, node: found.node,
		destination: backup.Spec.Destination, args: backupArgs(&backup.Spec, storedName(backup)), settings: backup.Spec.JobSettings,
	}, nil
}

// storedName is the name of the backup in its store.
func storedName(backup *posthornv1.Backup) string {
	return names.StoredBackup(backup.Name, string(backup.UID))
}

// setBackupStatus writes an outcome to the status of a Backup.
func setBackupStatus(backup *posthornv1.Backup, out outcome) {
	status := &backup.Status
	setStatus(&status.JobStatus, backup.Generation, names.JobOf(backup.Name, string(backup.UID), workBackup), out)
	if out.image != "" {
		status.Name, status.Image = storedName(backup), out.image
	}
	if out.phase == posthornv1.JobCompleted {
		// The command reads the whole backup again before it succeeds.
		status.Verified = true
		status.Size, status.RecoveryPoint, status.QueuesNotIncluded = out.result.Bytes, out.result.StartedAt, out.result.NotIncluded
	}
}

// patchStatus writes a status over the version of the object that was read.
func (r *Jobs) patchStatus(ctx context.Context, before, after client.Object) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, after, patch); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// recordEnd records an Event when a Job has ended.
func (r *Jobs) recordEnd(object client.Object, before posthornv1.JobPhase, after posthornv1.JobStatus, action string) {
	if before == after.Phase || !after.Phase.IsFinished() {
		return
	}
	ready := meta.FindStatusCondition(after.Conditions, posthornv1.ConditionReady)
	if ready == nil {
		return
	}
	kind, text := corev1.EventTypeNormal, ready.Message
	if after.Phase == posthornv1.JobFailed {
		kind = corev1.EventTypeWarning
	} else if after.Messages != nil {
		text = fmt.Sprintf("completed with %d messages", *after.Messages)
	}
	r.Events.Eventf(object, nil, kind, ready.Reason, action, "%s", text)
}

// finish deletes a Job whose result is in the status.
func (r *Jobs) finish(ctx context.Context, object client.Object, status *posthornv1.JobStatus) error {
	if status.Job == "" {
		return nil
	}
	if err := r.removeJob(ctx, object, status.Job); err != nil {
		// The Job of another owner stays.
		_, err = decideError(err, r.Now())
		return err
	}
	before, isObject := object.DeepCopyObject().(client.Object)
	if !isObject {
		return fmt.Errorf("%T is not an object", object)
	}
	status.Job = ""
	return client.IgnoreNotFound(ignoreConflict(r.patchStatus(ctx, before, object)))
}

// ignoreConflict drops the error of a write that lost against another one, which starts another reconciliation.
func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// ensureFinalizer adds the finalizer to a Backup whose deletion deletes the backup in the store, and removes it from others.
func (r *Reconciler) ensureFinalizer(ctx context.Context, backup *posthornv1.Backup) error {
	before := backup.DeepCopy()
	var isChanged bool
	if backup.Spec.DeletionPolicy == posthornv1.ReclaimDelete {
		isChanged = controllerutil.AddFinalizer(backup, names.BackupFinalizer)
	} else {
		isChanged = controllerutil.RemoveFinalizer(backup, names.BackupFinalizer)
	}
	if !isChanged {
		return nil
	}
	if err := r.Client.Patch(ctx, backup, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("changing the finalizer: %w", err)
	}
	return nil
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("backup").For(&posthornv1.Backup{}).Owns(&batchv1.Job{}).Complete(r)
}
