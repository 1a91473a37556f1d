// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"slices"
	"strings"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// recoveryAction is the next action of the recovery from a lost majority.
type recoveryAction string

const (
	recoveryNone   recoveryAction = "None"   // nothing is asked for, or it is recovered already
	recoveryRefuse recoveryAction = "Refuse" // a person has to change something
	recoveryWait   recoveryAction = "Wait"   // the operator cannot act yet
	recoveryBegin  recoveryAction = "Begin"  // record the recovery in the status, before the first request
	recoveryStep   recoveryAction = "Step"   // ask the broker for its next step
)

// Reasons of the condition MajorityRecovered. The last ones are those of a recovery that has begun.
const (
	reasonNotAsked        = "NotAsked"
	reasonRecovered       = "Recovered"
	reasonMajorityNotLost = "MajorityNotLost"
	reasonNoNodeLeft      = "NoNodeLeft"
	reasonNodesDiffer     = "NodesDiffer"
	reasonVolumeReturned  = "VolumeReturned"
	reasonNodeRunning     = "NodeRunning"
	reasonNoAnswer        = "NoAnswer"
	reasonBrokerRefuses   = "BrokerRefuses"

	reasonRemovingNodes    = "RemovingNodes"
	reasonRecoveringQueues = "RecoveringQueues"
	reasonQueuesRefused    = "QueuesRefused"
	reasonNodesJoining     = "NodesJoining"
	reasonAddingReplicas   = "AddingReplicas"
)

// recoveryMember is a node as the recovery sees it.
type recoveryMember struct {
	Name string
	// LastReady is the volume with which the node was last ready, and Bound the one that it has now; empty when there
	// is none.
	LastReady, Bound string
	// IsLost: the node is not ready, and LastReady is not the volume that it has now.
	IsLost bool
}

// recoveryState is the input of decideRecovery.
type recoveryState struct {
	// Asked is spec.majorityRecovery.lost; nil without the field.
	Asked []posthornv1.LostNode
	// Record is status.majorityRecovery; nil before the first recovery.
	Record *posthornv1.MajorityRecoveryStatus
	// Members are all nodes, in ordinal order.
	Members []recoveryMember
	// Listed are the nodes that the broker counts as members. True: every node of that name runs. Nil: no remaining
	// node has answered.
	Listed map[string]bool
}

type recoveryDecision struct {
	Action recoveryAction
	Reason string
	// Message explains a refusal or a wait.
	Message string
	// Lost are the lost nodes that the cluster has yet to remove, and Removed those that it has removed.
	Lost, Removed []string
}

func (d recoveryDecision) String() string { return fmt.Sprintf("%s (%s)", d.Action, d.Reason) }

// decideRecovery decides the next step of the recovery from a lost majority. The first row that applies decides.
//
//	 #  when                                                              | then
//	 1  the spec has no majorityRecovery                                  | None NotAsked
//	 2  this recovery is recorded as recovered                            | None Recovered
//	 3  a named node has the named volume                                 | Refuse VolumeReturned
//	 4  it has not begun, and a majority has its volumes                  | Refuse MajorityNotLost
//	 5  it has not begun, and no node has its volume                      | Refuse NoNodeLeft
//	 6  it has not begun, and the named nodes or volumes are not the lost | Refuse NodesDiffer
//	 7  no remaining node answers                                         | Wait NoAnswer
//	 8  the broker has accepted no step, and a named node runs            | Refuse NodeRunning
//	 9  it has not begun                                                  | Begin RemovingNodes
//	10  the cluster has yet to remove a named node                        | Step RemovingNodes
//	11  else                                                              | Step RecoveringQueues
//
// Volumes identify what is lost: the same spec has no effect after a later loss (row 2, 4 or 6). A named node counts as
// removed once it was ready with another volume, so a new node of its name is never removed.
func decideRecovery(s recoveryState) recoveryDecision {
	hasBegun := s.Record != nil && isSameLoss(s.Record.Lost, s.Asked)
	refuse := func(reason, message string) recoveryDecision {
		return recoveryDecision{Action: recoveryRefuse, Reason: reason, Message: message}
	}
	switch {
	case s.Asked == nil:
		return recoveryDecision{Action: recoveryNone, Reason: reasonNotAsked}
	case hasBegun && s.Record.State == posthornv1.MajorityRecovered:
		return recoveryDecision{Action: recoveryNone, Reason: reasonRecovered}
	}
	if returned := s.returned(); returned != "" {
		return refuse(reasonVolumeReturned, returned)
	}
	if !hasBegun {
		if reason, message := s.mismatch(); reason != "" {
			return refuse(reason, message)
		}
	}
	if s.Listed == nil {
		return recoveryDecision{Action: recoveryWait, Reason: reasonNoAnswer, Message: "no node that has its volume answers the operator"}
	}
	isAccepted := hasBegun && s.Record.Accepted
	var out recoveryDecision
	for _, lost := range s.Asked {
		isRunning, isListed := s.Listed[lost.Node]
		switch m := s.member(lost.Node); {
		case hasBegun && slices.Contains(s.Record.Removed, lost.Node), !isListed, m.wasReadySince(lost.Volume), isRunning && isAccepted:
			out.Removed = append(out.Removed, lost.Node)
		case isRunning:
			return refuse(reasonNodeRunning, fmt.Sprintf("a process of %s with its old data runs, and a remaining node is connected to it: find and stop it", lost.Node))
		default:
			out.Lost = append(out.Lost, lost.Node)
		}
	}
	switch {
	case !hasBegun:
		out.Action, out.Reason = recoveryBegin, reasonRemovingNodes
	case len(out.Lost) > 0:
		out.Action, out.Reason = recoveryStep, reasonRemovingNodes
	default:
		out.Action, out.Reason = recoveryStep, reasonRecoveringQueues
	}
	return out
}

// member returns a node by its name; nil when there is none.
func (s recoveryState) member(name string) *recoveryMember {
	if at := slices.IndexFunc(s.Members, func(m recoveryMember) bool { return m.Name == name }); at >= 0 {
		return &s.Members[at]
	}
	return nil
}

// wasReadySince reports whether the node was ready with another volume than the lost one. A hibernation makes that unknown.
func (m *recoveryMember) wasReadySince(lost string) bool {
	return m != nil && m.LastReady != "" && m.LastReady != lost
}

// returned describes a named node that has the named volume; empty when there is none.
func (s recoveryState) returned() string {
	for _, lost := range s.Asked {
		m := s.member(lost.Node)
		switch {
		case m == nil || m.Bound != lost.Volume:
		case s.Record != nil && isSameLoss(s.Record.Lost, s.Asked) && slices.Contains(s.Record.Removed, lost.Node):
			return fmt.Sprintf("%s has volume %s again, but the cluster has removed this node: delete its claim and its pod, so that it joins as a new node", lost.Node, lost.Volume)
		default:
			return fmt.Sprintf("%s has volume %s, so it is not lost: leave it out, and start it", lost.Node, lost.Volume)
		}
	}
	return ""
}

// mismatch compares what the spec names with what is lost. It returns no reason when both are the same.
func (s recoveryState) mismatch() (reason, message string) {
	var lost []posthornv1.LostNode
	for _, m := range s.Members {
		if m.IsLost {
			lost = append(lost, posthornv1.LostNode{Node: m.Name, Volume: m.LastReady})
		}
	}
	switch n := len(s.Members); {
	case n-len(lost) > n/2:
		return reasonMajorityNotLost, fmt.Sprintf("%d of %d nodes have the volumes with which they were last ready, or are ready: the cluster needs no recovery. If this recovery was for an "+
			"earlier loss, remove spec.majorityRecovery", n-len(lost), n)
	case n == len(lost):
		return reasonNoNodeLeft, "no node has its data any more: start a new cluster"
	case !isSameLoss(lost, s.Asked):
		return reasonNodesDiffer, fmt.Sprintf("spec.majorityRecovery.lost names %s, but the lost nodes and volumes are %s: name all of them, and no other", describeLoss(s.Asked), describeLoss(lost))
	}
	return "", ""
}

// isSameLoss reports whether two lists name the same nodes and volumes.
func isSameLoss(a, b []posthornv1.LostNode) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(each posthornv1.LostNode) bool { return !slices.Contains(b, each) })
}

func describeLoss(lost []posthornv1.LostNode) string {
	out := make([]string, 0, len(lost))
	for _, each := range lost {
		out = append(out, fmt.Sprintf("%s (volume %s)", each.Node, each.Volume))
	}
	return strings.Join(out, ", ")
}
