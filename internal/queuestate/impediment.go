// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queuestate has the state of queues in brokers that Queues and SuperStreams share: whether clients can use a
// queue, the next step towards its number of members, and a watcher for changes of the state.
package queuestate

import (
	"fmt"
	"slices"
	"strings"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

// Reasons of the condition Ready of a queue that exists and that clients cannot use.
const (
	reasonLost       = "Lost"
	reasonNodeDown   = "NodeDown"
	reasonNoLeader   = "NoLeader"
	reasonNoMajority = "NoMajority"
)

// Running is the state of a queue that a node answers for.
const Running = "running"

// Other states of a queue in the broker's HTTP API.
const (
	stateLost    = "lost"
	stateDown    = "down"
	stateStopped = "stopped"
	stateCrashed = "crashed"
)

// ImpedimentOf returns why clients cannot use a queue; nil when they can. The first row that applies decides.
//
//	1  the broker reports that its data is lost            | Lost
//	2  classic, and its node does not answer for it        | NodeDown
//	3  quorum or stream, and it has no leader              | NoLeader
//	4  quorum or stream, and most members are offline      | NoMajority
func ImpedimentOf(q *broker.Queue) *topology.Impediment {
	offline := slices.DeleteFunc(slices.Clone(q.Members), func(m string) bool { return slices.Contains(q.Online, m) })
	switch {
	case q.State == stateLost:
		return &topology.Impediment{Reason: reasonLost, Message: "the broker has lost the only copy of the queue with the disk of its node; " +
			"delete the queue in the broker, and the operator declares it again, empty"}
	case q.Type == posthornv1.QueueTypeClassic:
		if !slices.Contains([]string{stateDown, stateStopped, stateCrashed}, q.State) {
			return nil
		}
		return &topology.Impediment{Reason: reasonNodeDown, Message: fmt.Sprintf("node %s, which has the only copy of the queue, is not online; bring it back", q.Node)}
	case !IsReplicated(q.Type):
		return nil
	case len(q.Online) < len(q.Members)/2+1:
		reason := reasonNoMajority
		if q.Leader == "" {
			reason = reasonNoLeader
		}
		return &topology.Impediment{Reason: reason, Message: fmt.Sprintf("%d of %d members are online, a majority is needed; %s", len(q.Online), len(q.Members), remedy(offline))}
	case q.Leader == "":
		return &topology.Impediment{Reason: reasonNoLeader, Message: "the members have not elected a leader; if this does not pass, look at the brokers' logs"}
	}
	return nil
}

// IsReplicated reports whether queues of a type have members on several nodes, which can be added and removed.
func IsReplicated(kind string) bool {
	return kind == posthornv1.QueueTypeQuorum || kind == posthornv1.QueueTypeStream
}

// remedy returns what to do about members that are offline. The name of a pod has a dash. A member without one is on a node
// that the cluster has removed because its disk was lost, and the broker shows the identifier of that node.
func remedy(offline []string) string {
	isRemoved := func(member string) bool { return !strings.Contains(member, "-") }
	nodes := slices.DeleteFunc(slices.Clone(offline), isRemoved)
	removed := len(offline) - len(nodes)
	var out []string
	if len(nodes) > 0 {
		out = append(out, "bring back "+strings.Join(nodes, ", "))
	}
	if removed > 0 {
		out = append(out, fmt.Sprintf("the disks of %d of them are lost: if the others are no majority, delete the queue in the broker, and the operator declares it again, empty", removed))
	}
	return strings.Join(out, "; ")
}
