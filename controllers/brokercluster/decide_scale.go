// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// scaleAction is the next action of removing a node.
type scaleAction string

const (
	scaleNone   scaleAction = "None"   // no node is surplus
	scaleWait   scaleAction = "Wait"   // another change has to happen first
	scaleDrain  scaleAction = "Drain"  // put the leaving node into maintenance mode
	scaleMove   scaleAction = "Move"   // move replicas from the leaving node to others
	scaleRemove scaleAction = "Remove" // forget the node and remove its pod
	scaleRevive scaleAction = "Revive" // end the leaving node's maintenance mode
)

// Reasons of the removal of a node only, which go to status.scaling.reason.
const (
	reasonEnough          = "EnoughRemoved"
	reasonScaleDownDenied = "ScaleDownDenied"
	reasonRollFirst       = "RollFirst"
	reasonPodGoing        = "PodGoing"
	reasonQueuesUnknown   = "QueuesUnknown"
	reasonQueuesNeedNodes = "QueuesNeedNodes"
	reasonUnmovableQueues = "UnmovableQueues"
	reasonSurplus         = "Surplus"
	reasonMovingReplicas  = "MovingReplicas"
	reasonEmpty           = "Empty"
)

// leavingQueues are the queues that matter for the removal of a node.
type leavingQueues struct {
	// Known: the broker has listed its queues.
	Known bool
	// Needing are queues that ask for more members than nodes would stay.
	Needing []string
	// Unmovable are queues that exist on the node alone and cannot be moved, such as classic queues.
	Unmovable []string
	// Replicas is the number of queues with a member on the node.
	Replicas int
}

// scaleState is the input of decideScale.
type scaleState struct {
	// Denied: spec.scaleDown.policy is Deny.
	Denied bool
	// Wanted and Have are the numbers of nodes in the spec and in the StatefulSet.
	Wanted, Have int32
	// Staying are the nodes that the spec wants, in ordinal order.
	Staying []rollMember
	// Leaving is the node with the highest ordinal; Marked is set when its removal has begun.
	Leaving rollMember
	Marked  bool
	// Outdated: a pod does not have the wanted revision.
	Outdated bool
	// PodsGoing: a pod of a node that was removed before still exists.
	PodsGoing bool
	Queues    leavingQueues
}

type scaleDecision struct {
	Action scaleAction
	Reason string
	// About is the node that it waits for when that is not the leaving one.
	About string
}

func (d scaleDecision) String() string { return fmt.Sprintf("%s (%s)", d.Action, d.Reason) }

// decideScale decides the next step of removing a node. The first row that applies decides. "Stop" is Revive when the
// removal of the leaving node has begun and the node runs, and Wait otherwise.
//
//	 #  when                                                        | then
//	 1  no more nodes exist than wanted                             | None EnoughRemoved
//	 2  the policy is Deny                                          | Wait ScaleDownDenied
//	 3  the pod of a node that stays is missing or not ready        | stop MemberNotReady
//	 4  the removal has not begun, and a pod is outdated            | Wait RollFirst
//	 5  the pod of the node removed before still exists             | Wait PodGoing
//	 6  the broker does not list its queues                         | Wait QueuesUnknown
//	 7  queues ask for more members than nodes stay                 | stop QueuesNeedNodes
//	 8  queues on the leaving node cannot be moved                  | stop UnmovableQueues
//	 9  the leaving node is ready, and its removal has not begun    | Drain Surplus
//	10  it is ready, and the progress of the drain is unknown       | Wait DrainUnknown
//	11  it is ready, and leaders are still moving away              | Wait Draining
//	12  queues have a member on it                                  | Move MovingReplicas
//	13  it is ready and reports that it is quorum critical          | Wait QuorumCritical
//	14  it is ready and does not answer                             | Wait HealthUnknown
//	15  nothing is left on it                                       | Remove Empty
//
// A leaving node that is not ready has no leaders to move. Rows 9 to 11 and 13 to 14 do not apply to it, so that a node
// that is lost for good can be removed. Row 12 applies: its replicas are replaced first.
func decideScale(s scaleState) scaleDecision {
	switch {
	case s.Have <= s.Wanted:
		return scaleDecision{Action: scaleNone, Reason: reasonEnough}
	case s.Denied:
		return scaleDecision{Action: scaleWait, Reason: reasonScaleDownDenied}
	}
	if away, found := firstFromTop(s.Staying, func(m rollMember) bool { return m.Presence != podPresent || !m.Ready }); found {
		return s.stop(reasonMemberNotReady, away.Name)
	}
	switch {
	case !s.Marked && s.Outdated:
		return scaleDecision{Action: scaleWait, Reason: reasonRollFirst}
	case s.PodsGoing:
		return scaleDecision{Action: scaleWait, Reason: reasonPodGoing}
	case !s.Queues.Known:
		return scaleDecision{Action: scaleWait, Reason: reasonQueuesUnknown}
	case len(s.Queues.Needing) > 0:
		return s.stop(reasonQueuesNeedNodes, "")
	case len(s.Queues.Unmovable) > 0:
		return s.stop(reasonUnmovableQueues, "")
	}
	return s.decideLeaving()
}

// stop decides to wait, and ends a removal that has begun.
func (s scaleState) stop(reason, about string) scaleDecision {
	action := scaleWait
	if s.Marked && s.Leaving.Presence == podPresent && !s.Leaving.NotRunning {
		action = scaleRevive
	}
	return scaleDecision{Action: action, Reason: reason, About: about}
}

// decideLeaving has rows 9 to 15.
func (s scaleState) decideLeaving() scaleDecision {
	ready := s.Leaving.Ready && s.Leaving.Presence == podPresent
	switch {
	case ready && !s.Marked:
		return scaleDecision{Action: scaleDrain, Reason: reasonSurplus}
	case ready && s.Leaving.Drain == drainRunning:
		return scaleDecision{Action: scaleWait, Reason: reasonDraining}
	case ready && s.Leaving.Drain != drainDone:
		return scaleDecision{Action: scaleWait, Reason: reasonDrainUnknown}
	case s.Queues.Replicas > 0:
		return scaleDecision{Action: scaleMove, Reason: reasonMovingReplicas}
	case ready && s.Leaving.Health == healthCritical:
		return scaleDecision{Action: scaleWait, Reason: reasonQuorumCritical}
	case ready && s.Leaving.Health == healthUnknown:
		return scaleDecision{Action: scaleWait, Reason: reasonHealthUnknown}
	}
	return scaleDecision{Action: scaleRemove, Reason: reasonEmpty}
}

// sizes of a cluster, in nodes.
type sizes struct {
	// Nodes of the cluster, running or not.
	Nodes int32
	// Pods that the StatefulSet is to have.
	Pods int32
	// Blocked is the retained volume that keeps the cluster from growing; empty when none does.
	Blocked string
}

// decideSize decides the numbers of nodes and pods. It only adds nodes and hibernates; decideScale removes nodes. have is
// the present number of nodes, 0 before the StatefulSet is created. retained are the volumes, by ordinal, of nodes that the
// cluster has forgotten.
//
//	have | spec                                   | nodes         | pods
//	0    | hibernated                             | spec.replicas | 0
//	0    | running                                | spec.replicas | spec.replicas
//	n    | hibernated                             | n             | 0
//	n    | more than n, all new ordinals free     | spec.replicas | spec.replicas
//	n    | more than n, a new ordinal has one     | n             | n, blocked
//	n    | n or less                              | n             | n
func decideSize(spec *posthornv1.BrokerClusterSpec, have int32, retained map[int32]string) sizes {
	out := sizes{Nodes: have}
	switch {
	case have == 0:
		out.Nodes = spec.Replicas
	case !spec.Hibernated && have < spec.Replicas:
		for ordinal := have; ordinal < spec.Replicas && out.Blocked == ""; ordinal++ {
			out.Blocked = retained[ordinal]
		}
		if out.Blocked == "" {
			out.Nodes = spec.Replicas
		}
	}
	if !spec.Hibernated {
		out.Pods = out.Nodes
	}
	return out
}
