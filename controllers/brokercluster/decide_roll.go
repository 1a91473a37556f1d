// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import "fmt"

// rollAction is what to do next about pods that are not what the StatefulSet wants.
type rollAction string

const (
	rollDone    rollAction = "Done"    // every pod is current
	rollWait    rollAction = "Wait"    // something has to happen first
	rollDrain   rollAction = "Drain"   // put the pod's node into maintenance mode
	rollReplace rollAction = "Replace" // delete the pod
	rollRevive  rollAction = "Revive"  // end the node's maintenance mode
)

// Reasons of a decision; they go to status.rollout.reason.
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

// rollMember is what the decision needs to know about one pod.
type rollMember struct {
	Name     string
	Presence presence
	// Current: the pod has the revision that the StatefulSet wants.
	Current bool
	// Ready: the pod is ready.
	Ready bool
	// NotRunning: no process of the broker runs in the pod (bad image, unschedulable, crashing).
	NotRunning bool
	// NeverReady: the pod has not been ready since it was made.
	NeverReady bool
	// Restarting: the broker's process ended, and the kubelet starts it again at once.
	Restarting bool
	// Health is the node's own answer to whether queues would lose their majority without it.
	Health health
	// Drain is how far a drain that the operator began is.
	Drain drain
	// AcceptCritical: a person accepts that queues lose their majority while this pod is replaced.
	AcceptCritical bool
}

// rollState is everything the decision is made from.
type rollState struct {
	// RevisionKnown: the StatefulSet's status is about its present spec.
	RevisionKnown bool
	// Members, one an ordinal, in ordinal order.
	Members []rollMember
}

type rollDecision struct {
	Action rollAction
	Pod    string
	Reason string
}

func (d rollDecision) String() string { return fmt.Sprintf("%s %s (%s)", d.Action, d.Pod, d.Reason) }

// decideRoll says what to do next. The first row that fits decides; "the candidate" is an outdated
// pod: the one being drained, else one that is not ready, else the one with the highest ordinal.
//
//	 #  when                                                          | then
//	 1  the StatefulSet's wanted revision is not known yet            | Wait RevisionUnknown
//	 2  a current pod's node runs and is still being drained          | Revive DrainUnneeded
//	 3  an outdated pod is stuck, and so is a current one             | Wait RevisionFails
//	 3b an outdated pod is stuck (highest ordinal first)              | Replace NotRunning
//	 4  no pod is outdated, and one is missing or going               | Wait PodStarting
//	 5  no pod is outdated, and one is not ready                      | Wait MemberNotReady
//	 6  no pod is outdated                                            | Done UpToDate
//	 7  there is one node only                                        | Replace SingleNode
//	 8  the candidate was never ready and no pod is ready             | Replace NeverReady
//	 9  another pod is not there or not ready, candidate is drained   | Revive AnotherIsMissing
//	10  another pod is missing or going                               | Wait PodStarting
//	11  another pod is not ready                                      | Wait MemberNotReady
//	12  the candidate's node says that it is quorum critical, and     |
//	    nobody has accepted that                                      | Wait QuorumCritical
//	13  the candidate was never ready (and all others are)            | Replace NeverReady
//	14  the candidate's node does not answer                          | Wait HealthUnknown
//	15  the candidate is not being drained                            | Drain Outdated
//	16  how far the drain is cannot be told                           | Wait DrainUnknown
//	17  the drain goes on                                             | Wait Draining
//	18  the drain is done                                             | Replace Drained
//
// A pod is stuck when nothing runs in it. One that was ready before and whose process has just ended
// is not: the kubelet starts it again on a revision that works.
//
// Rows 3 and 8 take nothing away: no process runs there, or none serves. They let a bad image be
// mended by fixing the spec. No pod goes to a revision that fails elsewhere. In all other rows a pod goes only when every other pod is ready and its
// own node, asked just now, says that no queue needs it.
func decideRoll(s rollState) rollDecision {
	if !s.RevisionKnown {
		return rollDecision{rollWait, "", reasonRevisionUnknown}
	}
	if drained, found := firstFromTop(s.Members, func(m rollMember) bool {
		return m.Presence == podPresent && m.Current && m.Drain != drainNone && !m.NotRunning
	}); found {
		return rollDecision{rollRevive, drained.Name, reasonDrainUnneeded}
	}
	if outdatedStuck, found := firstFromTop(s.Members, func(m rollMember) bool { return outdated(m) && stuck(m) }); found {
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

// decideCandidate is rows 12 to 18: every other pod is ready.
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

// stuck says that nothing runs in a pod and that waiting for the kubelet may not change that.
func stuck(m rollMember) bool { return m.NotRunning && (m.NeverReady || !m.Restarting) }

func outdated(m rollMember) bool { return m.Presence == podPresent && !m.Current }

// rollCandidate picks the outdated pod to go next.
func rollCandidate(members []rollMember) (rollMember, bool) {
	for _, prefer := range []func(rollMember) bool{
		func(m rollMember) bool { return m.Drain != drainNone },
		func(m rollMember) bool { return !m.Ready },
		func(rollMember) bool { return true },
	} {
		if m, found := firstFromTop(members, func(m rollMember) bool { return outdated(m) && prefer(m) }); found {
			return m, true
		}
	}
	return rollMember{}, false
}

// waitForOthers is a decision to wait when a pod but the named one is not there or not ready.
func waitForOthers(members []rollMember, except string) (rollDecision, bool) {
	if m, found := firstFromTop(members, func(m rollMember) bool { return m.Name != except && m.Presence != podPresent }); found {
		return rollDecision{rollWait, m.Name, reasonPodStarting}, true
	}
	if m, found := firstFromTop(members, func(m rollMember) bool { return m.Name != except && !m.Ready }); found {
		return rollDecision{rollWait, m.Name, reasonMemberNotReady}, true
	}
	return rollDecision{}, false
}

// firstFromTop finds a member, the highest ordinal first.
func firstFromTop(members []rollMember, fits func(rollMember) bool) (rollMember, bool) {
	for i := len(members) - 1; i >= 0; i-- {
		if fits(members[i]) {
			return members[i], true
		}
	}
	return rollMember{}, false
}
