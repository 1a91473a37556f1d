// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// scalePoll is the interval of queries to the broker while a node is removed.
	scalePoll = 2 * time.Second
	// maxMoves bounds the membership changes that one reconciliation requests from the broker.
	maxMoves = 32
)

// errStillMoving: the broker accepted the request and moves replicas first.
var errStillMoving = errors.New("the broker is still moving replicas")

// removalView is the broker's view of the removal of a node.
type removalView struct {
	// leaving is the node with the highest ordinal; nil when no node is to go.
	leaving *memberView
	queues  leavingQueues
	all     []broker.Queue
	// trouble is why the broker did not carry out a request.
	trouble string
}

// isBeingRemoved reports whether the removal of a node has begun. The annotation of a node that is to stay is left over
// from a removal that was called off.
func isBeingRemoved(in *inputs, sizes sizes, m *memberView) bool {
	marked := m.pod != nil && m.pod.Annotations[names.AnnotationDraining] == names.DrainingForRemoval
	isNext := sizes.Nodes > in.cluster.Spec.Replicas && m.Name == in.podName(sizes.Nodes-1)
	return marked && isNext && in.cluster.Spec.ScaleDown.Policy != posthornv1.ScaleDownDeny
}

// scaleDown decides the next step of removing a node and takes it. It reports whether other phases have to leave the
// pods alone.
func (r *reconciliation) scaleDown(ctx context.Context) (bool, error) {
	if r.out.sizes.Nodes <= r.in.cluster.Spec.Replicas || len(r.seen.members) != int(r.out.sizes.Nodes) {
		r.out.scale = scaleDecision{Action: scaleNone, Reason: reasonEnough}
		return false, nil
	}
	m := &r.seen.members[r.out.sizes.Nodes-1]
	r.seen.removal.leaving = m
	b, err := r.Brokers.Cluster(ctx, r.in.key())
	if err != nil {
		return false, err
	}
	r.queryQueues(ctx, b)
	r.out.scale = decideScale(scaleStateOf(&r.in, &r.seen, r.out.sizes))
	r.out.requeueWithin(scalePoll)
	switch r.out.scale.Action {
	case scaleDrain:
		return true, r.drainNode(ctx, m, names.DrainingForRemoval)
	case scaleMove:
		r.moveReplicas(ctx, b)
		return true, nil
	case scaleRemove:
		return true, r.removeNode(ctx, b, m)
	case scaleRevive:
		return true, r.reviveNode(ctx, m, r.out.scale.Reason)
	default:
		return isBeingRemoved(&r.in, r.out.sizes, m), nil
	}
}

// queryQueues asks the broker for all queues. Without an answer they stay unknown.
func (r *reconciliation) queryQueues(ctx context.Context, b broker.Client) {
	all, err := r.adoptedQueues(ctx, b)
	if err != nil {
		r.seen.removal.trouble = err.Error()
		return
	}
	r.seen.removal.all = all
	r.seen.removal.queues = surveyQueues(all, r.seen.removal.leaving.Name, int(r.in.cluster.Spec.Replicas))
}

// adoptedQueues lists all queues of the broker, with the numbers of members of their resources.
func (r *reconciliation) adoptedQueues(ctx context.Context, b broker.Client) ([]broker.Queue, error) {
	all, err := b.AllQueues(ctx)
	if err != nil {
		return nil, err
	}
	var resources posthornv1.QueueList
	if err := r.Client.List(ctx, &resources); err != nil {
		return nil, fmt.Errorf("listing the Queues: %w", err)
	}
	var superStreams posthornv1.SuperStreamList
	if err := r.Client.List(ctx, &superStreams); err != nil {
		return nil, fmt.Errorf("listing the SuperStreams: %w", err)
	}
	adoptResources(all, resources.Items, superStreams.Items, r.in.cluster)
	return all, nil
}

// scaleStateOf collects the input of decideScale.
func scaleStateOf(in *inputs, seen *observed, sizes sizes) scaleState {
	leaving := seen.removal.leaving
	state := scaleState{
		Denied: in.cluster.Spec.ScaleDown.Policy == posthornv1.ScaleDownDeny,
		Wanted: in.cluster.Spec.Replicas, Have: sizes.Nodes,
		Leaving: leaving.rollMember, Marked: isBeingRemoved(in, sizes, leaving),
		PodsGoing: seen.hasPodsBeyond(in, sizes.Nodes), Queues: seen.removal.queues,
	}
	for i := range seen.members {
		if i < int(in.cluster.Spec.Replicas) {
			state.Staying = append(state.Staying, seen.members[i].rollMember)
		}
		state.Outdated = state.Outdated || isOutdated(seen.members[i].rollMember)
	}
	return state
}

// moveReplicas requests the next steps of moving members off the leaving node. A queue whose step the broker refuses
// does not hold up the others.
func (r *reconciliation) moveReplicas(ctx context.Context, b broker.Client) {
	leaving, targets := r.seen.removal.leaving.Name, targetsFor(&r.in, &r.seen, r.seen.removal.all)
	requested := 0
	for i := range r.seen.removal.all {
		q := &r.seen.removal.all[i]
		if !isReplicated(q) || !slices.Contains(q.Members, leaving) {
			continue
		}
		if requested == maxMoves || ctx.Err() != nil {
			return
		}
		next := decideMove(q, targets)
		var err error
		switch next.Action {
		case moveAdd:
			requested++
			err = b.AddReplica(ctx, q.Vhost, q.Name, next.To)
		case moveDelete:
			requested++
			err = r.deleteReplica(ctx, b, q, targets)
		case moveWait:
			err = errors.New("waiting for its members to be online")
		case moveStuck:
			err = errors.New("no other node can take a member; add a node or raise spec.replicas")
		}
		if next.Action == moveAdd {
			for j := range targets {
				if targets[j].Name == next.To {
					targets[j].Replicas++
				}
			}
		}
		if err != nil && r.seen.removal.trouble == "" {
			r.seen.removal.trouble = fmt.Sprintf("%s: %v", queueName(q.Vhost, q.Name), err)
		}
	}
}

// deleteReplica deletes the leaving node's member once enough of the others count for the majority: a new member that
// is still catching up does not.
func (r *reconciliation) deleteReplica(ctx context.Context, b broker.Client, q *broker.Queue, targets []moveTarget) error {
	replicas, err := b.QuorumStatus(ctx, q.Vhost, q.Name)
	if err != nil {
		return err
	}
	voters, enough := 0, max(1, min(wantedMembers(q), len(targets)))
	for _, replica := range replicas {
		for _, target := range targets {
			if replica.Node == target.Name && replica.Membership == broker.MembershipVoter {
				voters++
			}
		}
	}
	if voters < enough {
		return errors.New("waiting for its new member to catch up")
	}
	return b.DeleteReplica(ctx, q.Vhost, q.Name, r.seen.removal.leaving.Name)
}

// targetsFor returns the nodes that the spec wants, with the number of replicas on each.
func targetsFor(in *inputs, seen *observed, all []broker.Queue) []moveTarget {
	held := map[string]int{}
	for i := range all {
		for _, node := range all[i].Members {
			held[node]++
		}
	}
	out := make([]moveTarget, 0, in.cluster.Spec.Replicas)
	for i := range seen.members {
		if m := &seen.members[i]; i < int(in.cluster.Spec.Replicas) {
			target := moveTarget{Name: m.Name, Replicas: held[m.Name]}
			if m.pod != nil {
				target.Zone = m.pod.Labels[names.LabelZone]
			}
			out = append(out, target)
		}
	}
	return out
}

// removeNode makes the cluster forget the node and makes the StatefulSet one smaller. A broker that forgets only stopped
// nodes is asked again when the pod is gone (forgetStrayNode), unless the cluster could not decide that without
// the node.
func (r *reconciliation) removeNode(ctx context.Context, b broker.Client, m *memberView) error {
	err := r.forgetNode(ctx, b, m.Name)
	if errors.Is(err, errStillMoving) {
		r.seen.removal.trouble = err.Error()
		return nil
	}
	stopFirst := broker.IsStillRunning(err) && r.out.sizes.Nodes > 2
	switch {
	case err == nil || stopFirst:
	case broker.IsTerminal(err):
		r.seen.removal.trouble = err.Error()
		return nil
	default:
		r.seen.removal.trouble = err.Error()
		return err
	}
	sts := r.seen.sts.DeepCopy()
	fewer := r.out.sizes.Nodes - 1
	sts.Spec.Replicas = &fewer
	if policy := sts.Spec.PersistentVolumeClaimRetentionPolicy; policy != nil {
		// whenScaled sets it to Retain again when the pod is gone.
		policy.WhenScaled = appsv1.PersistentVolumeClaimRetentionPolicyType(r.in.cluster.Spec.Storage.WhenScaled)
	}
	if err := r.Client.Update(ctx, sts); err != nil {
		return fmt.Errorf("making the StatefulSet smaller: %w", err)
	}
	r.seen.sts = sts
	if stopFirst {
		r.out.note("NodeStopped", "ScaleDown", "%s is empty and is stopped before the cluster forgets it", m.Name)
	}
	return nil
}

// forgetNode makes the cluster forget a node and records that on its volume. A node that the cluster has already
// forgotten is no error and has no Event: this is how a removal continues after a crash or a conflict.
func (r *reconciliation) forgetNode(ctx context.Context, b broker.Client, node string) error {
	forgotten, err := b.ForgetNode(ctx, node)
	switch {
	case broker.IsNotFound(err):
		return r.recordForgotten(ctx, node)
	case err != nil:
		return fmt.Errorf("forgetting %s: %w", node, err)
	case !forgotten:
		return fmt.Errorf("forgetting %s: %w", node, errStillMoving)
	}
	if err := r.recordForgotten(ctx, node); err != nil {
		return err
	}
	r.out.note("NodeRemoved", "ScaleDown", "the cluster has forgotten %s", node)
	return nil
}

// forgetStrayNode makes the cluster forget a node that has no pod and no place in the StatefulSet, unless queues still
// have members on it. It reports whether the reconciliation ends here.
func (r *reconciliation) forgetStrayNode(ctx context.Context) (bool, error) {
	stray := r.seen.strayNode
	if stray == "" || r.seen.hasPodsBeyond(&r.in, r.out.sizes.Nodes) || r.in.cluster.Spec.ScaleDown.Policy == posthornv1.ScaleDownDeny {
		return false, nil
	}
	r.out.requeueWithin(scalePoll)
	r.out.scale = scaleDecision{Action: scaleRemove, Reason: reasonEmpty}
	b, err := r.Brokers.Cluster(ctx, r.in.key())
	if err != nil {
		return true, err
	}
	all, err := b.AllQueues(ctx)
	if err != nil {
		return true, err
	}
	held := surveyQueues(all, stray, int(r.out.sizes.Nodes))
	if held.Replicas > 0 || len(held.Unmovable) > 0 {
		r.seen.removal.trouble = fmt.Sprintf("%d queues have members on %s, which has no pod; delete these members or queues in the broker", held.Replicas+len(held.Unmovable), stray)
		return false, nil
	}
	if err := r.forgetNode(ctx, b, stray); err != nil {
		r.seen.removal.trouble = err.Error()
		if broker.IsTerminal(err) || errors.Is(err, errStillMoving) {
			return false, nil
		}
		return true, err
	}
	return true, nil
}

// recordForgotten annotates the volume of a node that the cluster has forgotten. The volume holds the node's identity,
// with which no node can join again.
func (r *reconciliation) recordForgotten(ctx context.Context, node string) error {
	var claim corev1.PersistentVolumeClaim
	err := r.Client.Get(ctx, r.in.keyOf(dataVolume+"-"+node), &claim)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	before := client.MergeFrom(claim.DeepCopy())
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, names.AnnotationForgotten, node)
	if err := r.Client.Patch(ctx, &claim, before); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("recording on volume %s that its node is forgotten: %w", claim.Name, err)
	}
	return nil
}

// balance spreads leaders once after the number of nodes has changed or nodes were replaced, when all of them are ready.
func (r *reconciliation) balance(ctx context.Context) error {
	before := r.in.cluster.Status.BalancedFor
	n := int32(len(r.seen.members))
	if before == n || !r.out.isComplete(&r.in, &r.seen) || n != r.in.cluster.Spec.Replicas {
		return nil
	}
	// The object that the cache does not have yet may record that leaders were spread, and a conflict with it would
	// lose the record of this time.
	var live posthornv1.BrokerCluster
	if err := r.Live.Get(ctx, r.in.key(), &live); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("reading the number of nodes over which leaders were spread: %w", err)
	}
	if live.ResourceVersion != r.in.cluster.ResourceVersion {
		r.out.requeueWithin(staleRetry)
		return nil
	}
	if before != 0 && r.in.cluster.Spec.Placement.Rebalance == posthornv1.RebalanceOnMembershipChange {
		b, err := r.Brokers.Cluster(ctx, r.in.key())
		if err != nil {
			return err
		}
		if err := b.RebalanceQueues(ctx); err != nil {
			return fmt.Errorf("spreading leaders: %w", err)
		}
		r.out.note("Rebalanced", "Scale", "spreading leaders over %d nodes", n)
	}
	r.out.balancedFor = n
	return nil
}

// setScaling fills status.scaling.
func (out *decided) setScaling(in *inputs, seen *observed) {
	removal := &seen.removal
	before := out.status.Scaling
	out.status.Scaling = nil
	removing := seen.strayNode
	if removal.leaving != nil {
		removing = removal.leaving.Name
	}
	if removing == "" {
		return
	}
	now := metav1.NewTime(in.now)
	scaling := &posthornv1.ScalingStatus{
		Removing: removing, Reason: out.scale.Reason, Message: out.scalingMessage(in, seen), Since: &now,
		Remaining: int32(removal.queues.Replicas),
	}
	if before != nil && before.Removing == scaling.Removing && before.Reason == scaling.Reason {
		scaling.Since = before.Since
	}
	switch out.scale.Reason {
	case reasonQueuesNeedNodes:
		scaling.Queues = firstFew(removal.queues.Needing)
	case reasonUnmovableQueues:
		scaling.Queues = firstFew(removal.queues.Unmovable)
	case reasonQuorumCritical:
		for _, queue := range removal.leaving.queues {
			scaling.Queues = append(scaling.Queues, queueName(queue.Vhost, queue.Name))
		}
		scaling.Queues = firstFew(scaling.Queues)
	}
	out.status.Scaling = scaling
}

// scalingMessage says what the removal of a node waits for.
func (out *decided) scalingMessage(in *inputs, seen *observed) string {
	removal := &seen.removal
	if removal.trouble != "" {
		return removal.trouble
	}
	switch out.scale.Reason {
	case reasonScaleDownDenied:
		return fmt.Sprintf("spec.scaleDown.policy is Deny: set spec.replicas to %d again, or the policy to Drain", out.sizes.Nodes)
	case reasonQueuesNeedNodes:
		return fmt.Sprintf("%d queues ask for more than %d members", len(removal.queues.Needing), in.cluster.Spec.Replicas)
	case reasonUnmovableQueues:
		return fmt.Sprintf("%d queues exist on %s alone and cannot be moved; delete them or raise spec.replicas", len(removal.queues.Unmovable), removal.leaving.Name)
	case reasonMovingReplicas:
		return fmt.Sprintf("%d queues still have a member on %s", removal.queues.Replicas, removal.leaving.Name)
	case reasonMemberNotReady:
		return "waiting for " + out.scale.About + seen.troubleOf(out.scale.About)
	}
	return ""
}

func firstFew(all []string) []string {
	if len(all) > maxNamedQueues {
		return all[:maxNamedQueues]
	}
	return all
}
