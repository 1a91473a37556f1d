// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

const (
	// scalePoll is how often the broker is asked while a node is being removed.
	scalePoll = 2 * time.Second
	// maxMoves bounds the changes of membership that one attempt asks the broker for.
	maxMoves = 32
)

// errStillMoving: the broker took the request and moves replicas first.
var errStillMoving = errors.New("the broker still moves replicas")

// scaling is what an attempt finds about the removal of a node.
type scaling struct {
	decision scaleDecision
	// leaving is the node with the highest ordinal; nil when no node is to go.
	leaving *memberView
	queues  leavingQueues
	all     []broker.Queue
	// trouble is why the broker did not do what it was asked for.
	trouble string
}

// removing says that the removal of a node has begun. A mark on a node that is to stay is one of a
// removal that was called off.
func (s *scope) removing(m *memberView) bool {
	marked := m.pod != nil && m.pod.Annotations[names.AnnotationDraining] == names.DrainingForRemoval
	return marked && s.leaves(m.Name) && s.cluster.Spec.ScaleDown.Policy != posthornv1.ScaleDownDeny
}

// leaves says whether a node is the next to go.
func (s *scope) leaves(name string) bool {
	return s.sizes.Nodes > s.cluster.Spec.Replicas && name == s.podName(s.sizes.Nodes-1)
}

// scaleDown decides about and does one step of removing a node. It tells whether pods are to be left
// alone otherwise.
func (s *scope) scaleDown(ctx context.Context) (bool, error) {
	if s.sizes.Nodes <= s.cluster.Spec.Replicas || len(s.members) != int(s.sizes.Nodes) {
		s.scaling.decision = scaleDecision{Action: scaleNone, Reason: reasonEnough}
		return false, nil
	}
	s.scaling.leaving = &s.members[s.sizes.Nodes-1]
	b, err := s.Brokers.Cluster(ctx, s.key())
	if err != nil {
		return false, err
	}
	s.surveyForScale(ctx, b)
	s.scaling.decision = decideScale(s.scaleStateOf())
	s.lookAgain(scalePoll)
	m := s.scaling.leaving
	switch s.scaling.decision.Action {
	case scaleDrain:
		return true, s.drainNode(ctx, m, names.DrainingForRemoval)
	case scaleMove:
		s.moveReplicas(ctx, b)
		return true, nil
	case scaleRemove:
		return true, s.removeNode(ctx, b, m)
	case scaleRevive:
		return true, s.reviveNode(ctx, m, s.scaling.decision.Reason)
	default:
		return s.removing(m), nil
	}
}

// surveyForScale asks for all queues. What is not answered stays unknown.
func (s *scope) surveyForScale(ctx context.Context, b broker.Client) {
	all, err := b.AllQueues(ctx)
	if err != nil {
		s.scaling.trouble = err.Error()
		return
	}
	var resources posthornv1.QueueList
	if err := s.Client.List(ctx, &resources); err != nil {
		s.scaling.trouble = err.Error()
		return
	}
	adoptResources(all, resources.Items, s.cluster)
	s.scaling.all = all
	s.scaling.queues = surveyQueues(all, s.scaling.leaving.Name, int(s.cluster.Spec.Replicas))
}

func (s *scope) scaleStateOf() scaleState {
	state := scaleState{
		Denied: s.cluster.Spec.ScaleDown.Policy == posthornv1.ScaleDownDeny,
		Wanted: s.cluster.Spec.Replicas, Have: s.sizes.Nodes,
		Leaving: s.scaling.leaving.rollMember, Marked: s.removing(s.scaling.leaving),
		PodsGoing: s.podsBeyond, Queues: s.scaling.queues,
	}
	for i := range s.members {
		if i < int(s.cluster.Spec.Replicas) {
			state.Staying = append(state.Staying, s.members[i].rollMember)
		}
		state.Outdated = state.Outdated || outdated(s.members[i].rollMember)
	}
	return state
}

// moveReplicas asks for the next steps of moving members off the leaving node. A queue whose step
// the broker refuses does not hold up the others.
func (s *scope) moveReplicas(ctx context.Context, b broker.Client) {
	leaving, homes := s.scaling.leaving.Name, s.homes()
	asked := 0
	for i := range s.scaling.all {
		q := &s.scaling.all[i]
		if !replicated(q) || !contains(q.Members, leaving) {
			continue
		}
		if asked == maxMoves || ctx.Err() != nil {
			return
		}
		next := decideMove(q, homes)
		var err error
		switch next.Action {
		case moveAdd:
			asked++
			err = b.AddReplica(ctx, q.Vhost, q.Name, next.To)
		case moveDelete:
			asked++
			err = s.giveUpReplica(ctx, b, q, homes)
		case moveWait:
			err = fmt.Errorf("waits for its members to be online")
		case moveStuck:
			err = fmt.Errorf("no node can take a member")
		}
		if next.Action == moveAdd {
			for j := range homes {
				if homes[j].Name == next.To {
					homes[j].Replicas++
				}
			}
		}
		if err != nil && s.scaling.trouble == "" {
			s.scaling.trouble = fmt.Sprintf("%s: %v", queueName(q.Vhost, q.Name), err)
		}
	}
}

// giveUpReplica takes the leaving node's member away once enough of those that stay count for the
// majority: a new member that still catches up does not.
func (s *scope) giveUpReplica(ctx context.Context, b broker.Client, q *broker.Queue, homes []home) error {
	replicas, err := b.QuorumStatus(ctx, q.Vhost, q.Name)
	if err != nil {
		return err
	}
	voters, enough := 0, max(1, min(wantedMembers(q), len(homes)))
	for _, r := range replicas {
		for _, h := range homes {
			if r.Node == h.Name && r.Membership == broker.MembershipVoter {
				voters++
			}
		}
	}
	if voters < enough {
		return fmt.Errorf("waits for its new member to catch up")
	}
	return b.DeleteReplica(ctx, q.Vhost, q.Name, s.scaling.leaving.Name)
}

// homes are the nodes that stay, with what they hold.
func (s *scope) homes() []home {
	held := map[string]int{}
	for i := range s.scaling.all {
		for _, node := range s.scaling.all[i].Members {
			held[node]++
		}
	}
	out := make([]home, 0, s.cluster.Spec.Replicas)
	for i := range s.members {
		if m := &s.members[i]; i < int(s.cluster.Spec.Replicas) {
			h := home{Name: m.Name, Replicas: held[m.Name]}
			if m.pod != nil {
				h.Zone = m.pod.Labels[names.LabelZone]
			}
			out = append(out, h)
		}
	}
	return out
}

// removeNode lets the cluster forget the node and makes the StatefulSet one smaller. A broker that
// forgets only nodes that do not run is told again when the pod is gone (forgetLeftover), unless the
// cluster could not decide that without the node.
func (s *scope) removeNode(ctx context.Context, b broker.Client, m *memberView) error {
	err := s.forgetNode(ctx, b, m.Name)
	if errors.Is(err, errStillMoving) {
		s.scaling.trouble = err.Error()
		return nil
	}
	stopFirst := broker.IsStillRunning(err) && s.sizes.Nodes > 2
	switch {
	case err == nil || stopFirst:
	case broker.IsTerminal(err):
		s.scaling.trouble = err.Error()
		return nil
	default:
		s.scaling.trouble = err.Error()
		return err
	}
	sts := s.sts.DeepCopy()
	fewer := s.sizes.Nodes - 1
	sts.Spec.Replicas = &fewer
	if policy := sts.Spec.PersistentVolumeClaimRetentionPolicy; policy != nil {
		// It is Retain again when the pod is gone (whenScaled).
		policy.WhenScaled = appsv1.PersistentVolumeClaimRetentionPolicyType(s.cluster.Spec.Storage.WhenScaled)
	}
	if err := s.Client.Update(ctx, sts); err != nil {
		return fmt.Errorf("making the StatefulSet smaller: %w", err)
	}
	s.sts = sts
	if stopFirst {
		s.event(corev1.EventTypeNormal, "NodeStopped", "ScaleDown", "%s holds nothing any more and is stopped before the cluster forgets it", m.Name)
	}
	return nil
}

// forgetNode lets the cluster forget a node and notes that on its volume. A node that is forgotten
// already is no error, and no news: that is how a removal goes on after a crash or a conflict.
func (s *scope) forgetNode(ctx context.Context, b broker.Client, node string) error {
	forgotten, err := b.ForgetNode(ctx, node)
	switch {
	case broker.IsNotFound(err):
		return s.noteForgotten(ctx, node)
	case err != nil:
		return fmt.Errorf("forgetting %s: %w", node, err)
	case !forgotten:
		return fmt.Errorf("forgetting %s: %w", node, errStillMoving)
	}
	if err := s.noteForgotten(ctx, node); err != nil {
		return err
	}
	s.event(corev1.EventTypeNormal, "NodeRemoved", "ScaleDown", "the cluster has forgotten %s", node)
	return nil
}

// forgetLeftover lets the cluster forget a node that has no pod any more and no place in the
// StatefulSet. One that queues still have members on is not: it says so.
func (s *scope) forgetLeftover(ctx context.Context) (bool, error) {
	if s.leftover == "" || s.podsBeyond || s.cluster.Spec.ScaleDown.Policy == posthornv1.ScaleDownDeny {
		return false, nil
	}
	s.lookAgain(scalePoll)
	s.scaling.decision = scaleDecision{Action: scaleRemove, Reason: reasonEmpty}
	b, err := s.Brokers.Cluster(ctx, s.key())
	if err != nil {
		return true, err
	}
	all, err := b.AllQueues(ctx)
	if err != nil {
		return true, err
	}
	held := surveyQueues(all, s.leftover, int(s.sizes.Nodes))
	if held.Replicas > 0 || len(held.Unmovable) > 0 {
		s.scaling.trouble = fmt.Sprintf("%d queues have members on it, and it has no pod", held.Replicas+len(held.Unmovable))
		return false, nil
	}
	if err := s.forgetNode(ctx, b, s.leftover); err != nil {
		s.scaling.trouble = err.Error()
		if broker.IsTerminal(err) || errors.Is(err, errStillMoving) {
			return false, nil
		}
		return true, err
	}
	return true, nil
}

// noteForgotten marks the volume of a node that the cluster has forgotten: the node's identity is on
// it, and no node can come back with that.
func (s *scope) noteForgotten(ctx context.Context, node string) error {
	var claim corev1.PersistentVolumeClaim
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: dataVolume + "-" + node}, &claim)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	before := client.MergeFrom(claim.DeepCopy())
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, names.AnnotationForgotten, node)
	if err := s.Client.Patch(ctx, &claim, before); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("noting on volume %s that its node is forgotten: %w", claim.Name, err)
	}
	return nil
}

// balance spreads leaders once after the number of nodes has changed, or nodes were replaced, and all of them are ready.
func (s *scope) balance(ctx context.Context) error {
	status := &s.cluster.Status
	n := int32(len(s.members))
	if status.BalancedFor == n || !s.complete(s.tally()) || n != s.cluster.Spec.Replicas {
		return nil
	}
	// Once: what the cache does not have yet may say that it is done, and over something newer it could not be noted.
	var live posthornv1.BrokerCluster
	if err := s.Live.Get(ctx, s.key(), &live); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("reading how many nodes leaders were spread over: %w", err)
	}
	if live.ResourceVersion != s.cluster.ResourceVersion {
		s.lookAgain(behind)
		return nil
	}
	if status.BalancedFor != 0 && s.cluster.Spec.Placement.Rebalance == posthornv1.RebalanceOnMembershipChange {
		b, err := s.Brokers.Cluster(ctx, s.key())
		if err != nil {
			return err
		}
		if err := b.RebalanceQueues(ctx); err != nil {
			return fmt.Errorf("spreading leaders: %w", err)
		}
		s.event(corev1.EventTypeNormal, "Rebalanced", "Scale", "spreading leaders over %d nodes", n)
	}
	status.BalancedFor = n
	return nil
}

// setScaling writes status.scaling.
func (s *scope) setScaling() {
	status, found := &s.cluster.Status, &s.scaling
	before := status.Scaling
	status.Scaling = nil
	removing := s.leftover
	if found.leaving != nil {
		removing = found.leaving.Name
	}
	if removing == "" {
		return
	}
	now := metav1.NewTime(s.Now())
	status.Scaling = &posthornv1.ScalingStatus{
		Removing: removing, Reason: found.decision.Reason, Message: s.scalingMessage(), Since: &now,
		Remaining: int32(found.queues.Replicas),
	}
	if before != nil && before.Removing == status.Scaling.Removing && before.Reason == status.Scaling.Reason {
		status.Scaling.Since = before.Since
	}
	switch found.decision.Reason {
	case reasonQueuesNeedNodes:
		status.Scaling.Queues = firstFew(found.queues.Needing)
	case reasonUnmovableQueues:
		status.Scaling.Queues = firstFew(found.queues.Unmovable)
	case reasonQuorumCritical:
		for _, queue := range found.leaving.queues {
			status.Scaling.Queues = append(status.Scaling.Queues, queueName(queue.Vhost, queue.Name))
		}
		status.Scaling.Queues = firstFew(status.Scaling.Queues)
	}
}

// scalingMessage says in words what the removal of a node waits for.
func (s *scope) scalingMessage() string {
	found := &s.scaling
	if found.trouble != "" {
		return found.trouble
	}
	switch found.decision.Reason {
	case reasonScaleDownDenied:
		return fmt.Sprintf("spec.scaleDown.policy is Deny: set spec.replicas to %d again, or the policy to Drain", s.sizes.Nodes)
	case reasonQueuesNeedNodes:
		return fmt.Sprintf("%d queues were asked for with more than %d members", len(found.queues.Needing), s.cluster.Spec.Replicas)
	case reasonUnmovableQueues:
		return fmt.Sprintf("%d queues live on %s alone and cannot be moved; delete them or raise spec.replicas", len(found.queues.Unmovable), found.leaving.Name)
	case reasonMovingReplicas:
		return fmt.Sprintf("%d queues still have a member on %s", found.queues.Replicas, found.leaving.Name)
	case reasonMemberNotReady:
		return "waiting for " + found.decision.About
	}
	return ""
}

func firstFew(all []string) []string {
	if len(all) > maxNamedQueues {
		return all[:maxNamedQueues]
	}
	return all
}
