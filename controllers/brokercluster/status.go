// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// maxNamedQueues bounds status.rollout.queues.
const maxNamedQueues = 16

// tally is what the conditions are made from.
type tally struct {
	present, ready, current, critical, asked int
	outdated                                 bool
	trouble                                  []string
	// unbelieved nodes showed a certificate that is not believed.
	unbelieved []string
}

func (s *scope) tally() tally {
	var t tally
	for i := range s.members {
		m := &s.members[i]
		if m.Presence == podPresent {
			t.present++
		}
		if m.Ready {
			t.ready++
		}
		if m.Presence == podPresent && m.Current {
			t.current++
		}
		t.outdated = t.outdated || outdated(m.rollMember)
		if m.Health != healthUnknown {
			t.asked++
		}
		if m.Health == healthCritical {
			t.critical++
		}
		if m.unbelieved {
			t.unbelieved = append(t.unbelieved, m.Name)
		}
		if m.trouble != "" {
			t.trouble = append(t.trouble, m.Name+": "+m.trouble)
		}
	}
	return t
}

// isQuorumSafe says that each of n nodes has told that no queue needs it.
func (t tally) isQuorumSafe(n int) bool {
	return t.critical == 0 && len(t.unbelieved) == 0 && t.asked == n && n > 0
}

// settled says that every node there is to be is ready and of the wanted revision.
func (s *scope) settled(t tally) bool {
	n := len(s.members)
	return s.held == nil && s.sts != nil && n > 0 && t.ready == n && t.current == n && s.decision.Action == rollDone &&
		n == int(s.cluster.Spec.Replicas) && !s.cluster.Spec.Hibernated && s.leftover == ""
}

// complete says that the cluster is as the spec says.
func (s *scope) complete(t tally) bool {
	return s.settled(t) && s.refusal.reason == "" && s.invalidConfig == "" && s.bootstrapping == ""
}

// setStatus writes everything that the attempt found into the status; failure is why it ended early.
func (s *scope) setStatus(failure error) {
	status := &s.cluster.Status
	t := s.tally()
	status.ObservedGeneration = s.cluster.Generation
	status.Selector = labels.SelectorFromSet(names.Selector(s.cluster.Name)).String()
	if s.members != nil {
		status.Replicas, status.ReadyReplicas = int32(t.present), int32(t.ready)
		status.Members = s.memberStatuses()
		s.setRollout(t)
		s.setScaling()
	}
	if len(s.protocols) > 0 {
		status.Protocols = s.protocols
	}
	if s.version != "" {
		status.TargetVersion = s.version
	}
	complete := failure == nil && s.complete(t)
	if complete {
		status.CurrentVersion = status.TargetVersion
	}
	if !s.certificateEnd.IsZero() {
		status.Certificates = s.certificatesStatus()
	}
	status.Phase = s.phaseOf(complete)
	s.setConditions(t, complete, failure)
}

func (s *scope) phaseOf(complete bool) posthornv1.ClusterPhase {
	status := &s.cluster.Status
	switch {
	case s.cluster.Spec.Paused:
		return posthornv1.PhasePaused
	case s.cluster.Spec.Hibernated:
		return posthornv1.PhaseHibernated
	case complete:
		return posthornv1.PhaseReady
	case status.CurrentVersion == "":
		return posthornv1.PhaseCreating
	case status.Rollout != nil:
		return posthornv1.PhaseRolling
	case status.Scaling != nil:
		return posthornv1.PhaseScalingDown
	}
	return posthornv1.PhaseDegraded
}

func (s *scope) memberStatuses() []posthornv1.MemberStatus {
	out := make([]posthornv1.MemberStatus, 0, len(s.members))
	for i := range s.members {
		m := &s.members[i]
		status := posthornv1.MemberStatus{
			Name: m.Name, Version: m.version, State: memberState(m), QuorumCritical: m.Health == healthCritical,
		}
		if m.pod != nil {
			status.Zone = m.pod.Labels[names.LabelZone]
		}
		out = append(out, status)
	}
	return out
}

func memberState(m *memberView) string {
	switch {
	case m.Presence != podPresent || m.NotRunning:
		return posthornv1.MemberDown
	case m.drained || m.Drain != drainNone:
		return posthornv1.MemberDraining
	case m.Ready:
		return posthornv1.MemberRunning
	case m.NeverReady:
		return posthornv1.MemberJoining
	}
	return posthornv1.MemberDown
}

// setRollout keeps status.rollout from the first outdated pod until the last new one is ready.
func (s *scope) setRollout(t tally) {
	status := &s.cluster.Status
	before := status.Rollout
	if s.decision.Action == rollDone || (!t.outdated && before == nil) {
		status.Rollout = nil
		return
	}
	now := metav1.NewTime(s.Now())
	rollout := &posthornv1.RolloutStatus{
		WaitingFor: s.decision.Pod, Reason: s.decision.Reason, Since: &now,
	}
	if s.sts != nil {
		rollout.TargetRevision = s.sts.Status.UpdateRevision
	}
	if before != nil && before.WaitingFor == rollout.WaitingFor && before.Reason == rollout.Reason {
		rollout.Since = before.Since
	}
	s.setStep(rollout, before)
	if rollout.Step != "" && status.BalancedFor != 0 {
		// Leaders leave a node that is replaced and do not come back by themselves.
		status.BalancedFor = rolled
	}
	for i := range s.members {
		if s.members[i].Name != s.decision.Pod {
			continue
		}
		for _, queue := range s.members[i].queues {
			if len(rollout.Queues) < maxNamedQueues {
				rollout.Queues = append(rollout.Queues, strings.TrimPrefix(queue.Vhost, "/")+"/"+queue.Name)
			}
		}
	}
	status.Rollout = rollout
}

func (s *scope) set(kind string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&s.cluster.Status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: message, ObservedGeneration: s.cluster.Generation,
	})
}

func truth(value bool) metav1.ConditionStatus {
	if value {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

func (s *scope) setConditions(t tally, complete bool, failure error) {
	n := len(s.members)
	count := fmt.Sprintf("%d of %d nodes ready", t.ready, s.total())
	if s.cluster.Spec.Paused {
		s.set(posthornv1.ConditionPaused, metav1.ConditionTrue, "Paused", "spec.paused is set: nothing is changed")
	} else {
		s.set(posthornv1.ConditionPaused, metav1.ConditionFalse, "NotPaused", "")
	}
	if s.cluster.Spec.Hibernated {
		s.set(posthornv1.ConditionAvailable, metav1.ConditionFalse, "Hibernated", "spec.hibernated is set: no node runs")
	} else if n > 0 && t.ready > n/2 {
		s.set(posthornv1.ConditionAvailable, metav1.ConditionTrue, "MajorityReady", count)
	} else {
		s.set(posthornv1.ConditionAvailable, metav1.ConditionFalse, "NoMajority", strings.Join(append([]string{count}, t.trouble...), "; "))
	}
	s.setReady(t, complete, count, failure)
	s.setProgressing(complete, count, failure)
	s.setQuorumSafe(t)
	s.setQueuesLost()
	s.setSpread()
	s.setBlocked(t)
	s.setMaterial()
}

func (s *scope) setReady(t tally, complete bool, count string, failure error) {
	stalled, isStalled := isTerminal(failure)
	if isStalled {
		s.set(posthornv1.ConditionReady, metav1.ConditionFalse, stalled.reason, failure.Error())
		s.set(posthornv1.ConditionStalled, metav1.ConditionTrue, stalled.reason, failure.Error())
		return
	}
	found, is := s.lifecycleVerdict()
	is = is && failure == nil
	if is && found.stalled {
		s.set(posthornv1.ConditionStalled, metav1.ConditionTrue, found.reason, found.message)
	} else {
		meta.RemoveStatusCondition(&s.cluster.Status.Conditions, posthornv1.ConditionStalled)
	}
	if is {
		s.set(posthornv1.ConditionReady, found.value, found.reason, found.message)
		return
	}
	message := strings.Join(append([]string{count}, t.trouble...), "; ")
	switch {
	case failure != nil:
		s.set(posthornv1.ConditionReady, metav1.ConditionFalse, "ReconcileFailed", failure.Error())
	case s.held != nil:
		s.set(posthornv1.ConditionReady, metav1.ConditionFalse, s.held.reason, s.held.message)
	case complete:
		s.set(posthornv1.ConditionReady, metav1.ConditionTrue, "AllNodesReady", count)
	case s.cluster.Status.Rollout != nil:
		r := s.cluster.Status.Rollout
		s.set(posthornv1.ConditionReady, metav1.ConditionFalse, "Rolling", strings.TrimSpace(fmt.Sprintf("%s; %s %s", message, r.Reason, r.WaitingFor)))
	case s.cluster.Status.CurrentVersion == "":
		s.set(posthornv1.ConditionReady, metav1.ConditionFalse, "Creating", message)
	default:
		s.set(posthornv1.ConditionReady, metav1.ConditionFalse, "NodesNotReady", message)
	}
}

func (s *scope) setProgressing(complete bool, count string, failure error) {
	switch {
	case failure != nil:
		s.set(posthornv1.ConditionProgressing, metav1.ConditionFalse, "ReconcileFailed", failure.Error())
	case s.cluster.Spec.Paused:
		s.set(posthornv1.ConditionProgressing, metav1.ConditionFalse, "Paused", "")
	case s.cluster.Spec.Hibernated:
		s.set(posthornv1.ConditionProgressing, metav1.ConditionFalse, "Hibernated", "")
	case s.held != nil:
		s.set(posthornv1.ConditionProgressing, metav1.ConditionTrue, s.held.reason, s.held.message)
	case complete:
		s.set(posthornv1.ConditionProgressing, metav1.ConditionFalse, "Complete", count)
	case s.cluster.Status.Rollout != nil:
		r := s.cluster.Status.Rollout
		s.set(posthornv1.ConditionProgressing, metav1.ConditionTrue, "Rolling", strings.TrimSpace(r.Reason+" "+r.WaitingFor))
	default:
		s.set(posthornv1.ConditionProgressing, metav1.ConditionTrue, "WaitingForNodes", count)
	}
}

func (s *scope) setQuorumSafe(t tally) {
	switch {
	case t.critical > 0:
		s.set(posthornv1.ConditionQuorumSafe, metav1.ConditionFalse, "QuorumCritical", fmt.Sprintf("%d nodes hold queues that would lose their majority without them", t.critical))
	case len(t.unbelieved) > 0:
		s.set(posthornv1.ConditionQuorumSafe, metav1.ConditionUnknown, "CertificateNotBelieved",
			"the certificate that the node shows is not believed, it has ended or is another than the Secret's: "+strings.Join(t.unbelieved, ", "))
	case !t.isQuorumSafe(len(s.members)):
		s.set(posthornv1.ConditionQuorumSafe, metav1.ConditionUnknown, "HealthUnknown", fmt.Sprintf("%d of %d nodes answered", t.asked, len(s.members)))
	default:
		s.set(posthornv1.ConditionQuorumSafe, metav1.ConditionTrue, "Safe", "any one node may go")
	}
}

// setBlocked tells a roll that waits for trouble to pass from one that just takes its time.
func (s *scope) setBlocked(t tally) {
	if s.refusal.reason != "" {
		s.set(posthornv1.ConditionUpgradeBlocked, metav1.ConditionTrue, s.refusal.reason, s.refusal.message)
		return
	}
	blocked := false
	switch s.decision.Reason {
	case reasonQuorumCritical, reasonRevisionFails, reasonHealthUnknown, reasonDrainUnknown, reasonApprovalNeeded, reasonStepTimeout:
		blocked = true
	case reasonMemberNotReady:
		for i := range s.members {
			m := &s.members[i]
			blocked = blocked || (m.Name == s.decision.Pod && (m.NotRunning || !m.NeverReady))
		}
	}
	if blocked && t.outdated {
		message := s.rollBlockedMessage()
		before := meta.FindStatusCondition(s.cluster.Status.Conditions, posthornv1.ConditionUpgradeBlocked)
		if s.decision.Reason == reasonQuorumCritical && (before == nil || before.Message != message) {
			s.event(corev1.EventTypeWarning, "RollBlocked", "Roll", "%s", message)
		}
		s.set(posthornv1.ConditionUpgradeBlocked, metav1.ConditionTrue, s.decision.Reason, message)
		return
	}
	s.set(posthornv1.ConditionUpgradeBlocked, metav1.ConditionFalse, "NotBlocked", "")
}

// setMaterial is the conditions about what the pods need.
func (s *scope) setMaterial() {
	if s.serving.looked || s.cluster.Status.Certificates == nil {
		// Where they were not looked at, in a pause or after a failure, what was known stays.
		found := s.certificatesFinding()
		s.set(posthornv1.ConditionCertificatesReady, truth(found.usable), found.reason, found.message)
	}
	switch {
	case s.cluster.Spec.Monitoring.ServiceMonitor == posthornv1.MonitorOff:
		meta.RemoveStatusCondition(&s.cluster.Status.Conditions, posthornv1.ConditionMonitoringReady)
	case s.monitoring.reason != "":
		s.set(posthornv1.ConditionMonitoringReady, truth(s.monitoring.usable), s.monitoring.reason, s.monitoring.message)
	}
	s.setStorage()
}
