// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"sort"
	"strings"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// Where a queue says how many members it is to have.
const (
	argumentInitialSize = "x-quorum-initial-group-size"
	argumentTargetSize  = "x-quorum-target-group-size"
	policyTargetSize    = "target-group-size"
)

// home is a node that can take replicas.
type home struct {
	Name string
	Zone string
	// Replicas is how many queues have a member there.
	Replicas int
}

// moveAction is the next step of taking one queue's member off a node.
type moveAction string

const (
	moveAdd    moveAction = "Add"    // give the queue a member on another node
	moveWait   moveAction = "Wait"   // the members that stay are not all online
	moveDelete moveAction = "Delete" // take the member away
	moveStuck  moveAction = "Stuck"  // no node can take a member
)

type move struct {
	Action moveAction
	// To is the node that gets a member.
	To string
}

// decideMove says what to do about a queue that has a member on a node that leaves. homes are the
// nodes that stay. "Enough" is as many members as the queue was asked for, or by default the greatest
// odd number of members that it has (a queue of three has four while one of them moves), and never
// more than there are nodes that stay.
//
//	members that stay | of them online | nodes that stay without one | then
//	enough            | enough         | any                         | Delete
//	enough            | too few        | any                         | Wait
//	too few           | all            | some                        | Add to the best of them
//	too few           | not all        | some                        | Wait
//	too few           | any            | none                        | Stuck
//
// Members are added one at a time and only while all that stay are online, so that at no time a
// majority depends on members that are still catching up. The best node is one in the zone with the
// fewest members of the queue; then the one with the fewest replicas; then the first by name.
func decideMove(q *broker.Queue, homes []home) move {
	staying, online, perZone := map[string]bool{}, 0, map[string]int{}
	for _, h := range homes {
		if contains(q.Members, h.Name) {
			staying[h.Name] = true
			perZone[h.Zone]++
			if contains(q.Online, h.Name) {
				online++
			}
		}
	}
	enough := max(1, min(wantedMembers(q), len(homes)))
	switch {
	case len(staying) >= enough && online >= enough:
		return move{Action: moveDelete}
	case len(staying) >= enough || online < len(staying):
		return move{Action: moveWait}
	}
	best := -1
	for i, h := range homes {
		if !staying[h.Name] && (best < 0 || betterHome(h, homes[best], perZone)) {
			best = i
		}
	}
	if best < 0 {
		return move{Action: moveStuck}
	}
	return move{Action: moveAdd, To: homes[best].Name}
}

func betterHome(a, b home, perZone map[string]int) bool {
	switch {
	case perZone[a.Zone] != perZone[b.Zone]:
		return perZone[a.Zone] < perZone[b.Zone]
	case a.Replicas != b.Replicas:
		return a.Replicas < b.Replicas
	}
	return a.Name < b.Name
}

// wantedMembers is how many members a queue is to keep.
func wantedMembers(q *broker.Queue) int {
	if asked := askedMembers(q); asked > 0 {
		return asked
	}
	if n := len(q.Members); n > 2 {
		return n - (n+1)%2
	}
	return len(q.Members)
}

// askedMembers is the number of members that somebody asked for: the policy's, else the
// declaration's; 0 when nobody did. Where a Queue resource says a number, adoptResources has put it in
// the declaration's place.
func askedMembers(q *broker.Queue) int {
	for _, value := range []any{
		q.EffectivePolicy[policyTargetSize], q.Arguments[argumentTargetSize], q.Arguments[argumentInitialSize],
	} {
		if number, is := value.(float64); is && number >= 1 && number <= 1000 {
			return int(number)
		}
	}
	return 0
}

// surveyQueues finds what keeps a node from leaving: after it and all nodes above the wanted number
// are gone, stay nodes are left.
func surveyQueues(queues []broker.Queue, leaving string, stay int) leavingQueues {
	out := leavingQueues{Known: true}
	for i := range queues {
		q := &queues[i]
		if replicated(q) {
			if askedMembers(q) > stay {
				out.Needing = append(out.Needing, queueName(q.Vhost, q.Name))
			}
			if contains(q.Members, leaving) {
				out.Replicas++
			}
			continue
		}
		if q.Durable && !q.Exclusive && !q.AutoDelete && (q.Node == leaving || contains(q.Members, leaving)) {
			out.Unmovable = append(out.Unmovable, queueName(q.Vhost, q.Name))
		}
	}
	sort.Strings(out.Needing)
	sort.Strings(out.Unmovable)
	return out
}

// adoptResources puts the numbers that Queue resources ask for in the place of those that the queues
// were declared with: a declaration cannot be changed later, a resource can.
func adoptResources(queues []broker.Queue, resources []posthornv1.Queue, cluster *posthornv1.BrokerCluster) {
	asked := map[[2]string]int32{}
	for i := range resources {
		q := &resources[i]
		home := q.Spec.ClusterRef.Namespace
		if home == "" {
			home = q.Namespace
		}
		if q.Status.Claim != "" && q.Spec.ClusterRef.Name == cluster.Name && home == cluster.Namespace {
			asked[[2]string{q.Spec.Vhost, q.BrokerName()}] = q.WantedMembers(&cluster.Spec)
		}
	}
	for i := range queues {
		q := &queues[i]
		number, owned := asked[[2]string{q.Vhost, q.Name}]
		if !owned || !replicated(q) {
			continue
		}
		arguments := map[string]any{}
		for name, value := range q.Arguments {
			arguments[name] = value
		}
		delete(arguments, argumentInitialSize)
		if number > 0 {
			arguments[argumentInitialSize] = float64(number)
		}
		q.Arguments = arguments
	}
}

func replicated(q *broker.Queue) bool { return q.Type == posthornv1.QueueTypeQuorum }

// queueName is how the status names a queue.
func queueName(vhost, name string) string { return strings.TrimPrefix(vhost, "/") + "/" + name }

func contains(list []string, word string) bool {
	for _, each := range list {
		if each == word {
			return true
		}
	}
	return false
}
