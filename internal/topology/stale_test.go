// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/policy"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/lagging"
	"posthorn.io/posthorn/internal/topology"
)

// TestStatusIsOfOneReconciliation uses a cache that is behind: a reconciliation of an old version must not mix its
// results with those of the one before.
func TestStatusIsOfOneReconciliation(t *testing.T) {
	ctx := context.Background()
	server := brokertest.Start("admin", "secret")
	defer server.Close()
	server.SetQueue(broker.Queue{Name: "orders", Vhost: "/", Type: "quorum", Durable: true})
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), posthornv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	weak := &posthornv1.Policy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "weak", Generation: 1},
		Spec: posthornv1.PolicySpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, Vhost: "/", Scope: posthornv1.PolicyScopeUser, Pattern: "^o", ApplyTo: "queues",
			Definition: map[string]apiextensionsv1.JSON{"max-length": {Raw: []byte("1")}},
		},
	}
	key := client.ObjectKeyFromObject(weak)
	base := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&posthornv1.Policy{}).WithObjects(
		weak, &posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c"}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c-operator"},
			Data:       map[string][]byte{"username": []byte("admin"), "password": []byte("secret")},
		},
	).WithIndex(&posthornv1.Policy{}, "posthorn.io/identity", func(client.Object) []string { return []string{"mq/c|weak"} }).Build()
	cache := lagging.New(base)
	r := &topology.Reconciler[*posthornv1.Policy]{
		Client: cache, Live: base, Scheme: scheme, Events: events.NewFakeRecorder(10), Kind: policy.Kind{},
		Brokers: &connect.Connector{Secrets: base, Resolver: one{server.URL()}, Transport: broker.NewTransport(), Now: time.Now},
		Resync:  time.Minute, ForgetBound: time.Minute, Now: time.Now,
	}
	look := func() reconcile.Result {
		t.Helper()
		result, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: key})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	stored := func() *posthornv1.Policy {
		t.Helper()
		found := &posthornv1.Policy{}
		if err := base.Get(ctx, key, found); err != nil {
			t.Fatal(err)
		}
		return found
	}
	// A reconciliation that ended before it could report the match.
	look()
	before := stored()
	before.Status.MatchedQueues = 0
	if err := base.Status().Update(ctx, before); err != nil {
		t.Fatal(err)
	}
	before = stored()
	look()
	if now := stored().Status; now.MatchedQueues != 1 || len(now.ShadowedBy) != 0 {
		t.Fatalf("%+v", now)
	}
	server.SetPolicy(broker.UserPolicies, broker.Policy{Vhost: "/", Name: "strong", Pattern: "^o", ApplyTo: "queues", Priority: 9, Definition: map[string]any{"max-length": 2.0}})
	cache.Show(before)
	if result := look(); result.RequeueAfter > time.Second {
		t.Errorf("looked at again only after %s", result.RequeueAfter)
	}
	if now := stored().Status; now.MatchedQueues+int32(len(now.ShadowedBy)) != 1 {
		t.Errorf("parts of two attempts: %d matched, shadowed by %v", now.MatchedQueues, now.ShadowedBy)
	}
	cache.Show(nil)
	look()
	if now := stored().Status; now.MatchedQueues != 0 || len(now.ShadowedBy) != 1 {
		t.Errorf("%+v", now)
	}
}
