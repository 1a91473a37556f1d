// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"math/rand"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

func quorum(members, online string, arguments ...any) *broker.Queue {
	q := &broker.Queue{Name: "q", Vhost: "/", Type: "quorum", Durable: true, Members: strings.Fields(members), Online: strings.Fields(online), Arguments: map[string]any{}}
	for i := 0; i+1 < len(arguments); i += 2 {
		if key, is := arguments[i].(string); is {
			q.Arguments[key] = arguments[i+1]
		}
	}
	return q
}

func TestDecideMoveFollowsItsTable(t *testing.T) {
	targets := []moveTarget{{"c-0", "a", 5}, {"c-1", "b", 3}, {"c-2", "c", 3}, {"c-3", "a", 1}}
	cases := []struct {
		name    string
		queue   *broker.Queue
		targets []moveTarget
		want    move
	}{
		{"enough stay", quorum("c-0 c-1 c-2 c-4", "c-0 c-1 c-2 c-4"), targets, move{moveDelete, ""}},
		{"enough stay, the leaving one is lost", quorum("c-0 c-1 c-2 c-4", "c-0 c-1 c-2"), targets, move{moveDelete, ""}},
		{"one of those that stay is away", quorum("c-0 c-1 c-2 c-4", "c-0 c-1 c-4"), targets, move{moveWait, ""}},
		{"the other zone first, though another node is emptier", quorum("c-0 c-1 c-4", "c-0 c-1 c-4"), targets, move{moveAdd, "c-2"}},
		{"the emptier node", quorum("c-1 c-2 c-4", "c-1 c-2 c-4"), targets, move{moveAdd, "c-3"}},
		{"the first by name", quorum("c-0 c-3 c-4", "c-0 c-3 c-4"), targets, move{moveAdd, "c-1"}},
		{"not while another is away", quorum("c-0 c-1 c-4", "c-0 c-4"), targets, move{moveWait, ""}},
		{"all members leave, one after the other", quorum("c-4", "c-4"), targets, move{moveAdd, "c-3"}},
		{"five members on four nodes", quorum("c-0 c-1 c-2 c-3 c-4", "c-0 c-1 c-2 c-3 c-4"), targets, move{moveDelete, ""}},
		{"asked for one", quorum("c-0 c-4", "c-0 c-4", argumentInitialSize, 1.0), targets, move{moveDelete, ""}},
		{"asked for one, the last copy leaves", quorum("c-4", "c-4", argumentInitialSize, 1.0), targets, move{moveAdd, "c-3"}},
		{"target counts more than the initial size", quorum("c-0 c-4", "c-0 c-4", argumentInitialSize, 1.0, argumentTargetSize, 3.0), targets, move{moveAdd, "c-1"}},
		{"no node stays", quorum("c-4", "c-4"), nil, move{moveStuck, ""}},
	}
	for _, c := range cases {
		if got := decideMove(c.queue, c.targets); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestMovesTerminateWithoutLosingMembers applies moves until the node is empty: they terminate, never delete the last
// copy, and leave the queue as many members as it asked for or had.
func TestMovesTerminateWithoutLosingMembers(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for i := 0; i < 20_000; i++ {
		var targets []moveTarget
		for n := 0; n < 1+random.Intn(6); n++ {
			targets = append(targets, moveTarget{Name: "c-" + strconv.Itoa(n), Zone: strconv.Itoa(random.Intn(3)), Replicas: random.Intn(4)})
		}
		q := quorum("gone", "gone")
		for _, h := range targets {
			if random.Intn(2) == 0 {
				q.Members = append(q.Members, h.Name)
			}
		}
		if random.Intn(2) == 0 {
			q.Arguments[argumentInitialSize] = float64(1 + random.Intn(len(targets)))
		}
		before := min(len(q.Members), len(targets))
		if asked := askedMembers(q); asked > 0 {
			before = asked
		} else if before > 2 {
			before -= (before + 1) % 2
		}
		for steps := 0; slices.Contains(q.Members, "gone"); steps++ {
			q.Online = q.Members
			next := decideMove(q, targets)
			switch next.Action {
			case moveAdd:
				if slices.Contains(q.Members, next.To) {
					t.Fatalf("%+v: %s has a member already", q, next.To)
				}
				q.Members = append(append([]string{}, q.Members...), next.To)
			case moveDelete:
				q.Members = append([]string{}, q.Members[1:]...)
			default:
				t.Fatalf("%+v on %+v: %+v", q, targets, next)
			}
			if steps > 10 {
				t.Fatalf("no end: %+v on %+v", q, targets)
			}
		}
		if len(q.Members) == 0 || len(q.Members) < before {
			t.Fatalf("%d members left of %d: %+v", len(q.Members), before, q)
		}
	}
}

func TestSurveyQueuesFindsQueuesThatKeepANode(t *testing.T) {
	classic := func(name, node string, change func(*broker.Queue)) broker.Queue {
		q := broker.Queue{Name: name, Vhost: "v", Type: "classic", Durable: true, Node: node}
		if change != nil {
			change(&q)
		}
		return q
	}
	five := quorum("c-0 c-1 c-2 c-3 c-4", "", argumentInitialSize, 5.0)
	five.Name = "five"
	policy := quorum("c-0 c-1 c-2", "")
	policy.Name, policy.EffectivePolicy = "policy", map[string]any{policyTargetSize: 5.0}
	got := surveyQueues([]broker.Queue{
		*five, *policy, *quorum("c-0 c-1 c-2", ""), *quorum("c-0 c-1 c-4", ""),
		classic("mine", "c-4", nil), classic("other", "c-1", nil),
		classic("passing", "c-4", func(q *broker.Queue) { q.Exclusive = true }),
		classic("passing", "c-4", func(q *broker.Queue) { q.AutoDelete = true }),
		classic("passing", "c-4", func(q *broker.Queue) { q.Durable = false }),
		{Name: "s", Vhost: "v", Type: "stream", Durable: true, Members: []string{"c-4"}},
		{Name: "wide", Vhost: "v", Type: "stream", Durable: true, Members: []string{"c-0"}, Arguments: map[string]any{argumentStreamSize: 5.0}},
	}, "c-4", 3)
	want := leavingQueues{Known: true, Needing: []string{"/five", "/policy", "v/wide"}, Unmovable: []string{"v/mine"}, Replicas: 3}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestQueueResourceOverridesTheDeclaredMembers(t *testing.T) {
	cluster := testCluster()
	resource := func(name, clusterName string, replicas int32) posthornv1.Queue {
		q := posthornv1.Queue{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: name}}
		q.Spec.ClusterRef.Name, q.Spec.Vhost, q.Spec.Replicas, q.Status.Claim = clusterName, "/", replicas, "claimed"
		return q
	}
	named := func(name string) broker.Queue {
		q := quorum("c-0", "c-0", argumentInitialSize, 5.0)
		q.Name = name
		return *q
	}
	unclaimed := resource("unclaimed", "c", 3)
	unclaimed.Status.Claim = ""
	partition := broker.Queue{Name: "invoices-1", Vhost: "/", Type: "stream", Arguments: map[string]any{argumentStreamSize: 5.0}}
	queues := []broker.Queue{named("lowered"), named("left"), named("elsewhere"), named("unclaimed"), named("nobody"), partition}
	superStream := posthornv1.SuperStream{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "invoices"}}
	superStream.Spec.ClusterRef.Name, superStream.Spec.Vhost, superStream.Status.Claim = "c", "/", "claimed"
	superStream.Spec.Partitions, superStream.Spec.Replicas = 2, 1
	adoptResources(queues, []posthornv1.Queue{resource("lowered", "c", 3), resource("left", "c", 0), resource("elsewhere", "d", 3), unclaimed},
		[]posthornv1.SuperStream{superStream}, cluster)
	for i, want := range []int{3, 0, 5, 5, 5, 1} {
		if got := askedMembers(&queues[i]); got != want {
			t.Errorf("%s: %d, want %d", queues[i].Name, got, want)
		}
	}
}
