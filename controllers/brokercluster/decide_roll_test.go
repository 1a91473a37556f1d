// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"math/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// Members are derived from a good current one by changes.
type change func(*rollMember)

func member(name string, changes ...change) rollMember {
	m := rollMember{Name: name, Presence: podPresent, Current: true, Ready: true, Health: healthSafe}
	for _, c := range changes {
		c(&m)
	}
	return m
}

var (
	old         change = func(m *rollMember) { m.Current = false }
	unready     change = func(m *rollMember) { m.Ready = false }
	missing     change = func(m *rollMember) { m.Presence, m.Ready, m.Health = podMissing, false, healthUnknown }
	terminating change = func(m *rollMember) { m.Presence = podTerminating }
	notRunning  change = func(m *rollMember) { m.NotRunning, m.Ready, m.Health = true, false, healthUnknown }
	restarting  change = func(m *rollMember) { m.NotRunning, m.Restarting, m.Ready, m.Health = true, true, false, healthUnknown }
	accepted    change = func(m *rollMember) { m.AcceptCritical = true }
	neverReady  change = func(m *rollMember) { m.NeverReady, m.Ready, m.Health = true, false, healthUnknown }
	critical    change = func(m *rollMember) { m.Health = healthCritical }
	silent      change = func(m *rollMember) { m.Health = healthUnknown }
)

func draining(d drain) change { return func(m *rollMember) { m.Drain = d } }

func TestDecideRollFollowsItsTable(t *testing.T) {
	cases := []struct {
		row     string
		unknown bool
		members []rollMember
		want    string
	}{
		{"1 revision unknown", true, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old)}, "Wait  (RevisionUnknown)"},
		{"2 spec went back while draining", false, []rollMember{member("c-0"), member("c-1"), member("c-2", draining(drainRunning), unready)}, "Revive c-2 (DrainUnneeded)"},
		{"2 before anything else", false, []rollMember{member("c-0", old, notRunning), member("c-1"), member("c-2", draining(drainDone))}, "Revive c-2 (DrainUnneeded)"},
		{"2 not a node that does not run: it is unknown", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", notRunning, draining(drainUnknown))}, "Wait c-2 (MemberNotReady)"},
		{"3 bad image fixed", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, notRunning)}, "Replace c-2 (NotRunning)"},
		{"3 bad image from the start, highest first", false, []rollMember{member("c-0", old, notRunning), member("c-1", old, notRunning), member("c-2", neverReady)}, "Replace c-1 (NotRunning)"},
		{"3 even while another is missing", false, []rollMember{member("c-0", old, notRunning), member("c-1", missing), member("c-2")}, "Replace c-0 (NotRunning)"},
		{"3 not to a revision that fails elsewhere", false, []rollMember{member("c-0", old, notRunning), member("c-1", old), member("c-2", notRunning)}, "Wait c-2 (RevisionFails)"},
		{"3 not one that the kubelet restarts", false, []rollMember{member("c-0", old, restarting), member("c-1", old), member("c-2", unready)}, "Wait c-2 (MemberNotReady)"},
		{"3 one that the kubelet restarts but that never served", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, neverReady, restarting)}, "Replace c-2 (NotRunning)"},
		{"3 crashing again and again, the new revision starts", false, []rollMember{member("c-0", old, notRunning), member("c-1", old, notRunning), member("c-2", unready)}, "Replace c-1 (NotRunning)"},
		{"4 none outdated, one missing", false, []rollMember{member("c-0"), member("c-1", missing), member("c-2")}, "Wait c-1 (PodStarting)"},
		{"4 none outdated, one going", false, []rollMember{member("c-0"), member("c-1", old, terminating), member("c-2")}, "Wait c-1 (PodStarting)"},
		{"5 new pod not ready yet", false, []rollMember{member("c-0"), member("c-1"), member("c-2", unready)}, "Wait c-2 (MemberNotReady)"},
		{"5 current pod with a bad image", false, []rollMember{member("c-0"), member("c-1"), member("c-2", notRunning)}, "Wait c-2 (MemberNotReady)"},
		{"6 all is well", false, []rollMember{member("c-0"), member("c-1"), member("c-2")}, "Done  (UpToDate)"},
		{"7 single node", false, []rollMember{member("c-0", old, critical)}, "Replace c-0 (SingleNode)"},
		{"8 nothing was ever ready", false, []rollMember{member("c-0", old, neverReady), member("c-1", old, neverReady), member("c-2", neverReady)}, "Replace c-1 (NeverReady)"},
		{"8 not when one serves", false, []rollMember{member("c-0", old, neverReady), member("c-1"), member("c-2", unready)}, "Wait c-2 (MemberNotReady)"},
		{"9 another fails while one is drained", false, []rollMember{member("c-0", unready), member("c-1", old, draining(drainDone)), member("c-2")}, "Revive c-1 (AnotherIsMissing)"},
		{"9 another vanishes while one is drained", false, []rollMember{member("c-0", missing), member("c-1", old, draining(drainRunning)), member("c-2")}, "Revive c-1 (AnotherIsMissing)"},
		{"10 another is being made", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", missing)}, "Wait c-2 (PodStarting)"},
		{"10 another is going", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, terminating)}, "Wait c-2 (PodStarting)"},
		{"11 the replaced one joins", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", unready)}, "Wait c-2 (MemberNotReady)"},
		{"11 the replaced one has a bad image", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", notRunning)}, "Wait c-2 (MemberNotReady)"},
		{"11 two outdated ones are not ready", false, []rollMember{member("c-0", old, unready), member("c-1", old, unready), member("c-2", old)}, "Wait c-0 (MemberNotReady)"},
		{"12 quorum critical", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, critical)}, "Wait c-2 (QuorumCritical)"},
		{"12 quorum critical after the drain", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, critical, draining(drainDone))}, "Wait c-2 (QuorumCritical)"},
		{"12 quorum critical and accepted", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, critical, accepted)}, "Drain c-2 (Outdated)"},
		{"12 accepted while another is away", false, []rollMember{member("c-0", unready), member("c-1"), member("c-2", old, critical, accepted)}, "Wait c-0 (MemberNotReady)"},
		{"12 never ready but needed", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, neverReady, critical)}, "Wait c-2 (QuorumCritical)"},
		{"13 ran but never served", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, neverReady)}, "Replace c-2 (NeverReady)"},
		{"14 no answer", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, silent)}, "Wait c-2 (HealthUnknown)"},
		{"14 was ready, hangs", false, []rollMember{member("c-0", old), member("c-1", old, unready, silent), member("c-2", old)}, "Wait c-1 (HealthUnknown)"},
		{"15 begin at the top", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old)}, "Drain c-2 (Outdated)"},
		{"15 go on downwards", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2")}, "Drain c-1 (Outdated)"},
		{"15 the one that is not ready first", false, []rollMember{member("c-0", old, unready), member("c-1", old), member("c-2", old)}, "Drain c-0 (Outdated)"},
		{"16 drain cannot be told", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, draining(drainUnknown))}, "Wait c-2 (DrainUnknown)"},
		{"17 drain is in progress", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, unready, draining(drainRunning))}, "Wait c-2 (Draining)"},
		{"17 what was begun is finished first", false, []rollMember{member("c-0", old), member("c-1", old, draining(drainRunning)), member("c-2", old)}, "Wait c-1 (Draining)"},
		{"18 drained", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, unready, draining(drainDone))}, "Replace c-2 (Drained)"},
	}
	for _, c := range cases {
		t.Run(c.row, func(t *testing.T) {
			got := decideRoll(rollState{RevisionKnown: !c.unknown, Members: c.members})
			if got.String() != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestDecideRollNeverTakesASecondNode checks invariants over random states, independently of the table.
func TestDecideRollNeverTakesASecondNode(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	flip := func() bool { return random.Intn(2) == 0 }
	for i := 0; i < 200_000; i++ {
		members := make([]rollMember, []int{1, 3, 5}[random.Intn(3)])
		ready := 0
		for n := range members {
			m := rollMember{Name: "c-" + strconv.Itoa(n), Presence: presence(random.Intn(3)), Current: flip(), Health: health(random.Intn(3)), Drain: drain(random.Intn(4))}
			m.Ready = m.Presence != podMissing && flip()
			m.NotRunning = !m.Ready && flip()
			m.NeverReady = !m.Ready && flip()
			m.Restarting = m.NotRunning && flip()
			m.AcceptCritical = random.Intn(8) == 0
			members[n] = m
			if m.Ready && m.Presence == podPresent {
				ready++
			}
		}
		state := rollState{RevisionKnown: random.Intn(10) > 0, Members: members}
		decision := decideRoll(state)
		if again := decideRoll(state); again != decision {
			t.Fatalf("not pure: %v %v", decision, again)
		}
		if decision.Action != rollReplace {
			continue
		}
		var gone rollMember
		for _, m := range members {
			if m.Name == decision.Pod {
				gone = m
			}
		}
		others := ready
		if gone.Ready {
			others--
		}
		switch {
		case !state.RevisionKnown || gone.Presence != podPresent || gone.Current:
			t.Fatalf("%v of %+v: not to be replaced", decision, members)
		case gone.NotRunning && !gone.NeverReady && gone.Restarting && others != len(members)-1:
			t.Fatalf("%v of %+v: the kubelet restarts it", decision, members)
		case gone.NotRunning && revisionFails(members):
			t.Fatalf("%v of %+v: its new revision fails elsewhere", decision, members)
		case gone.NotRunning || len(members) == 1 || (gone.NeverReady && ready == 0):
		case others != len(members)-1:
			t.Fatalf("%v of %+v: another one is away", decision, members)
		case gone.Health == healthCritical && !gone.AcceptCritical:
			t.Fatalf("%v of %+v: quorum critical", decision, members)
		case !gone.NeverReady && ((gone.Health != healthSafe && !gone.AcceptCritical) || gone.Drain != drainDone):
			t.Fatalf("%v of %+v: not drained or health unknown", decision, members)
		}
	}
}

// revisionFails reports whether no process runs in a pod of the wanted revision.
func revisionFails(members []rollMember) bool {
	for _, m := range members {
		if m.Presence == podPresent && m.Current && m.NotRunning {
			return true
		}
	}
	return false
}

func TestSharedMachinesNamesThePodsOfEachMachine(t *testing.T) {
	on := func(name, machine string) memberView {
		return memberView{rollMember: rollMember{Name: name, Presence: podPresent}, pod: &corev1.Pod{Spec: corev1.PodSpec{NodeName: machine}}}
	}
	spread := []memberView{on("c-0", "a"), on("c-1", "b"), on("c-2", ""), {rollMember: rollMember{Name: "c-3"}}}
	if got := sharedMachines(spread); len(got) != 0 {
		t.Errorf("one node a machine: %v", got)
	}
	shared := []memberView{on("c-0", "a"), on("c-1", "b"), on("c-2", "a")}
	if got := sharedMachines(shared); len(got) != 1 || got[0] != "c-0 and c-2 on machine a" {
		t.Errorf("two nodes on a machine: %v", got)
	}
}

// TestReplaceDeletesOnlyTheObservedPod lets the kubelet write between the observation and the deletion.
func TestReplaceDeletesOnlyTheObservedPod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-0", UID: "one", ResourceVersion: "7"}}
	var given *metav1.Preconditions
	deleter := interceptor.Funcs{Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
		options := client.DeleteOptions{}
		options.ApplyOptions(opts)
		given = options.Preconditions
		return nil
	}}
	r := &reconciliation{
		Reconciler: &Reconciler{Client: fake.NewClientBuilder().WithInterceptorFuncs(deleter).Build()},
		in:         inputs{cluster: testCluster()},
	}
	if err := r.replacePod(context.Background(), &memberView{rollMember: rollMember{Name: "c-0"}, pod: pod}); err != nil {
		t.Fatal(err)
	}
	if given == nil || given.UID == nil || *given.UID != "one" || given.ResourceVersion == nil || *given.ResourceVersion != "7" {
		t.Errorf("preconditions %+v", given)
	}
}

func TestRestartOfTheProcessIsNotAStuckPod(t *testing.T) {
	started := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	state := func(state corev1.ContainerState) *corev1.Pod {
		pod := &corev1.Pod{Status: corev1.PodStatus{
			StartTime:  &started,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(started.Add(time.Hour))}},
		}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, State: state}}
		return pod
	}
	killed := state(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137}})
	if m := viewPod("c-0", killed, "new", ""); isStuck(m.rollMember) || !m.NotRunning {
		t.Errorf("killed once: %+v", m.rollMember)
	}
	looping := state(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}})
	if m := viewPod("c-0", looping, "new", ""); !isStuck(m.rollMember) {
		t.Errorf("crashing again and again: %+v", m.rollMember)
	}
}

func TestTerminationPastTheGracePeriodNamesTheMachine(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var out decided
	due := func(late time.Duration) *corev1.Pod {
		at := metav1.NewTime(now.Add(-late))
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &at}, Spec: corev1.PodSpec{NodeName: "w2"}}
	}
	if text := out.describeTermination(due(time.Second), now); text != "" || out.requeue == 0 {
		t.Errorf("the pod may still end: %q, requeued after %s", text, out.requeue)
	}
	if text := out.describeTermination(due(time.Minute), now); !strings.Contains(text, "machine w2") {
		t.Errorf("the machine is lost: %q", text)
	}
}

// podOn returns a pod whose kubelet has reported its containers as ready.
func podOn(machine string, ready corev1.ConditionStatus, gates ...corev1.PodConditionType) *corev1.Pod {
	started := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: machine}, Status: corev1.PodStatus{StartTime: &started, Conditions: []corev1.PodCondition{
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(started.Add(time.Hour))},
	}}}
	for _, gate := range gates {
		pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: gate})
	}
	return pod
}

func TestPodOnAMachineThatIsDownNamesTheMachine(t *testing.T) {
	containersEnded := podOn("w2", corev1.ConditionFalse)
	containersEnded.Status.Conditions[0].Status = corev1.ConditionFalse
	for name, row := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"down":                          {podOn("w2", corev1.ConditionFalse), true},
		"ready":                         {podOn("w2", corev1.ConditionTrue), false},
		"a probe fails":                 {containersEnded, false},
		"waits for a readiness gate":    {podOn("w2", corev1.ConditionFalse, "example.test/gate"), false},
		"not scheduled":                 {podOn("", corev1.ConditionFalse), false},
		"without any condition so far":  {&corev1.Pod{Spec: corev1.PodSpec{NodeName: "w2"}}, false},
		"down with a gate that is open": {withCondition(podOn("w2", corev1.ConditionFalse, "example.test/gate"), "example.test/gate"), true},
	} {
		m := viewPod("c-0", row.pod, "new", "")
		if named := strings.HasPrefix(m.trouble, "MachineDown: ") && strings.Contains(m.trouble, "machine w2"); named != row.want {
			t.Errorf("%s: %q", name, m.trouble)
		}
		if m.NotRunning {
			t.Errorf("%s: a lost machine does not show whether the process runs", name)
		}
	}
}

func withCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.Pod {
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
	return pod
}

func TestMachineThatIsDownIsReportedOnceAndRemembered(t *testing.T) {
	in := inputs{cluster: testCluster(), now: time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)}
	decide := func(third *corev1.Pod, roll rollDecision) *decided {
		out := &decided{roll: roll, sizes: sizes{Nodes: 3, Pods: 3}}
		seen := observed{}
		for i, pod := range []*corev1.Pod{podOn("w0", corev1.ConditionTrue), podOn("w1", corev1.ConditionTrue), third} {
			m := viewPod(in.podName(int32(i)), pod, "new", "")
			m.machine = in.lastMachine(&m)
			seen.members = append(seen.members, m)
		}
		out.decideStatus(&in, &seen, failure{})
		in.cluster.Status = out.status
		return out
	}
	events := func(out *decided) int {
		count := 0
		for _, each := range out.events {
			if each.reason == "MachineDown" && strings.HasPrefix(each.message, "c-2: ") && strings.Contains(each.message, "machine w2") {
				count++
			}
		}
		return count
	}
	down := podOn("w2", corev1.ConditionFalse)
	waits := rollDecision{rollWait, "c-2", reasonMemberNotReady}
	if out := decide(podOn("w2", corev1.ConditionTrue), rollDecision{Action: rollDone}); events(out) != 0 {
		t.Errorf("all are ready: %+v", out.events)
	}
	out := decide(down, waits)
	if events(out) != 1 {
		t.Errorf("the machine went down: %+v", out.events)
	}
	for _, kind := range []string{posthornv1.ConditionReady, posthornv1.ConditionUpgradeBlocked} {
		found := meta.FindStatusCondition(out.status.Conditions, kind)
		if found == nil || !strings.Contains(found.Message, "machine w2") {
			t.Errorf("%s: %+v", kind, found)
		}
	}
	if member := out.status.Members[2]; member.Machine != "w2" || !strings.HasPrefix(member.Message, "MachineDown: ") {
		t.Errorf("%+v", member)
	}
	if out = decide(down, waits); events(out) != 0 {
		t.Errorf("it is still down: %+v", out.events)
	}
	unscheduled := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no machine fits"},
	}}}
	if out = decide(unscheduled, waits); out.status.Members[2].Machine != "w2" {
		t.Errorf("the next pod cannot be scheduled: %+v", out.status.Members[2])
	}
	if out = decide(podOn("w3", corev1.ConditionTrue), rollDecision{Action: rollDone}); out.status.Members[2].Machine != "w3" || out.status.Members[2].Message != "" {
		t.Errorf("it runs elsewhere: %+v", out.status.Members[2])
	}
}
