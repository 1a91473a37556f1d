// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// verdict is what the condition Ready says.
type verdict struct {
	value           metav1.ConditionStatus
	reason, message string
	// stalled: nothing but a change of the object or its surroundings helps.
	stalled bool
}

// lifecycleVerdict is the verdict about a cluster that sleeps, or whose settings, version, size or volumes
// are not what the spec asks for; false when it is none of these.
func (s *scope) lifecycleVerdict() (verdict, bool) {
	scaling := s.cluster.Status.Scaling
	switch {
	case s.cluster.Spec.Hibernated && s.pods > 0:
		return verdict{metav1.ConditionFalse, "Hibernating", fmt.Sprintf("%d pods are still there", s.pods), false}, true
	case s.cluster.Spec.Hibernated:
		return verdict{metav1.ConditionTrue, "Hibernated", fmt.Sprintf("%d nodes sleep; their volumes are kept", s.sizes.Nodes), false}, true
	case s.credentialsRefused():
		return verdict{metav1.ConditionFalse, "CredentialsRefused", fmt.Sprintf("the broker refuses the default user's password that Secret %s has: somebody changed it in the broker; write the password that the broker takes into key password of Secret %s",
			names.OperatorSecret(s.cluster.Name), names.DefaultUserSecret(s.cluster.Name)), true}, true
	case s.invalidConfig != "":
		return verdict{metav1.ConditionFalse, reasonInvalidConfig, s.invalidConfig, true}, true
	case s.refusal.reason != "":
		return verdict{metav1.ConditionFalse, s.refusal.reason, s.refusal.message, true}, true
	case s.sizes.Blocked != "":
		return verdict{metav1.ConditionFalse, "VolumeRetained", s.blockedMessage(), true}, true
	case s.volumes.refused != "":
		return verdict{metav1.ConditionFalse, "ExpansionRefused", s.volumes.refused, true}, true
	case s.bootstrapping != "":
		return verdict{metav1.ConditionFalse, "DefinitionsNotImported", s.bootstrapping, true}, true
	case scaling == nil:
		return verdict{}, false
	}
	message := strings.TrimSuffix(fmt.Sprintf("removing %s: %s: %s", scaling.Removing, scaling.Reason, scaling.Message), ": ")
	switch scaling.Reason {
	case reasonScaleDownDenied, reasonQueuesNeedNodes, reasonUnmovableQueues:
		return verdict{metav1.ConditionFalse, "ScaleDownBlocked", message, true}, true
	case reasonRollFirst:
		return verdict{}, false
	}
	return verdict{metav1.ConditionFalse, "ScalingDown", message, false}, true
}

// credentialsRefused says whether a node that serves refuses the operator's credentials.
func (s *scope) credentialsRefused() bool {
	return slices.ContainsFunc(s.members, func(m memberView) bool { return m.Ready && m.unauthorized })
}

func (s *scope) blockedMessage() string {
	return fmt.Sprintf("volume %s belongs to a node that was removed and cannot come back; delete it to have %d nodes", s.sizes.Blocked, s.cluster.Spec.Replicas)
}

// total is how many nodes there are to be for now.
func (s *scope) total() int32 {
	if s.sizes.Nodes > 0 {
		return s.sizes.Nodes
	}
	return s.cluster.Spec.Replicas
}

// setStorage is the condition StorageReady.
func (s *scope) setStorage() {
	set := func(value metav1.ConditionStatus, reason, message string) {
		s.set(posthornv1.ConditionStorageReady, value, reason, message)
	}
	switch {
	case s.members == nil:
		set(metav1.ConditionUnknown, "NotObserved", "the volumes could not be listed")
	case s.sizes.Blocked != "":
		set(metav1.ConditionFalse, "VolumeRetained", s.blockedMessage())
	case s.volumes.refused != "":
		set(metav1.ConditionFalse, "ExpansionRefused", s.volumes.refused)
	case s.storage != "":
		set(metav1.ConditionFalse, "NotBound", "not bound: "+s.storage)
	case len(s.volumes.growing) > 0:
		set(metav1.ConditionFalse, "Expanding", "growing: "+strings.Join(s.volumes.growing, ", "))
	default:
		set(metav1.ConditionTrue, "Bound", "every node has its volume")
	}
}
