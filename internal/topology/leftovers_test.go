// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// TestLeftoversAreDeletedWhenTheBrokerIsBack deletes a tenant's namespace while the broker is down. Nothing in
// Kubernetes waits for the broker, and its user is deleted when it answers again, unless another resource owns it by
// then.
func TestLeftoversAreDeletedWhenTheBrokerIsBack(t *testing.T) {
	for name, remade := range map[string]bool{"nobody has the name": false, "the user was made again": true} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			b := tenantBench(t)
			claim := b.object().Status.Claim
			b.broker.SetDown(true)
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
			for _, object := range []client.Object{b.object(), namespace} {
				if err := b.api.Delete(ctx, object); err != nil {
					t.Fatal(err)
				}
			}
			b.reconcile()
			if err := b.api.Get(ctx, b.key, &posthornv1.User{}); client.IgnoreNotFound(err) != nil || err == nil {
				t.Fatal("the namespace is held up", err)
			}
			if b.r.Sweep(ctx) == nil {
				t.Error("a broker that is down is not told")
			}
			if remade {
				again := userApp()
				again.Namespace, again.Spec.ClusterRef.Namespace, again.UID, again.Status.Claim = "team", "mq", "2", claim
				if err := b.api.Create(ctx, again); err != nil {
					t.Fatal(err)
				}
			}
			b.broker.SetDown(false)
			if err := b.r.Sweep(ctx); err != nil {
				t.Error(err)
			}
			if _, found := b.broker.User("team-app"); found != remade {
				t.Errorf("the user is there: %v", found)
			}
			var record corev1.ConfigMap
			if err := b.api.Get(ctx, client.ObjectKey{Namespace: "mq", Name: "c-leftovers"}, &record); err != nil || len(record.Data) != 0 {
				t.Errorf("%v %v", err, record.Data)
			}
		})
	}
}

// TestLeftoversOfADeletedClusterAreDeletedWhenItReturns deletes a cluster whose volumes remain, and then its user.
func TestLeftoversOfADeletedClusterAreDeletedWhenItReturns(t *testing.T) {
	volume := metav1.OwnerReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: "data-c-0", UID: "v"}
	itself := metav1.OwnerReference{APIVersion: "posthorn.io/v1alpha1", Kind: "BrokerCluster", Name: "c", UID: "c"}
	for name, row := range map[string]struct {
		owners []metav1.OwnerReference
		// again is the state of a user that is applied again: empty for none.
		again string
		// recorded: the user is in the record when the cluster is gone.
		recorded bool
		// fails: the first sweep has to be repeated.
		fails bool
		// stays: the user is in the broker at the end.
		stays bool
	}{
		"volumes remain":                      {owners: []metav1.OwnerReference{volume, itself}, recorded: true},
		"volumes went with the cluster":       {owners: []metav1.OwnerReference{itself}, stays: true},
		"applied again and owned":             {owners: []metav1.OwnerReference{volume}, again: "owned", recorded: true, stays: true},
		"applied again and refused":           {owners: []metav1.OwnerReference{volume}, again: "refused", recorded: true},
		"applied again and not yet looked at": {owners: []metav1.OwnerReference{volume}, again: "new", recorded: true, fails: true, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			b := tenantBench(t)
			claim := b.object().Status.Claim
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			access := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c-operator"}}
			must(b.api.Get(ctx, client.ObjectKeyFromObject(access), access))
			access.OwnerReferences = row.owners
			must(b.api.Update(ctx, access))
			cluster := &posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c"}}
			must(b.api.Get(ctx, client.ObjectKeyFromObject(cluster), cluster))
			for _, object := range []client.Object{cluster, b.object()} {
				must(b.api.Delete(ctx, object))
			}
			b.reconcile()
			if err := b.api.Get(ctx, b.key, &posthornv1.User{}); client.IgnoreNotFound(err) != nil || err == nil {
				t.Fatal("the user is held up", err)
			}
			record := &corev1.ConfigMap{}
			err := b.api.Get(ctx, client.ObjectKey{Namespace: "mq", Name: "c-leftovers"}, record)
			must(client.IgnoreNotFound(err))
			if recorded := err == nil && len(record.Data) == 1; recorded != row.recorded {
				t.Fatalf("recorded: %v, %v", record.Data, err)
			}
			if row.recorded && (len(record.OwnerReferences) != 1 || record.OwnerReferences[0].UID != "v") {
				t.Errorf("the record does not go with the volumes: %+v", record.OwnerReferences)
			}
			if row.again != "" {
				again := userApp()
				again.Namespace, again.Spec.ClusterRef.Namespace, again.UID = "team", "mq", "2"
				switch row.again {
				case "owned":
					again.Status.Claim = claim
				case "refused":
					again.Status.Conditions = []metav1.Condition{{Type: posthornv1.ConditionStalled, Status: metav1.ConditionTrue, Reason: "Conflict"}}
				}
				must(b.api.Create(ctx, again))
			}
			must(b.r.Sweep(ctx))
			if _, found := b.broker.User("team-app"); !found {
				t.Error("it was deleted without a cluster")
			}
			cluster.ResourceVersion, cluster.UID = "", "other"
			must(b.api.Create(ctx, cluster))
			if err := b.r.Sweep(ctx); (err != nil) != row.fails {
				t.Error(err)
			}
			if _, found := b.broker.User("team-app"); found != row.stays {
				t.Errorf("the user is there: %v", found)
			}
		})
	}
}
