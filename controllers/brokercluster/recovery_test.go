// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// recovering returns a reconciliation in which queues are recovered; the last progress was some time ago.
func recovering(ago time.Duration) *reconciliation {
	in := inputs{cluster: testCluster(), now: time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)}
	in.cluster.Spec.MajorityRecovery = &posthornv1.MajorityRecoverySpec{Lost: lossOf("c-1", "b", "c-2", "c"), AcceptLoss: posthornv1.AcceptedLoss}
	r := &reconciliation{in: in, seen: observed{members: []memberView{{rollMember: rollMember{Name: "c-1"}, trouble: "Unschedulable: no machine"}}}}
	r.out.recovery = recoveryOutcome{
		recoveryDecision: recoveryDecision{Action: recoveryStep, Reason: reasonRecoveringQueues},
		record: &posthornv1.MajorityRecoveryStatus{
			State: posthornv1.MajorityRecovering, Lost: in.cluster.Spec.MajorityRecovery.Lost, LastProgress: &metav1.Time{Time: in.now.Add(-ago)},
		},
	}
	return r
}

func TestQueuesThatStayRefusedAreReported(t *testing.T) {
	refused := broker.RecoveredQueue{Vhost: "/", Name: "q", Result: broker.QueueRefused, Reason: "node 'c-3' is silent:\nwait"}
	recovered := broker.RecoveredQueue{Vhost: "/", Name: "p", Result: broker.QueueRecovered}
	for name, row := range map[string]struct {
		ago    time.Duration
		queues []broker.RecoveredQueue
		want   string
		holds  bool
	}{
		"refused a moment ago":           {time.Second, []broker.RecoveredQueue{refused}, reasonRecoveringQueues, true},
		"refused for long":               {refusedAfter, []broker.RecoveredQueue{refused}, reasonQueuesRefused, false},
		"refused, while another goes on": {refusedAfter, []broker.RecoveredQueue{refused, recovered}, reasonRecoveringQueues, true},
	} {
		r := recovering(row.ago)
		r.takeQueues(context.Background(), nil, broker.RecoveryStep{Step: broker.RecoveryQueues, Queues: row.queues, Left: 2})
		got := &r.out.recovery
		if got.Reason != row.want || got.holdsReady() != row.holds || !strings.Contains(got.Message, "the broker refuses to recover /q: node 'c-3' is silent:; wait") ||
			!strings.HasPrefix(got.Message, fmt.Sprintf("%d queues have no leader yet", len(row.queues)+2)) {
			t.Errorf("%s: %s, holds Ready %v: %s", name, got.Reason, got.holdsReady(), got.Message)
		}
		r.out.setMajorityRecovered(&r.in)
		found := meta.FindStatusCondition(r.out.status.Conditions, posthornv1.ConditionMajorityRecovered)
		if found == nil || found.Status != metav1.ConditionFalse || found.Reason != row.want {
			t.Errorf("%s: condition %+v", name, found)
		}
		r.out.setMajorityRecovered(&r.in)
		if events := len(r.out.events); (events == 1) != (row.want == reasonQueuesRefused) || events > 1 {
			t.Errorf("%s: Events %+v", name, r.out.events)
		}
	}
}

func TestManyRefusedQueuesFitIntoACondition(t *testing.T) {
	r := recovering(refusedAfter)
	var queues []broker.RecoveredQueue
	for i := range 64 {
		queues = append(queues, broker.RecoveredQueue{Vhost: "/", Name: fmt.Sprint(i), Result: broker.QueueRefused, Reason: strings.Repeat("é", 1000)})
	}
	r.takeQueues(context.Background(), nil, broker.RecoveryStep{Step: broker.RecoveryQueues, Queues: queues})
	if n := len(r.out.recovery.Message); n > 2*maxMessageBytes {
		t.Errorf("the message has %d bytes", n)
	}
}

func TestRecoveryNamesTheNodesThatItWaitsFor(t *testing.T) {
	r := recovering(0)
	r.joinAndGrow(context.Background(), nil)
	if got := &r.out.recovery; got.Reason != reasonNodesJoining || !strings.Contains(got.Message, "waiting for c-1: Unschedulable: no machine") || got.holdsReady() {
		t.Errorf("%s: %s", got.Reason, got.Message)
	}
}

// Without an observation of this moment, as in a pause, the previous condition stays; without the field it goes.
func TestRecoveryConditionStaysInAPause(t *testing.T) {
	r := recovering(0)
	r.out.setMajorityRecovered(&r.in)
	before := r.out.status.Conditions
	paused := decided{status: posthornv1.BrokerClusterStatus{Conditions: before}}
	paused.setMajorityRecovered(&r.in)
	if found := meta.FindStatusCondition(paused.status.Conditions, posthornv1.ConditionMajorityRecovered); found == nil || found.Reason != reasonRecoveringQueues {
		t.Errorf("in a pause: %+v", found)
	}
	r.in.cluster.Spec.MajorityRecovery = nil
	paused.setMajorityRecovered(&r.in)
	if found := meta.FindStatusCondition(paused.status.Conditions, posthornv1.ConditionMajorityRecovered); found != nil {
		t.Errorf("without the field: %+v", found)
	}
}
