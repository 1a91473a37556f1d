// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package queuestate

import (
	"reflect"
	"strings"
	"testing"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

func TestDecidePlacementFollowsItsTable(t *testing.T) {
	queue := func(leader, members, online string) *broker.Queue {
		return &broker.Queue{Leader: leader, Members: strings.Fields(members), Online: strings.Fields(online)}
	}
	five := func(changes ...func(*posthornv1.BrokerCluster)) *posthornv1.BrokerCluster {
		c := &posthornv1.BrokerCluster{}
		for i, zone := range []string{"a", "b", "c", "a", "b"} {
			c.Status.Members = append(c.Status.Members, posthornv1.MemberStatus{Name: "c-" + string(rune('0'+i)), Zone: zone, State: posthornv1.MemberRunning})
		}
		for _, change := range changes {
			change(c)
		}
		return c
	}
	scaling := func(c *posthornv1.BrokerCluster) { c.Status.Scaling = &posthornv1.ScalingStatus{} }
	down := func(nodes ...int) func(*posthornv1.BrokerCluster) {
		return func(c *posthornv1.BrokerCluster) {
			for _, n := range nodes {
				c.Status.Members[n].State = posthornv1.MemberDown
			}
		}
	}
	three := queue("c-0", "c-0 c-1 c-2", "c-0 c-1 c-2")
	cases := []struct {
		row     string
		wanted  int
		queue   *broker.Queue
		cluster *posthornv1.BrokerCluster
		want    Placement
	}{
		{"1 nothing asked for", 0, three, five(), Placement{Action: placeNone}},
		{"1 as many", 3, queue("", "c-0 c-1 c-2", "c-0"), five(scaling), Placement{Action: placeNone}},
		{"2 a node is removed: four while one moves", 3, queue("c-0", "c-0 c-1 c-2 c-4", "c-0 c-1 c-2 c-4"), five(scaling), Placement{Action: placeWait, Reason: reasonScalingDown}},
		{"3 one is away", 5, queue("c-0", "c-0 c-1 c-2", "c-0 c-1"), five(), Placement{Action: placeWait, Reason: reasonMembersOffline}},
		{"4 from the zone with two", 3, queue("c-0", "c-0 c-1 c-2 c-4", "c-0 c-1 c-2 c-4"), five(), Placement{Action: placeRemove, Node: "c-4"}},
		{"4 not the leader", 3, queue("c-4", "c-0 c-1 c-2 c-4", "c-0 c-1 c-2 c-4"), five(), Placement{Action: placeRemove, Node: "c-1"}},
		{"4 two at last", 1, queue("c-1", "c-0 c-1", "c-0 c-1"), five(), Placement{Action: placeRemove, Node: "c-0"}},
		{"5 the other zone", 3, queue("c-0", "c-0 c-1", "c-0 c-1"), five(), Placement{Action: placeAdd, Node: "c-2"}},
		{"5 the first of equal ones", 5, three, five(), Placement{Action: placeAdd, Node: "c-3"}},
		{"5 a running one", 5, three, five(down(3)), Placement{Action: placeAdd, Node: "c-4"}},
		{"6 none runs", 5, three, five(down(3, 4)), Placement{Action: placeWait, Reason: reasonTooFewNodes}},
		{"6 not that many nodes", 7, queue("c-0", "c-0 c-1 c-2 c-3 c-4", "c-0 c-1 c-2 c-3 c-4"), five(), Placement{Action: placeWait, Reason: reasonTooFewNodes}},
	}
	for _, c := range cases {
		if got := decidePlacement(c.wanted, c.queue, c.cluster); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.row, got, c.want)
		}
	}
}

func TestMembersOfForgottenNodesAreNotCounted(t *testing.T) {
	got := Names([]string{"c-2", "00f00ba400f00ba4", "c-0", "deadbeef"})
	if !reflect.DeepEqual(got, []string{"c-0", "c-2", "deadbeef"}) {
		t.Errorf("%v", got)
	}
}
