// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// Reasons of Ready and Available when too few nodes have their data for a majority, and while the others recover.
const (
	reasonMajorityLost       = "MajorityLost"
	reasonRecoveringMajority = "RecoveringMajority"
)

// claimOf returns the claim of a node if it is bound; nil otherwise.
func (seen *observed) claimOf(node string) *corev1.PersistentVolumeClaim {
	for i := range seen.claims {
		if claim := &seen.claims[i]; claim.Name == dataVolume+"-"+node && claim.Status.Phase == corev1.ClaimBound {
			return claim
		}
	}
	return nil
}

// lastReady returns where a node was last ready; nil when that is unknown. While no pod of a hibernated cluster exists,
// its volumes may be replaced by restored ones.
func (in *inputs) lastReady(m *memberView) *posthornv1.MemberPlacement {
	if in.cluster.Spec.Hibernated && m.pod == nil {
		return nil
	}
	for _, before := range in.cluster.Status.Members {
		if before.Name == m.Name {
			return before.LastReady
		}
	}
	return nil
}

// placement returns where a node is ready, or was last ready. A claim that is newer than the readiness of the pod is that of
// the next pod, which the operator does not see yet.
func (m *memberView) placement() *posthornv1.MemberPlacement {
	if !m.Ready || m.claim == nil || condition(m.pod, corev1.PodReady).LastTransitionTime.Before(&m.claim.CreationTimestamp) {
		return m.lastReady
	}
	return &posthornv1.MemberPlacement{Volume: m.claim.Spec.VolumeName, Machine: m.machine}
}

// hasLostVolume reports whether a node that is not ready has another volume than before, or none.
func (m *memberView) hasLostVolume() bool {
	return !m.Ready && m.lastReady != nil && (m.claim == nil || m.claim.Spec.VolumeName != m.lastReady.Volume)
}

func (m *memberView) isUnschedulable() bool {
	return strings.HasPrefix(m.trouble, troubleUnschedulable+": ")
}

// describeLostMajority names the nodes, volumes and machines without which the others are no majority; empty while enough
// nodes have their volumes.
func (seen *observed) describeLostMajority() string {
	var lost []string
	for i := range seen.members {
		m := &seen.members[i]
		if !m.hasLostVolume() {
			continue
		}
		place := "volume " + m.lastReady.Volume
		if m.lastReady.Machine != "" {
			place += " on machine " + m.lastReady.Machine
		}
		lost = append(lost, fmt.Sprintf("%s (%s)", m.Name, place))
	}
	n := len(seen.members)
	if n == 0 || n-len(lost) > n/2 {
		return ""
	}
	effect, remedy := "the other nodes are no majority and cannot continue", "set spec.majorityRecovery to continue with the copies of the other nodes"
	if len(lost) == n {
		effect, remedy = "no node has its data any more", "start a new cluster"
	}
	return fmt.Sprintf("%d of %d nodes no longer have the volumes with which they were last ready: %s. Therefore %s, and messages on these "+
		"volumes are lost. Bind these volumes again if they still exist; otherwise %s", len(lost), n, strings.Join(lost, ", "), effect, remedy)
}

// lostMajorityCondition returns the condition Ready of a cluster that lost its majority, or that recovers from that.
func (out *decided) lostMajorityCondition(seen *observed) readyCondition {
	message := seen.describeLostMajority()
	switch recovery := &out.recovery; {
	case recovery.isInProgress():
		message = strings.TrimSuffix(recovery.Reason+": "+recovery.Message, ": ")
		return readyCondition{metav1.ConditionFalse, reasonRecoveringMajority, message, false}
	case recovery.Action == recoveryRefuse, recovery.Action == recoveryWait:
		message += fmt.Sprintf(". spec.majorityRecovery is not carried out (%s): %s", recovery.Reason, recovery.Message)
	}
	return readyCondition{metav1.ConditionFalse, reasonMajorityLost, message, true}
}

// warnOfLostMajority adds an Event when too few nodes have their data for a majority. It must precede setConditions.
func (out *decided) warnOfLostMajority(in *inputs, seen *observed) {
	message := seen.describeLostMajority()
	before := meta.FindStatusCondition(in.cluster.Status.Conditions, posthornv1.ConditionAvailable)
	if message != "" && (before == nil || before.Reason != reasonMajorityLost && before.Reason != reasonRecoveringMajority) {
		out.warnOfChange(reasonMajorityLost, "Observe", "%s", message)
	}
}
