// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// TestRestartAnnotationChangesThePodTemplate: the annotation restarts every node when its value changes, and not when a
// tool removes it.
func TestRestartAnnotationChangesThePodTemplate(t *testing.T) {
	const first, second = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
	restarted := &appsv1.StatefulSet{}
	restarted.Spec.Template.Annotations = map[string]string{names.AnnotationRestartedAt: first}
	for name, row := range map[string]struct {
		annotation string
		sts        *appsv1.StatefulSet
		want       string
	}{
		"a new cluster":               {"", nil, ""},
		"never restarted":             {"", &appsv1.StatefulSet{}, ""},
		"the first restart":           {first, &appsv1.StatefulSet{}, first},
		"the second restart":          {second, restarted, second},
		"the annotation was removed":  {"", restarted, first},
		"a new cluster that has it":   {first, nil, first},
		"the annotation is as before": {first, restarted, first},
	} {
		cluster := testCluster()
		cluster.Annotations = map[string]string{names.AnnotationRestartedAt: row.annotation}
		out, in := decided{}, inputs{cluster: cluster}
		out.decideTarget(&in, &observed{sts: row.sts})
		if out.restartedAt != row.want {
			t.Errorf("%s: %q, want %q", name, out.restartedAt, row.want)
		}
		template, err := buildTemplate(cluster, out.templateInputs(&in))
		if err != nil || template.Annotations[names.AnnotationRestartedAt] != row.want {
			t.Errorf("%s: the template has %v (%v)", name, template.Annotations, err)
		}
	}
	cluster := testCluster()
	digests := map[string]bool{}
	for _, value := range []string{"", first, second} {
		out := decided{image: "i", restartedAt: value}
		sum, err := out.templateInputs(&inputs{cluster: cluster}).digest()
		if err != nil {
			t.Fatal(err)
		}
		digests[sum] = true
	}
	if len(digests) != 3 {
		t.Errorf("%d digests for 3 values", len(digests))
	}
}

// restartedPod returns a pod of the wanted revision that somebody wants to restart.
func restartedPod(value string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "c-1", UID: "uid-1", Labels: map[string]string{revisionLabel: "new"}, Annotations: map[string]string{names.AnnotationRestart: value},
	}}
}

func TestPodWithRestartAnnotationIsOutdated(t *testing.T) {
	for value, want := range map[string]bool{"": true, "false": true, "true": false} {
		if m := viewPod("c-1", restartedPod(value), "new", ""); m.Current != want {
			t.Errorf("%s=%q: current %v, want %v", names.AnnotationRestart, value, m.Current, want)
		}
	}
}

// TestApprovalsOfAnEarlierRollDoNotCoverARestart: without a new revision, an annotation that stayed on the object would
// allow queues to lose their majority.
func TestApprovalsOfAnEarlierRollDoNotCoverARestart(t *testing.T) {
	outdated := restartedPod("")
	outdated.Labels[revisionLabel] = "old"
	for name, row := range map[string]struct {
		pod      *corev1.Pod
		approval string
		want     bool
	}{
		"a roll, this step":          {outdated, "new/c-1", true},
		"a roll, the UID":            {outdated, "uid-1/c-1", false},
		"a restart, an earlier roll": {restartedPod("true"), "new/c-1", false},
		"a restart, this pod":        {restartedPod("true"), "uid-1/c-1", true},
		"a restart, an earlier pod":  {restartedPod("true"), "uid-0/c-1", false},
	} {
		m := viewPod("c-1", row.pod, "new", row.approval)
		if m.AcceptCritical != row.want {
			t.Errorf("%s: accepts unavailable queues: %v", name, m.AcceptCritical)
		}
		cluster := testCluster()
		cluster.Annotations = map[string]string{names.AnnotationApprove: row.approval}
		sts := &appsv1.StatefulSet{}
		sts.Status.UpdateRevision = "new"
		out := decided{roll: rollDecision{rollWait, "c-1", reasonApprovalNeeded}}
		in, seen := inputs{cluster: cluster}, observed{sts: sts, members: []memberView{m}}
		if step := out.stepStateOf(&in, &seen, out.roll); step.Approved != row.want {
			t.Errorf("%s: approved: %v", name, step.Approved)
		}
		out.setRollout(&in, &seen, memberCounts{hasOutdated: true})
		whole, _, _ := strings.Cut(out.status.Rollout.Approve, "/")
		for _, approval := range []string{out.status.Rollout.Approve, whole} {
			cluster.Annotations[names.AnnotationApprove] = approval
			if step := out.stepStateOf(&in, &seen, out.roll); !step.Approved {
				t.Errorf("%s: the value %q of the status approves nothing", name, approval)
			}
		}
	}
}

func TestBlockedRestartNamesTheAnnotationThatAcceptsIt(t *testing.T) {
	m := viewPod("c-1", restartedPod("true"), "new", "")
	seen := observed{members: []memberView{m}, sts: &appsv1.StatefulSet{Status: appsv1.StatefulSetStatus{UpdateRevision: "new"}}}
	out := decided{roll: rollDecision{rollWait, "c-1", reasonQuorumCritical}}
	out.status.Rollout = &posthornv1.RolloutStatus{Queues: []string{"/ q"}}
	if got, want := out.rollBlockedMessage(&seen), names.AnnotationAcceptUnavailable+"=uid-1/c-1"; !strings.Contains(got, want) {
		t.Errorf("%q lacks %q", got, want)
	}
}
