// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package queuestate

import (
	"strings"
	"testing"

	"posthorn.io/posthorn/internal/broker"
)

func TestImpedimentOfFollowsItsTable(t *testing.T) {
	cases := map[string]struct {
		kind, state, leader, members, online string
		want, says                           string
	}{
		"all online":                     {"quorum", "running", "c-0", "c-0 c-1 c-2", "c-0 c-1 c-2", "", ""},
		"a majority online":              {"quorum", "running", "c-0", "c-0 c-1 c-2", "c-0 c-1", "", ""},
		"a minority online":              {"quorum", "running", "c-0", "c-0 c-1 c-2", "c-0", "NoMajority", "1 of 3 members are online, a majority is needed; bring back c-1, c-2"},
		"nobody online":                  {"quorum", "down", "", "c-0 c-1 c-2", "", "NoLeader", "bring back c-0, c-1, c-2"},
		"half of two":                    {"quorum", "running", "c-0", "c-0 c-1", "c-0", "NoMajority", "bring back c-1"},
		"half of two, the other lost":    {"quorum", "running", "", "c-0 6861c13ccf5b24e1", "c-0", "NoLeader", "a majority is needed; the disks of 1 of them are lost: if the others are no majority, delete the queue"},
		"one lost, one offline":          {"quorum", "running", "", "c-0 c-1 6861c13ccf5b24e1", "c-0", "NoLeader", "bring back c-1; the disks of 1 of them are lost"},
		"an election":                    {"quorum", "down", "", "c-0 c-1 c-2", "c-0 c-1 c-2", "NoLeader", "not elected"},
		"the only copy is gone":          {"classic", "lost", "c-1", "c-1", "", "Lost", "declares it again, empty"},
		"a quorum queue without a disk":  {"quorum", "lost", "", "c-1", "", "Lost", "lost"},
		"classic, its node is up":        {"classic", "running", "c-1", "c-1", "c-1", "", ""},
		"classic, its node is down":      {"classic", "down", "c-1", "c-1", "", "NodeDown", "node c-1"},
		"a broker that tells no state":   {"classic", "", "c-1", "", "", "", ""},
		"a stream without a majority":    {"stream", "running", "", "c-0 c-1 c-2", "c-1", "NoLeader", "bring back c-0, c-2"},
		"a stream with a majority":       {"stream", "running", "c-1", "c-0 c-1 c-2", "c-1 c-2", "", ""},
		"an unknown type":                {"mirrored", "running", "", "", "", "", ""},
		"a single member that is online": {"quorum", "running", "c-0", "c-0", "c-0", "", ""},
	}
	for name, c := range cases {
		q := &broker.Queue{
			Type: c.kind, State: c.state, Leader: c.leader, Node: c.leader,
			Members: strings.Fields(c.members), Online: strings.Fields(c.online),
		}
		got, says := "", ""
		if impediment := ImpedimentOf(q); impediment != nil {
			got, says = impediment.Reason, impediment.Message
		}
		if got != c.want || !strings.Contains(says, c.says) {
			t.Errorf("%s: %q %q, want %q", name, got, says, c.want)
		}
	}
}
