// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import "fmt"

// rollAction is the next action on pods that do not have the wanted revision.
type rollAction string

const (
	rollDone    rollAction = "Done"    // every pod is current
	rollWait    rollAction = "Wait"    // another change has to happen first
	rollDrain   rollAction = "Drain"   // put the pod's node into maintenance mode
	rollReplace rollAction = "Replace" // delete the pod
	rollRevive  rollAction = "Revive"  // end the node's maintenance mode
)

// Reasons of a decision, which go to status.rollout.reason.
const (
	reasonUpToDate         = "UpToDate"
	reasonRevisionUnknown  = "RevisionUnknown"
	reasonNotRunning       = "NotRunning"
	reasonNeverReady       = "NeverReady"
	reasonRevisionFails    = "RevisionFails"
	reasonPodStarting      = "PodStarting"
	reasonMemberNotReady   = "MemberNotReady"
	reasonHealthUnknown    = "HealthUnknown"
	reasonQuorumCritical   = "QuorumCritical"
	reasonOutdated         = "Outdated"
	reasonDraining         = "Draining"
	reasonDrainUnknown     = "DrainUnknown"
	reasonDrained          = "Drained"
	reasonSingleNode       = "SingleNode"
	reasonDrainUnneeded    = "DrainUnneeded"
	reasonAnotherIsMissing = "AnotherIsMissing"
)

type presence int

const (
	podMissing presence = iota
	podTerminating
	podPresent
)

type health int

const (
	healthUnknown health = iota
	healthSafe
	healthCritical
)

type drain int

const (
	drainNone drain = iota
	drainRunning
	drainDone
	drainUnknown
)

// rollMember is the state of one pod, as far as the decision depends on it.
type rollMember struct {
	Name     string
	Presence presence
	// Current: the pod has the wanted revision.
	Current bool
	// Ready: the pod is ready.
	Ready bool
	// NotRunning: no process of the broker runs in the pod (bad image, unschedulable, crashing).
	NotRunning bool
	// NeverReady: the pod has not been ready since it was created.
	NeverReady bool
	// Restarting: the broker's process has ended, and the kubelet starts it again without a delay.
	Restarting bool
	// Health is the node's own answer whether queues would lose their majority without it.
	Health health
	// Drain is the progress of a drain that the operator began.
	Drain drain
	// AcceptCritical: a person accepts that queues lose their majority while this pod is replaced.
	AcceptCritical bool
}

// rollState is the input of decideRoll.
type rollState struct {
	// RevisionKnown: the status of the StatefulSet is about its present spec.
	RevisionKnown bool
	// Members in the order of their ordinals.
	Members []rollMember
}

type rollDecision struct {
	Action rollAction
	Pod    string
	Reason string
}

func (d rollDecision) String() string { return fmt.Sprintf("%s %s (%s)", d.Action, d.Pod, d.Reason) }

// decideRoll decides the next step of a roll. The first row that applies decides. "The candidate" is an outdated pod: the
// one being drained, else one that is not ready, else the one with the highest ordinal.
//
//	 #  when                                                          | then
//	 1  the StatefulSet's wanted revision is not known yet            | Wait RevisionUnknown
//	 2  a current pod's node runs and is still being drained          | Revive DrainUnneeded
//	 3  an outdated pod is stuck, and so is a current one             | Wait RevisionFails
//	 3b an outdated pod is stuck (highest ordinal first)              | Replace NotRunning
//	 4  no pod is outdated, and one is missing or terminating         | Wait PodStarting
//	 5  no pod is outdated, and one is not ready                      | Wait MemberNotReady
//	 6  no pod is outdated                                            | Done UpToDate
//	 7  the cluster has one node only                                 | Replace SingleNode
//	 8  the candidate was never ready and no pod is ready             | Replace NeverReady
//	 9  another pod is missing or not ready, candidate is drained     | Revive AnotherIsMissing
//	10  another pod is missing or terminating                         | Wait PodStarting
//	11  another pod is not ready                                      | Wait MemberNotReady
//	12  the candidate's node reports that it is quorum critical, and  |
//	    nobody has accepted that                                      | Wait QuorumCritical
//	13  the candidate was never ready (and all others are)            | Replace NeverReady
//	14  the candidate's node does not answer                          | Wait HealthUnknown
//	15  the candidate is not being drained                            | Drain Outdated
//	16  the progress of the drain is unknown                          | Wait DrainUnknown
//	17  the drain is in progress                                      | Wait Draining
//	18  the drain is done                                             | Replace Drained
//
// A pod is stuck when no process of the broker runs in it. A pod that was ready before and whose process has just ended is
// not stuck: the kubelet starts it again on a revision that works.
//
// Rows 3b and 8 stop no service: no process runs, or no node serves. They let a change of the spec repair a bad image. No
// pod gets a revision that fails elsewhere. In all other rows a pod is replaced only when every other pod is ready and its
// own node has just answered that no queue needs it.
func decideRoll(s rollState) rollDecision {
	if !s.RevisionKnown {
		return rollDecision{rollWait, "", reasonRevisionUnknown}
	}
	if drained, found := firstFromTop(s.Members, func(m rollMember) bool {
		return m.Presence == podPresent && m.Current && m.Drain != drainNone && !m.NotRunning
	}); found {
		return rollDecision{rollRevive, drained.Name, reasonDrainUnneeded}
	}
	if outdatedStuck, found := firstFromTop(s.Members, func(m rollMember) bool { return isOutdated(m) && isStuck(m) }); found {
		failing, fails := firstFromTop(s.Members, func(m rollMember) bool { return m.Presence == podPresent && m.Current && m.NotRunning })
		if fails {
			return rollDecision{rollWait, failing.Name, reasonRevisionFails}
		}
		return rollDecision{rollReplace, outdatedStuck.Name, reasonNotRunning}
	}
	candidate, found := rollCandidate(s.Members)
	if !found {
		if decision, blocked := waitForOthers(s.Members, ""); blocked {
			return decision
		}
		return rollDecision{rollDone, "", reasonUpToDate}
	}
	if len(s.Members) == 1 {
		return rollDecision{rollReplace, candidate.Name, reasonSingleNode}
	}
	if _, serving := firstFromTop(s.Members, func(m rollMember) bool { return m.Ready }); candidate.NeverReady && !serving {
		return rollDecision{rollReplace, candidate.Name, reasonNeverReady}
	}
	if decision, blocked := waitForOthers(s.Members, candidate.Name); blocked {
		if candidate.Drain != drainNone {
			return rollDecision{rollRevive, candidate.Name, reasonAnotherIsMissing}
		}
		return decision
	}
	return decideCandidate(candidate)
}

// decideCandidate has rows 12 to 18: every other pod is ready.
func decideCandidate(m rollMember) rollDecision {
	switch {
	case m.Health == healthCritical && !m.AcceptCritical:
		return rollDecision{rollWait, m.Name, reasonQuorumCritical}
	case m.NeverReady:
		return rollDecision{rollReplace, m.Name, reasonNeverReady}
	case m.Health == healthUnknown:
		return rollDecision{rollWait, m.Name, reasonHealthUnknown}
	}
	switch m.Drain {
	case drainNone:
		return rollDecision{rollDrain, m.Name, reasonOutdated}
	case drainRunning:
		return rollDecision{rollWait, m.Name, reasonDraining}
	case drainDone:
		return rollDecision{rollReplace, m.Name, reasonDrained}
	default:
		return rollDecision{rollWait, m.Name, reasonDrainUnknown}
	}
}

// isStuck reports whether no process runs in a pod and the kubelet may not start one soon.
func isStuck(m rollMember) bool { return m.NotRunning && (m.NeverReady || !m.Restarting) }

func isOutdated(m rollMember) bool { return m.Presence == podPresent && !m.Current }

// rollCandidate returns the outdated pod to replace next.
func rollCandidate(members []rollMember) (rollMember, bool) {
	for _, prefer := range []func(rollMember) bool{
		func(m rollMember) bool { return m.Drain != drainNone },
		func(m rollMember) bool { return !m.Ready },
		func(rollMember) bool { return true },
	} {
		if m, found := firstFromTop(members, func(m rollMember) bool { return isOutdated(m) && prefer(m) }); found {
			return m, true
		}
	}
	return rollMember{}, false
}

// waitForOthers decides to wait when a pod other than the named one is missing or not ready.
func waitForOthers(members []rollMember, except string) (rollDecision, bool) {
	if m, found := firstFromTop(members, func(m rollMember) bool { return m.Name != except && m.Presence != podPresent }); found {
		return rollDecision{rollWait, m.Name, reasonPodStarting}, true
	}
	if m, found := firstFromTop(members, func(m rollMember) bool { return m.Name != except && !m.Ready }); found {
		return rollDecision{rollWait, m.Name, reasonMemberNotReady}, true
	}
	return rollDecision{}, false
}

// firstFromTop returns the matching member with the highest ordinal.
func firstFromTop(members []rollMember, fits func(rollMember) bool) (rollMember, bool) {
	for i := len(members) - 1; i >= 0; i-- {
		if fits(members[i]) {
			return members[i], true
		}
	}
	return rollMember{}, false
}
