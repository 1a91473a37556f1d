// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/queue"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/topology"
)

// one resolves every cluster to one fake broker.
type one struct{ url string }

func (o one) ClusterURL(client.ObjectKey, connect.Listener) string      { return o.url }
func (o one) NodeURL(client.ObjectKey, string, connect.Listener) string { return o.url }

// TestSettledQueueCostsOneRequest counts the requests of a reconciliation that has nothing to do. It detects a busy
// loop, a write of an unchanged status and a superfluous request, which the number of objects multiplies.
func TestSettledQueueCostsOneRequest(t *testing.T) {
	const objects = 150
	ctx := context.Background()
	server := brokertest.Start("admin", "secret")
	defer server.Close()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), posthornv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	writes, reads := 0, 0
	build := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&posthornv1.Queue{}).WithObjects(
		&posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c"}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c-operator"},
			Data:       map[string][]byte{"username": []byte("admin"), "password": []byte("secret")},
		},
	)
	for i := 0; i < objects; i++ {
		build = build.WithObjects(&posthornv1.Queue{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: fmt.Sprintf("q%d", i), Generation: 1},
			Spec:       posthornv1.QueueSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}, Vhost: "/", Type: "quorum"},
		})
	}
	build = build.WithIndex(&posthornv1.Queue{}, "posthorn.io/identity", func(o client.Object) []string {
		return []string{"mq/c|" + topology.Identity("/", o.GetName())}
	}).WithIndex(&posthornv1.SuperStream{}, "posthorn.io/partitions", func(client.Object) []string { return nil })
	base := build.Build()
	api := interceptor.NewClient(base, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			writes++
			return c.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			writes++
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	live := interceptor.NewClient(base, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			reads++
			return c.Get(ctx, key, o, opts...)
		},
	})
	clock := time.Unix(1_000_000, 0)
	now := func() time.Time { return clock }
	r := &topology.Reconciler[*posthornv1.Queue]{
		Client: api, Live: live, Scheme: scheme, Events: events.NewFakeRecorder(10), Kind: queue.Kind{},
		Brokers: &connect.Connector{Secrets: live, Resolver: one{server.URL()}, Transport: broker.NewTransport(), Now: now},
		Resync:  time.Minute, ForgetBound: time.Minute, Now: now,
	}
	look := func() {
		for i := 0; i < objects; i++ {
			result, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "mq", Name: fmt.Sprintf("q%d", i)}})
			switch {
			case err != nil:
				t.Fatal(err)
			case result.RequeueAfter < 48*time.Second || result.RequeueAfter > time.Minute:
				t.Fatalf("looked at again after %s", result.RequeueAfter)
			case result.Priority == nil || *result.Priority >= 0:
				t.Fatal("an object that is only looked at again is not overtaken by one that changed")
			}
		}
	}
	look()
	made := len(server.Calls("/"))
	writes, reads = 0, 0
	look()
	if asked := len(server.Calls("/")) - made; asked != objects {
		t.Errorf("%d objects cost %d questions to the broker", objects, asked)
	}
	if writes != 0 {
		t.Errorf("%d writes although nothing changed", writes)
	}
	if reads > 1 {
		t.Errorf("%d reads past the cache", reads)
	}
}
