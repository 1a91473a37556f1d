// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"posthorn.io/posthorn/internal/topology"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/queue"
)

// TestQueueIsReadyOnlyWhileClientsCanUseIt removes members of a queue and restores them. The watcher must find the
// object each time, with one request.
func TestQueueIsReadyOnlyWhileClientsCanUseIt(t *testing.T) {
	b := newBench(t, topology.Kind[*posthornv1.Queue](queue.Kind{}), queueOrders())
	watcher := queue.NewWatcher(b.api, b.r.Brokers, time.Second)
	look := func(want int) {
		t.Helper()
		before := len(b.broker.Calls("/"))
		requests, err := watcher.Look(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if len(requests) != want {
			t.Fatalf("%d objects are out of date, want %d", len(requests), want)
		}
		if asked := len(b.broker.Calls("/")) - before; asked > 1 {
			t.Errorf("%d requests", asked)
		}
	}
	b.reconcile()
	b.expect("Ready", "True InSync")
	look(0)
	made, _ := b.broker.Queue("/", "orders")
	for _, step := range []struct {
		leader, state string
		online        []string
		want          string
	}{
		{"c-0", "running", made.Members[:2], "True InSync"},
		{"", "down", made.Members[:1], "False NoLeader: 1 of 3 members are online, a majority is needed; bring back c-1, c-2"},
		{"", "down", nil, "False NoLeader"},
		{"", "lost", nil, "False Lost"},
		{"c-0", "running", made.Members, "True InSync"},
	} {
		now := made
		now.Leader, now.Node, now.State, now.Online = step.leader, step.leader, step.state, step.online
		b.broker.SetQueue(now)
		look(1)
		if result := b.reconcile(); result.RequeueAfter < 48*time.Second {
			t.Errorf("one request for one object every %s", result.RequeueAfter)
		}
		b.expect("Ready", step.want)
		b.expect("Synced", "True")
		look(0)
	}
	b.broker.RemoveQueue("/", "orders")
	look(1)
	b.broker.SetDown(true)
	look(0)
	look(1)
}

// TestWatcherListsEachClusterOnce counts requests.
func TestWatcherListsEachClusterOnce(t *testing.T) {
	first := queueOrders()
	b := newBench(t, topology.Kind[*posthornv1.Queue](queue.Kind{}), first)
	for i := range 50 {
		q := queueOrders()
		q.Name, q.Status.Claim = fmt.Sprintf("q%d", i), "mq/c|"
		if err := b.api.Create(context.Background(), q); err != nil {
			t.Fatal(err)
		}
	}
	watcher := queue.NewWatcher(b.api, b.r.Brokers, time.Second)
	if _, err := watcher.Look(context.Background()); err != nil {
		t.Fatal(err)
	}
	if calls := b.broker.Calls("/"); len(calls) != 1 || calls[0].Path != "/api/queues" {
		t.Errorf("%v", calls)
	}
}
