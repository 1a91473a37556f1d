// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// scaleAction is what to do next to have fewer nodes.
type scaleAction string

const (
	scaleNone   scaleAction = "None"   // there are not too many nodes
	scaleWait   scaleAction = "Wait"   // something has to happen first
	scaleDrain  scaleAction = "Drain"  // put the leaving node into maintenance mode
	scaleMove   scaleAction = "Move"   // move replicas from the leaving node to others
	scaleRemove scaleAction = "Remove" // forget the node and take its pod away
	scaleRevive scaleAction = "Revive" // end the leaving node's maintenance mode
)

// Reasons that only removals of nodes have; they go to status.scaling.reason.
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

// leavingQueues is what the broker's queues mean for the removal of a node.
type leavingQueues struct {
	// Known: the broker was asked and answered.
	Known bool
	// Needing are queues that were asked for with more members than nodes would stay.
	Needing []string
	// Unmovable are queues that live on the node alone and cannot be moved, such as classic ones.
	Unmovable []string
	// Replicas is how many queues have a member on the node.
	Replicas int
}

// scaleState is everything the decision is made from.
type scaleState struct {
	// Denied: spec.scaleDown.policy is Deny.
	Denied bool
	// Wanted and Have are numbers of nodes: by the spec, and by the StatefulSet.
	Wanted, Have int32
	// Staying are the nodes that the spec wants, in ordinal order.
	Staying []rollMember
	// Leaving is the node with the highest ordinal, and Marked says that its removal has begun.
	Leaving rollMember
	Marked  bool
	// Outdated: some pod is not what the StatefulSet wants.
	Outdated bool
	// PodsGoing: pods of nodes that were removed before are still there.
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

// decideScale says what to do next to have fewer nodes. The first row that fits decides. "Stop" is
// Revive when the removal of the leaving node has begun and the node runs, and else Wait.
//
//	 #  when                                                        | then
//	 1  there are not more nodes than wanted                        | None EnoughRemoved
//	 2  the policy is Deny                                          | Wait ScaleDownDenied
//	 3  a node that stays is not there or not ready                 | stop MemberNotReady
//	 4  the removal has not begun, and a pod is outdated            | Wait RollFirst
//	 5  the pod of the node removed before is still there           | Wait PodGoing
//	 6  the broker does not tell its queues                         | Wait QueuesUnknown
//	 7  queues were asked for with more members than nodes stay     | stop QueuesNeedNodes
//	 8  queues live on the leaving node that cannot be moved        | stop UnmovableQueues
//	 9  the leaving node is ready, and its removal has not begun    | Drain Surplus
//	10  it is ready, and how far the drain is cannot be told        | Wait DrainUnknown
//	11  it is ready, and leaders are still moving away              | Wait Draining
//	12  queues have a member on it                                  | Move MovingReplicas
//	13  it is ready and says that it is quorum critical             | Wait QuorumCritical
//	14  it is ready and does not answer                             | Wait HealthUnknown
//	15  nothing is left on it                                       | Remove Empty
//
// A leaving node that is not ready has no leaders to move: rows 9 to 11 and 13 to 14 are not for it,
// so a node that is lost for good can be removed. Row 12 is: what it held is replaced first.
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

// stop waits, and ends a removal that has begun.
func (s scaleState) stop(reason, about string) scaleDecision {
	action := scaleWait
	if s.Marked && s.Leaving.Presence == podPresent && !s.Leaving.NotRunning {
		action = scaleRevive
	}
	return scaleDecision{Action: action, Reason: reason, About: about}
}

// decideLeaving is rows 9 to 15.
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
	// Nodes that the cluster has, running or not.
	Nodes int32
	// Pods that the StatefulSet is to have.
	Pods int32
	// Blocked is the volume that keeps the cluster from growing; empty when none does.
	Blocked string
}

// decideSize says how many pods there are to be. Only growing and hibernating are decided here; a
// node is taken away by decideScale. have is what the cluster has had so far, 0 before it is made,
// and retained are the volumes, by ordinal, of nodes that the cluster has forgotten.
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
