// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// whole is a cluster that is as its spec says.
func whole(change func(*summaryFacts)) summaryFacts {
	f := summaryFacts{Created: true, NodesReady: true, Complete: true, WasReady: true, Before: posthornv1.PhaseReady, Message: "3 of 3 nodes ready"}
	change(&f)
	return f
}

// broken is whole without a node.
func broken(change func(*summaryFacts)) summaryFacts {
	f := whole(func(*summaryFacts) {})
	f.NodesReady, f.Complete, f.Message = false, false, "2 of 3 nodes ready"
	change(&f)
	return f
}

func TestDecideSummaryFollowsItsTable(t *testing.T) {
	const failed = "the API server does not answer"
	nothing := func(*summaryFacts) {}
	blocked := func(reason string, stalled bool) func(*summaryFacts) {
		return func(f *summaryFacts) {
			f.Complete, f.IsBlocked, f.Blocked = false, true, readyCondition{metav1.ConditionFalse, reason, "m", stalled}
		}
	}
	asleep := func(value metav1.ConditionStatus) summaryFacts {
		return broken(func(f *summaryFacts) {
			f.Hibernated, f.IsBlocked, f.Blocked = true, true, readyCondition{value, "Sleeps", "m", false}
		})
	}
	for _, row := range []struct {
		facts summaryFacts
		// want is phase, Ready with its reason, and the other true conditions.
		want string
	}{
		{whole(nothing), "Ready True AllNodesReady"},
		{whole(func(f *summaryFacts) { f.WasReady = false }), "Ready True AllNodesReady"},
		// A node restarts: Degraded until it is ready and its queues have caught up, then Ready for good.
		{broken(nothing), "Degraded False NodesNotReady progressing"},
		{broken(func(f *summaryFacts) { f.WasReady = false }), "Degraded False NodesNotReady progressing"},
		{broken(func(f *summaryFacts) { f.WasReady, f.Failure, f.FailedRecently = true, failed, true }), "Degraded False ReconcileFailed"},
		{whole(func(f *summaryFacts) { f.WasReady, f.CatchingUp, f.Before = false, true, posthornv1.PhaseDegraded }), "Degraded False CatchingUp progressing"},
		{whole(func(f *summaryFacts) { f.WasReady, f.CatchingUp, f.Before = false, true, posthornv1.PhaseRolling }), "Rolling False CatchingUp progressing"},
		{whole(func(f *summaryFacts) { f.WasReady, f.CatchingUp, f.Before = false, true, posthornv1.PhasePaused }), "Degraded False CatchingUp progressing"},
		// A queue of two members that somebody declares does not end Ready.
		{whole(func(f *summaryFacts) { f.CatchingUp = true }), "Ready True AllNodesReady"},
		// One failed reconciliation is no outage; a minute of failures is.
		{whole(func(f *summaryFacts) { f.Complete, f.Failure, f.FailedRecently = false, failed, true }), "Ready True AttemptFailed"},
		{whole(func(f *summaryFacts) { f.Complete, f.Failure = false, failed }), "Blocked False ReconcileFailed"},
		{whole(func(f *summaryFacts) {
			f.WasReady, f.Complete, f.Failure, f.FailedRecently = false, false, failed, true
		}), "Blocked False ReconcileFailed"},
		{whole(func(f *summaryFacts) { f.Failure, f.FailureReason, f.FailedRecently = failed, "NameTaken", true }), "Blocked False NameTaken stalled"},
		{broken(func(f *summaryFacts) { f.Created, f.Failure, f.FailureReason = false, failed, "NameTaken" }), "Creating False NameTaken stalled"},
		// All nodes are ready and the spec cannot be applied: the cluster is not Degraded.
		{whole(blocked("InvalidConfig", true)), "Blocked False InvalidConfig stalled"},
		{whole(blocked("DefinitionsNotImported", true)), "Blocked False DefinitionsNotImported stalled"},
		{broken(blocked("InvalidConfig", true)), "Degraded False InvalidConfig stalled"},
		{whole(func(f *summaryFacts) { blocked("ScalingDown", false)(f); f.Scaling = true }), "ScalingDown False ScalingDown progressing"},
		{whole(func(f *summaryFacts) { f.Complete, f.Held = false, &finding{reason: reasonCheckingConfig} }), "Rolling False CheckingConfig progressing"},
		{whole(func(f *summaryFacts) { f.Complete, f.Held = false, &finding{reason: reasonSecretNotFound} }), "Blocked False SecretNotFound progressing"},
		{whole(func(f *summaryFacts) { f.Certificate = &finding{reason: reasonInvalidCertificate} }), "Blocked False InvalidCertificate"},
		{whole(func(f *summaryFacts) { f.Complete = false }), "Blocked False Waiting progressing"},
		// Work in progress has a phase of its own.
		{broken(func(f *summaryFacts) { f.Rolling = true }), "Rolling False Rolling progressing"},
		{whole(func(f *summaryFacts) { f.Complete, f.Rolling = false, true }), "Rolling False Rolling progressing"},
		{broken(func(f *summaryFacts) { f.Growing = true }), "ScalingUp False ScalingUp progressing"},
		{broken(func(f *summaryFacts) { f.Created, f.WasReady = false, false }), "Creating False Creating progressing"},
		// Pause and hibernation.
		{whole(func(f *summaryFacts) { f.Paused = true }), "Paused True AllNodesReady"},
		{whole(func(f *summaryFacts) { f.Paused, f.PendingChanges = true, true }), "Paused False PendingChanges"},
		{broken(func(f *summaryFacts) { f.Paused = true }), "Paused False NodesNotReady"},
		{asleep(metav1.ConditionTrue), "Hibernated True Sleeps"},
		{asleep(metav1.ConditionFalse), "Hibernated False Sleeps progressing"},
	} {
		found := decideSummary(row.facts)
		got := fmt.Sprintf("%s %s %s", found.Phase, found.Ready.value, found.Ready.reason)
		if found.Ready.stalled {
			got += " stalled"
		}
		if found.Progressing {
			got += " progressing"
		}
		if got != row.want {
			t.Errorf("%+v: %s, want %s", row.facts, got, row.want)
		}
	}
}

// TestPhaseAndReadyNeverContradictEachOther goes through every combination of facts.
func TestPhaseAndReadyNeverContradictEachOther(t *testing.T) {
	const flags = 12
	for bits := range 1 << flags {
		is := func(i int) bool { return bits&(1<<i) != 0 }
		f := summaryFacts{
			Paused: is(0), Hibernated: is(1), PendingChanges: is(2), FailedRecently: is(3), Created: is(4), Rolling: is(5), Growing: is(6),
			NodesReady: is(7), CatchingUp: is(8), Complete: is(7) && is(9), WasReady: is(10), Before: posthornv1.PhaseReady, Message: "m",
		}
		if is(11) {
			f.Failure = "failed"
		}
		if f.Hibernated {
			f.IsBlocked, f.Blocked = true, readyCondition{metav1.ConditionTrue, "Hibernated", "m", false}
		}
		found := decideSummary(f)
		isReady := found.Ready.value == metav1.ConditionTrue
		switch {
		case found.Phase == "" || found.Ready.reason == "" || strings.TrimSpace(found.Ready.message) == "":
			t.Fatalf("%+v: a blank: %+v", f, found)
		case isReady != (found.Phase == posthornv1.PhaseReady) && !f.Paused && !f.Hibernated:
			t.Fatalf("%+v: %s with Ready=%s", f, found.Phase, found.Ready.value)
		case isReady && !f.NodesReady && !f.Hibernated:
			t.Fatalf("%+v: Ready without all nodes", f)
		case isReady && !f.WasReady && f.CatchingUp && !f.Hibernated:
			t.Fatalf("%+v: Ready before queues have caught up", f)
		case found.Phase == posthornv1.PhaseDegraded && f.NodesReady && !f.CatchingUp:
			t.Fatalf("%+v: Degraded with all nodes ready", f)
		case isReady && found.Progressing:
			t.Fatalf("%+v: Ready and Progressing", f)
		}
	}
}
