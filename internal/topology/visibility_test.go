// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/policy"
	"posthorn.io/posthorn/controllers/queue"
	"posthorn.io/posthorn/controllers/superstream"
	"posthorn.io/posthorn/controllers/user"
	"posthorn.io/posthorn/controllers/vhost"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/topology"
)

// bench has one object, its reconciler, a fake API server and a fake broker.
type bench[T topology.Object] struct {
	t      *testing.T
	api    client.Client
	broker *brokertest.Server
	r      *topology.Reconciler[T]
	kind   topology.Kind[T]
	key    client.ObjectKey
	clock  time.Time
}

// newBench creates a cluster mq/c, and objects in its namespace. The first object is the one that is reconciled.
func newBench[T topology.Object](t *testing.T, kind topology.Kind[T], object T, others ...client.Object) *bench[T] {
	t.Helper()
	server := brokertest.Start("admin", "secret")
	t.Cleanup(server.Close)
	for _, node := range []string{"c-0", "c-1", "c-2"} {
		server.SetNode(node, true)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), posthornv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c-operator"},
		Data:       map[string][]byte{"username": []byte("admin"), "password": []byte("secret")},
	}
	object.SetUID("1")
	object.SetGeneration(1)
	all := append([]client.Object{object, secret, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mq"}}}, others...)
	hasCluster := false
	for _, other := range others {
		if _, is := other.(*posthornv1.BrokerCluster); is {
			hasCluster = true
		}
	}
	if !hasCluster {
		all = append(all, &posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c"}})
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(kind.New()).WithObjects(all...).
		WithIndex(kind.New(), "posthorn.io/identity", func(o client.Object) []string {
			each, isT := o.(T)
			if !isT {
				return nil
			}
			return []string{"mq/c|" + kind.Identity(each)}
		}).
		WithIndex(&posthornv1.SuperStream{}, "posthorn.io/partitions", func(o client.Object) []string {
			s, is := o.(*posthornv1.SuperStream)
			if !is {
				return nil
			}
			var out []string
			for _, partition := range s.BrokerPartitions() {
				out = append(out, "mq/c|"+topology.Identity(s.Spec.Vhost, partition.Stream))
			}
			return out
		}).
		// No other object grants the user of a test a permission.
		WithIndex(&posthornv1.Permission{}, "posthorn.io/user", func(client.Object) []string { return nil }).
		WithIndex(&posthornv1.TopicPermission{}, "posthorn.io/user", func(client.Object) []string { return nil })
	if _, is := any(object).(*posthornv1.Vhost); !is {
		builder.WithIndex(&posthornv1.Vhost{}, "posthorn.io/identity", func(o client.Object) []string {
			return []string{"mq/c|" + topology.Identity(o.GetName())}
		})
	}
	for _, other := range []topology.Object{&posthornv1.Queue{}, &posthornv1.Exchange{}, &posthornv1.SuperStream{}} {
		if reflect.TypeOf(other) == reflect.TypeOf(kind.New()) {
			continue
		}
		builder.WithIndex(other, "posthorn.io/identity", func(o client.Object) []string {
			each, is := o.(interface {
				BrokerVhost() string
				BrokerName() string
			})
			if !is {
				return nil
			}
			return []string{"mq/c|" + topology.Identity(each.BrokerVhost(), each.BrokerName())}
		})
	}
	api := builder.Build()
	b := &bench[T]{t: t, api: api, broker: server, kind: kind, key: client.ObjectKeyFromObject(object), clock: time.Unix(1_000_000, 0)}
	now := func() time.Time { return b.clock }
	b.r = &topology.Reconciler[T]{
		Client: api, Live: api, Scheme: scheme, Events: events.NewFakeRecorder(100), Kind: kind,
		Brokers: &connect.Connector{Secrets: api, Resolver: one{server.URL()}, Transport: broker.NewTransport(), Now: now},
		Resync:  time.Minute, ForgetBound: time.Minute, Now: now,
	}
	return b
}

// reconcile runs one reconciliation.
func (b *bench[T]) reconcile() reconcile.Result {
	b.t.Helper()
	result, err := b.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: b.key})
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// object reads the object.
func (b *bench[T]) object() T {
	b.t.Helper()
	object := b.kind.New()
	if err := b.api.Get(context.Background(), b.key, object); err != nil {
		b.t.Fatal(err)
	}
	return object
}

// condition returns "Status Reason: Message" of a condition.
func (b *bench[T]) condition(kind string) string {
	b.t.Helper()
	found := meta.FindStatusCondition(b.object().Topology().Conditions, kind)
	if found == nil {
		return "absent"
	}
	return string(found.Status) + " " + found.Reason + ": " + found.Message
}

func (b *bench[T]) expect(kind, prefix string) {
	b.t.Helper()
	if got := b.condition(kind); !strings.HasPrefix(got, prefix) {
		b.t.Errorf("%s is %q, want %q", kind, got, prefix)
	}
}

func queueOrders() *posthornv1.Queue {
	return &posthornv1.Queue{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "orders"},
		Spec:       posthornv1.QueueSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}, Vhost: "/", Type: "quorum"},
	}
}

func userApp() *posthornv1.User {
	return &posthornv1.User{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "app"},
		Spec: posthornv1.UserSpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, Credentials: posthornv1.CredentialsSpec{Generate: &posthornv1.GenerateSpec{Length: 32}},
			Permissions: []posthornv1.UserPermission{{Vhost: "/", Read: ".*"}}, Limits: posthornv1.UserLimits{Connections: 3},
		},
	}
}

// TestReadAfterOwnWriteIsPending hides a queue and a user that were just created, like a node that is behind.
func TestReadAfterOwnWriteIsPending(t *testing.T) {
	t.Run("queue", func(t *testing.T) {
		b := newBench(t, topology.Kind[*posthornv1.Queue](queue.Kind{}), queueOrders())
		readAfterOwnWrite(t, b, "/api/queues/%2F/orders")
	})
	for name, path := range map[string]string{"stream": "/api/queues/%2F/invoices-1", "exchange": "/api/exchanges/%2F/invoices", "bindings": "/api/exchanges/%2F/invoices/bindings"} {
		t.Run("super stream, its "+name, func(t *testing.T) {
			b := newBench(t, topology.Kind[*posthornv1.SuperStream](superstream.Kind{}), superStreamInvoices())
			readAfterOwnWrite(t, b, path)
		})
	}
	t.Run("user", func(t *testing.T) {
		b := newBench(t, topology.Kind[*posthornv1.User](user.Kind{}), userApp())
		readAfterOwnWrite(t, b, "/api/users/mq-app")
	})
}

func readAfterOwnWrite[T topology.Object](t *testing.T, b *bench[T], path string) {
	t.Helper()
	// The first read finds no object; the others miss the created one.
	b.broker.HideReads(path, 5)
	for attempt := 0; ; attempt++ {
		result := b.reconcile()
		if strings.HasPrefix(b.condition("Ready"), "True") {
			break
		}
		b.expect("Ready", "False ChangePending")
		b.expect("Stalled", "absent")
		if result.RequeueAfter > time.Second {
			t.Fatalf("tried again only after %s", result.RequeueAfter)
		}
		if attempt == 10 {
			t.Fatal("never ready")
		}
	}
	// The status reports a change that stays invisible.
	b.broker.HideReads(path, 1000)
	b.reconcile()
	b.expect("Ready", "False ChangePending")
	b.clock = b.clock.Add(31 * time.Second)
	b.reconcile()
	b.expect("Ready", "False ChangeNotVisible: the broker accepted the change but has not shown it for 30s")
	b.expect("Stalled", "True")
	b.broker.HideReads(path, 0)
	b.reconcile()
	b.expect("Ready", "True")
}

// TestReadOfTheReportAfterOwnWriteIsPending hides a new vhost from the reads that follow the comparison.
func TestReadOfTheReportAfterOwnWriteIsPending(t *testing.T) {
	t.Run("policy", func(t *testing.T) {
		b := newBench(t, topology.Kind[*posthornv1.Policy](policy.Kind{}), &posthornv1.Policy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "bound"},
			Spec: posthornv1.PolicySpec{
				ClusterRef: posthornv1.ClusterReference{Name: "c"}, Vhost: "/", Pattern: ".*", ApplyTo: "queues", Scope: posthornv1.PolicyScopeUser,
				Definition: map[string]apiextensionsv1.JSON{"max-length": {Raw: []byte("1")}},
			},
		})
		reportAfterOwnWrite(t, b, "/api/queues/%2F")
	})
	t.Run("vhost", func(t *testing.T) {
		b := newBench(t, topology.Kind[*posthornv1.Vhost](vhost.Kind{}), &posthornv1.Vhost{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "shop"},
			Spec:       posthornv1.VhostSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}},
		})
		reportAfterOwnWrite(t, b, "/api/queues/shop")
	})
}

func reportAfterOwnWrite[T topology.Object](t *testing.T, b *bench[T], path string) {
	t.Helper()
	b.broker.HideReads(path, 1000)
	b.reconcile()
	b.expect("Ready", "False ChangePending")
	b.expect("Stalled", "absent")
	b.clock = b.clock.Add(20 * time.Second)
	if result := b.reconcile(); result.RequeueAfter < 2*time.Second || result.RequeueAfter > 5*time.Second {
		t.Errorf("tried again after %s: checks of a change must become rarer, and stay more frequent than the resync", result.RequeueAfter)
	}
	b.clock = b.clock.Add(11 * time.Second)
	b.reconcile()
	b.expect("Ready", "False ChangeNotVisible")
	b.broker.HideReads(path, 0)
	b.reconcile()
	b.expect("Ready", "True")
}
