// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// rolled is the value of status.balancedFor after a roll has begun.
const rolled = -1

// stepOf collects what decideStep decides from.
func (s *scope) stepOf(d rollDecision) stepState {
	revision := ""
	if s.sts != nil {
		revision = s.sts.Status.UpdateRevision
	}
	approval := s.cluster.Annotations[names.AnnotationApprove]
	return stepState{
		Supervised: s.cluster.Spec.Upgrade.Mode == posthornv1.UpgradeSupervised,
		Approved:   approval != "" && (approval == revision || approval == revision+"/"+d.Pod),
		TimedOut:   s.timedOut(revision),
	}
}

// timedOut says whether a step of the roll to a revision has taken too long. Once it has, it has for
// the rest of this roll.
func (s *scope) timedOut(revision string) bool {
	before := s.cluster.Status.Rollout
	upgrade := &s.cluster.Spec.Upgrade
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
	for i := range s.members {
		if m := &s.members[i]; m.Name == before.Step && m.Ready && m.Current {
			return false
		}
	}
	left := before.StepSince.Add(limit).Sub(s.Now())
	if left > 0 {
		s.lookAgain(left + time.Second)
		return false
	}
	s.event(corev1.EventTypeWarning, "StepTimeout", "Roll", "replacing %s takes longer than %s: the roll stops; approve it to go on, or change the spec", before.Step, limit)
	return true
}

// setStep keeps which pod's replacement goes on and since when, over the attempts of one roll.
func (s *scope) setStep(rollout, before *posthornv1.RolloutStatus) {
	if before != nil && before.TargetRevision == rollout.TargetRevision {
		rollout.Step, rollout.StepSince, rollout.TimedOut = before.Step, before.StepSince, before.TimedOut || s.step.TimedOut
	}
	// A drain that goes on may be news: the status that told of its start may not have been written.
	goesOn := s.decision.Action == rollDrain || s.decision.Action == rollReplace || s.decision.Reason == reasonDraining
	if goesOn && rollout.Step != s.decision.Pod {
		now := metav1.NewTime(s.Now())
		rollout.Step, rollout.StepSince = s.decision.Pod, &now
	}
	if s.decision.Reason == reasonApprovalNeeded || s.decision.Reason == reasonStepTimeout {
		rollout.Approve = rollout.TargetRevision + "/" + s.decision.Pod
	}
}

// rollBlockedMessage says what the roll waits for and, where a person can let it go on, how.
func (s *scope) rollBlockedMessage() string {
	message := "waiting for " + s.decision.Pod
	rollout := s.cluster.Status.Rollout
	if s.decision.Reason != reasonQuorumCritical || rollout == nil {
		return message
	}
	return fmt.Sprintf("%s: queues lose their majority without it: %s; give them more members, or accept that they are unavailable until the new "+
		"pod is ready with the annotation %s=%s/%s", message, strings.Join(rollout.Queues, ", "), names.AnnotationAcceptUnavailable,
		rollout.TargetRevision, s.decision.Pod)
}
