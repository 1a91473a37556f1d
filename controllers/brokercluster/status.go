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
	"posthorn.io/posthorn/internal/topology"
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
	return s.settled(t) && s.refusal.reason == "" && s.invalidConfig == "" && s.bootstrapping == "" && !s.pendingChanges()
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
		if failure == nil || s.decision.Action != "" {
			// An attempt that ended early knows nothing new about the roll.
			s.setRollout(t)
		}
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
	s.setConditions(t, complete, failure)
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
		Type: kind, Status: value, Reason: reason, Message: topology.OneLine(message), ObservedGeneration: s.cluster.Generation,
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
		s.set(posthornv1.ConditionPaused, metav1.ConditionFalse, "NotPaused", "the operator applies changes")
	}
	switch {
	case s.cluster.Spec.Hibernated:
		s.set(posthornv1.ConditionAvailable, metav1.ConditionFalse, "Hibernated", "spec.hibernated is set: no node runs")
	case n > 0 && t.ready > n/2:
		s.set(posthornv1.ConditionAvailable, metav1.ConditionTrue, "MajorityReady", count)
	default:
		s.set(posthornv1.ConditionAvailable, metav1.ConditionFalse, "NoMajority", strings.Join(append([]string{count}, t.trouble...), "; "))
	}
	s.setQuorumSafe(t)
	s.setQueuesLost()
	s.setSpread()
	s.setBlocked(t)
	s.setMaterial()
	s.setSummary(decideSummary(s.summaryFacts(t, complete, count, failure)))
}

// setSummary writes phase, Ready, Stalled and Progressing, which always tell the same story.
func (s *scope) setSummary(found summary) {
	s.cluster.Status.Phase = found.Phase
	s.set(posthornv1.ConditionReady, found.Ready.value, found.Ready.reason, found.Ready.message)
	s.set(posthornv1.ConditionProgressing, truth(found.Progressing), found.Ready.reason, found.Ready.message)
	if found.Ready.stalled {
		s.set(posthornv1.ConditionStalled, metav1.ConditionTrue, found.Ready.reason, found.Ready.message)
	} else {
		meta.RemoveStatusCondition(&s.cluster.Status.Conditions, posthornv1.ConditionStalled)
	}
}

// summaryFacts collects what decideSummary decides from.
func (s *scope) summaryFacts(t tally, complete bool, count string, failure error) summaryFacts {
	status := &s.cluster.Status
	facts := summaryFacts{
		Paused: s.cluster.Spec.Paused, Hibernated: s.cluster.Spec.Hibernated, PendingChanges: s.pendingChanges(),
		Held: s.held, Created: status.CurrentVersion != "", Complete: complete,
		NodesReady: s.members == nil || (t.ready == int(s.total()) && t.ready == len(s.members)),
		Scaling:    status.Scaling != nil,
		Growing:    status.BalancedFor != 0 && status.BalancedFor < s.total(),
		Before:     status.Phase,
		WasReady:   meta.IsStatusConditionTrue(status.Conditions, posthornv1.ConditionReady),
		CatchingUp: t.critical > 0 && s.readyLately(),
		Message:    strings.Join(append([]string{count}, t.trouble...), "; "),
	}
	facts.Blocked, facts.IsBlocked = s.lifecycleVerdict()
	if r := status.Rollout; r != nil {
		facts.Rolling = true
		facts.Message = strings.TrimSpace(fmt.Sprintf("%s; %s %s", facts.Message, r.Reason, r.WaitingFor))
	} else if facts.NodesReady && s.decision.Pod != "" {
		facts.Message += fmt.Sprintf("; %s %s", s.decision.Reason, s.decision.Pod)
	}
	if certificates := meta.FindStatusCondition(status.Conditions, posthornv1.ConditionCertificatesReady); certificates != nil &&
		certificates.Status == metav1.ConditionFalse && s.cluster.Spec.TLS != nil {
		facts.Certificate = &finding{reason: certificates.Reason, message: certificates.Message}
	}
	since := s.failingSince(failure)
	if failure != nil {
		facts.Failure = failure.Error()
		facts.FailedLately = s.Now().Sub(since) < failureGrace
		if stalled, is := isTerminal(failure); is {
			facts.FailureReason = stalled.reason
		}
	}
	return facts
}

// readyLately says whether a pod became ready so short a time ago that its replicas may still catch up.
func (s *scope) readyLately() bool {
	for i := range s.members {
		pod := s.members[i].pod
		if pod == nil {
			continue
		}
		ready := condition(pod, corev1.PodReady)
		if ready == nil {
			continue
		}
		if left := ready.LastTransitionTime.Add(catchUpLimit).Sub(s.Now()); left > 0 {
			s.lookAgain(min(left, rollPoll))
			return true
		}
	}
	return false
}

// pendingChanges says whether a pause keeps the spec from being applied.
func (s *scope) pendingChanges() bool {
	if !s.cluster.Spec.Paused || s.sts == nil {
		return false
	}
	wanted, err := inputsOf(s.cluster, s.image, s.protocols).digest()
	return err == nil && s.sts.Annotations[names.AnnotationInputs] != wanted || nodesOf(s.sts) != s.cluster.Spec.Replicas
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
	s.set(posthornv1.ConditionUpgradeBlocked, metav1.ConditionFalse, "NotBlocked", "no roll waits for trouble to pass")
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
