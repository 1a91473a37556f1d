// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

const (
	// catchUpLimit bounds how long Ready waits for queues after a pod became ready. A queue that is critical for longer
	// lacks members for another reason, which QuorumSafe reports.
	catchUpLimit = 30 * time.Second
	// failureGrace is how long reconciliations may fail before a cluster whose nodes are all ready is not Ready.
	failureGrace = time.Minute
)

// summaryFacts is the input of decideSummary.
type summaryFacts struct {
	Paused, Hibernated bool
	// PendingChanges: a pause keeps the spec from being applied.
	PendingChanges bool
	// Failure is why the reconciliation ended early; empty when it did not. FailureReason is set when a retry does not
	// help, FailedRecently while reconciliations have failed for less than failureGrace.
	Failure, FailureReason string
	FailedRecently         bool
	// Blocked is the result of lifecycleCondition, when IsBlocked.
	Blocked   readyCondition
	IsBlocked bool
	// Held is why the StatefulSet is not brought to the spec.
	Held *finding
	// Certificate is the problem with the certificate that clients see.
	Certificate *finding
	// Created: the cluster was complete once.
	Created bool
	// Rolling, Scaling, Growing: pods are replaced, removed or added.
	Rolling, Scaling, Growing bool
	// NodesReady: all wanted nodes are ready.
	NodesReady bool
	// CatchingUp: a node is quorum critical, and a pod became ready a short time ago.
	CatchingUp bool
	// Complete: the cluster is as the spec says.
	Complete bool
	// WasReady and Before are the condition Ready and the phase of the previous reconciliation.
	WasReady bool
	Before   posthornv1.ClusterPhase
	// Message has the number of ready nodes and their trouble.
	Message string
}

// summary of a cluster.
type summary struct {
	Phase       posthornv1.ClusterPhase
	Ready       readyCondition
	Progressing bool
}

// decideSummary decides phase, Ready and Progressing. The first row that applies decides. "By work" is Creating, Rolling,
// ScalingDown or ScalingUp while one of these is in progress, else Degraded when a node is not ready, else Blocked.
//
//	 #  when                                                  | phase      | Ready                  | Progressing
//	 1  a retry does not help                                 | by work    | False, its reason      | no
//	 2  hibernated                                            | Hibernated | by pods that are left  | by pods
//	 3  most volumes are lost, or a part of the spec refused  | by work    | False, its reason      | if not stalled
//	 4  all nodes ready, Ready before, failed recently        | Ready      | True AttemptFailed     | no
//	 5  the reconciliation failed                             | by work    | False ReconcileFailed  | no
//	 6  a pause keeps the spec from being applied             | Paused     | False PendingChanges   | no
//	 7  the StatefulSet waits (settings, certificate)         | by work    | False, its reason      | yes
//	 8  the certificate for clients is unusable               | by work    | False, its reason      | no
//	 9  pods are replaced                                     | Rolling    | False Rolling          | yes
//	10  the cluster was never complete, and is not            | Creating   | False Creating         | yes
//	11  nodes are added, and not all are ready                | ScalingUp  | False ScalingUp        | yes
//	12  a node is not ready                                   | Degraded   | False NodesNotReady    | yes
//	13  not Ready before, and queues are catching up          | as before  | False CatchingUp       | yes
//	14  the cluster is as the spec says                       | Ready      | True AllNodesReady     | no
//	15  else                                                  | by work    | False Waiting          | yes
//
// The phase is Paused in a pause, and otherwise Ready exactly when Ready is True and the cluster is not hibernated. Row 13
// does not report a restart as finished while queues still need the node; row 4 does not report one failed request as
// an outage.
func decideSummary(f summaryFacts) summary {
	out := f.decide()
	switch {
	case f.Paused:
		out.Phase, out.Progressing = posthornv1.PhasePaused, false
	case f.Hibernated:
		out.Phase = posthornv1.PhaseHibernated
	case out.Ready.value == metav1.ConditionTrue:
		out.Phase = posthornv1.PhaseReady
	case out.Phase == "":
		out.Phase = f.work()
	}
	return out
}

func (f summaryFacts) decide() summary {
	no := func(reason, message string) readyCondition {
		return readyCondition{value: metav1.ConditionFalse, reason: reason, message: message}
	}
	switch {
	case f.FailureReason != "":
		stalled := no(f.FailureReason, f.Failure)
		stalled.stalled = true
		return summary{Ready: stalled}
	case f.IsBlocked && f.Failure == "":
		return summary{Ready: f.Blocked, Progressing: !f.Blocked.stalled && f.Blocked.value != metav1.ConditionTrue}
	case f.Failure != "" && f.FailedRecently && f.WasReady && f.NodesReady:
		return summary{Ready: readyCondition{metav1.ConditionTrue, "AttemptFailed", "all nodes are ready; the operator retries: " + f.Failure, false}}
	case f.Failure != "":
		return summary{Ready: no("ReconcileFailed", f.Failure)}
	case f.PendingChanges:
		return summary{Ready: no("PendingChanges", "spec.paused is true: changes of the spec are not applied; "+f.Message)}
	case f.Held != nil:
		return summary{Ready: no(f.Held.reason, f.Held.message), Progressing: true}
	case f.Certificate != nil:
		return summary{Ready: no(f.Certificate.reason, f.Certificate.message)}
	}
	return f.decideNodes(no)
}

// decideNodes is rows 9 to 15.
func (f summaryFacts) decideNodes(no func(reason, message string) readyCondition) summary {
	switch {
	case f.Rolling:
		return summary{Ready: no("Rolling", f.Message), Progressing: true}
	case !f.Created && !f.Complete:
		return summary{Ready: no("Creating", f.Message), Progressing: true}
	case f.Growing && !f.NodesReady:
		return summary{Ready: no("ScalingUp", f.Message), Progressing: true}
	case !f.NodesReady:
		return summary{Ready: no("NodesNotReady", f.Message), Progressing: true}
	case !f.WasReady && f.CatchingUp && f.Complete:
		phase := posthornv1.ClusterPhase("")
		if f.Before != posthornv1.PhaseReady && f.Before != posthornv1.PhasePaused && f.Before != posthornv1.PhaseHibernated {
			phase = f.Before
		}
		message := strings.TrimPrefix(f.Message+"; queues are still catching up on the node that became ready last", "; ")
		return summary{Phase: phase, Ready: no("CatchingUp", message), Progressing: true}
	case f.Complete:
		return summary{Ready: readyCondition{metav1.ConditionTrue, "AllNodesReady", f.Message, false}}
	}
	return summary{Ready: no("Waiting", f.Message), Progressing: true}
}

// work returns the phase of the work in progress.
func (f summaryFacts) work() posthornv1.ClusterPhase {
	switch {
	case !f.Created:
		return posthornv1.PhaseCreating
	case f.Rolling, f.Held != nil && f.Held.reason == reasonCheckingConfig:
		return posthornv1.PhaseRolling
	case f.Scaling:
		return posthornv1.PhaseScalingDown
	case f.Growing:
		return posthornv1.PhaseScalingUp
	case !f.NodesReady, f.CatchingUp:
		return posthornv1.PhaseDegraded
	}
	return posthornv1.PhaseBlocked
}
