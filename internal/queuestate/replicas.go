// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package queuestate

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sort"

	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/topology"
)

// placeAction is the next step towards the number of members that the spec asks for.
type placeAction string

const (
	placeNone   placeAction = "None"   // there are as many as asked for, or nothing is asked for
	placeWait   placeAction = "Wait"   // something else has to happen first
	placeAdd    placeAction = "Add"    // give the queue a member on a node
	placeRemove placeAction = "Remove" // take a member away
)

// Reasons of a placement, which go to the condition ReplicasPlaced.
const (
	reasonScalingDown    = "ScalingDown"
	reasonMembersOffline = "MembersOffline"
	reasonTooFewNodes    = "TooFewNodes"
	reasonMoveRefused    = "MoveRefused"
)

// Placement is a step towards the wanted number of members of a queue.
type Placement struct {
	Action placeAction
	Node   string
	Reason string
	// Refusal is the broker's answer to the step; empty when it accepted it.
	Refusal string
}

// decidePlacement decides the next step towards the wanted number of members. The first row that applies decides.
//
//	1  no number is wanted, or the number is right        | None
//	2  a node is being removed from the cluster           | Wait ScalingDown
//	3  not all members are online                         | Wait MembersOffline
//	4  too many                                           | Remove a follower from the zone with most
//	                                                      | members, the highest ordinal first
//	5  too few, and a running node has no member          | Add one in the zone with fewest members
//	6  too few                                            | Wait TooFewNodes
//
// In rows 2 and 3 another process moves the members of the queue: the removal of a node, or the broker's own
// replacement of lost members.
func decidePlacement(wanted int, q *broker.Queue, cluster *posthornv1.BrokerCluster) Placement {
	zones, perZone := map[string]string{}, map[string]int{}
	for _, m := range cluster.Status.Members {
		zones[m.Name] = m.Zone
	}
	members := append([]string(nil), q.Members...)
	sort.Strings(members)
	isMember := map[string]bool{}
	for _, m := range members {
		isMember[m] = true
		perZone[zones[m]]++
	}
	switch {
	case wanted == 0 || len(members) == wanted:
		return Placement{Action: placeNone}
	case cluster.Status.Scaling != nil:
		return Placement{Action: placeWait, Reason: reasonScalingDown}
	case len(q.Online) < len(members):
		return Placement{Action: placeWait, Reason: reasonMembersOffline}
	}
	best := ""
	if len(members) > wanted {
		for _, m := range members {
			if m != q.Leader && (best == "" || perZone[zones[m]] >= perZone[zones[best]]) {
				best = m
			}
		}
		return Placement{Action: placeRemove, Node: best}
	}
	for _, m := range cluster.Status.Members {
		free := !isMember[m.Name] && m.State == posthornv1.MemberRunning
		if free && (best == "" || perZone[m.Zone] < perZone[zones[best]]) {
			best = m.Name
		}
	}
	if best == "" {
		return Placement{Action: placeWait, Reason: reasonTooFewNodes}
	}
	return Placement{Action: placeAdd, Node: best}
}

// Place takes one step towards the wanted number of members of a queue, and returns the queue after it. The placement has
// the refusal of the broker, and a later reconciliation tries again; the queue works in the meantime.
func Place(ctx context.Context, b broker.Client, wanted int, q *broker.Queue, cluster *posthornv1.BrokerCluster) (Placement, *broker.Queue, error) {
	if !IsReplicated(q.Type) {
		return Placement{Action: placeNone}, q, nil
	}
	cluster, err := withNodes(ctx, b, wanted, q, cluster)
	if err != nil {
		return Placement{Action: placeNone}, q, err
	}
	step := decidePlacement(wanted, q, cluster)
	switch step.Action {
	case placeAdd:
		err = b.AddReplica(ctx, q.Vhost, q.Name, step.Node)
	case placeRemove:
		err = b.DeleteReplica(ctx, q.Vhost, q.Name, step.Node)
	default:
		return step, q, nil
	}
	if err != nil {
		return Placement{Action: placeWait, Reason: reasonMoveRefused, Refusal: err.Error()}, q, nil //nolint:nilerr // The refusal goes into the status, and the next reconciliation tries again.
	}
	found, err := b.GetQueue(ctx, q.Vhost, q.Name)
	if err != nil {
		return step, q, fmt.Errorf("reading the new members: %w", err)
	}
	return step, &found, nil
}

// withNodes returns a cluster with the nodes of an external broker, which no status has. It asks for them only when
// the number of members has to change.
func withNodes(ctx context.Context, b broker.Client, wanted int, q *broker.Queue, cluster *posthornv1.BrokerCluster) (*posthornv1.BrokerCluster, error) {
	_, external := connect.SecretOf(client.ObjectKeyFromObject(cluster))
	if !external || wanted == 0 || len(q.Members) == wanted {
		return cluster, nil
	}
	nodes, err := b.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the nodes of the broker: %w", err)
	}
	cluster = cluster.DeepCopy()
	for _, node := range nodes {
		state := posthornv1.MemberDown
		if node.Running && !node.BeingDrained {
			state = posthornv1.MemberRunning
		}
		cluster.Status.Members = append(cluster.Status.Members, posthornv1.MemberStatus{Name: node.Name, State: state})
	}
	return cluster, nil
}

// IsPlaced reports whether a queue has the wanted number of members.
func IsPlaced(q *broker.Queue, wanted int) bool {
	members := len(q.Members)
	return wanted == 0 || members == wanted || members > wanted && !IsReplicated(q.Type)
}

// ReplicasPlaced returns the condition ReplicasPlaced of a queue after a placement.
func ReplicasPlaced(q *broker.Queue, wanted int, last Placement) (truth topology.Truth, reason, message string) {
	members := len(q.Members)
	online := fmt.Sprintf("%d members, %d online", members, len(q.Online))
	switch {
	case !IsReplicated(q.Type):
		return topology.True, "SingleReplica", ""
	case last.Refusal != "":
		return topology.False, reasonMoveRefused, fmt.Sprintf("%s, %d wanted: %s", online, wanted, last.Refusal)
	case wanted > 0 && members > wanted:
		return topology.False, "TooManyMembers", fmt.Sprintf("%s, %d wanted", online, wanted)
	case members < wanted:
		return topology.False, "TooFewMembers", fmt.Sprintf("%s, %d wanted", online, wanted)
	case len(q.Online) < members:
		return topology.False, "MembersOffline", online
	}
	return topology.True, "Placed", online
}

// nodeID matches a member whose node has left the cluster: the broker reports its id, because it has no name any
// more.
var nodeID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// Names returns the names of members in order, without those whose node has left the cluster.
func Names(members []string) []string {
	return slices.Sorted(slices.Values(slices.DeleteFunc(slices.Clone(members), nodeID.MatchString)))
}
