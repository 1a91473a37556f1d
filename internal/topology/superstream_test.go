// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/exchange"
	"posthorn.io/posthorn/controllers/queue"
	"posthorn.io/posthorn/controllers/superstream"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

func superStreamInvoices() *posthornv1.SuperStream {
	return &posthornv1.SuperStream{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "invoices"},
		Spec:       posthornv1.SuperStreamSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}, Vhost: "/", Partitions: 3, Adoption: posthornv1.AdoptIfMatching},
	}
}

// owning marks a resource as the owner of its object, with the UID of another resource than that of the test.
func owning[T topology.Object](kind topology.Kind[T], object T) T {
	object.SetUID("2")
	object.SetCreationTimestamp(metav1.NewTime(time.Unix(1, 0)))
	object.Topology().Claim = topology.ClaimOf(kind, object)
	return object
}

// TestQueueYieldsToTheSuperStreamOfItsName covers a Queue and an Exchange with the names of the parts of a super stream:
// deleting them would delete a partition.
func TestQueueYieldsToTheSuperStreamOfItsName(t *testing.T) {
	of := owning(topology.Kind[*posthornv1.SuperStream](superstream.Kind{}), superStreamInvoices())
	t.Run("queue", func(t *testing.T) {
		q := queueOrders()
		q.Name = "invoices-2"
		b := newBench(t, topology.Kind[*posthornv1.Queue](queue.Kind{}), q, of.DeepCopy())
		b.reconcile()
		b.expect("Ready", "False Conflict: invoices-2 is set by SuperStream mq/invoices")
	})
	t.Run("queue of another name", func(t *testing.T) {
		q := queueOrders()
		q.Name = "invoices-3"
		b := newBench(t, topology.Kind[*posthornv1.Queue](queue.Kind{}), q, of.DeepCopy())
		b.reconcile()
		b.expect("Ready", "True")
	})
	t.Run("exchange", func(t *testing.T) {
		x := &posthornv1.Exchange{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "invoices"},
			Spec:       posthornv1.ExchangeSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}, Vhost: "/", Type: "direct"},
		}
		b := newBench(t, topology.Kind[*posthornv1.Exchange](exchange.Kind{}), x, of.DeepCopy())
		b.reconcile()
		b.expect("Ready", "False Conflict: invoices is set by SuperStream mq/invoices")
	})
}

func TestSuperStreamYieldsToTheOwnersOfItsParts(t *testing.T) {
	kind := topology.Kind[*posthornv1.SuperStream](superstream.Kind{})
	t.Run("queue", func(t *testing.T) {
		q := queueOrders()
		q.Name = "invoices-1"
		b := newBench(t, kind, superStreamInvoices(), owning(topology.Kind[*posthornv1.Queue](queue.Kind{}), q))
		b.reconcile()
		b.expect("Ready", "False Conflict: invoices is set by Queue mq/invoices-1")
		if calls := b.broker.Calls("/api/", http.MethodPut, http.MethodPost, http.MethodDelete); len(calls) > 0 {
			t.Errorf("%v", calls)
		}
	})
	t.Run("queue that owns nothing", func(t *testing.T) {
		q := queueOrders()
		q.Name, q.UID = "invoices-1", "2"
		b := newBench(t, kind, superStreamInvoices(), q)
		b.reconcile()
		b.expect("Ready", "True")
	})
	t.Run("another super stream", func(t *testing.T) {
		other := superStreamInvoices()
		other.Name, other.Spec.Name, other.Spec.Partitions = "other", "invoices-1", 1
		mine := superStreamInvoices()
		mine.Spec.Partitions, mine.Spec.RoutingKeys = 0, []posthornv1.RoutingKey{"0", "1-0"}
		b := newBench(t, kind, mine, owning(kind, other))
		b.reconcile()
		b.expect("Ready", "False Conflict: invoices is set by SuperStream mq/other")
	})
	t.Run("a younger queue", func(t *testing.T) {
		mine := owning(kind, superStreamInvoices())
		q := queueOrders()
		q.Name = "invoices-1"
		q = owning(topology.Kind[*posthornv1.Queue](queue.Kind{}), q)
		q.SetCreationTimestamp(metav1.NewTime(time.Unix(2, 0)))
		b := newBench(t, kind, mine, q)
		b.reconcile()
		b.expect("Ready", "True")
	})
}

// TestSuperStreamIsReadyOnlyWhileClientsCanUseAllPartitions takes the majority of a partition away and restores it. The
// watcher must find the object each time.
func TestSuperStreamIsReadyOnlyWhileClientsCanUseAllPartitions(t *testing.T) {
	b := newBench(t, topology.Kind[*posthornv1.SuperStream](superstream.Kind{}), superStreamInvoices())
	watcher := superstream.NewWatcher(b.api, b.r.Brokers, time.Second)
	look := func(want int) {
		t.Helper()
		requests, err := watcher.Look(context.Background())
		if err != nil || len(requests) != want {
			t.Fatalf("%d objects are out of date, want %d (%v)", len(requests), want, err)
		}
	}
	b.reconcile()
	b.expect("Ready", "True InSync")
	look(0)
	made, _ := b.broker.Queue("/", "invoices-1")
	lame := made
	lame.Leader, lame.Online = "", []string{"c-2"}
	b.broker.SetQueue(lame)
	look(1)
	b.reconcile()
	b.expect("Ready", "False NoLeader: 2 of 3 partitions can be used; invoices-1: 1 of 3 members are online")
	b.expect("Synced", "True")
	b.expect("ReplicasPlaced", "False MembersOffline: invoices-1: 3 members, 1 online")
	if usable := b.object().Status.UsablePartitions; usable != 2 {
		t.Errorf("%d usable partitions", usable)
	}
	look(0)
	b.broker.RemoveBindings(broker.BindingEnds{Vhost: "/", Source: "invoices", Destination: "invoices-0"})
	b.broker.SetQueue(made)
	look(1)
	b.reconcile()
	b.expect("Ready", "True InSync")
	b.broker.RemoveQueue("/", "invoices-0")
	look(1)
}
