// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

func TestDecideStepFollowsItsTable(t *testing.T) {
	var (
		drainIt  = rollDecision{rollDrain, "c-2", reasonOutdated}
		drained  = rollDecision{rollReplace, "c-2", reasonDrained}
		alone    = rollDecision{rollReplace, "c-0", reasonSingleNode}
		stuck    = rollDecision{rollReplace, "c-2", reasonNotRunning}
		never    = rollDecision{rollReplace, "c-2", reasonNeverReady}
		draining = rollDecision{rollWait, "c-2", reasonDraining}
		unready  = rollDecision{rollWait, "c-2", reasonMemberNotReady}
		done     = rollDecision{rollDone, "", reasonUpToDate}
		revive   = rollDecision{rollRevive, "c-2", reasonDrainUnneeded}
	)
	supervised, late := stepState{Supervised: true}, stepState{TimedOut: true}
	cases := []struct {
		name     string
		decision rollDecision
		state    stepState
		want     string
	}{
		{"nobody is asked", drainIt, stepState{}, "Drain c-2 (Outdated)"},
		{"approval needed", drainIt, supervised, "Wait c-2 (ApprovalNeeded)"},
		{"approved", drainIt, stepState{Supervised: true, Approved: true}, "Drain c-2 (Outdated)"},
		{"what was drained was approved", drained, supervised, "Replace c-2 (Drained)"},
		{"a single node", alone, supervised, "Wait c-0 (ApprovalNeeded)"},
		{"a bad image is mended", stuck, stepState{Supervised: true, TimedOut: true}, "Replace c-2 (NotRunning)"},
		{"what never served is mended", never, stepState{Supervised: true, TimedOut: true}, "Replace c-2 (NeverReady)"},
		{"too late to begin another", drainIt, late, "Wait c-2 (StepTimeout)"},
		{"too late while draining", draining, late, "Revive c-2 (StepTimeout)"},
		{"too late after draining", drained, late, "Revive c-2 (StepTimeout)"},
		{"too late for a single node", alone, late, "Wait c-0 (StepTimeout)"},
		{"late, and somebody says go on", drained, stepState{TimedOut: true, Approved: true}, "Replace c-2 (Drained)"},
		{"waiting is waiting", unready, stepState{Supervised: true, TimedOut: true}, "Wait c-2 (MemberNotReady)"},
		{"done is done", done, stepState{Supervised: true, TimedOut: true}, "Done  (UpToDate)"},
		{"reviving is always allowed", revive, stepState{Supervised: true, TimedOut: true}, "Revive c-2 (DrainUnneeded)"},
	}
	for _, c := range cases {
		if got := decideStep(c.decision, c.state); got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestStepIsRecordedWhileItsDrainIsInProgress: the reconciliation that began the drain may have failed to write the status.
func TestStepIsRecordedWhileItsDrainIsInProgress(t *testing.T) {
	now := time.Now()
	in := inputs{now: now}
	earlier := metav1.NewTime(now.Add(-time.Hour))
	for _, c := range []struct {
		decision    rollDecision
		before      posthornv1.RolloutStatus
		step        string
		sinceBefore bool
	}{
		{rollDecision{rollDrain, "c-2", reasonOutdated}, posthornv1.RolloutStatus{}, "c-2", false},
		{rollDecision{rollWait, "c-2", reasonDraining}, posthornv1.RolloutStatus{}, "c-2", false},
		{rollDecision{rollWait, "c-2", reasonDraining}, posthornv1.RolloutStatus{Step: "c-2", StepSince: &earlier}, "c-2", true},
		{rollDecision{rollReplace, "c-1", reasonDrained}, posthornv1.RolloutStatus{Step: "c-2", StepSince: &earlier}, "c-1", false},
		{rollDecision{rollWait, "c-1", reasonQuorumCritical}, posthornv1.RolloutStatus{Step: "c-2", StepSince: &earlier}, "c-2", true},
	} {
		out := decided{roll: c.decision}
		var rollout posthornv1.RolloutStatus
		out.setStep(&in, &rollout, &c.before, "r/c-2")
		if rollout.Step != c.step || rollout.StepSince == nil || rollout.StepSince.Equal(&earlier) != c.sinceBefore {
			t.Errorf("%v after %+v: %+v", c.decision, c.before, rollout)
		}
	}
}
