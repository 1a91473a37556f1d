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

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/topology"
)

const (
	// askTimeout bounds all questions to the nodes in one attempt together.
	askTimeout = 8 * time.Second
	// maxLastWords bounds what is kept of a container's last words, in bytes.
	maxLastWords = 512
	// revisionLabel is put on pods by the StatefulSet controller.
	revisionLabel = "controller-revision-hash"
	// readyAtStart is how soon after a pod's start its first Ready condition is written; a condition
	// that changed later shows that the pod was ready once.
	readyAtStart = 2 * time.Second
)

// memberView is what is known about one node.
type memberView struct {
	rollMember
	pod *corev1.Pod
	// trouble is why the container does not run, in the kubelet's words.
	trouble string
	// unbelieved: the node showed a certificate that is not believed.
	unbelieved bool
	// unauthorized: the node refused the operator's credentials.
	unauthorized bool
	// listener at which the operator asks the node.
	listener connect.Listener
	version  string
	// drained: the broker says that the node is in maintenance mode.
	drained bool
	// queues that need this node.
	queues []broker.QueueRef
}

// observe looks at the pods and volumes and asks the nodes.
func (s *scope) observe(ctx context.Context) error {
	pods, err := s.listPods(ctx)
	if err != nil {
		return err
	}
	revision := ""
	if s.sts != nil {
		revision = s.sts.Status.UpdateRevision
	}
	s.members = make([]memberView, s.sizes.Nodes)
	s.pods = len(pods)
	for name := range pods {
		ordinal, ours := s.ordinalOf(name)
		s.podsBeyond = s.podsBeyond || ours && ordinal >= s.sizes.Nodes
	}
	for i := range s.members {
		name := s.podName(int32(i))
		s.members[i] = viewPod(name, pods[name], revision, s.cluster.Annotations[names.AnnotationAcceptUnavailable])
		if m := &s.members[i]; m.Presence == podTerminating {
			m.trouble = s.stuckTermination(m.pod)
		}
	}
	if err := s.observeStorage(ctx); err != nil {
		return err
	}
	s.askNodes(ctx)
	return nil
}

// viewPod is what the pod itself tells.
// accepted is the value of AnnotationAcceptUnavailable.
func viewPod(name string, pod *corev1.Pod, revision, accepted string) memberView {
	m := memberView{rollMember: rollMember{Name: name, Presence: podMissing}, pod: pod}
	if pod == nil {
		return m
	}
	m.Presence, m.listener = podPresent, listenerOf(pod.Spec.Containers)
	if pod.DeletionTimestamp != nil {
		m.Presence = podTerminating
	}
	m.Current = pod.Labels[revisionLabel] == revision
	ready := condition(pod, corev1.PodReady)
	m.AcceptCritical = revision != "" && accepted == revision+"/"+name
	m.Ready = ready != nil && ready.Status == corev1.ConditionTrue && m.Presence == podPresent
	if !m.Ready {
		m.NotRunning, m.trouble = notRunningReason(pod)
		m.Restarting = m.NotRunning && isRestarting(pod)
		m.NeverReady = ready == nil || pod.Status.StartTime == nil ||
			(ready.Status != corev1.ConditionTrue && ready.LastTransitionTime.Sub(pod.Status.StartTime.Time) < readyAtStart)
	}
	return m
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// stuckReasons are the kubelet's reasons for a container that does not run.
var stuckReasons = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true,
	"ImageInspectError": true, "RegistryUnavailable": true, "CreateContainerConfigError": true,
	"CreateContainerError": true, "RunContainerError": true, "CrashLoopBackOff": true,
}

// notRunningReason tells whether no process of the broker runs in the pod, and why.
func notRunningReason(pod *corev1.Pod) (bool, string) {
	if scheduled := condition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse &&
		scheduled.Reason == corev1.PodReasonUnschedulable {
		return true, "Unschedulable: " + scheduled.Message
	}
	for _, status := range pod.Status.ContainerStatuses {
		switch waiting, ended := status.State.Waiting, status.State.Terminated; {
		case status.Name != containerName:
		case waiting != nil && stuckReasons[waiting.Reason]:
			return true, strings.TrimSuffix(waiting.Reason+": "+stuckMessage(status), ": ")
		case ended != nil:
			return true, fmt.Sprintf("%s: exit code %d%s", ended.Reason, ended.ExitCode, lastWords(ended))
		}
	}
	return false, ""
}

// isRestarting says that the broker's process has ended and the kubelet has not begun to wait before it starts it again.
func isRestarting(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == containerName {
			return status.State.Terminated != nil
		}
	}
	return false
}

// machineLostAfter is for how long a pod may outlive its grace period before its machine is taken for lost.
const machineLostAfter = 20 * time.Second

// stuckTermination names the machine of a pod that should have ended; empty while it may still end by itself.
func (s *scope) stuckTermination(pod *corev1.Pod) string {
	// DeletionTimestamp has the grace period in it.
	late := s.Now().Sub(pod.DeletionTimestamp.Time)
	if late < machineLostAfter {
		s.lookAgain(machineLostAfter - max(late, 0))
		return ""
	}
	return fmt.Sprintf("MachineLost: the pod should have ended by %s; machine %s does not confirm it. If the machine is gone for good, "+
		"remove it from Kubernetes or force the deletion of the pod", pod.DeletionTimestamp.UTC().Format(time.RFC3339), pod.Spec.NodeName)
}

// stuckMessage prefers what the broker said when it ended to what the kubelet says about it.
func stuckMessage(status corev1.ContainerStatus) string {
	if ended := status.LastTerminationState.Terminated; ended != nil && ended.Message != "" {
		return fmt.Sprintf("exit code %d%s", ended.ExitCode, lastWords(ended))
	}
	return status.State.Waiting.Message
}

// lastWords are the last words of a container, cut to what a condition can hold.
func lastWords(ended *corev1.ContainerStateTerminated) string {
	words := topology.OneLine(ended.Message)
	if words == "" {
		return ""
	}
	return ": " + cutWords(words)
}

// cutWords keeps the end of a text that is too long: programs say last why they end.
func cutWords(words string) string {
	if len(words) > maxLastWords {
		words = "..." + strings.ToValidUTF8(words[len(words)-maxLastWords:], "")
	}
	return words
}

// observeStorage finds volumes that are not bound.
func (s *scope) observeStorage(ctx context.Context) error {
	claims, err := s.listClaims(ctx)
	if err != nil {
		return err
	}
	bound := map[string]bool{}
	for i := range claims {
		bound[claims[i].Name] = claims[i].Status.Phase == corev1.ClaimBound
	}
	var waiting []string
	for i := range s.members {
		if claim := dataVolume + "-" + s.members[i].Name; !bound[claim] {
			waiting = append(waiting, claim)
		}
	}
	s.storage = strings.Join(waiting, ", ")
	return nil
}

// askNodes asks every node that could answer, all at once. What a node does not answer stays unknown.
func (s *scope) askNodes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	nodes, err := s.Brokers.Nodes(ctx, s.key())
	if err != nil {
		log.FromContext(ctx).V(1).Info("nodes cannot be asked", "reason", err.Error())
		return
	}
	var all sync.WaitGroup
	for i := range s.members {
		if m := &s.members[i]; m.Presence == podPresent && !m.NotRunning && m.pod.Status.PodIP != "" {
			node, err := nodes(m.Name, m.listener)
			if err != nil {
				log.FromContext(ctx).V(1).Info("a node cannot be asked", "node", m.Name, "reason", err.Error())
				continue
			}
			all.Go(func() { s.askNode(ctx, m, node) })
		}
	}
	all.Wait()
	s.askWhoIsDrained(ctx, nodes)
}

func (s *scope) askNode(ctx context.Context, m *memberView, node broker.Client) {
	logger := log.FromContext(ctx).WithValues("node", m.Name)
	if overview, err := node.Overview(ctx); err == nil {
		m.version = overview.ProductVersion
	}
	answer, err := node.QuorumCritical(ctx)
	switch {
	case err != nil:
		m.unbelieved, m.unauthorized = broker.IsUnbelieved(err), broker.IsUnauthorized(err)
		logger.V(1).Info("health unknown", "reason", err.Error())
	case answer.Critical:
		m.Health, m.queues = healthCritical, answer.Queues
	default:
		m.Health = healthSafe
	}
	if m.pod.Annotations[names.AnnotationDraining] == "" {
		return
	}
	if s.cluster.Spec.Paused || (m.Current && !s.removing(m)) {
		m.Drain = drainUnknown
		return
	}
	// Asking again is how progress is learnt, and puts a node that was restarted back into it.
	switch state, err := node.Drain(ctx, m.Name); {
	case err != nil:
		logger.Info("the drain's progress is unknown", "reason", err.Error())
		m.Drain = drainUnknown
	case state.Drained():
		m.Drain = drainDone
	default:
		m.Drain = drainRunning
	}
}

// askWhoIsDrained asks one ready node for all nodes' maintenance mode. A new pod whose node is still
// in the mode that the operator put its predecessor into is to be revived.
func (s *scope) askWhoIsDrained(ctx context.Context, nodes func(string, connect.Listener) (broker.Client, error)) {
	for i := range s.members {
		if !s.members[i].Ready {
			continue
		}
		node, err := nodes(s.members[i].Name, s.members[i].listener)
		if err != nil {
			continue
		}
		list, err := node.Nodes(ctx)
		if err != nil {
			continue
		}
		if s.lost, err = node.LostQueues(ctx); err != nil {
			log.FromContext(ctx).V(1).Info("lost queues are unknown", "reason", err.Error())
		}
		s.lostKnown = err == nil
		drained := map[string]bool{}
		for _, node := range list {
			drained[node.Name] = node.BeingDrained
			if ordinal, ours := s.ordinalOf(node.Name); ours && ordinal >= s.sizes.Nodes {
				s.leftover = node.Name
			}
		}
		for j := range s.members {
			m := &s.members[j]
			m.drained = drained[m.Name]
			rollout := s.cluster.Status.Rollout
			if m.drained && m.Current && m.Presence == podPresent && rollout != nil && rollout.WaitingFor == m.Name {
				m.Drain = drainUnknown
			}
		}
		return
	}
}
