// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// deletionRetry is the time after which a deletion that failed is repeated.
const deletionRetry = time.Minute

// deletion is the state of the deletion in a store.
type deletion struct {
	// isDone: the store has no such backup any more, or never had it.
	isDone bool
	// isFailed: the deletion has failed or cannot start. Otherwise a Job works at it.
	isFailed        bool
	reason, message string
	// retry deletes the Job that failed.
	retry bool
	// isTerminating: the namespace is being deleted, so no Job can be created.
	isTerminating bool
}

// giveUp reports whether a Backup is deleted although its backup stays in the store, and why.
//
//	the annotation names.AnnotationAbandon is true  | yes
//	its namespace is being deleted                  | yes
//	the deletion failed, and began before the bound | yes
//	otherwise                                       | no
func giveUp(backup *posthornv1.Backup, state deletion, now time.Time, bound time.Duration) (bool, string) {
	switch {
	case backup.Annotations[names.AnnotationAbandon] == "true":
		return true, "the annotation " + names.AnnotationAbandon + " is true"
	case state.isTerminating:
		return true, "its namespace is being deleted"
	case state.isFailed && backup.DeletionTimestamp != nil && now.Sub(backup.DeletionTimestamp.Time) > bound:
		return true, fmt.Sprintf("it could not be deleted for %s: %s", bound, state.message)
	}
	return false, ""
}

// release deletes the backup in the store if the spec says so, and removes the finalizer.
func (r *Reconciler) release(ctx context.Context, backup *posthornv1.Backup) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(backup, names.BackupFinalizer) {
		return reconcile.Result{}, nil
	}
	state, err := r.deleteStored(ctx, backup)
	if err != nil {
		return retryIfStale(err)
	}
	if letGo, why := giveUp(backup, state, r.Now(), r.ForgetBound); !state.isDone && letGo {
		r.Events.Eventf(backup, nil, corev1.EventTypeWarning, "LeftBehind", "Delete", "backup %s stays in the store: %s", storedName(backup), why)
		state.isDone = true
	}
	if state.isDone {
		before := backup.DeepCopy()
		controllerutil.RemoveFinalizer(backup, names.BackupFinalizer)
		if err := r.Client.Patch(ctx, backup, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("removing the finalizer: %w", err)
		}
		return reconcile.Result{}, nil
	}
	if err := r.reportDeletion(ctx, backup, state); err != nil {
		return retryIfStale(err)
	}
	if state.retry {
		err := r.removeJob(ctx, backup, names.JobOf(backup.Name, string(backup.UID), workDelete))
		return reconcile.Result{RequeueAfter: r.pollInterval()}, err
	}
	return reconcile.Result{RequeueAfter: r.pollInterval()}, nil
}

// reportDeletion writes the state of the deletion to the condition Ready.
func (r *Reconciler) reportDeletion(ctx context.Context, backup *posthornv1.Backup, state deletion) error {
	before := backup.DeepCopy()
	message := state.message
	if state.isFailed {
		message += "; to delete this object and leave the backup in the store, annotate it with " + names.AnnotationAbandon + `: "true"`
	}
	meta.SetStatusCondition(&backup.Status.Conditions, metav1.Condition{
		Type: posthornv1.ConditionReady, Status: metav1.ConditionFalse, Reason: state.reason, Message: message, ObservedGeneration: backup.Generation,
	})
	backup.Status.ObservedGeneration = backup.Generation
	was := meta.FindStatusCondition(before.Status.Conditions, posthornv1.ConditionReady)
	if err := r.patchStatus(ctx, before, backup); err != nil {
		return err
	}
	if state.isFailed && (was == nil || was.Message != message) {
		r.Events.Eventf(backup, nil, corev1.EventTypeWarning, state.reason, "Delete", "%s", message)
	}
	return nil
}

// deleteStored brings the deletion in the store a step further.
func (r *Reconciler) deleteStored(ctx context.Context, backup *posthornv1.Backup) (deletion, error) {
	if backup.Spec.DeletionPolicy != posthornv1.ReclaimDelete {
		return deletion{isDone: true}, nil
	}
	image, isStopped, err := r.stopWriting(ctx, backup)
	switch {
	case err != nil:
		return deletion{}, err
	case !isStopped:
		return deletion{reason: reasonDeleting, message: "waiting for the Job that writes the backup to end"}, nil
	case image == "":
		// No Job was created.
		return deletion{isDone: true}, nil
	}
	name := names.JobOf(backup.Name, string(backup.UID), workDelete)
	job, err := r.findJob(ctx, backup, name)
	if err != nil {
		return failedDeletion(err)
	}
	if job == nil {
		if err := r.checkDestination(ctx, backup.Namespace, backup.Spec.Destination); err != nil {
			return failedDeletion(err)
		}
		_, err := r.create(ctx, r.deletionTask(ctx, backup, image))
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return deletion{isFailed: true, isTerminating: true, reason: reasonDeletionFailed, message: "the namespace is being deleted"}, nil
		}
		if err != nil {
			return failedDeletion(err)
		}
		return deletion{reason: reasonDeleting, message: "the Job " + name + " deletes the backup in the store"}, nil
	}
	out, err := r.read(ctx, job)
	if err != nil {
		return deletion{}, err
	}
	return decideDeletion(job, out, r.Now(), min(deletionRetry, 4*r.Resync)), nil
}

// decideDeletion returns the state of a deletion from that of its Job.
func decideDeletion(job *batchv1.Job, out outcome, now time.Time, retry time.Duration) deletion {
	switch out.phase {
	case posthornv1.JobCompleted:
		return deletion{isDone: true}
	case posthornv1.JobFailed:
		return deletion{
			isFailed: true, reason: reasonDeletionFailed, message: "the backup cannot be deleted in the store: " + out.message,
			retry: job.DeletionTimestamp == nil && now.Sub(out.finished) >= retry,
		}
	default:
		return deletion{reason: reasonDeleting, message: out.message}
	}
}

// failedDeletion turns a refusal or a missing object into a failure, which is repeated.
func failedDeletion(err error) (deletion, error) {
	out, err := decideError(err, time.Time{})
	if err != nil {
		return deletion{}, err
	}
	return deletion{isFailed: true, reason: reasonDeletionFailed, message: "the backup cannot be deleted in the store: " + out.message}, nil
}

// stopWriting deletes the Job that writes the backup. It returns its image, empty when no Job was created, and false while
// its pod may still write.
func (r *Reconciler) stopWriting(ctx context.Context, backup *posthornv1.Backup) (image string, isStopped bool, err error) {
	image, name := backup.Status.Image, names.JobOf(backup.Name, string(backup.UID), workBackup)
	job, err := r.findJob(ctx, backup, name)
	if err != nil {
		_, err = decideError(err, r.Now())
		return image, true, err
	}
	if job != nil {
		for _, container := range job.Spec.Template.Spec.Containers {
			image = container.Image
		}
		if image != backup.Status.Image {
			// The Job is the only other place that has it.
			before := backup.DeepCopy()
			backup.Status.Image = image
			if err := r.patchStatus(ctx, before, backup); err != nil {
				return image, false, err
			}
		}
		if err := r.removeJob(ctx, backup, name); err != nil {
			return image, false, err
		}
	}
	pods, err := r.podsOf(ctx, backup.Namespace, name)
	if err != nil {
		return image, false, err
	}
	for i := range pods {
		if phase := pods[i].Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			return image, false, nil
		}
	}
	return image, true, nil
}

// deletionTask returns the task that deletes a backup in its store. The cluster may be gone.
func (r *Reconciler) deletionTask(ctx context.Context, backup *posthornv1.Backup, image string) task {
	like := pods{image: image}
	var cluster posthornv1.BrokerCluster
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: backup.Namespace, Name: backup.Spec.ClusterRef.Name}, &cluster); err == nil {
		like.pullSecrets = cluster.Spec.ImagePullSecrets
	}
	return task{
		owner: backup, work: workDelete, cluster: backup.Spec.ClusterRef.Name, pods: like,
		destination: backup.Spec.Destination, args: deleteArgs(backup.Spec.Destination, storedName(backup)),
		settings: posthornv1.JobSettings{Resources: backup.Spec.Resources},
	}
}
