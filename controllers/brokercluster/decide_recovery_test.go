// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"slices"
	"strings"
	"testing"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// lossOf returns the named volumes of nodes.
func lossOf(pairs ...string) []posthornv1.LostNode {
	var out []posthornv1.LostNode
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, posthornv1.LostNode{Node: pairs[i], Volume: pairs[i+1]})
	}
	return out
}

// lostTwo is a cluster of three of which c-1 and c-2 lost the volumes b and c and have new ones, and whose spec names them.
func lostTwo(changes ...func(*recoveryState)) recoveryState {
	s := recoveryState{
		Asked: lossOf("c-2", "c", "c-1", "b"),
		Members: []recoveryMember{
			{Name: "c-0", LastReady: "a", Bound: "a"}, {Name: "c-1", LastReady: "b", Bound: "y", IsLost: true}, {Name: "c-2", LastReady: "c", Bound: "z", IsLost: true},
		},
		Listed: map[string]bool{"c-0": true, "c-1": false, "c-2": false},
	}
	for _, change := range changes {
		change(&s)
	}
	return s
}

func TestDecideRecoveryFollowsItsTable(t *testing.T) {
	asked := func(pairs ...string) func(*recoveryState) {
		return func(s *recoveryState) { s.Asked = lossOf(pairs...) }
	}
	record := func(change func(*posthornv1.MajorityRecoveryStatus)) func(*recoveryState) {
		return func(s *recoveryState) {
			s.Record = &posthornv1.MajorityRecoveryStatus{State: posthornv1.MajorityRecovering, Lost: lossOf("c-1", "b", "c-2", "c")}
			change(s.Record)
		}
	}
	recorded := record(func(*posthornv1.MajorityRecoveryStatus) {})
	accepted := record(func(r *posthornv1.MajorityRecoveryStatus) { r.Accepted = true })
	recovered := record(func(r *posthornv1.MajorityRecoveryStatus) { r.State = posthornv1.MajorityRecovered })
	other := record(func(r *posthornv1.MajorityRecoveryStatus) { r.Lost = lossOf("c-0", "old") })
	without := record(func(r *posthornv1.MajorityRecoveryStatus) { r.Accepted, r.Removed = true, []string{"c-1"} })
	silent := func(s *recoveryState) { s.Listed = nil }
	running := func(name string) func(*recoveryState) {
		return func(s *recoveryState) { s.Listed[name] = true }
	}
	gone := func(names ...string) func(*recoveryState) {
		return func(s *recoveryState) {
			for _, name := range names {
				delete(s.Listed, name)
			}
		}
	}
	// A node is ready with its new volume.
	joined := func(i int) func(*recoveryState) {
		return func(s *recoveryState) { s.Members[i].LastReady, s.Members[i].IsLost = s.Members[i].Bound, false }
	}
	returned := func(i int) func(*recoveryState) {
		return func(s *recoveryState) { s.Members[i].Bound, s.Members[i].IsLost = s.Members[i].LastReady, false }
	}
	noneLeft := func(s *recoveryState) { s.Members[0].IsLost = true }
	// A hibernation during the recovery.
	forgotten := func(s *recoveryState) {
		for i := range s.Members {
			s.Members[i].LastReady, s.Members[i].IsLost = "", false
		}
	}
	unnamed := func(s *recoveryState) { s.Asked = nil }
	unbound := func(s *recoveryState) { s.Members[1].Bound, s.Members[2].Bound = "", "" }
	cases := []struct {
		row           string
		state         recoveryState
		want          string
		lost, removed string
		message       string
	}{
		{"1 not asked", lostTwo(unnamed), "None (NotAsked)", "", "", ""},
		{"1 not asked any more", lostTwo(unnamed, accepted), "None (NotAsked)", "", "", ""},
		{"2 recovered", lostTwo(recovered), "None (Recovered)", "", "", ""},
		{"2 recovered, and applied again after the nodes joined", lostTwo(recovered, joined(1), joined(2)), "None (Recovered)", "", "", ""},
		{"3 a volume is back", lostTwo(returned(1)), "Refuse (VolumeReturned)", "", "", "c-1 has volume b, so it is not lost: leave it out"},
		{"3 a volume of a removed node is back", lostTwo(without, returned(1)), "Refuse (VolumeReturned)", "", "", "the cluster has removed this node: delete its claim"},
		{"3 the volumes of a healthy cluster", lostTwo(returned(1), returned(2)), "Refuse (VolumeReturned)", "", "", "c-2 has volume c"},
		{"4 the same manifest after the nodes joined", lostTwo(joined(1), joined(2)), "Refuse (MajorityNotLost)", "", "", "3 of 3 nodes have the volumes"},
		{"4 one of three", lostTwo(asked("c-2", "c"), joined(1)), "Refuse (MajorityNotLost)", "", "", "2 of 3 nodes"},
		{"5 nothing is left", lostTwo(noneLeft, asked("c-0", "a0", "c-1", "b", "c-2", "c")), "Refuse (NoNodeLeft)", "", "", "start a new cluster"},
		{"6 one is not named", lostTwo(asked("c-2", "c")), "Refuse (NodesDiffer)", "", "", "names c-2 (volume c), but the lost nodes and volumes are c-1 (volume b), c-2 (volume c)"},
		{"6 one too many is named", lostTwo(asked("c-0", "x", "c-1", "b", "c-2", "c")), "Refuse (NodesDiffer)", "", "", "c-0 (volume x)"},
		{"6 an unknown node", lostTwo(asked("c-1", "b", "c-7", "c")), "Refuse (NodesDiffer)", "", "", "c-7 (volume c)"},
		{"6 a volume of an earlier loss", lostTwo(asked("c-1", "older", "c-2", "c")), "Refuse (NodesDiffer)", "", "", "c-1 (volume older)"},
		{"7 nobody answers", lostTwo(silent), "Wait (NoAnswer)", "", "", "no node"},
		{"7 nobody answers any more", lostTwo(silent, accepted), "Wait (NoAnswer)", "", "", "no node"},
		{"8 a named node runs", lostTwo(running("c-1")), "Refuse (NodeRunning)", "", "", "c-1 with its old data runs"},
		{"8 a named node runs before the first step", lostTwo(recorded, running("c-2")), "Refuse (NodeRunning)", "", "", "c-2 with its old data runs"},
		{"9 begin", lostTwo(), "Begin (RemovingNodes)", "", "", ""},
		{"9 begin without new volumes", lostTwo(unbound), "Begin (RemovingNodes)", "", "", ""},
		{"9 begin after another recovery", lostTwo(other), "Begin (RemovingNodes)", "", "", ""},
		{"10 remove both", lostTwo(recorded), "Step (RemovingNodes)", "c-2 c-1", "", ""},
		{"10 remove the other one", lostTwo(accepted, gone("c-1")), "Step (RemovingNodes)", "c-2", "c-1", ""},
		{"10 the new node of a removed one runs", lostTwo(accepted, running("c-1")), "Step (RemovingNodes)", "c-2", "c-1", ""},
		{"10 the new node of a removed one is down", lostTwo(without), "Step (RemovingNodes)", "c-2", "c-1", ""},
		{"10 a new node that was ready is not removed", lostTwo(recorded, joined(1)), "Step (RemovingNodes)", "c-2", "c-1", ""},
		{"10 after a hibernation", lostTwo(accepted, forgotten), "Step (RemovingNodes)", "c-2 c-1", "", ""},
		{"11 all are removed", lostTwo(accepted, gone("c-1", "c-2")), "Step (RecoveringQueues)", "", "c-2 c-1", ""},
		{"11 all have joined", lostTwo(accepted, joined(1), joined(2)), "Step (RecoveringQueues)", "", "c-2 c-1", ""},
	}
	for _, c := range cases {
		t.Run(c.row, func(t *testing.T) {
			got := decideRecovery(c.state)
			if got.String() != c.want || !strings.Contains(got.Message, c.message) {
				t.Errorf("got %s: %s, want %s: %s", got, got.Message, c.want, c.message)
			}
			if lost, removed := strings.Join(got.Lost, " "), strings.Join(got.Removed, " "); got.Action == recoveryStep && (lost != c.lost || removed != c.removed) {
				t.Errorf("lost %q, removed %q, want %q and %q", lost, removed, c.lost, c.removed)
			}
			if got.Action == recoveryRefuse && got.Message == "" {
				t.Error("a refusal without a message")
			}
		})
	}
}

// Every state of three nodes: a step is requested only for named nodes that were not ready since, and only after the record.
func TestDecideRecoveryNamesOnlyNodesThatStayedLost(t *testing.T) {
	members := map[string]recoveryMember{
		"same": {LastReady: "v", Bound: "v"}, "lost": {LastReady: "v", Bound: "w", IsLost: true}, "unbound": {LastReady: "v", IsLost: true},
		"joined": {LastReady: "w", Bound: "w"}, "lost again": {LastReady: "w", Bound: "x", IsLost: true},
	}
	listings := map[string]func(map[string]bool, string){
		"down": func(l map[string]bool, n string) { l[n] = false }, "up": func(l map[string]bool, n string) { l[n] = true }, "absent": func(map[string]bool, string) {},
	}
	steps := 0
	for first, one := range members {
		for second, two := range members {
			for listedAs, list := range listings {
				for _, record := range []*posthornv1.MajorityRecoveryStatus{nil, {State: posthornv1.MajorityRecovering}, {State: posthornv1.MajorityRecovering, Accepted: true}, {State: posthornv1.MajorityRecovered}} {
					s := recoveryState{Asked: lossOf("c-1", "v", "c-2", "v"), Listed: map[string]bool{"c-0": true}, Record: record}
					if record != nil {
						record.Lost = slices.Clone(s.Asked)
					}
					one.Name, two.Name = "c-1", "c-2"
					s.Members = []recoveryMember{{Name: "c-0", LastReady: "u", Bound: "u"}, one, two}
					list(s.Listed, "c-1")
					list(s.Listed, "c-2")
					d := decideRecovery(s)
					if d.Action == recoveryStep && (record == nil || record.State == posthornv1.MajorityRecovered) {
						t.Errorf("%s, %s, %s: a step without a record", first, second, listedAs)
					}
					if d.Action != recoveryStep {
						continue
					}
					steps++
					for _, name := range d.Lost {
						if m := s.member(name); !m.IsLost || m.LastReady != "v" || listedAs != "down" {
							t.Errorf("%s, %s, %s: %s would be removed", first, second, listedAs, name)
						}
					}
				}
			}
		}
	}
	if steps == 0 {
		t.Error("no state had a step")
	}
}

func TestQueuesGetTheMembersThatTheyWereDeclaredWith(t *testing.T) {
	targets := []moveTarget{{Name: "c-0", Replicas: 3}, {Name: "c-1", Replicas: 1}, {Name: "c-2"}}
	queue := func(members string, change func(*broker.Queue)) *broker.Queue {
		q := &broker.Queue{Type: "quorum", Leader: "c-0", Members: strings.Fields(members), Online: strings.Fields(members)}
		change(q)
		return q
	}
	asks := func(number float64) func(*broker.Queue) {
		return func(q *broker.Queue) { q.Arguments = map[string]any{argumentInitialSize: number} }
	}
	as := func(*broker.Queue) {}
	for name, row := range map[string]struct {
		queue     *broker.Queue
		to        string
		isLacking bool
	}{
		"three by default":                   {queue("c-0", as), "c-2", true},
		"the last one":                       {queue("c-0 c-2", as), "c-1", true},
		"enough":                             {queue("c-0 c-1 c-2", as), "", false},
		"declared with one":                  {queue("c-0", asks(1)), "", false},
		"declared with two":                  {queue("c-0", asks(2)), "c-2", true},
		"declared with more than nodes":      {queue("c-0 c-1 c-2", asks(5)), "", false},
		"a removed member does not count":    {queue("c-0 6861c13ccf5b24e1 c-2", as), "c-1", true},
		"a member is not online":             {queue("c-0 c-2", func(q *broker.Queue) { q.Online = []string{"c-0"} }), "", true},
		"no leader":                          {queue("c-0", func(q *broker.Queue) { q.Leader = "" }), "", false},
		"a classic queue":                    {queue("c-0", func(q *broker.Queue) { q.Type = "classic" }), "", false},
		"a stream, as it was declared":       {queue("c-0", func(q *broker.Queue) { q.Type, q.Arguments = "stream", map[string]any{argumentStreamSize: 1.0} }), "", false},
		"a stream with the default of three": {queue("c-0", func(q *broker.Queue) { q.Type = "stream" }), "c-2", true},
	} {
		if to, isLacking := decideNewReplica(row.queue, targets); to != row.to || isLacking != row.isLacking {
			t.Errorf("%s: %q, %v, want %q, %v", name, to, isLacking, row.to, row.isLacking)
		}
	}
}
