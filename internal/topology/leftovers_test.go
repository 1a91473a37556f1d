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
