// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"sort"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
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

type placement struct {
	Action placeAction
	Node   string
	Reason string
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
func decidePlacement(wanted int, q *broker.Queue, cluster *posthornv1.BrokerCluster) placement {
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
		return placement{Action: placeNone}
	case cluster.Status.Scaling != nil:
		return placement{Action: placeWait, Reason: reasonScalingDown}
	case len(q.Online) < len(members):
		return placement{Action: placeWait, Reason: reasonMembersOffline}
	}
	best := ""
	if len(members) > wanted {
		for _, m := range members {
			if m != q.Leader && (best == "" || perZone[zones[m]] >= perZone[zones[best]]) {
				best = m
			}
		}
		return placement{Action: placeRemove, Node: best}
	}
	for _, m := range cluster.Status.Members {
		free := !isMember[m.Name] && m.State == posthornv1.MemberRunning
		if free && (best == "" || perZone[m.Zone] < perZone[zones[best]]) {
			best = m.Name
		}
	}
	if best == "" {
		return placement{Action: placeWait, Reason: reasonTooFewNodes}
	}
	return placement{Action: placeAdd, Node: best}
}

// place takes one step. The condition reports a refusal of the broker, and a later reconciliation tries again; the
// queue works in the meantime.
func (w *work) place(ctx context.Context, b broker.Client) error {
	if !w.moves() {
		return nil
	}
	w.placement = decidePlacement(int(w.members()), w.found, w.cluster)
	vhost, name := w.queue.Spec.Vhost, w.queue.BrokerName()
	var err error
	switch w.placement.Action {
	case placeAdd:
		err = b.AddReplica(ctx, vhost, name, w.placement.Node)
	case placeRemove:
		err = b.DeleteReplica(ctx, vhost, name, w.placement.Node)
	default:
		return nil
	}
	if err != nil {
		w.placement = placement{Action: placeWait, Reason: reasonMoveRefused}
		w.refusal = err.Error()
		return nil //nolint:nilerr // The refusal goes into the status, and the next reconciliation tries again.
	}
	found, err := b.GetQueue(ctx, vhost, name)
	if err != nil {
		return fmt.Errorf("reading the new members: %w", err)
	}
	w.found = &found
	return nil
}
