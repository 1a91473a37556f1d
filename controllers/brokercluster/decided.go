// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// decided is what a reconciliation decides. Only Reconcile writes it to the API server: the Events and the status.
type decided struct {
	// image and version that the pods are to run.
	image, version string
	// refusal is why the version of the spec is not run; the zero value when it is.
	refusal versionRefusal
	// protocols that clients may use.
	protocols []posthornv1.Protocol
	// restartedAt is the value of AnnotationRestartedAt that the pods are to have; empty before the first restart.
	restartedAt string
	// sizes are the numbers of nodes and pods.
	sizes sizes
	// access is how nodes are reached.
	access access
	// held is why the StatefulSet is not brought to the spec; nil when it is.
	held *finding
	// invalidConfig is why the broker refuses spec.config; empty when it accepts it.
	invalidConfig string
	// revision is how the wanted settings reach the nodes; empty when the reconciliation did not get that far.
	revision revisionDecision
	// pendingRestart and pendingReload are keys of settings that not all nodes have, and reloadFailure is why a node did not
	// load them.
	pendingRestart, pendingReload []string
	reloadFailure                 string
	// roll is the next step of replacing pods; the zero value when the reconciliation did not get that far.
	roll rollDecision
	// step is what people have approved, and whether the step of the roll took too long.
	step stepState
	// scale is the next step of removing a node; the zero value when the reconciliation did not get that far.
	scale scaleDecision
	// recovery is what was decided and done about a lost majority; the zero value when the reconciliation did not get that far.
	recovery recoveryOutcome
	// binding is the Secret of the default user; nil when it was not written.
	binding *posthornv1.BindingReference
	// balancedFor is the number of nodes over which leaders were spread; 0 when the previous number holds.
	balancedFor int32
	// featureFlags is the state of the feature flags; nil when the previous state holds.
	featureFlags *posthornv1.FeatureFlagsStatus
	// status of the object, which decideStatus fills from all of the above.
	status posthornv1.BrokerClusterStatus
	// events in the order in which they happened.
	events []event
	// requeue is the longest time until the next reconciliation; 0 stands for the resync period.
	requeue time.Duration
}

// event to be recorded on the BrokerCluster.
type event struct {
	kind, reason, action, message string
	// isOfStatus: the event is about a change of the status, and recorded only with it.
	isOfStatus bool
}

// warn adds an Event of type Warning.
func (out *decided) warn(reason, action, format string, args ...any) {
	out.events = append(out.events, event{corev1.EventTypeWarning, reason, action, fmt.Sprintf(format, args...), false})
}

// warnOfChange adds an Event of type Warning about a change of the status. Without the write of the status, the next
// reconciliation would find the same change again.
func (out *decided) warnOfChange(reason, action, format string, args ...any) {
	out.events = append(out.events, event{corev1.EventTypeWarning, reason, action, fmt.Sprintf(format, args...), true})
}

// note adds an Event of type Normal.
func (out *decided) note(reason, action, format string, args ...any) {
	out.events = append(out.events, event{corev1.EventTypeNormal, reason, action, fmt.Sprintf(format, args...), false})
}

// noteOfChange adds an Event of type Normal about a change of the status.
func (out *decided) noteOfChange(reason, action, format string, args ...any) {
	out.events = append(out.events, event{corev1.EventTypeNormal, reason, action, fmt.Sprintf(format, args...), true})
}

// requeueWithin makes the next reconciliation come no later than after d.
func (out *decided) requeueWithin(d time.Duration) {
	if out.requeue == 0 || d < out.requeue {
		out.requeue = d
	}
}

// templateInputs returns the inputs of the pod template.
func (out *decided) templateInputs(in *inputs) templateInputs {
	inputs := inputsOf(in.cluster, out.image, out.protocols)
	inputs.RestartedAt = out.restartedAt
	return inputs
}

// nodes returns the number of nodes that the cluster is to have for now.
func (out *decided) nodes(in *inputs) int32 {
	if out.sizes.Nodes > 0 {
		return out.sizes.Nodes
	}
	return in.cluster.Spec.Replicas
}

// isSettled reports whether every node is ready and has the wanted revision.
func (out *decided) isSettled(in *inputs, seen *observed) bool {
	counts, n := seen.count(), len(seen.members)
	return out.held == nil && seen.sts != nil && n > 0 && counts.ready == n && counts.current == n && out.roll.Action == rollDone &&
		n == int(in.cluster.Spec.Replicas) && !in.cluster.Spec.Hibernated && seen.strayNode == ""
}

// isComplete reports whether the cluster is as the spec says.
func (out *decided) isComplete(in *inputs, seen *observed) bool {
	return out.isSettled(in, seen) && out.refusal.reason == "" && out.invalidConfig == "" && seen.importFailure == "" && seen.restore.reason == "" && len(out.pendingReload) == 0 &&
		!out.hasPendingChanges(in, seen)
}
