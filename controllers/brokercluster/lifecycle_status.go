// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// readyCondition is the content of the condition Ready.
type readyCondition struct {
	value           metav1.ConditionStatus
	reason, message string
	// stalled: only a change of the object or of its environment helps.
	stalled bool
}

// lifecycleCondition returns the condition Ready of a cluster that is hibernated or has lost most of its volumes, or whose
// settings, version, size or volumes cannot be what the spec asks for; false when none of these applies.
func (out *decided) lifecycleCondition(in *inputs, seen *observed) (readyCondition, bool) {
	scaling, pods := out.status.Scaling, len(seen.pods)
	stalled := func(reason, message string) (readyCondition, bool) {
		return readyCondition{metav1.ConditionFalse, reason, message, true}, true
	}
	switch {
	case in.cluster.Spec.Hibernated && pods > 0:
		return readyCondition{metav1.ConditionFalse, "Hibernating", fmt.Sprintf("%d pods still exist", pods), false}, true
	case in.cluster.Spec.Hibernated:
		return readyCondition{metav1.ConditionTrue, "Hibernated", fmt.Sprintf("%d nodes are hibernated; their volumes are kept", out.sizes.Nodes), false}, true
	case seen.refusesCredentials():
		return stalled("CredentialsRefused", fmt.Sprintf("the broker refuses the default user's password in Secret %s: somebody changed it in the broker; write the password that the broker accepts into key password of Secret %s",
			names.OperatorSecret(in.cluster.Name), names.DefaultUserSecret(in.cluster.Name)))
	case seen.describeLostMajority() != "" || out.recovery.holdsReady():
		return out.lostMajorityCondition(seen), true
	case out.invalidConfig != "":
		return stalled(reasonInvalidConfig, out.invalidConfig)
	case out.refusal.reason != "":
		return stalled(out.refusal.reason, out.refusal.message)
	case out.sizes.Blocked != "":
		return stalled("VolumeRetained", out.volumeRetainedMessage(in))
	case seen.volumes.refused != "":
		return stalled("ExpansionRefused", seen.volumes.refused)
	case seen.importFailure != "":
		return stalled("DefinitionsNotImported", seen.importFailure)
	case seen.restore.reason != "":
		return readyCondition{metav1.ConditionFalse, seen.restore.reason, seen.restore.message, seen.restore.stalled}, true
	case scaling == nil:
		return readyCondition{}, false
	}
	message := strings.TrimSuffix(fmt.Sprintf("removing %s: %s: %s", scaling.Removing, scaling.Reason, scaling.Message), ": ")
	switch scaling.Reason {
	case reasonScaleDownDenied, reasonQueuesNeedNodes, reasonUnmovableQueues:
		return stalled("ScaleDownBlocked", message)
	case reasonRollFirst:
		return readyCondition{}, false
	}
	return readyCondition{metav1.ConditionFalse, "ScalingDown", message, false}, true
}

func (out *decided) volumeRetainedMessage(in *inputs) string {
	return fmt.Sprintf("volume %s belongs to a node that was removed and cannot join again; delete it to have %d nodes", out.sizes.Blocked, in.cluster.Spec.Replicas)
}

func (out *decided) setStorageReady(in *inputs, seen *observed) {
	set := func(value metav1.ConditionStatus, reason, message string) {
		out.setCondition(in, posthornv1.ConditionStorageReady, value, reason, message)
	}
	unbound := seen.unboundClaims()
	switch {
	case seen.members == nil:
		set(metav1.ConditionUnknown, "NotObserved", "the volumes could not be listed")
	case out.sizes.Blocked != "":
		set(metav1.ConditionFalse, "VolumeRetained", out.volumeRetainedMessage(in))
	case seen.volumes.refused != "":
		set(metav1.ConditionFalse, "ExpansionRefused", seen.volumes.refused)
	case len(unbound) > 0:
		set(metav1.ConditionFalse, "NotBound", "not bound: "+strings.Join(unbound, ", "))
	case len(seen.volumes.growing) > 0:
		set(metav1.ConditionFalse, "Expanding", "growing: "+strings.Join(seen.volumes.growing, ", "))
	default:
		set(metav1.ConditionTrue, "Bound", "every node has its volume")
	}
}
