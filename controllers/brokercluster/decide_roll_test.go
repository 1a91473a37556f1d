// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"math/rand"
	"strconv"
	"testing"
)

// Members are made from a good current one by changes.
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
	neverReady  change = func(m *rollMember) { m.NeverReady, m.Ready, m.Health = true, false, healthUnknown }
	critical    change = func(m *rollMember) { m.Health = healthCritical }
	silent      change = func(m *rollMember) { m.Health = healthUnknown }
)

func draining(d drain) change { return func(m *rollMember) { m.Drain = d } }

func TestDecideRoll(t *testing.T) {
	cases := []struct {
		row     string
		unknown bool
		members []rollMember
		want    string
	}{
		{"1 revision unknown", true, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old)}, "Wait  (RevisionUnknown)"},
		{"2 spec went back while draining", false, []rollMember{member("c-0"), member("c-1"), member("c-2", draining(drainRunning), unready)}, "Revive c-2 (DrainUnneeded)"},
		{"2 before anything else", false, []rollMember{member("c-0", old, notRunning), member("c-1"), member("c-2", draining(drainDone))}, "Revive c-2 (DrainUnneeded)"},
		{"3 bad image fixed", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, notRunning)}, "Replace c-2 (NotRunning)"},
		{"3 bad image from the start, highest first", false, []rollMember{member("c-0", old, notRunning), member("c-1", old, notRunning), member("c-2", neverReady)}, "Replace c-1 (NotRunning)"},
		{"3 even while another is missing", false, []rollMember{member("c-0", old, notRunning), member("c-1", missing), member("c-2")}, "Replace c-0 (NotRunning)"},
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
		{"12 never ready but needed", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, neverReady, critical)}, "Wait c-2 (QuorumCritical)"},
		{"13 ran but never served", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, neverReady)}, "Replace c-2 (NeverReady)"},
		{"14 no answer", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, silent)}, "Wait c-2 (HealthUnknown)"},
		{"14 was ready, hangs", false, []rollMember{member("c-0", old), member("c-1", old, unready, silent), member("c-2", old)}, "Wait c-1 (HealthUnknown)"},
		{"15 begin at the top", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old)}, "Drain c-2 (Outdated)"},
		{"15 go on downwards", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2")}, "Drain c-1 (Outdated)"},
		{"15 the one that is not ready first", false, []rollMember{member("c-0", old, unready), member("c-1", old), member("c-2", old)}, "Drain c-0 (Outdated)"},
		{"16 drain cannot be told", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, draining(drainUnknown))}, "Wait c-2 (DrainUnknown)"},
		{"17 drain goes on", false, []rollMember{member("c-0", old), member("c-1", old), member("c-2", old, unready, draining(drainRunning))}, "Wait c-2 (Draining)"},
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

// TestDecideRollNeverTakesASecondNode checks, over random states, what must hold whatever the table says.
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
		case gone.NotRunning || len(members) == 1 || (gone.NeverReady && ready == 0):
		case others != len(members)-1:
			t.Fatalf("%v of %+v: another one is away", decision, members)
		case gone.Health == healthCritical:
			t.Fatalf("%v of %+v: quorum critical", decision, members)
		case !gone.NeverReady && (gone.Health != healthSafe || gone.Drain != drainDone):
			t.Fatalf("%v of %+v: not drained or health unknown", decision, members)
		}
	}
}
