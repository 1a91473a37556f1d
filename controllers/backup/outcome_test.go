// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// ended returns a pod whose container has ended.
func ended(code int32, message string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, Reason: "Error"},
	}}}
	return pod
}

// waiting returns a pod whose container does not start.
func waiting(reason, message string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
	}}}
	return pod
}

func jobWith(kind batchv1.JobConditionType, reason, message string) *batchv1.Job {
	deadline := int64(90)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"}, Spec: batchv1.JobSpec{ActiveDeadlineSeconds: &deadline}}
	if kind != "" {
		job.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message}}
	}
	return job
}

func TestOutcomeOfAJob(t *testing.T) {
	unscheduled := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	unscheduled.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no claim"}}
	evicted := corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory"}}
	const done, bad = batchv1.JobComplete, batchv1.JobFailed
	for name, test := range map[string]struct {
		job            *batchv1.Job
		pods           []corev1.Pod
		phase          posthornv1.JobPhase
		reason, words  string
		messages, size int64
	}{
		"no pod yet":             {jobWith("", "", ""), nil, posthornv1.JobRunning, reasonRunning, "the Job j runs", -1, -1},
		"a pod that starts":      {jobWith("", "", ""), []corev1.Pod{waiting("ContainerCreating", "")}, posthornv1.JobRunning, reasonRunning, "the Job j runs", -1, -1},
		"an image that is gone":  {jobWith("", "", ""), []corev1.Pod{waiting("ImagePullBackOff", "no such image")}, posthornv1.JobRunning, reasonRunning, "p: ImagePullBackOff: no such image", -1, -1},
		"a pod without a node":   {jobWith("", "", ""), []corev1.Pod{unscheduled}, posthornv1.JobRunning, reasonRunning, "p: Unschedulable: no claim", -1, -1},
		"success":                {jobWith(done, "", ""), []corev1.Pod{ended(0, `{"messages":7,"bytes":70,"queues":2}`)}, posthornv1.JobCompleted, reasonCompleted, "completed", 7, 70},
		"success without a pod":  {jobWith(done, "", ""), nil, posthornv1.JobCompleted, reasonCompleted, "the counts are unknown", -1, -1},
		"success without a file": {jobWith(done, "", ""), []corev1.Pod{ended(0, "")}, posthornv1.JobCompleted, reasonCompleted, "the counts are unknown", -1, -1},
		"an error after warnings": {
			jobWith(bad, "BackoffLimitExceeded", "limit"), []corev1.Pod{ended(1, "Warning: x\nError: no space\nTry again.\n")},
			posthornv1.JobFailed, reasonFailed, "no space; Try again.", -1, -1,
		},
		"a signal":           {jobWith(bad, "BackoffLimitExceeded", "limit"), []corev1.Pod{ended(137, "")}, posthornv1.JobFailed, reasonFailed, "Error: exit code 137", -1, -1},
		"an evicted pod":     {jobWith(bad, "BackoffLimitExceeded", "limit"), []corev1.Pod{evicted}, posthornv1.JobFailed, reasonFailed, "Evicted: low on memory", -1, -1},
		"a pod that is gone": {jobWith(bad, "BackoffLimitExceeded", "limit"), nil, posthornv1.JobFailed, reasonFailed, "BackoffLimitExceeded: limit", -1, -1},
		"a timeout": {
			jobWith(bad, batchv1.JobReasonDeadlineExceeded, "late"), []corev1.Pod{waiting("ImagePullBackOff", "no such image")},
			posthornv1.JobFailed, reasonTimedOut, "within its timeout of 1m30s: p: ImagePullBackOff: no such image", -1, -1,
		},
	} {
		out := outcomeOf(test.job, test.pods)
		if out.phase != test.phase || out.reason != test.reason || !strings.Contains(out.message, test.words) {
			t.Errorf("%s: %s %s %q", name, out.phase, out.reason, out.message)
		}
		value := func(n *int64) int64 {
			if n == nil {
				return -1
			}
			return *n
		}
		if value(out.result.Messages) != test.messages || value(out.result.Bytes) != test.size {
			t.Errorf("%s: %+v", name, out.result)
		}
	}
}

func TestErrorTextIsBounded(t *testing.T) {
	if text := errorText("Error: " + strings.Repeat("é", maxMessage)); len(text) > maxMessage || !strings.HasSuffix(text, "é") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

func TestGivingUpADeletion(t *testing.T) {
	now := time.Unix(10_000, 0)
	for name, test := range map[string]struct {
		annotation string
		state      deletion
		since      time.Duration
		want       bool
	}{
		"a Job works":                 {"", deletion{}, time.Hour, false},
		"it failed":                   {"", deletion{isFailed: true}, time.Second, false},
		"it failed for long":          {"", deletion{isFailed: true}, time.Hour, true},
		"the namespace goes":          {"", deletion{isFailed: true, isTerminating: true}, time.Second, true},
		"it is abandoned":             {"true", deletion{}, time.Second, true},
		"an annotation without value": {"", deletion{isFailed: true}, time.Second, false},
	} {
		deleted := metav1.NewTime(now.Add(-test.since))
		backup := &posthornv1.Backup{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deleted, Annotations: map[string]string{names.AnnotationAbandon: test.annotation}}}
		if got, _ := giveUp(backup, test.state, now, time.Minute); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestReadyNode(t *testing.T) {
	pod := func(name string, ready corev1.ConditionStatus, port int32) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: containerName, Ports: []corev1.ContainerPort{{ContainerPort: port}}}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	pods := []corev1.Pod{
		pod("c-3", corev1.ConditionTrue, names.PortOperator), pod("c-2", corev1.ConditionTrue, names.PortOperator),
		pod("c-1", corev1.ConditionTrue, names.PortManagement), pod("c-0", corev1.ConditionFalse, names.PortOperator),
	}
	if found := readyNode(pods); found == nil || found.Name != "c-2" {
		t.Errorf("%v", found)
	}
	if found := readyNode(pods[2:]); found != nil {
		t.Errorf("%s", found.Name)
	}
}
