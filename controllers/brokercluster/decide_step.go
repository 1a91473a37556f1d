// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

// Reasons that a roll waits for a person, which go to status.rollout.reason.
const (
	reasonApprovalNeeded = "ApprovalNeeded"
	reasonStepTimeout    = "StepTimeout"
)

// stepState has the approvals and the time limit of a roll.
type stepState struct {
	// Supervised: a node is replaced only after an approval.
	Supervised bool
	// Approved: the pod of the decision, or the whole roll, is approved.
	Approved bool
	// TimedOut: a step of this roll took too long, and the spec asks to stop the roll then.
	TimedOut bool
}

// decideStep holds back a decision of decideRoll until a person has approved it.
//
//	decided               | approved | timed out | supervised | then
//	Replace, nothing runs | any      | any       | any        | as decided: it stops no service
//	Drain, Replace        | yes      | any       | any        | as decided
//	Drain, Replace        | no       | yes       | any        | Wait StepTimeout; a drained node: Revive StepTimeout
//	Wait Draining         | no       | yes       | any        | Revive StepTimeout
//	Drain, Replace alone  | no       | no        | yes        | Wait ApprovalNeeded
//	Replace Drained       | no       | no        | yes        | as decided: its drain was approved
//	anything else         | any      | any       | any        | as decided
func decideStep(d rollDecision, s stepState) rollDecision {
	switch {
	case s.Approved, d.Action == rollReplace && (d.Reason == reasonNotRunning || d.Reason == reasonNeverReady):
		return d
	case s.TimedOut && (d.Reason == reasonDrained || d.Reason == reasonDraining || d.Reason == reasonDrainUnknown):
		return rollDecision{rollRevive, d.Pod, reasonStepTimeout}
	case s.TimedOut && (d.Action == rollDrain || d.Action == rollReplace):
		return rollDecision{rollWait, d.Pod, reasonStepTimeout}
	case s.Supervised && (d.Action == rollDrain || d.Action == rollReplace && d.Reason == reasonSingleNode):
		return rollDecision{rollWait, d.Pod, reasonApprovalNeeded}
	}
	return d
}
