// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"slices"
	"sort"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/queuestate"
	"posthorn.io/posthorn/internal/topology"
)

// Arguments and the policy key that set the number of members of a queue.
const (
	argumentInitialSize = "x-quorum-initial-group-size"
	argumentStreamSize  = "x-initial-cluster-size"
	argumentTargetSize  = "x-quorum-target-group-size"
	policyTargetSize    = "target-group-size"
)

// moveTarget is a node that can take replicas.
type moveTarget struct {
	Name string
	Zone string
	// Replicas is the number of queues that have a member there.
	Replicas int
}

// moveAction is the next step of moving the member of one queue off a node.
type moveAction string

const (
	moveAdd    moveAction = "Add"    // give the queue a member on another node
	moveWait   moveAction = "Wait"   // not all of the members that stay are online
	moveDelete moveAction = "Delete" // delete the member
	moveStuck  moveAction = "Stuck"  // no node can take a member
)

type move struct {
	Action moveAction
	// To is the node that gets a member.
	To string
}

// decideMove returns the next step for a queue that has a member on a leaving node. targets are the nodes that stay.
// "Enough" is the number of members that the queue was declared with, or by default the greatest odd number of members
// that it has (a queue of three has four while one of them moves), and never more than the nodes that stay.
//
//	members that stay | of them online | nodes that stay without one | then
//	enough            | enough         | any                         | Delete
//	enough            | too few        | any                         | Wait
//	too few           | all            | some                        | Add to the best of them
//	too few           | not all        | some                        | Wait
//	too few           | any            | none                        | Stuck
//
// Members are added one at a time and only while all that stay are online, so that a majority never depends on members
// that are still catching up. The best node is one in the zone with the fewest members of the queue, then the one with
// the fewest replicas, then the first by name.
func decideMove(q *broker.Queue, targets []moveTarget) move {
	return decideMembers(q, targets, max(1, min(wantedMembers(q), len(targets))))
}

// decideMembers is decideMove for a queue that is to have a number of members.
func decideMembers(q *broker.Queue, targets []moveTarget, enough int) move {
	staying, online, perZone := map[string]bool{}, 0, map[string]int{}
	for _, h := range targets {
		if slices.Contains(q.Members, h.Name) {
			staying[h.Name] = true
			perZone[h.Zone]++
			if slices.Contains(q.Online, h.Name) {
				online++
			}
		}
	}
	switch {
	case len(staying) >= enough && online >= enough:
		return move{Action: moveDelete}
	case len(staying) >= enough || online < len(staying):
		return move{Action: moveWait}
	}
	best := -1
	for i, h := range targets {
		if !staying[h.Name] && (best < 0 || isBetterTarget(h, targets[best], perZone)) {
			best = i
		}
	}
	if best < 0 {
		return move{Action: moveStuck}
	}
	return move{Action: moveAdd, To: targets[best].Name}
}

func isBetterTarget(a, b moveTarget, perZone map[string]int) bool {
	switch {
	case perZone[a.Zone] != perZone[b.Zone]:
		return perZone[a.Zone] < perZone[b.Zone]
	case a.Replicas != b.Replicas:
		return a.Replicas < b.Replicas
	}
	return a.Name < b.Name
}

// wantedMembers returns the number of members that a queue is to keep.
func wantedMembers(q *broker.Queue) int {
	if asked := askedMembers(q); asked > 0 {
		return asked
	}
	if n := len(q.Members); n > 2 {
		return n - (n+1)%2
	}
	return len(q.Members)
}

// askedMembers returns the number of members that the policy or else the declaration asks for; 0 when neither does.
// adoptResources has put the number of a Queue or SuperStream resource in the place of the declaration's.
func askedMembers(q *broker.Queue) int {
	for _, value := range []any{
		q.EffectivePolicy[policyTargetSize], q.Arguments[argumentTargetSize], q.Arguments[argumentInitialSize], q.Arguments[argumentStreamSize],
	} {
		if number, is := value.(float64); is && number >= 1 && number <= 1000 {
			return int(number)
		}
	}
	return 0
}

// surveyQueues finds the queues that keep a node from leaving. stay is the number of nodes that remain after it and all
// nodes above the wanted number are gone.
func surveyQueues(queues []broker.Queue, leaving string, stay int) leavingQueues {
	out := leavingQueues{Known: true}
	for i := range queues {
		q := &queues[i]
		if isReplicated(q) {
			if askedMembers(q) > stay {
				out.Needing = append(out.Needing, queueName(q.Vhost, q.Name))
			}
			if slices.Contains(q.Members, leaving) {
				out.Replicas++
			}
			continue
		}
		if q.Durable && !q.Exclusive && !q.AutoDelete && (q.Node == leaving || slices.Contains(q.Members, leaving)) {
			out.Unmovable = append(out.Unmovable, queueName(q.Vhost, q.Name))
		}
	}
	sort.Strings(out.Needing)
	sort.Strings(out.Unmovable)
	return out
}

// adoptResources replaces the number of members in the declaration of a queue by the one of its Queue or SuperStream
// resource: the declaration cannot be changed later, the resource can.
func adoptResources(queues []broker.Queue, resources []posthornv1.Queue, superStreams []posthornv1.SuperStream, cluster *posthornv1.BrokerCluster) {
	asked := map[[2]string]int32{}
	for i := range resources {
		if q := &resources[i]; ownsIn(q, cluster) {
			asked[[2]string{q.Spec.Vhost, q.BrokerName()}] = q.WantedMembers(&cluster.Spec)
		}
	}
	for i := range superStreams {
		s := &superStreams[i]
		if !ownsIn(s, cluster) {
			continue
		}
		for _, partition := range s.BrokerPartitions() {
			asked[[2]string{s.Spec.Vhost, partition.Stream}] = s.Spec.Replicas
		}
	}
	for i := range queues {
		q := &queues[i]
		number, owned := asked[[2]string{q.Vhost, q.Name}]
		if !owned || !isReplicated(q) {
			continue
		}
		arguments := map[string]any{}
		for name, value := range q.Arguments {
			arguments[name] = value
		}
		delete(arguments, argumentInitialSize)
		delete(arguments, argumentStreamSize)
		if number > 0 {
			arguments[argumentInitialSize] = float64(number)
		}
		q.Arguments = arguments
	}
}

// ownsIn reports whether a resource owns its object in a cluster.
func ownsIn(object topology.Object, cluster *posthornv1.BrokerCluster) bool {
	return object.Topology().Claim != "" && topology.ClusterKey(object) == client.ObjectKeyFromObject(cluster)
}

// isReplicated reports whether a queue has members that can move: it is a quorum queue or a stream.
func isReplicated(q *broker.Queue) bool { return queuestate.IsReplicated(q.Type) }

// queueName returns the name of a queue in the status.
func queueName(vhost, name string) string { return strings.TrimPrefix(vhost, "/") + "/" + name }
