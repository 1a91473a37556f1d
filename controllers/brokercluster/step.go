// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// balancedForNone is the value of status.balancedFor once a roll has begun: leaders leave a node that is replaced, and do
// not return by themselves.
const balancedForNone = -1

// stepStateOf collects the input of decideStep.
func (out *decided) stepStateOf(in *inputs, seen *observed, d rollDecision) stepState {
	revision := seen.updateRevision()
	approval := in.cluster.Annotations[names.AnnotationApprove]
	wanted := seen.approvalOf(d.Pod)
	whole, _, _ := strings.Cut(wanted, "/")
	return stepState{
		Supervised: in.cluster.Spec.Upgrade.Mode == posthornv1.UpgradeSupervised,
		Approved:   approval != "" && (approval == wanted || approval == whole),
		TimedOut:   out.hasTimedOut(in, seen, revision),
	}
}

// approvalOf returns the value of the annotations that approve the replacement of a pod.
func (seen *observed) approvalOf(name string) string {
	if m := seen.member(name); m != nil && m.pod != nil {
		return approvalOf(m.pod, seen.updateRevision())
	}
	return seen.updateRevision() + "/" + name
}

// hasTimedOut reports whether a step of the roll to a revision has taken too long. Once one has, the rest of this roll
// counts as timed out.
func (out *decided) hasTimedOut(in *inputs, seen *observed, revision string) bool {
	before := in.cluster.Status.Rollout
	upgrade := &in.cluster.Spec.Upgrade
	if before == nil || before.TargetRevision != revision || upgrade.OnTimeout != posthornv1.OnTimeoutPause || upgrade.StepTimeout == nil || upgrade.StepTimeout.Duration <= 0 {
		return false
	}
	limit := upgrade.StepTimeout.Duration
	if before.TimedOut {
		return true
	}
	if before.Step == "" || before.StepSince == nil {
		return false
	}
	if m := seen.member(before.Step); m != nil && m.Ready && m.Current {
		return false
	}
	left := before.StepSince.Add(limit).Sub(in.now)
	if left > 0 {
		out.requeueWithin(left + time.Second)
		return false
	}
	out.warnOfChange("StepTimeout", "Roll", "replacing %s takes longer than %s: the roll stops; approve it to continue, or change the spec", before.Step, limit)
	return true
}

// setRollout keeps status.rollout from the first outdated pod until the last new one is ready.
func (out *decided) setRollout(in *inputs, seen *observed, counts memberCounts) {
	status := &out.status
	before := status.Rollout
	if out.roll.Action == rollDone || (!counts.hasOutdated && before == nil) {
		status.Rollout = nil
		return
	}
	now := metav1.NewTime(in.now)
	rollout := &posthornv1.RolloutStatus{
		WaitingFor: out.roll.Pod, Reason: out.roll.Reason, Since: &now, TargetRevision: seen.updateRevision(),
	}
	if before != nil && before.WaitingFor == rollout.WaitingFor && before.Reason == rollout.Reason {
		rollout.Since = before.Since
	}
	out.setStep(in, rollout, before, seen.approvalOf(out.roll.Pod))
	if rollout.Step != "" && status.BalancedFor != 0 {
		status.BalancedFor = balancedForNone
	}
	if m := seen.member(out.roll.Pod); m != nil {
		for _, queue := range m.queues {
			if len(rollout.Queues) < maxNamedQueues {
				rollout.Queues = append(rollout.Queues, queueName(queue.Vhost, queue.Name))
			}
		}
	}
	status.Rollout = rollout
}

// setStep records the pod whose replacement is in progress and since when, across the reconciliations of one roll.
// approval is the value that approves the replacement of the pod that the roll waits for.
func (out *decided) setStep(in *inputs, rollout, before *posthornv1.RolloutStatus, approval string) {
	if before != nil && before.TargetRevision == rollout.TargetRevision {
		rollout.Step, rollout.StepSince, rollout.TimedOut = before.Step, before.StepSince, before.TimedOut || out.step.TimedOut
	}
	// The status that recorded the start of a drain may not have been written.
	isUnderWay := out.roll.Action == rollDrain || out.roll.Action == rollReplace || out.roll.Reason == reasonDraining
	if isUnderWay && rollout.Step != out.roll.Pod {
		now := metav1.NewTime(in.now)
		rollout.Step, rollout.StepSince = out.roll.Pod, &now
	}
	if out.roll.Reason == reasonApprovalNeeded || out.roll.Reason == reasonStepTimeout {
		rollout.Approve = approval
	}
}

// rollBlockedMessage names the pod that the roll waits for and, where a person can let the roll continue, how.
func (out *decided) rollBlockedMessage(seen *observed) string {
	message := "waiting for " + out.roll.Pod + seen.troubleOf(out.roll.Pod)
	rollout := out.status.Rollout
	if out.roll.Reason != reasonQuorumCritical || rollout == nil {
		return message
	}
	return fmt.Sprintf("%s: queues lose their majority without it: %s; give them more members, or accept that they are unavailable until the new "+
		"pod is ready with the annotation %s=%s", message, strings.Join(rollout.Queues, ", "), names.AnnotationAcceptUnavailable,
		seen.approvalOf(out.roll.Pod))
}
