// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"math/rand"
	"testing"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// surplus is the state of a cluster of five nodes that is to have three, with c-4 empty.
func surplus(changes ...func(*scaleState)) scaleState {
	s := scaleState{
		Wanted: 3, Have: 5, Leaving: member("c-4"), Queues: leavingQueues{Known: true},
		Staying: []rollMember{member("c-0"), member("c-1"), member("c-2")},
	}
	for _, c := range changes {
		c(&s)
	}
	return s
}

func begun(d drain, changes ...change) func(*scaleState) {
	return func(s *scaleState) { s.Marked, s.Leaving = true, member("c-4", append(changes, draining(d))...) }
}

func TestDecideScaleFollowsItsTable(t *testing.T) {
	staying := func(changes ...change) func(*scaleState) {
		return func(s *scaleState) { s.Staying[1] = member("c-1", changes...) }
	}
	leaving := func(changes ...change) func(*scaleState) {
		return func(s *scaleState) { s.Leaving = member("c-4", changes...) }
	}
	needing := func(s *scaleState) { s.Queues.Needing = []string{"/q"} }
	unmovable := func(s *scaleState) { s.Queues.Unmovable = []string{"/q"} }
	replicas := func(s *scaleState) { s.Queues.Replicas = 2 }
	unknown := func(s *scaleState) { s.Queues.Known = false }
	outdated := func(s *scaleState) { s.Outdated = true }
	going := func(s *scaleState) { s.PodsGoing = true }
	cases := []struct {
		row   string
		state scaleState
		want  string
	}{
		{"1 as wanted", surplus(func(s *scaleState) { s.Have = 3 }), "None (EnoughRemoved)"},
		{"1 more wanted", surplus(func(s *scaleState) { s.Have = 1 }, begun(drainDone)), "None (EnoughRemoved)"},
		{"2 denied", surplus(func(s *scaleState) { s.Denied = true }), "Wait (ScaleDownDenied)"},
		{"3 another is missing", surplus(staying(missing)), "Wait (MemberNotReady)"},
		{"3 another is not ready", surplus(staying(unready)), "Wait (MemberNotReady)"},
		{"3 another fails half way", surplus(staying(unready), begun(drainDone)), "Revive (MemberNotReady)"},
		{"3 another fails and the leaving one too", surplus(staying(unready), begun(drainUnknown, notRunning)), "Wait (MemberNotReady)"},
		{"4 a roll comes first", surplus(outdated), "Wait (RollFirst)"},
		{"4 but what was begun is finished", surplus(outdated, begun(drainDone)), "Remove (Empty)"},
		{"5 one at a time", surplus(going), "Wait (PodGoing)"},
		{"6 no answer", surplus(unknown), "Wait (QueuesUnknown)"},
		{"6 no answer half way", surplus(unknown, begun(drainDone)), "Wait (QueuesUnknown)"},
		{"7 a queue wants five", surplus(needing), "Wait (QueuesNeedNodes)"},
		{"7 a queue that wants five is declared half way", surplus(needing, begun(drainDone)), "Revive (QueuesNeedNodes)"},
		{"8 a classic queue", surplus(unmovable), "Wait (UnmovableQueues)"},
		{"8 a classic queue on a lost node", surplus(unmovable, leaving(missing)), "Wait (UnmovableQueues)"},
		{"8 a classic queue is declared half way", surplus(unmovable, begun(drainRunning)), "Revive (UnmovableQueues)"},
		{"9 begin", surplus(replicas), "Drain (Surplus)"},
		{"9 begin though it is critical: moving is the cure", surplus(replicas, leaving(critical)), "Drain (Surplus)"},
		{"10 drain cannot be told", surplus(begun(drainUnknown)), "Wait (DrainUnknown)"},
		{"11 leaders move", surplus(begun(drainRunning), replicas), "Wait (Draining)"},
		{"12 replicas move", surplus(begun(drainDone), replicas), "Move (MovingReplicas)"},
		{"12 replicas of a lost node are replaced", surplus(leaving(missing), replicas), "Move (MovingReplicas)"},
		{"13 still needed", surplus(begun(drainDone, critical)), "Wait (QuorumCritical)"},
		{"14 does not answer", surplus(begun(drainDone, silent)), "Wait (HealthUnknown)"},
		{"15 empty", surplus(begun(drainDone)), "Remove (Empty)"},
		{"15 never started", surplus(leaving(notRunning)), "Remove (Empty)"},
		{"15 lost", surplus(leaving(missing)), "Remove (Empty)"},
	}
	for _, c := range cases {
		t.Run(c.row, func(t *testing.T) {
			if got := decideScale(c.state); got.String() != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestDecideScaleNeverRemovesANeededNode checks invariants over random states, independently of the table.
func TestDecideScaleNeverRemovesANeededNode(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	flip := func() bool { return random.Intn(2) == 0 }
	draw := func() rollMember {
		m := rollMember{Presence: presence(random.Intn(3)), Current: flip(), Health: health(random.Intn(3)), Drain: drain(random.Intn(4))}
		m.Ready = m.Presence != podMissing && flip()
		m.NotRunning = !m.Ready && flip()
		return m
	}
	removed := 0
	for i := 0; i < 200_000; i++ {
		s := scaleState{
			Denied: random.Intn(8) == 0, Wanted: int32(random.Intn(5)), Have: int32(random.Intn(6)), Leaving: draw(),
			Marked: flip(), Outdated: flip(), PodsGoing: random.Intn(4) == 0,
			Queues: leavingQueues{Known: random.Intn(8) > 0, Replicas: random.Intn(2)},
		}
		if random.Intn(8) == 0 {
			s.Queues.Needing = []string{"q"}
		}
		if random.Intn(8) == 0 {
			s.Queues.Unmovable = []string{"q"}
		}
		healthy := true
		for n := random.Intn(3); n > 0; n-- {
			m := draw()
			healthy = healthy && m.Ready && m.Presence == podPresent
			s.Staying = append(s.Staying, m)
		}
		decision := decideScale(s)
		if decision.Action != scaleRemove {
			continue
		}
		removed++
		ready := s.Leaving.Ready && s.Leaving.Presence == podPresent
		switch {
		case s.Have <= s.Wanted, s.Denied, !healthy, s.PodsGoing:
			t.Fatalf("%v of %+v: not to be removed", decision, s)
		case !s.Queues.Known || s.Queues.Replicas > 0 || len(s.Queues.Unmovable) > 0 || len(s.Queues.Needing) > 0:
			t.Fatalf("%v of %+v: it holds something, or that is not known", decision, s)
		case ready && (!s.Marked || s.Leaving.Drain != drainDone || s.Leaving.Health != healthSafe):
			t.Fatalf("%v of %+v: not drained or needed", decision, s)
		}
	}
	if removed == 0 {
		t.Fatal("no state led to a removal")
	}
}

func TestDecideSizeFollowsItsTable(t *testing.T) {
	kept := map[int32]string{3: "data-c-3", 4: "data-c-4"}
	cases := []struct {
		name       string
		replicas   int32
		hibernated bool
		have       int32
		retained   map[int32]string
		want       sizes
	}{
		{"new", 3, false, 0, nil, sizes{3, 3, ""}},
		{"new and asleep", 3, true, 0, nil, sizes{3, 0, ""}},
		{"new with volumes of another life", 5, false, 0, kept, sizes{5, 5, ""}},
		{"as it is", 3, false, 3, kept, sizes{3, 3, ""}},
		{"asleep", 3, true, 3, nil, sizes{3, 0, ""}},
		{"grows", 5, false, 3, nil, sizes{5, 5, ""}},
		{"does not grow asleep", 5, true, 3, nil, sizes{3, 0, ""}},
		{"blocked at once", 5, false, 3, kept, sizes{3, 3, "data-c-3"}},
		{"blocked by the second", 5, false, 3, map[int32]string{4: "data-c-4"}, sizes{3, 3, "data-c-4"}},
		{"to be smaller", 3, false, 5, nil, sizes{5, 5, ""}},
		{"to be smaller, asleep", 3, true, 5, nil, sizes{5, 0, ""}},
	}
	for _, c := range cases {
		spec := &posthornv1.BrokerClusterSpec{Replicas: c.replicas, Hibernated: c.hibernated}
		if got := decideSize(spec, c.have, c.retained); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
