// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/topology"
)

const (
	// queryTimeout bounds all queries to the nodes in one reconciliation together.
	queryTimeout = 8 * time.Second
	// maxMessageBytes bounds how much of a container's termination message is kept.
	maxMessageBytes = 512
	// revisionLabel is set on pods by the StatefulSet controller.
	revisionLabel = "controller-revision-hash"
	// readyAtStart is how soon after a pod's start its first Ready condition is written; a condition that changed
	// later shows that the pod was ready once.
	readyAtStart = 2 * time.Second
)

// memberView is the observed state of one node.
type memberView struct {
	rollMember
	pod *corev1.Pod
	// trouble is why the container does not run, in the kubelet's words, what is wrong with its machine, or why the broker does
	// not serve clients, in its own words.
	trouble string
	// machine is the Kubernetes node on which the pod runs, or on which the previous pod ran; empty when neither is known.
	machine string
	// claim is the node's claim while it is bound to a volume; nil otherwise.
	claim *corev1.PersistentVolumeClaim
	// lastReady is where the node was last ready; nil when the status does not know it.
	lastReady *posthornv1.MemberPlacement
	// isUntrusted: the node showed a certificate that the operator does not trust.
	isUntrusted bool
	// unauthorized: the node refused the operator's credentials.
	unauthorized bool
	// listener at which the operator reaches the node.
	listener connect.Listener
	version  string
	// inMaintenance: the broker says that the node is in maintenance mode.
	inMaintenance bool
	// queues that need this node.
	queues []broker.QueueRef
}

// observe reads the pods and volumes and queries the nodes.
func (r *reconciliation) observe(ctx context.Context) error {
	var err error
	if r.seen.pods, err = r.listPods(ctx); err != nil {
		return err
	}
	if r.seen.claims, err = r.listClaims(ctx); err != nil {
		return err
	}
	r.seen.members = make([]memberView, r.out.sizes.Nodes)
	for i := range r.seen.members {
		name := r.in.podName(int32(i))
		r.seen.members[i] = viewPod(name, r.seen.pods[name], r.seen.updateRevision(), r.in.cluster.Annotations[names.AnnotationAcceptUnavailable])
		m := &r.seen.members[i]
		if m.Presence == podTerminating {
			if late := r.out.describeTermination(m.pod, r.in.now); late != "" {
				m.trouble = late
			}
		}
		m.machine = r.in.lastMachine(m)
		m.claim, m.lastReady = r.seen.claimOf(m.Name), r.in.lastReady(m)
		if m.isUnschedulable() && m.lastReady != nil {
			m.trouble += fmt.Sprintf("; it was last ready with volume %s on machine %s", m.lastReady.Volume, m.lastReady.Machine)
		}
	}
	r.queryNodes(ctx)
	return nil
}

// viewPod derives the state of a node from its pod alone. accepted is the value of AnnotationAcceptUnavailable.
func viewPod(name string, pod *corev1.Pod, revision, accepted string) memberView {
	m := memberView{rollMember: rollMember{Name: name, Presence: podMissing}, pod: pod}
	if pod == nil {
		return m
	}
	m.Presence, m.listener = podPresent, listenerOf(pod.Spec.Containers)
	if pod.DeletionTimestamp != nil {
		m.Presence = podTerminating
	}
	m.Current = pod.Labels[revisionLabel] == revision && pod.Annotations[names.AnnotationRestart] != restartRequested
	ready := condition(pod, corev1.PodReady)
	m.AcceptCritical = revision != "" && accepted == approvalOf(pod, revision)
	m.Ready = ready != nil && ready.Status == corev1.ConditionTrue && m.Presence == podPresent
	if !m.Ready {
		m.NotRunning, m.trouble = notRunningReason(pod)
		if m.trouble == "" && isMachineDown(pod) {
			m.trouble = fmt.Sprintf("%s: Kubernetes has lost contact with machine %s; the node returns with the machine. If the machine is "+
				"gone for good, remove it from Kubernetes (kubectl delete node %[2]s)", troubleMachineDown, pod.Spec.NodeName)
		}
		m.Restarting = m.NotRunning && isRestarting(pod)
		m.NeverReady = ready == nil || pod.Status.StartTime == nil ||
			(ready.Status != corev1.ConditionTrue && ready.LastTransitionTime.Sub(pod.Status.StartTime.Time) < readyAtStart)
	}
	return m
}

// restartRequested is the value of AnnotationRestart that makes the roll replace a pod.
const restartRequested = "true"

// approvalOf returns the value of the annotations that approve the replacement of a pod. A pod of the wanted revision is
// replaced because somebody asked for it: its value has the UID of the pod, so that it applies to no later restart.
func approvalOf(pod *corev1.Pod, revision string) string {
	if pod.Labels[revisionLabel] == revision {
		return string(pod.UID) + "/" + pod.Name
	}
	return revision + "/" + pod.Name
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// notRunningReasons are the kubelet's reasons for a container that does not run.
var notRunningReasons = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true,
	"ImageInspectError": true, "RegistryUnavailable": true, "CreateContainerConfigError": true,
	"CreateContainerError": true, "RunContainerError": true, "CrashLoopBackOff": true,
}

// notRunningReason reports whether no process of the broker runs in the pod, and why.
func notRunningReason(pod *corev1.Pod) (bool, string) {
	if scheduled := condition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse &&
		scheduled.Reason == corev1.PodReasonUnschedulable {
		return true, troubleUnschedulable + ": " + scheduled.Message
	}
	for _, status := range pod.Status.ContainerStatuses {
		switch waiting, ended := status.State.Waiting, status.State.Terminated; {
		case status.Name != containerName:
		case waiting != nil && notRunningReasons[waiting.Reason]:
			return true, strings.TrimSuffix(waiting.Reason+": "+waitingMessage(status), ": ")
		case ended != nil:
			return true, fmt.Sprintf("%s: exit code %d%s", ended.Reason, ended.ExitCode, terminationMessage(ended))
		}
	}
	return false, ""
}

// isRestarting reports whether the broker's process has ended and the kubelet has not yet backed off from starting it again.
func isRestarting(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == containerName {
			return status.State.Terminated != nil
		}
	}
	return false
}

// isMachineDown reports whether Kubernetes has lost contact with the machine of a pod. The kubelet sets the condition Ready
// together with ContainersReady; only the node controller withdraws Ready alone.
func isMachineDown(pod *corev1.Pod) bool {
	isTrue := func(kind corev1.PodConditionType) bool {
		found := condition(pod, kind)
		return found != nil && found.Status == corev1.ConditionTrue
	}
	for _, gate := range pod.Spec.ReadinessGates {
		if !isTrue(gate.ConditionType) {
			return false
		}
	}
	return pod.Spec.NodeName != "" && isTrue(corev1.ContainersReady) && !isTrue(corev1.PodReady)
}

// lastMachine returns the machine of a node. A pod that cannot be scheduled has none; its volume may be on the machine of the
// pod before it.
func (in *inputs) lastMachine(m *memberView) string {
	if m.pod != nil && m.pod.Spec.NodeName != "" {
		return m.pod.Spec.NodeName
	}
	for _, before := range in.cluster.Status.Members {
		if before.Name == m.Name {
			return before.Machine
		}
	}
	return ""
}

// Troubles with which memberView.trouble begins.
const (
	troubleUnschedulable = "Unschedulable"

	troubleMachineDown = "MachineDown"
	troubleMachineLost = "MachineLost"
)

// machineLostAfter is how long a pod may outlive its grace period before its machine counts as lost.
const machineLostAfter = 20 * time.Second

// describeTermination names the machine of a pod that should have ended; empty while the pod may still end by itself.
func (out *decided) describeTermination(pod *corev1.Pod, now time.Time) string {
	// DeletionTimestamp includes the grace period.
	late := now.Sub(pod.DeletionTimestamp.Time)
	if late < machineLostAfter {
		out.requeueWithin(machineLostAfter - max(late, 0))
		return ""
	}
	return fmt.Sprintf("%s: the pod should have ended by %s; machine %s does not confirm it. If the machine is gone for good, "+
		"remove it from Kubernetes or force the deletion of the pod", troubleMachineLost, pod.DeletionTimestamp.UTC().Format(time.RFC3339), pod.Spec.NodeName)
}

// waitingMessage prefers the broker's own termination message to the kubelet's.
func waitingMessage(status corev1.ContainerStatus) string {
	if ended := status.LastTerminationState.Terminated; ended != nil && ended.Message != "" {
		return fmt.Sprintf("exit code %d%s", ended.ExitCode, terminationMessage(ended))
	}
	return status.State.Waiting.Message
}

// terminationMessage returns a container's termination message, cut to the size of a condition.
func terminationMessage(ended *corev1.ContainerStateTerminated) string {
	words := topology.OneLine(ended.Message)
	if words == "" {
		return ""
	}
	return ": " + keepEnd(words)
}

// keepEnd keeps the end of a text that is too long: programs write last why they end.
func keepEnd(words string) string {
	if len(words) > maxMessageBytes {
		words = "..." + strings.ToValidUTF8(words[len(words)-maxMessageBytes:], "")
	}
	return words
}

// unboundClaims lists the volumes of the members that are not bound.
func (seen *observed) unboundClaims() []string {
	bound := map[string]bool{}
	for i := range seen.claims {
		bound[seen.claims[i].Name] = seen.claims[i].Status.Phase == corev1.ClaimBound
	}
	var out []string
	for i := range seen.members {
		if claim := dataVolume + "-" + seen.members[i].Name; !bound[claim] {
			out = append(out, claim)
		}
	}
	return out
}

// queryNodes queries every running node at the same time. Answers that do not arrive stay unknown.
func (r *reconciliation) queryNodes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	nodes, err := r.Brokers.Nodes(ctx, r.in.key())
	if err != nil {
		log.FromContext(ctx).V(1).Info("cannot query the nodes", "reason", err.Error())
		return
	}
	var all sync.WaitGroup
	for i := range r.seen.members {
		if m := &r.seen.members[i]; m.Presence == podPresent && !m.NotRunning && m.pod.Status.PodIP != "" {
			node, err := nodes(m.Name, m.listener)
			if err != nil {
				log.FromContext(ctx).V(1).Info("cannot query the node", "node", m.Name, "reason", err.Error())
				continue
			}
			all.Go(func() { r.queryNode(ctx, m, node) })
		}
	}
	all.Wait()
	r.queryCluster(ctx, nodes)
}

func (r *reconciliation) queryNode(ctx context.Context, m *memberView, node broker.Client) {
	logger := log.FromContext(ctx).WithValues("node", m.Name)
	if overview, err := node.Overview(ctx); err == nil {
		m.version = overview.ProductVersion
	}
	answer, err := node.QuorumCritical(ctx)
	switch {
	case err != nil:
		m.isUntrusted, m.unauthorized = broker.IsUntrusted(err), broker.IsUnauthorized(err)
		logger.V(1).Info("the health of the node is unknown", "reason", err.Error())
	case answer.Critical:
		m.Health, m.queues = healthCritical, answer.Queues
	default:
		m.Health = healthSafe
	}
	if !m.Ready && m.trouble == "" {
		// The node's own reason, for example that most nodes are missing. Without an answer the number of ready nodes has to do.
		if reason, err := node.NotReadyReason(ctx); err == nil && reason != "" {
			m.trouble = "NotReady: " + topology.OneLine(keepEnd(reason))
		}
	}
	if m.pod.Annotations[names.AnnotationDraining] == "" {
		return
	}
	if r.in.cluster.Spec.Paused || (m.Current && !isBeingRemoved(&r.in, r.out.sizes, m)) {
		m.Drain = drainUnknown
		return
	}
	// A drain that is requested again reports its progress, and puts a restarted node back into maintenance mode.
	switch state, err := node.Drain(ctx, m.Name); {
	case err != nil:
		logger.Info("the progress of the drain is unknown", "reason", err.Error())
		m.Drain = drainUnknown
	case state.Drained():
		m.Drain = drainDone
	default:
		m.Drain = drainRunning
	}
}

// queryCluster asks one ready node about all nodes and lost queues. A new pod whose node is still in the maintenance
// mode that the operator put its predecessor into has to be revived.
func (r *reconciliation) queryCluster(ctx context.Context, nodes func(string, connect.Listener) (broker.Client, error)) {
	for i := range r.seen.members {
		if !r.seen.members[i].Ready {
			continue
		}
		node, err := nodes(r.seen.members[i].Name, r.seen.members[i].listener)
		if err != nil {
			continue
		}
		list, err := node.Nodes(ctx)
		if err != nil {
			continue
		}
		if r.seen.lost, err = node.LostQueues(ctx); err != nil {
			log.FromContext(ctx).V(1).Info("lost queues are unknown", "reason", err.Error())
		}
		r.seen.lostKnown = err == nil
		inMaintenance := map[string]bool{}
		for _, node := range list {
			inMaintenance[node.Name] = node.BeingDrained
			if ordinal, ours := r.in.ordinalOf(node.Name); ours && ordinal >= r.out.sizes.Nodes {
				r.seen.strayNode = node.Name
			}
		}
		rollout := r.in.cluster.Status.Rollout
		for j := range r.seen.members {
			m := &r.seen.members[j]
			m.inMaintenance = inMaintenance[m.Name]
			if m.inMaintenance && m.Current && m.Presence == podPresent && rollout != nil && rollout.WaitingFor == m.Name {
				m.Drain = drainUnknown
			}
		}
		return
	}
}
