// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

// Reasons of the condition Ready.
const (
	reasonRunning   = "Running"
	reasonCompleted = "Completed"
	// reasonFailed: the command failed. The message is its error.
	reasonFailed = "CommandFailed"
	// reasonTimedOut: the Job took longer than spec.timeout.
	reasonTimedOut = "TimedOut"
	// reasonJobLost: the Job was deleted before its result was read.
	reasonJobLost = "JobLost"
	// reasonNameTaken: a Job of another owner has the name.
	reasonNameTaken = "NameTaken"
	// reasonRefused: the API server refuses the Job.
	reasonRefused         = "JobRefused"
	reasonClusterNotFound = topology.ReasonClusterNotFound
	reasonHibernated      = topology.ReasonClusterHibernated
	reasonNoReadyNode     = "NoReadyNode"
	reasonSecretNotFound  = topology.ReasonSecretNotFound
	reasonInvalidSecret   = topology.ReasonInvalidSecret
	reasonClaimNotFound   = "ClaimNotFound"
	reasonBackupNotFound  = "BackupNotFound"
	reasonBackupNotReady  = "BackupNotCompleted"
	reasonBackupFailed    = "BackupFailed"
	reasonDeleting        = topology.ReasonDeleting
	reasonDeletionFailed  = "DeletionFailed"
)

// maxMessage bounds the text of a condition, in bytes.
const maxMessage = 2048

// result is what posthorn ctl writes to its result file.
type result struct {
	StartedAt   *metav1.Time `json:"started_at,omitempty"`
	Messages    *int64       `json:"messages,omitempty"`
	Bytes       *int64       `json:"bytes,omitempty"`
	Queues      *int64       `json:"queues,omitempty"`
	NotIncluded *int64       `json:"queues_not_included,omitempty"`
	Skipped     *int64       `json:"queues_skipped,omitempty"`
}

// outcome is the state of a Job.
type outcome struct {
	phase           posthornv1.JobPhase
	reason, message string
	// result of a command that succeeded; the zero value when its pod is gone.
	result result
	// image of the Job; empty when there is none.
	image string
	// created and finished are when the Job was created and ended; zero when that is unknown.
	created, finished time.Time
}

func failed(reason, message string, at time.Time) outcome {
	return outcome{phase: posthornv1.JobFailed, reason: reason, message: topology.OneLine(message), finished: at}
}

// outcomeOf returns the state of a Job with its pods.
//
//	the Job is complete           | Completed, with the result of the pod that succeeded
//	it exceeded its deadline      | Failed, TimedOut
//	it failed for another reason  | Failed, with the error of the command
//	otherwise                     | Running, with the reason that its pod does not start
func outcomeOf(job *batchv1.Job, pods []corev1.Pod) outcome {
	out := outcome{phase: posthornv1.JobRunning, reason: reasonRunning, message: "the Job " + job.Name + " runs", created: job.CreationTimestamp.Time}
	for _, container := range job.Spec.Template.Spec.Containers {
		out.image = container.Image
	}
	for _, condition := range job.Status.Conditions {
		if condition.Status != corev1.ConditionTrue {
			continue
		}
		switch condition.Type {
		case batchv1.JobComplete:
			out.phase, out.reason, out.finished = posthornv1.JobCompleted, reasonCompleted, condition.LastTransitionTime.Time
			out.message = "completed"
			if !readResult(pods, &out.result) {
				out.message = "completed; the counts are unknown, because the pod of the Job is gone or has no result"
			}
			return out
		case batchv1.JobFailed:
			out.phase, out.reason, out.finished = posthornv1.JobFailed, reasonFailed, condition.LastTransitionTime.Time
			out.message = failureOf(pods)
			if condition.Reason == batchv1.JobReasonDeadlineExceeded {
				out.reason = reasonTimedOut
				out.message = strings.TrimSuffix(fmt.Sprintf("the Job did not end within its timeout of %s: %s", deadlineOf(job), troubleOf(pods)), ": ")
			}
			if out.message == "" {
				out.message = condition.Reason + ": " + condition.Message
			}
			return out
		default:
			// The Job is about to end, or is suspended.
		}
	}
	if trouble := troubleOf(pods); trouble != "" {
		out.message += "; " + trouble
	}
	return out
}

func deadlineOf(job *batchv1.Job) time.Duration {
	if job.Spec.ActiveDeadlineSeconds == nil {
		return 0
	}
	return time.Duration(*job.Spec.ActiveDeadlineSeconds) * time.Second
}

// endOf returns how the container of a pod ended; nil while it has not.
func endOf(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == containerName {
			return pod.Status.ContainerStatuses[i].State.Terminated
		}
	}
	return nil
}

// readResult reads the result of the pod that succeeded; false when there is none.
func readResult(pods []corev1.Pod, into *result) bool {
	for i := range pods {
		end := endOf(&pods[i])
		if end == nil || end.ExitCode != 0 {
			continue
		}
		var read result
		if json.Unmarshal([]byte(end.Message), &read) == nil {
			*into = read
			return true
		}
	}
	return false
}

// failureOf returns the error of the pod that failed last; empty when none tells it.
func failureOf(pods []corev1.Pod) string {
	text, last := "", time.Time{}
	for i := range pods {
		pod := &pods[i]
		end := endOf(pod)
		switch {
		case end == nil && pod.Status.Phase == corev1.PodFailed && text == "":
			text = strings.TrimSuffix(pod.Status.Reason+": "+pod.Status.Message, ": ")
		case end != nil && end.ExitCode != 0 && !end.FinishedAt.Time.Before(last):
			last = end.FinishedAt.Time
			if text = errorText(end.Message); text == "" {
				text = fmt.Sprintf("%s: exit code %d", end.Reason, end.ExitCode)
			}
		}
	}
	return text
}

// errorText returns the error at the end of a command's output: warnings come before it.
func errorText(output string) string {
	output = strings.TrimSpace(output)
	if at := strings.LastIndex("\n"+output, "\nError: "); at >= 0 {
		output = strings.TrimPrefix(output[at:], "Error: ")
	}
	output = topology.OneLine(output)
	return strings.ToValidUTF8(output[max(0, len(output)-maxMessage):], "")
}

// troubleOf returns why the container of a pod does not run; empty when it does.
func troubleOf(pods []corev1.Pod) string {
	for i := range pods {
		pod := &pods[i]
		for _, status := range pod.Status.ContainerStatuses {
			if waiting := status.State.Waiting; status.Name == containerName && waiting != nil && waiting.Reason != "ContainerCreating" {
				return topology.OneLine(strings.TrimSuffix(pod.Name+": "+waiting.Reason+": "+waiting.Message, ": "))
			}
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
				return topology.OneLine(pod.Name + ": " + condition.Reason + ": " + condition.Message)
			}
		}
	}
	return ""
}

// setStatus writes an outcome to a status.
func setStatus(status *posthornv1.JobStatus, generation int64, job string, out outcome) {
	status.ObservedGeneration, status.Phase = generation, out.phase
	if out.phase != posthornv1.JobPending {
		status.Job = job
	}
	if status.StartedAt == nil && !out.created.IsZero() {
		status.StartedAt = &metav1.Time{Time: out.created}
	}
	if out.phase.IsFinished() && !out.finished.IsZero() {
		status.CompletedAt = &metav1.Time{Time: out.finished}
	}
	status.Messages, status.Queues = out.result.Messages, out.result.Queues
	ready := metav1.ConditionFalse
	if out.phase == posthornv1.JobCompleted {
		ready = metav1.ConditionTrue
	}
	set := func(kind string, value metav1.ConditionStatus) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: value, Reason: out.reason, Message: out.message, ObservedGeneration: generation,
		})
	}
	set(posthornv1.ConditionReady, ready)
	if out.phase == posthornv1.JobFailed {
		set(posthornv1.ConditionStalled, metav1.ConditionTrue)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, posthornv1.ConditionStalled)
	}
}
