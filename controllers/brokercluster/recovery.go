// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

const (
	// recoveryPoll is the interval of steps while they change something, and recoveryRetry while they do not.
	recoveryPoll  = 200 * time.Millisecond
	recoveryRetry = 2 * time.Second
	// refusedAfter is how long queues may be refused, without progress, before a person has to look at them. The first
	// refusals are temporary, for example while a leader is elected.
	refusedAfter = 30 * time.Second
	// defaultMembers is the number of members of a replicated queue that was declared without one.
	defaultMembers = 3
)

// recoveryOutcome is what a reconciliation has decided and done about spec.majorityRecovery.
type recoveryOutcome struct {
	recoveryDecision
	// record is the new status.majorityRecovery; nil when the previous one holds.
	record *posthornv1.MajorityRecoveryStatus
}

// isKnown reports whether the reconciliation got as far as the recovery.
func (o *recoveryOutcome) isKnown() bool { return o.Action != "" }

// isInProgress reports whether a recovery has begun and is not finished.
func (o *recoveryOutcome) isInProgress() bool {
	return o.Action == recoveryBegin || o.Action == recoveryStep
}

// holdsReady reports whether the cluster is not Ready before the next steps.
func (o *recoveryOutcome) holdsReady() bool {
	return o.isInProgress() && slices.Contains([]string{reasonRemovingNodes, reasonRecoveringQueues}, o.Reason)
}

// recoveryStateOf collects the input of decideRecovery.
func recoveryStateOf(in *inputs, seen *observed, listed map[string]bool) recoveryState {
	state := recoveryState{Record: in.cluster.Status.MajorityRecovery, Listed: listed}
	if asked := in.cluster.Spec.MajorityRecovery; asked != nil {
		state.Asked = asked.Lost
	}
	for i := range seen.members {
		m := &seen.members[i]
		member := recoveryMember{Name: m.Name, IsLost: m.hasLostVolume()}
		// The placement is that of this moment if the node is ready.
		if placement := m.placement(); placement != nil {
			member.LastReady = placement.Volume
		}
		if m.claim != nil {
			member.Bound = m.claim.Spec.VolumeName
		}
		state.Members = append(state.Members, member)
	}
	return state
}

// recoverMajority decides the next step of the recovery from a lost majority and takes it. It reports whether other phases
// have to wait.
func (r *reconciliation) recoverMajority(ctx context.Context) (bool, error) {
	out := &r.out.recovery
	out.recoveryDecision = decideRecovery(recoveryStateOf(&r.in, &r.seen, nil))
	var b broker.Client
	if out.Reason == reasonNoAnswer {
		// Only now do the broker's nodes matter.
		var listed map[string]bool
		var err error
		if b, err = r.remainingNode(ctx); err == nil && b != nil {
			listed, err = listNodes(ctx, b)
		}
		out.recoveryDecision = decideRecovery(recoveryStateOf(&r.in, &r.seen, listed))
		if err != nil {
			out.Message += ": " + err.Error()
		}
	}
	switch out.Action {
	case recoveryBegin:
		out.record = &posthornv1.MajorityRecoveryStatus{
			State: posthornv1.MajorityRecovering, Lost: slices.Clone(r.in.cluster.Spec.MajorityRecovery.Lost), LastProgress: &metav1.Time{Time: r.in.now},
		}
		r.out.noteOfChange("MajorityRecoveryBegins", "Recover", "the remaining nodes continue without %s", describeLoss(out.record.Lost))
		out.Message = "the operator asks a remaining node for the first step"
		r.out.requeueWithin(recoveryPoll)
	case recoveryStep:
		r.takeRecoveryStep(ctx, b)
	case recoveryWait:
		r.out.requeueWithin(recoveryRetry)
	case recoveryRefuse:
		if out.Reason == reasonNodeRunning {
			r.out.requeueWithin(recoveryRetry)
		}
	case recoveryNone:
	}
	return out.holdsReady(), nil
}

// remainingNode returns a client of the first node that answers and is not named as lost; nil when there is none.
func (r *reconciliation) remainingNode(ctx context.Context) (broker.Client, error) {
	lost := r.in.cluster.Spec.MajorityRecovery.Lost
	nodes, err := r.Brokers.Nodes(ctx, r.in.key())
	if err != nil {
		return nil, fmt.Errorf("asking a remaining node: %w", err)
	}
	for i := range r.seen.members {
		m := &r.seen.members[i]
		isLost := slices.ContainsFunc(lost, func(each posthornv1.LostNode) bool { return each.Node == m.Name })
		if isLost || m.version == "" {
			continue
		}
		node, err := nodes(m.Name, m.listener)
		if err != nil {
			return nil, fmt.Errorf("asking %s: %w", m.Name, err)
		}
		return node, nil
	}
	return nil, nil
}

// listNodes returns the nodes of a cluster by name. True: every node of that name runs.
func listNodes(ctx context.Context, b broker.Client) (map[string]bool, error) {
	nodes, err := b.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the nodes: %w", err)
	}
	listed := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		others, isListed := listed[node.Name]
		listed[node.Name] = node.Running && (others || !isListed)
	}
	return listed, nil
}

// takeRecoveryStep asks a remaining node for the next step, and records its progress.
func (r *reconciliation) takeRecoveryStep(ctx context.Context, b broker.Client) {
	out := &r.out.recovery
	out.record = r.in.cluster.Status.MajorityRecovery.DeepCopy()
	r.noteRemoved(out.Removed)
	r.out.requeueWithin(recoveryRetry)
	step, err := b.RecoverMajority(ctx, out.Lost)
	switch {
	case broker.IsTerminal(err) && !broker.IsNotFound(err):
		out.Action, out.Reason, out.Message = recoveryRefuse, reasonBrokerRefuses, err.Error()
		return
	case err != nil:
		// A node was removed meanwhile, or the broker says what it waits for.
		out.Message = err.Error()
		return
	}
	out.record.Accepted = true
	switch {
	case step.Step == broker.RecoveryMetadata:
		out.Message = "the metadata continue on " + step.Node
		if out.record.MetadataNode != step.Node {
			out.record.MetadataNode = step.Node
			r.noteProgress()
		}
	case step.Step == broker.RecoveryForgotten:
		r.noteProgress()
	case step.IsDone():
		r.joinAndGrow(ctx, b)
	case step.Step == broker.RecoveryQueues:
		r.takeQueues(ctx, b, step)
	default:
		out.Action, out.Reason = recoveryRefuse, reasonBrokerRefuses
		out.Message = fmt.Sprintf("the broker answered with the unknown step '%s': use an operator that is not older than the broker", topology.OneLine(step.Step))
	}
}

// noteProgress records that a step changed something.
func (r *reconciliation) noteProgress() {
	r.out.recovery.record.LastProgress = &metav1.Time{Time: r.in.now}
	r.out.requeueWithin(recoveryPoll)
}

// noteRemoved records lost nodes that the cluster has removed.
func (r *reconciliation) noteRemoved(nodes []string) {
	record := r.out.recovery.record
	for _, node := range nodes {
		if !slices.Contains(record.Removed, node) {
			record.Removed = append(record.Removed, node)
			r.noteProgress()
			r.out.noteOfChange("NodeRemoved", "Recover", "the cluster has removed %s, whose volume is lost", node)
		}
	}
}

// takeQueues records which queues continue. Queues that are refused do not hold up the others.
func (r *reconciliation) takeQueues(ctx context.Context, b broker.Client, step broker.RecoveryStep) {
	out := &r.out.recovery
	var refused []string
	hasRecovered := false
	for _, queue := range step.Queues {
		if queue.Result == broker.QueueRecovered {
			hasRecovered = true
			continue
		}
		refused = append(refused, fmt.Sprintf("%s: %s", queueName(queue.Vhost, queue.Name), topology.OneLine(queue.Reason)))
	}
	if hasRecovered {
		r.noteProgress()
	}
	out.Message = fmt.Sprintf("%d queues have no leader yet", int64(len(step.Queues))+step.Left)
	if len(refused) > 0 {
		out.Message += "; the broker refuses to recover " + keepStart(strings.Join(firstFew(refused), "; "))
	}
	last := out.record.LastProgress
	if last == nil || r.in.now.Sub(last.Time) < refusedAfter {
		return
	}
	out.Reason = reasonQueuesRefused
	if len(r.notReady()) == 0 {
		// Missing replicas are reported when no queue is refused any more.
		_, _ = r.growQueues(ctx, b)
	}
}

// keepStart keeps the start of a text that is too long for a condition.
func keepStart(words string) string {
	if len(words) > maxMessageBytes {
		words = strings.ToValidUTF8(words[:maxMessageBytes], "") + "..."
	}
	return words
}

// notReady lists the nodes that are not ready, with their troubles.
func (r *reconciliation) notReady() []string {
	var out []string
	for i := range r.seen.members {
		if m := &r.seen.members[i]; !m.Ready {
			out = append(out, m.Name+r.seen.troubleOf(m.Name))
		}
	}
	return out
}

// joinAndGrow waits for the nodes with new volumes, gives queues replicas there, and finishes the recovery.
func (r *reconciliation) joinAndGrow(ctx context.Context, b broker.Client) {
	out := &r.out.recovery
	if waiting := r.notReady(); len(waiting) > 0 {
		out.Reason, out.Message = reasonNodesJoining, "all queues with a remaining copy have a leader; waiting for "+strings.Join(waiting, ", ")
		return
	}
	lacking, err := r.growQueues(ctx, b)
	switch {
	case err != nil:
		out.Reason, out.Message = reasonAddingReplicas, "queues lack replicas on the nodes with new volumes: "+err.Error()
		return
	case lacking > 0:
		out.Reason, out.Message = reasonAddingReplicas, fmt.Sprintf("%d queues get replicas on the nodes with new volumes", lacking)
		return
	}
	out.Action, out.Reason, out.Message = recoveryNone, reasonRecovered, ""
	out.record.State = posthornv1.MajorityRecovered
	r.noteProgress()
	// All leaders are on the nodes that remained.
	r.out.balancedFor = -1
	r.out.noteOfChange("MajorityRecovered", "Recover", "the cluster continues without %s", describeLoss(out.record.Lost))
}

// growQueues adds the next replicas to queues that lost members, and returns the number of queues that lack some.
func (r *reconciliation) growQueues(ctx context.Context, b broker.Client) (lacking int, err error) {
	all, err := r.adoptedQueues(ctx, b)
	if err != nil {
		return 0, err
	}
	targets, requested := targetsFor(&r.in, &r.seen, all), 0
	for i := range all {
		q := &all[i]
		to, isLacking := decideNewReplica(q, targets)
		if !isLacking {
			continue
		}
		lacking++
		if to == "" || requested == maxMoves || ctx.Err() != nil {
			continue
		}
		requested++
		if failure := b.AddReplica(ctx, q.Vhost, q.Name, to); failure != nil && err == nil {
			err = fmt.Errorf("%s: %w", queueName(q.Vhost, q.Name), failure)
			continue
		}
		for j := range targets {
			if targets[j].Name == to {
				targets[j].Replicas++
			}
		}
	}
	return lacking, err
}

// decideNewReplica returns whether a queue has fewer members than it was declared with, and the node that gets the next one;
// empty while its members are not all online. A queue without a leader takes no members.
func decideNewReplica(q *broker.Queue, targets []moveTarget) (to string, isLacking bool) {
	if !isReplicated(q) || q.Leader == "" {
		return "", false
	}
	wanted := askedMembers(q)
	if wanted == 0 {
		wanted = defaultMembers
	}
	wanted = min(wanted, len(targets))
	members := 0
	for _, target := range targets {
		if slices.Contains(q.Members, target.Name) {
			members++
		}
	}
	if members >= wanted {
		return "", false
	}
	return decideMembers(q, targets, wanted).To, true
}

// setMajorityRecovered reports the recovery from a lost majority. The previous condition stays when the reconciliation did
// not get that far.
func (out *decided) setMajorityRecovered(in *inputs) {
	kind := posthornv1.ConditionMajorityRecovered
	switch outcome := &out.recovery; {
	case in.cluster.Spec.MajorityRecovery == nil:
		meta.RemoveStatusCondition(&out.status.Conditions, kind)
	case !outcome.isKnown():
	case outcome.Action == recoveryNone:
		out.setCondition(in, kind, metav1.ConditionTrue, outcome.Reason, "the cluster continues without "+describeLoss(in.cluster.Spec.MajorityRecovery.Lost))
	default:
		before := meta.FindStatusCondition(out.status.Conditions, kind)
		if outcome.Action == recoveryRefuse && (before == nil || before.Reason != outcome.Reason) {
			out.warnOfChange("MajorityRecoveryRefused", "Recover", "%s: %s", outcome.Reason, topology.OneLine(outcome.Message))
		}
		if outcome.Reason == reasonQueuesRefused && (before == nil || before.Reason != outcome.Reason) {
			out.warnOfChange("QueuesRefused", "Recover", "%s", topology.OneLine(outcome.Message))
		}
		out.setCondition(in, kind, metav1.ConditionFalse, outcome.Reason, outcome.Message)
	}
}
