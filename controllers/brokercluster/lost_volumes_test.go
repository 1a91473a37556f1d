// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// withVolumes returns three nodes, of which the given ones run on a machine with a volume and are ready or not.
func withVolumes(in *inputs, volumes [3]string, ready [3]bool) *observed {
	seen := &observed{}
	for i, volume := range volumes {
		name := in.podName(int32(i))
		pod := podOn("w"+name[2:], corev1.ConditionTrue)
		if !ready[i] {
			for j := range pod.Status.Conditions {
				pod.Status.Conditions[j].Status = corev1.ConditionFalse
			}
		}
		if volume != "" {
			seen.claims = append(seen.claims, corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: "data-" + name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume},
				Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
			})
		}
		m := viewPod(name, pod, "new", "")
		m.machine = in.lastMachine(&m)
		m.claim, m.lastReady = seen.claimOf(name), in.lastReady(&m)
		seen.members = append(seen.members, m)
	}
	return seen
}

func TestMajorityWithoutItsVolumesIsNamed(t *testing.T) {
	all, first := [3]bool{true, true, true}, [3]bool{true, false, false}
	for name, row := range map[string]struct {
		volumes [3]string
		ready   [3]bool
		want    string
	}{
		"all ready":                   {[3]string{"a", "b", "c"}, all, ""},
		"volumes as before":           {[3]string{"a", "b", "c"}, [3]bool{}, ""},
		"one volume is new":           {[3]string{"a", "b", "d"}, first, ""},
		"ready with new volumes":      {[3]string{"a", "d", "e"}, all, ""},
		"two volumes are new":         {[3]string{"a", "d", "e"}, first, "2 of 3 nodes no longer have the volumes with which they were last ready: c-1 (volume b on machine w1), c-2 (volume c on machine w2). "},
		"one is new, one is missing":  {[3]string{"a", "", "e"}, first, "2 of 3 nodes no longer have the volumes with which they were last ready: c-1 (volume b on machine w1), c-2 (volume c on machine w2). "},
		"all are new":                 {[3]string{"d", "e", "f"}, [3]bool{}, "3 of 3 nodes no longer"},
		"two are new, and one of all": {[3]string{"a", "d", "e"}, [3]bool{false, true, false}, ""},
	} {
		in := inputs{cluster: testCluster(), now: time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)}
		decide := func(seen *observed) *decided {
			out := &decided{sizes: sizes{Nodes: 3, Pods: 3}}
			out.decideStatus(&in, seen, failure{})
			in.cluster.Status = out.status
			return out
		}
		decide(withVolumes(&in, [3]string{"a", "b", "c"}, all))
		out := decide(withVolumes(&in, row.volumes, row.ready))
		for _, kind := range []string{posthornv1.ConditionReady, posthornv1.ConditionAvailable} {
			found := meta.FindStatusCondition(out.status.Conditions, kind)
			if is := found.Reason == reasonMajorityLost; is != (row.want != "") || is && !strings.Contains(found.Message, row.want) {
				t.Errorf("%s: %s is %s %s: %s", name, kind, found.Status, found.Reason, found.Message)
			}
		}
		if stalled := meta.IsStatusConditionTrue(out.status.Conditions, posthornv1.ConditionStalled); stalled != (row.want != "") {
			t.Errorf("%s: Stalled is %v", name, stalled)
		}
		events := len(out.events)
		if again := decide(withVolumes(&in, row.volumes, row.ready)); row.want != "" && (events != 1 || len(again.events) != 0) {
			t.Errorf("%s: %+v, then %+v", name, out.events, again.events)
		}
	}
}

func TestClaimOfTheNextPodIsNotThatOfAReadyPod(t *testing.T) {
	pod := podOn("w0", corev1.ConditionTrue)
	since := condition(pod, corev1.PodReady).LastTransitionTime
	before := &posthornv1.MemberPlacement{Volume: "a", Machine: "w0"}
	for _, row := range []struct {
		created metav1.Time
		want    string
	}{{metav1.NewTime(since.Add(-time.Minute)), "b"}, {since, "b"}, {metav1.NewTime(since.Add(time.Second)), "a"}} {
		m := viewPod("c-0", pod, "new", "")
		m.lastReady, m.machine = before, "w0"
		m.claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: row.created}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "b"}}
		if got := m.placement().Volume; got != row.want {
			t.Errorf("claim of %s, ready since %s: volume %s", row.created, since, got)
		}
	}
}

func TestVolumesMayChangeDuringHibernation(t *testing.T) {
	in := inputs{cluster: testCluster()}
	in.cluster.Status.Members = []posthornv1.MemberStatus{{Name: "c-0", LastReady: &posthornv1.MemberPlacement{Volume: "a"}}}
	m := &memberView{rollMember: rollMember{Name: "c-0"}, claim: &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "b"}}}
	if m.lastReady = in.lastReady(m); !m.hasLostVolume() {
		t.Error("the volume of a cluster that is not hibernated was replaced")
	}
	in.cluster.Spec.Hibernated = true
	if m.lastReady = in.lastReady(m); m.hasLostVolume() || m.placement() != nil {
		t.Errorf("restored volumes count as lost: %+v", m.lastReady)
	}
}
