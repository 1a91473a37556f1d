// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// queryTimeout bounds all questions of status to the broker together.
const queryTimeout = 15 * time.Second

// queueRunning is the state of a queue that is available.
const queueRunning = "running"

// Report is the state of a cluster, as status prints it.
type Report struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Phase     string `json:"phase"`
	// Version is the version of every node when the cluster was last complete; TargetVersion is that of the spec.
	Version       string `json:"version"`
	TargetVersion string `json:"targetVersion"`
	// ReadyNodes of WantedNodes are ready.
	ReadyNodes  int32             `json:"readyNodes"`
	WantedNodes int32             `json:"wantedNodes"`
	Waits       []Wait            `json:"waits"`
	Nodes       []NodeReport      `json:"nodes"`
	Conditions  []ConditionReport `json:"conditions"`
	// Queues has the queues that are not available; null when the broker could not be queried.
	Queues []QueueReport `json:"unavailableQueues"`
	// Unknown is why leaders, alarms and queues are unknown; empty when they are known.
	Unknown string `json:"unknown,omitempty"`
}

// Wait is something that the operator waits for.
type Wait struct {
	// For is the node or the part of the cluster.
	For string `json:"for"`
	// Reason in one word.
	Reason string `json:"reason"`
	// Message explains the reason.
	Message string       `json:"message"`
	Since   *metav1.Time `json:"since,omitempty"`
	// Queues that the operator waits for, as vhost/name.
	Queues []string `json:"queues,omitempty"`
	// Remedy is a command, where there is one.
	Remedy string `json:"remedy,omitempty"`
}

// NodeReport is the state of a node.
type NodeReport struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Machine string `json:"machine"`
	Zone    string `json:"zone"`
	Version string `json:"version"`
	// Leaders is the number of queues that the node leads; null when it is unknown.
	Leaders *int `json:"leaders"`
	// Alarms are memory and disk; null when they are unknown.
	Alarms []string `json:"alarms"`
	// Maintenance is true while the node is drained; null when that is unknown.
	Maintenance    *bool  `json:"maintenance"`
	QuorumCritical bool   `json:"quorumCritical"`
	Message        string `json:"message,omitempty"`
}

// ConditionReport is a condition of the BrokerCluster.
type ConditionReport struct {
	Type    string      `json:"type"`
	Status  string      `json:"status"`
	Reason  string      `json:"reason"`
	Message string      `json:"message"`
	Since   metav1.Time `json:"since"`
}

// QueueReport is a queue that is not available.
type QueueReport struct {
	Vhost string `json:"vhost"`
	Name  string `json:"name"`
	Type  string `json:"type"`
	State string `json:"state"`
	// Members are the nodes with a replica.
	Members []string `json:"members"`
}

func (r *runner) statusCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "status [CLUSTER]",
		Short: "Show nodes, conditions, unavailable queues and what the operator waits for",
		Long: `Shows the state of a cluster: its phase, what the operator waits for and why, the nodes with their machine, version,
leaders and alarms, the conditions, and the queues that are not available.

Leaders, alarms and queues come from a ready node of the broker, through a forwarded port and with the credentials of the
default user. Without the rights for that, status prints everything else and names the right that is missing.`,
		Example: `  kubectl posthorn status
  kubectl posthorn status c --output json`,
		Args: atMostOneCluster,
		RunE: r.withSession(func(ctx context.Context, s *Session, args []string) error {
			cluster, err := s.findCluster(ctx, optional(args))
			if err != nil {
				return err
			}
			report := s.report(ctx, cluster)
			return r.print(report, report.table)
		}),
	}
	r.addOutput(command)
	return command
}

// report collects the state of a cluster.
func (s *Session) report(ctx context.Context, cluster *posthornv1.BrokerCluster) *Report {
	status := &cluster.Status
	report := &Report{
		Name: cluster.Name, Namespace: cluster.Namespace, Phase: cmp.Or(string(status.Phase), "Unknown"),
		Version: status.CurrentVersion, TargetVersion: status.TargetVersion,
		ReadyNodes: status.ReadyReplicas, WantedNodes: cluster.Spec.Replicas, Waits: waitsOf(cluster),
		Nodes: []NodeReport{}, Conditions: []ConditionReport{},
	}
	for _, member := range status.Members {
		report.Nodes = append(report.Nodes, NodeReport{
			Name: member.Name, State: member.State, Machine: member.Machine, Zone: member.Zone, Version: member.Version,
			QuorumCritical: member.QuorumCritical, Message: member.Message,
		})
	}
	for _, condition := range status.Conditions {
		report.Conditions = append(report.Conditions, ConditionReport{
			Type: condition.Type, Status: string(condition.Status), Reason: condition.Reason, Message: condition.Message,
			Since: condition.LastTransitionTime,
		})
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := s.addAnswers(ctx, cluster, report); err != nil {
		report.Unknown = err.Error()
	}
	return report
}

// addAnswers adds the answers of a ready node to the report, all or none.
func (s *Session) addAnswers(ctx context.Context, cluster *posthornv1.BrokerCluster, report *Report) error {
	pod, err := s.readyPod(ctx, cluster)
	if err != nil {
		return err
	}
	node, err := s.connectTo(ctx, cluster, pod.Name)
	if err != nil {
		return err
	}
	defer node.close()
	list, err := node.Nodes(ctx)
	if err != nil {
		return s.explainAnswer(err, "listing the nodes at "+pod.Name, cluster)
	}
	queues, err := node.QueueStates(ctx)
	if err != nil {
		return s.explainAnswer(err, "listing the queues at "+pod.Name, cluster)
	}
	leaders := map[string]int{}
	report.Queues = []QueueReport{}
	for i := range queues {
		q := &queues[i]
		if q.State == "" || q.State == queueRunning {
			leaders[cmp.Or(q.Leader, q.Node)]++
		} else {
			report.Queues = append(report.Queues, QueueReport{Vhost: q.Vhost, Name: q.Name, Type: q.Type, State: q.State, Members: q.Members})
		}
	}
	slices.SortFunc(report.Queues, func(a, b QueueReport) int {
		return cmp.Or(cmp.Compare(a.Vhost, b.Vhost), cmp.Compare(a.Name, b.Name))
	})
	answers := map[string]broker.Node{}
	for _, answer := range list {
		answers[answer.Name] = answer
	}
	for i := range report.Nodes {
		n := &report.Nodes[i]
		answer, known := answers[n.Name]
		if !known {
			continue
		}
		led := leaders[n.Name]
		n.Leaders, n.Maintenance = &led, &answer.BeingDrained
		if answer.Running {
			n.Alarms = answer.Alarms()
		}
	}
	return nil
}

// rollReasons explain the reasons of status.rollout. The names are those of the operator.
var rollReasons = map[string]string{
	"RevisionUnknown":  "Kubernetes has not processed the change of the StatefulSet yet",
	"PodStarting":      "its pod is missing or ends; the roll continues when the new pod is ready",
	"MemberNotReady":   "it is not ready; no other node may be stopped meanwhile",
	"HealthUnknown":    "it does not answer whether a queue needs it",
	"QuorumCritical":   "queues would lose their majority without it; give them more members, or accept that they are unavailable until the new pod is ready",
	"Outdated":         "it has not the wanted revision; its leaders move away next",
	"Draining":         "its leaders move to other nodes",
	"DrainUnknown":     "it does not answer how far its drain is",
	"Drained":          "its leaders have moved away; its pod is replaced",
	"SingleNode":       "it is the only node; its pod is replaced",
	"NotRunning":       "no process of the broker runs in its pod; the pod is replaced",
	"NeverReady":       "it was never ready; its pod is replaced",
	"RevisionFails":    "it does not start with the wanted revision; correct the spec",
	"DrainUnneeded":    "its drain is not needed any more and ends",
	"AnotherIsMissing": "another node is missing; its drain ends",
	"ApprovalNeeded":   "spec.upgrade.mode is Supervised: its replacement needs an approval",
	"StepTimeout":      "its replacement took longer than spec.upgrade.stepTimeout; approve it to continue, or change the spec",
	"UpToDate":         "all nodes are up to date",
}

// waitsOf lists what the operator waits for.
func waitsOf(cluster *posthornv1.BrokerCluster) []Wait {
	status, waits := &cluster.Status, []Wait{}
	if status.ObservedGeneration < cluster.Generation {
		waits = append(waits, Wait{For: "the operator", Reason: "NotObserved", Message: fmt.Sprintf(
			"it has not processed generation %d of the spec; if this stays, check that the operator runs", cluster.Generation)})
	}
	if cluster.Spec.Paused {
		waits = append(waits, Wait{For: "you", Reason: "Paused", Message: "spec.paused is true: the operator changes nothing",
			Remedy: fmt.Sprintf("kubectl posthorn resume %s --namespace %s", cluster.Name, cluster.Namespace)})
	}
	if roll := status.Rollout; roll != nil {
		waits = append(waits, rollWait(cluster, roll))
	}
	if settings := status.Configuration; settings != nil {
		if keys := settings.PendingRestart; len(keys) > 0 {
			waits = append(waits, Wait{For: "the restart of every node", Reason: "PendingRestart", Message: "only a restart applies " + strings.Join(keys, ", ")})
		}
		if keys := settings.PendingReload; len(keys) > 0 {
			message := strings.TrimSuffix("running nodes have yet to load "+strings.Join(keys, ", ")+": "+settings.Message, ": ")
			waits = append(waits, Wait{For: "the kubelet", Reason: "PendingReload", Message: message})
		}
	}
	if scaling := status.Scaling; scaling != nil {
		message := "the node is being removed"
		if scaling.Remaining > 0 {
			message += fmt.Sprintf("; %d queues still have a replica on it", scaling.Remaining)
		}
		if scaling.Message != "" {
			message += ": " + scaling.Message
		}
		waits = append(waits, Wait{For: scaling.Removing, Reason: scaling.Reason, Message: message, Since: scaling.Since, Queues: scaling.Queues})
	}
	for i := range status.Conditions {
		if c := &status.Conditions[i]; isObstacle(c, status) {
			waits = append(waits, Wait{For: "the cluster", Reason: c.Reason, Message: c.Message, Since: &c.LastTransitionTime})
		}
	}
	return waits
}

// isObstacle reports whether a condition says why the operator does not continue, and status.rollout or status.scaling
// does not.
func isObstacle(c *metav1.Condition, status *posthornv1.BrokerClusterStatus) bool {
	switch c.Type {
	case posthornv1.ConditionReady:
		return c.Status != metav1.ConditionTrue && status.Rollout == nil && status.Scaling == nil &&
			status.Phase != posthornv1.PhasePaused && status.Phase != posthornv1.PhaseHibernated
	case posthornv1.ConditionUpgradeBlocked:
		return c.Status == metav1.ConditionTrue && status.Rollout == nil
	}
	return false
}

func rollWait(cluster *posthornv1.BrokerCluster, roll *posthornv1.RolloutStatus) Wait {
	wait := Wait{For: cmp.Or(roll.WaitingFor, "the StatefulSet"), Reason: roll.Reason, Message: rollReasons[roll.Reason], Since: roll.Since, Queues: roll.Queues}
	if roll.Approve != "" {
		wait.Remedy = fmt.Sprintf("kubectl annotate brokercluster %s --namespace %s --overwrite %s=%s", cluster.Name, cluster.Namespace, names.AnnotationApprove, roll.Approve)
	}
	for i := range cluster.Status.Members {
		if m := &cluster.Status.Members[i]; m.Name == roll.WaitingFor && m.Message != "" {
			wait.Message += ": " + m.Message
		}
	}
	return wait
}
