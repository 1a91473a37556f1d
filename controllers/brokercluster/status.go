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

// decideStatus fills the status and adds the Events about its changes.
func (out *decided) decideStatus(in *inputs, seen *observed, failed failure) {
	out.status = *in.cluster.Status.DeepCopy()
	status, counts := &out.status, seen.count()
	status.ObservedGeneration = in.cluster.Generation
	status.Selector = labels.SelectorFromSet(names.Selector(in.cluster.Name)).String()
	if out.binding != nil {
		status.Binding = out.binding
	}
	if out.balancedFor != 0 {
		status.BalancedFor = out.balancedFor
	}
	if out.featureFlags != nil {
		status.FeatureFlags = out.featureFlags
	}
	if seen.members != nil {
		status.Replicas, status.ReadyReplicas = int32(counts.present), int32(counts.ready)
		status.Members = memberStatuses(seen.members, externalOf(in, seen))
		out.warnOfMachines(in, seen)
		out.warnOfLostMajority(in, seen)
		if failed.err == nil || out.roll.Action != "" {
			// A reconciliation that ended early has no news about the roll.
			out.setRollout(in, seen, counts)
		}
		out.setScaling(in, seen)
	}
	if out.recovery.record != nil {
		status.MajorityRecovery = out.recovery.record
	}
	status.Configuration = out.configurationStatus()
	if len(out.protocols) > 0 {
		status.Protocols = out.protocols
	}
	if out.version != "" {
		status.TargetVersion = out.version
	}
	complete := failed.err == nil && out.isComplete(in, seen)
	if complete {
		status.CurrentVersion = status.TargetVersion
	}
	if !seen.internodeEnd.IsZero() {
		status.Certificates = certificatesStatus(in, seen)
	}
	out.setConditions(in, seen, counts, complete, failed)
}

func memberStatuses(members []memberView, external map[string][]posthornv1.ExternalAddress) []posthornv1.MemberStatus {
	out := make([]posthornv1.MemberStatus, 0, len(members))
	for i := range members {
		m := &members[i]
		status := posthornv1.MemberStatus{
			Name: m.Name, Version: m.version, State: memberState(m), QuorumCritical: m.Health == healthCritical,
			Machine: m.machine, Message: topology.OneLine(m.trouble), LastReady: m.placement(),
			External: external[m.Name],
		}
		if m.pod != nil {
			status.Zone = m.pod.Labels[names.LabelZone]
		}
		out = append(out, status)
	}
	return out
}

// warnOfMachines adds an Event when the machine of a node fails.
func (out *decided) warnOfMachines(in *inputs, seen *observed) {
	before := map[string]string{}
	for _, m := range in.cluster.Status.Members {
		before[m.Name] = m.Message
	}
	for i := range seen.members {
		m := &seen.members[i]
		trouble := func(kind string) (string, bool) {
			message, is := strings.CutPrefix(m.trouble, kind+": ")
			return message, is && !strings.HasPrefix(before[m.Name], kind+": ")
		}
		if message, is := trouble(troubleMachineDown); is {
			out.warnOfChange(troubleMachineDown, "Observe", "%s: %s", m.Name, message)
		}
		if message, is := trouble(troubleMachineLost); is {
			out.warnOfChange(troubleMachineLost, "Observe", "%s: %s", m.Name, message)
		}
	}
}

func memberState(m *memberView) string {
	switch {
	case m.Presence != podPresent || m.NotRunning:
		return posthornv1.MemberDown
	case m.inMaintenance || m.Drain != drainNone:
		return posthornv1.MemberDraining
	case m.Ready:
		return posthornv1.MemberRunning
	case m.NeverReady:
		return posthornv1.MemberJoining
	}
	return posthornv1.MemberDown
}

// setCondition sets a condition, its message in one line.
func (out *decided) setCondition(in *inputs, kind string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&out.status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: topology.OneLine(message), ObservedGeneration: in.cluster.Generation,
	})
}

func conditionStatus(value bool) metav1.ConditionStatus {
	if value {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

func (out *decided) setConditions(in *inputs, seen *observed, counts memberCounts, complete bool, failed failure) {
	n := len(seen.members)
	nodesReady := fmt.Sprintf("%d of %d nodes ready", counts.ready, out.nodes(in))
	if in.cluster.Spec.Paused {
		out.setCondition(in, posthornv1.ConditionPaused, metav1.ConditionTrue, "Paused", "spec.paused is true: the operator changes nothing")
	} else {
		out.setCondition(in, posthornv1.ConditionPaused, metav1.ConditionFalse, "NotPaused", "the operator applies changes")
	}
	switch {
	case in.cluster.Spec.Hibernated:
		out.setCondition(in, posthornv1.ConditionAvailable, metav1.ConditionFalse, "Hibernated", "spec.hibernated is true: no node runs")
	case n > 0 && counts.ready > n/2:
		out.setCondition(in, posthornv1.ConditionAvailable, metav1.ConditionTrue, "MajorityReady", nodesReady)
	case seen.describeLostMajority() != "":
		found := out.lostMajorityCondition(seen)
		out.setCondition(in, posthornv1.ConditionAvailable, metav1.ConditionFalse, found.reason, nodesReady+"; "+found.message)
	default:
		out.setCondition(in, posthornv1.ConditionAvailable, metav1.ConditionFalse, "NoMajority", strings.Join(append([]string{nodesReady}, counts.trouble...), "; "))
	}
	out.setQuorumSafe(in, n, counts)
	out.setQueuesLost(in, seen)
	out.setMajorityRecovered(in)
	out.setSpread(in, seen)
	out.setUpgradeBlocked(in, seen, counts)
	out.setCertificatesReady(in, seen)
	out.setMonitoringReady(in, seen)
	out.setExternalReady(in, seen)
	out.setStorageReady(in, seen)
	out.setSummary(in, decideSummary(out.summaryFacts(in, seen, counts, complete, nodesReady, failed)))
}

// setSummary sets the phase and the conditions Ready, Stalled and Progressing, which never contradict each other.
func (out *decided) setSummary(in *inputs, found summary) {
	out.status.Phase = found.Phase
	out.setCondition(in, posthornv1.ConditionReady, found.Ready.value, found.Ready.reason, found.Ready.message)
	out.setCondition(in, posthornv1.ConditionProgressing, conditionStatus(found.Progressing), found.Ready.reason, found.Ready.message)
	if found.Ready.stalled {
		out.setCondition(in, posthornv1.ConditionStalled, metav1.ConditionTrue, found.Ready.reason, found.Ready.message)
	} else {
		meta.RemoveStatusCondition(&out.status.Conditions, posthornv1.ConditionStalled)
	}
}

// summaryFacts collects the input of decideSummary.
func (out *decided) summaryFacts(in *inputs, seen *observed, counts memberCounts, complete bool, nodesReady string, failed failure) summaryFacts {
	status := &out.status
	facts := summaryFacts{
		Paused: in.cluster.Spec.Paused, Hibernated: in.cluster.Spec.Hibernated, PendingChanges: out.hasPendingChanges(in, seen),
		Held: out.held, Created: status.CurrentVersion != "", Complete: complete,
		NodesReady: seen.members == nil || (counts.ready == int(out.nodes(in)) && counts.ready == len(seen.members)),
		Scaling:    status.Scaling != nil,
		Growing:    status.BalancedFor != 0 && status.BalancedFor < out.nodes(in),
		Before:     status.Phase,
		WasReady:   meta.IsStatusConditionTrue(status.Conditions, posthornv1.ConditionReady),
		CatchingUp: counts.critical > 0 && out.becameReadyRecently(in, seen),
		Message:    strings.Join(append([]string{nodesReady}, counts.trouble...), "; "),
	}
	facts.Blocked, facts.IsBlocked = out.lifecycleCondition(in, seen)
	if r := status.Rollout; r != nil {
		facts.Rolling = true
		facts.Message = strings.TrimSpace(fmt.Sprintf("%s; %s %s", facts.Message, r.Reason, r.WaitingFor))
	} else if facts.NodesReady && out.roll.Pod != "" {
		facts.Message += fmt.Sprintf("; %s %s", out.roll.Reason, out.roll.Pod)
	}
	if len(out.pendingReload) > 0 {
		facts.Message += "; nodes have yet to load " + strings.Join(out.pendingReload, ", ")
		if out.reloadFailure != "" {
			facts.Message += ": " + out.reloadFailure
		}
	}
	if certificates := meta.FindStatusCondition(status.Conditions, posthornv1.ConditionCertificatesReady); certificates != nil &&
		certificates.Status == metav1.ConditionFalse && in.cluster.Spec.TLS != nil {
		facts.Certificate = &finding{reason: certificates.Reason, message: certificates.Message}
	}
	if failed.err != nil {
		facts.Failure = failed.err.Error()
		facts.FailedRecently = in.now.Sub(failed.since) < failureGrace
		if stalled, is := asTerminalError(failed.err); is {
			facts.FailureReason = stalled.reason
		}
	}
	return facts
}

// becameReadyRecently reports whether a pod became ready so short a time ago that its replicas may still catch up.
func (out *decided) becameReadyRecently(in *inputs, seen *observed) bool {
	for i := range seen.members {
		pod := seen.members[i].pod
		if pod == nil {
			continue
		}
		ready := condition(pod, corev1.PodReady)
		if ready == nil {
			continue
		}
		if left := ready.LastTransitionTime.Add(catchUpLimit).Sub(in.now); left > 0 {
			out.requeueWithin(min(left, rollPoll))
			return true
		}
	}
	return false
}

// hasPendingChanges reports whether a pause keeps the spec from being applied.
func (out *decided) hasPendingChanges(in *inputs, seen *observed) bool {
	if !in.cluster.Spec.Paused || seen.sts == nil {
		return false
	}
	wanted, err := out.inputsInEffect(in, seen).digest()
	return err == nil && seen.sts.Annotations[names.AnnotationInputs] != wanted || nodesOf(seen.sts) != in.cluster.Spec.Replicas
}

func (out *decided) setQuorumSafe(in *inputs, nodes int, counts memberCounts) {
	set := func(value metav1.ConditionStatus, reason, message string) {
		out.setCondition(in, posthornv1.ConditionQuorumSafe, value, reason, message)
	}
	switch {
	case counts.critical > 0:
		set(metav1.ConditionFalse, "QuorumCritical", fmt.Sprintf("%d nodes hold queues that would lose their majority without them", counts.critical))
	case len(counts.untrusted) > 0:
		set(metav1.ConditionUnknown, "CertificateNotBelieved",
			"certificate is not trusted (expired, wrong CA or missing from the Secret) on nodes "+strings.Join(counts.untrusted, ", "))
	case !counts.isQuorumSafe(nodes):
		set(metav1.ConditionUnknown, "HealthUnknown", fmt.Sprintf("%d of %d nodes answered", counts.answered, nodes))
	default:
		set(metav1.ConditionTrue, "Safe", "no queue loses its majority without any one node")
	}
}

// setUpgradeBlocked distinguishes a roll that needs help from one that only takes its time.
func (out *decided) setUpgradeBlocked(in *inputs, seen *observed, counts memberCounts) {
	if out.refusal.reason != "" {
		out.setCondition(in, posthornv1.ConditionUpgradeBlocked, metav1.ConditionTrue, out.refusal.reason, out.refusal.message)
		return
	}
	blocked := false
	switch out.roll.Reason {
	case reasonQuorumCritical, reasonRevisionFails, reasonHealthUnknown, reasonDrainUnknown, reasonApprovalNeeded, reasonStepTimeout:
		blocked = true
	case reasonMemberNotReady:
		m := seen.member(out.roll.Pod)
		blocked = m != nil && (m.NotRunning || !m.NeverReady)
	}
	if blocked && counts.hasOutdated {
		message := out.rollBlockedMessage(seen)
		before := meta.FindStatusCondition(out.status.Conditions, posthornv1.ConditionUpgradeBlocked)
		if out.roll.Reason == reasonQuorumCritical && (before == nil || before.Message != message) {
			out.warnOfChange("RollBlocked", "Roll", "%s", message)
		}
		out.setCondition(in, posthornv1.ConditionUpgradeBlocked, metav1.ConditionTrue, out.roll.Reason, message)
		return
	}
	out.setCondition(in, posthornv1.ConditionUpgradeBlocked, metav1.ConditionFalse, "NotBlocked", "no roll is blocked")
}

// setCertificatesReady keeps the previous condition when the certificates were not checked: in a pause or after a failure.
func (out *decided) setCertificatesReady(in *inputs, seen *observed) {
	if seen.serving.checked || out.status.Certificates == nil {
		found := certificatesFinding(in, seen)
		out.setCondition(in, posthornv1.ConditionCertificatesReady, conditionStatus(found.usable), found.reason, found.message)
	}
}

func (out *decided) setMonitoringReady(in *inputs, seen *observed) {
	switch {
	case in.cluster.Spec.Monitoring.ServiceMonitor == posthornv1.MonitorOff:
		meta.RemoveStatusCondition(&out.status.Conditions, posthornv1.ConditionMonitoringReady)
	case seen.monitoring.reason != "":
		out.setCondition(in, posthornv1.ConditionMonitoringReady, conditionStatus(seen.monitoring.usable), seen.monitoring.reason, seen.monitoring.message)
	}
}
