// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// Reasons of the condition Ready of a ScheduledBackup.
const (
	reasonScheduled       = "Scheduled"
	reasonSuspended       = "Suspended"
	reasonInvalidSchedule = "InvalidSchedule"
	reasonLastFailed      = "LastBackupFailed"
	reasonNeverDue        = "NeverDue"
)

// longestWait bounds the time until the next reconciliation: clocks can be changed.
const longestWait = time.Hour

// ScheduleReconciler reconciles ScheduledBackups.
type ScheduleReconciler struct{ *Jobs }

// +kubebuilder:rbac:groups=posthorn.io,resources=scheduledbackups,verbs=get;list;watch
// +kubebuilder:rbac:groups=posthorn.io,resources=scheduledbackups/status,verbs=patch
// +kubebuilder:rbac:groups=posthorn.io,resources=backups,verbs=list;watch;create;patch;delete

// Reconcile creates the Backup of a time that has passed, and deletes the surplus ones.
func (r *ScheduleReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var object posthornv1.ScheduledBackup
	if err := r.Client.Get(ctx, request.NamespacedName, &object); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if object.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	before, now := object.DeepCopy(), r.Now()
	parsed, err := parseSchedule(&object.Spec)
	if err != nil {
		object.Status.NextScheduleTime = nil
		setScheduleCondition(&object, metav1.ConditionFalse, reasonInvalidSchedule, err.Error())
		if was := meta.FindStatusCondition(before.Status.Conditions, posthornv1.ConditionReady); was == nil || was.Message != err.Error() {
			r.Events.Eventf(&object, nil, corev1.EventTypeWarning, reasonInvalidSchedule, "Schedule", "%s", err.Error())
		}
		return retryIfStale(r.patchStatus(ctx, before, &object))
	}
	backups, err := r.backupsOf(ctx, &object)
	if err != nil {
		return reconcile.Result{}, err
	}
	decided := decide(&object, parsed, backups, now)
	if !decided.due.IsZero() {
		if err := r.createBackup(ctx, &object, decided.due); err != nil {
			return retryIfStale(err)
		}
		object.Status.LastScheduleTime = &metav1.Time{Time: decided.due}
	}
	setScheduleStatus(&object, decided, now)
	if err := r.patchStatus(ctx, before, &object); err != nil {
		return retryIfStale(err)
	}
	for _, surplus := range decided.prune {
		if err := r.prune(ctx, surplus); err != nil {
			return retryIfStale(err)
		}
	}
	if decided.next.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: min(longestWait, max(time.Millisecond, decided.next.Sub(now)))}, nil
}

// backupsOf returns the Backups that a ScheduledBackup created. It reads past the cache, so that none is created twice.
func (r *ScheduleReconciler) backupsOf(ctx context.Context, object *posthornv1.ScheduledBackup) ([]posthornv1.Backup, error) {
	var list posthornv1.BackupList
	if err := r.Live.List(ctx, &list, client.InNamespace(object.Namespace), client.MatchingLabels{names.LabelScheduledBackup: string(object.UID)}); err != nil {
		return nil, fmt.Errorf("listing the Backups: %w", err)
	}
	return list.Items, nil
}

// createBackup creates the Backup for a time of the schedule. Its name has the time, so a repetition creates no second one.
// The Backup has no owner: it stays when the ScheduledBackup is deleted.
func (r *ScheduleReconciler) createBackup(ctx context.Context, object *posthornv1.ScheduledBackup, due time.Time) error {
	backup := &posthornv1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: object.Namespace, Name: object.Name + "-" + due.UTC().Format("20060102150405"),
			Labels:      map[string]string{names.LabelScheduledBackup: string(object.UID), names.LabelManagedBy: names.Manager},
			Annotations: map[string]string{names.AnnotationScheduledBackup: object.Name, names.AnnotationScheduledTime: due.UTC().Format(time.RFC3339)},
		},
		Spec: *object.Spec.Template.DeepCopy(),
	}
	err := r.Client.Create(ctx, backup)
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil
	case err != nil:
		r.Events.Eventf(object, nil, corev1.EventTypeWarning, "CreateFailed", "Schedule", "creating the Backup %s: %v", backup.Name, err)
		return fmt.Errorf("creating the Backup %s: %w", backup.Name, err)
	}
	r.Events.Eventf(object, backup, corev1.EventTypeNormal, "BackupCreated", "Schedule", "created Backup %s", backup.Name)
	return nil
}

// prune deletes a Backup, also in the store.
func (r *ScheduleReconciler) prune(ctx context.Context, backup *posthornv1.Backup) error {
	before := backup.DeepCopy()
	backup.Spec.DeletionPolicy = posthornv1.ReclaimDelete
	controllerutil.AddFinalizer(backup, names.BackupFinalizer)
	if err := r.Client.Patch(ctx, backup, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("changing spec.deletionPolicy of Backup %s: %w", backup.Name, err)
	}
	uid := backup.UID
	if err := r.Client.Delete(ctx, backup, client.Preconditions(metav1.Preconditions{UID: &uid})); err != nil {
		return fmt.Errorf("deleting the Backup %s: %w", backup.Name, err)
	}
	return nil
}

func setScheduleStatus(object *posthornv1.ScheduledBackup, decided decision, now time.Time) {
	status := &object.Status
	status.NextScheduleTime = nil
	if !decided.next.IsZero() {
		status.NextScheduleTime = &metav1.Time{Time: decided.next}
	}
	if decided.newest != nil {
		status.LastBackup = decided.newest.Name
	}
	if success := decided.newestSuccess; success != nil {
		status.LastSuccessfulBackup, status.LastSuccessfulTime = success.Name, success.Status.CompletedAt
	}
	switch newest := decided.newest; {
	case newest != nil && newest.Status.Phase == posthornv1.JobFailed:
		message := "Backup " + newest.Name + " has failed"
		if ready := meta.FindStatusCondition(newest.Status.Conditions, posthornv1.ConditionReady); ready != nil {
			message += ": " + ready.Message
		}
		setScheduleCondition(object, metav1.ConditionFalse, reasonLastFailed, message)
	case object.Spec.Suspend:
		setScheduleCondition(object, metav1.ConditionTrue, reasonSuspended, "spec.suspend is true: no Backups are created")
	case decided.next.IsZero():
		setScheduleCondition(object, metav1.ConditionFalse, reasonNeverDue, "spec.schedule: "+object.Spec.Schedule+" is at no time within five years from "+now.UTC().Format(time.RFC3339))
	default:
		setScheduleCondition(object, metav1.ConditionTrue, reasonScheduled, "Backups are created at the times of the schedule")
	}
}

func setScheduleCondition(object *posthornv1.ScheduledBackup, value metav1.ConditionStatus, reason, message string) {
	object.Status.ObservedGeneration = object.Generation
	meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
		Type: posthornv1.ConditionReady, Status: value, Reason: reason, Message: message, ObservedGeneration: object.Generation,
	})
	if reason == reasonInvalidSchedule || reason == reasonNeverDue {
		meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
			Type: posthornv1.ConditionStalled, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: object.Generation,
		})
	} else {
		meta.RemoveStatusCondition(&object.Status.Conditions, posthornv1.ConditionStalled)
	}
}

// SetupWithManager registers the controller.
func (r *ScheduleReconciler) SetupWithManager(mgr ctrl.Manager) error {
	toSchedule := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		name := o.GetAnnotations()[names.AnnotationScheduledBackup]
		if name == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
	})
	return ctrl.NewControllerManagedBy(mgr).Named("scheduledbackup").For(&posthornv1.ScheduledBackup{}).Watches(&posthornv1.Backup{}, toSchedule).Complete(r)
}
