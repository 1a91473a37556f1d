// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"context"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/user"
	"posthorn.io/posthorn/internal/topology"
)

// tenantBench has a user of namespace team in the cluster mq/c, which admits namespaces with messaging=yes.
func tenantBench(t *testing.T) *bench[*posthornv1.User] {
	t.Helper()
	u := userApp()
	u.Namespace, u.Spec.ClusterRef.Namespace = "team", "mq"
	u.Spec.Permissions = []posthornv1.UserPermission{{Vhost: "t-team", Read: ".*"}, {Vhost: "t-team.two", Write: ".*"}}
	u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "t-team", Exchange: "amq.topic", Read: ".*"}}
	cluster := &posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c"}}
	cluster.Spec.Tenancy = &posthornv1.TenancySpec{
		AllowedNamespaces: &metav1.LabelSelector{MatchLabels: map[string]string{"messaging": "yes"}}, VhostPrefix: "t-",
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"messaging": "yes"}}}
	b := newBench(t, topology.Kind[*posthornv1.User](user.Kind{}), u, cluster, namespace)
	b.broker.AddVhost("t-team")
	b.broker.AddVhost("t-team.two")
	b.reconcile()
	b.expect("Ready", "True")
	return b
}

func edit[T client.Object](b *bench[*posthornv1.User], object T, modify func()) {
	b.t.Helper()
	if err := b.api.Get(context.Background(), client.ObjectKeyFromObject(object), object); err != nil {
		b.t.Fatal(err)
	}
	modify()
	if err := b.api.Update(context.Background(), object); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench[T]) closed() int { return len(b.broker.Calls("/api/connections/", http.MethodDelete)) }

// TestAccessEndsWithTheTenancy removes the label, while connections cannot be closed at first.
func TestAccessEndsWithTheTenancy(t *testing.T) {
	b := tenantBench(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	edit(b, namespace, func() { namespace.Labels = nil })
	b.broker.RefuseClosing(true)
	if _, err := b.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: b.key}); err == nil {
		t.Error("not tried again although connections are open")
	}
	b.broker.RefuseClosing(false)
	before := b.closed()
	b.reconcile()
	if b.closed() != before+1 {
		t.Error("connections were not closed by the second attempt")
	}
	b.expect("Ready", "False NotAllowed")
	b.expect(posthornv1.ConditionCredentialsSynced, "False")
	found, _ := b.broker.User("team-app")
	_, one := b.broker.Permission("t-team", "team-app")
	_, two := b.broker.Permission("t-team.two", "team-app")
	_, topic := b.broker.TopicPermission("t-team", "team-app", "amq.topic")
	if found.PasswordHash != "" || one || two || topic {
		t.Errorf("access is left: %+v %v %v %v", found, one, two, topic)
	}
	b.reconcile()
	if b.closed() != before+1 {
		t.Error("connections are closed again although nothing is left")
	}
	edit(b, namespace, func() { namespace.Labels = map[string]string{"messaging": "yes"} })
	b.reconcile()
	b.expect("Ready", "True")
	if found, _ := b.broker.User("team-app"); found.PasswordHash == "" {
		t.Error("the password was not set again")
	}
	if _, one := b.broker.Permission("t-team", "team-app"); !one {
		t.Error("permissions were not given again")
	}
}

// TestAccessFollowsTheVhostPrefix changes the vhosts that the namespace may use.
func TestAccessFollowsTheVhostPrefix(t *testing.T) {
	b := tenantBench(t)
	cluster := &posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c"}}
	edit(b, cluster, func() { cluster.Spec.Tenancy.VhostPrefix = "x-" })
	b.reconcile()
	b.expect("Ready", "False NotAllowed")
	if _, one := b.broker.Permission("t-team", "team-app"); one || b.closed() != 1 {
		t.Errorf("permission %v, closed %d times", one, b.closed())
	}
	if found, _ := b.broker.User("team-app"); found.PasswordHash == "" {
		t.Error("the user is blocked although its namespace is admitted")
	}
}

func TestLimitsOfATenantsVhostAreOnlyLowered(t *testing.T) {
	limits := func(connections, queues *int32) posthornv1.VhostLimits {
		return posthornv1.VhostLimits{MaxConnections: connections, MaxQueues: queues}
	}
	bound := limits(new(int32(5)), nil)
	for _, c := range []struct {
		tenant      topology.Tenant
		asked, want posthornv1.VhostLimits
	}{
		{topology.Tenant{VhostLimits: &bound}, limits(nil, nil), limits(new(int32(5)), nil)},
		{topology.Tenant{VhostLimits: &bound}, limits(new(int32(9)), new(int32(9))), limits(new(int32(5)), new(int32(9)))},
		{topology.Tenant{VhostLimits: &bound}, limits(new(int32(0)), nil), limits(new(int32(0)), nil)},
		{topology.Tenant{VhostLimits: &bound, Home: true}, limits(new(int32(9)), nil), limits(new(int32(9)), nil)},
		{
			topology.Tenant{VhostLimits: &posthornv1.VhostLimits{MaxChannels: new(int32(5)), MaxMessageRate: new(int64(100)), MaxByteRate: new(int64(1 << 40)), MaxStoredBytes: new(int64(9))}},
			posthornv1.VhostLimits{MaxMessageRate: new(int64(200)), MaxByteRate: new(int64(7)), MaxStoredBytes: new(int64(10))},
			posthornv1.VhostLimits{MaxChannels: new(int32(5)), MaxMessageRate: new(int64(100)), MaxByteRate: new(int64(7)), MaxStoredBytes: new(int64(9))},
		},
		{topology.Tenant{}, limits(new(int32(9)), nil), limits(new(int32(9)), nil)},
	} {
		if got := c.tenant.LimitsOfVhost(c.asked); !equality.Semantic.DeepEqual(got, c.want) {
			t.Errorf("%+v asks for %+v: %+v, want %+v", c.tenant, c.asked, got, c.want)
		}
	}
}

func TestLimitsOfATenantAreOnlyLowered(t *testing.T) {
	limits := func(connections, channels int32) posthornv1.UserLimits {
		return posthornv1.UserLimits{Connections: connections, Channels: channels}
	}
	bound := limits(5, 0)
	for _, c := range []struct {
		tenant      topology.Tenant
		asked, want posthornv1.UserLimits
	}{
		{topology.Tenant{UserLimits: &bound}, limits(0, 0), limits(5, 0)},
		{topology.Tenant{UserLimits: &bound}, limits(9, 9), limits(5, 9)},
		{topology.Tenant{UserLimits: &bound}, limits(3, 0), limits(3, 0)},
		{topology.Tenant{UserLimits: &bound, Home: true}, limits(9, 0), limits(9, 0)},
		{
			topology.Tenant{UserLimits: &posthornv1.UserLimits{MessageRate: 100, ByteRate: 1 << 40}},
			posthornv1.UserLimits{MessageRate: 200}, posthornv1.UserLimits{MessageRate: 100, ByteRate: 1 << 40},
		},
		{topology.Tenant{}, limits(9, 0), limits(9, 0)},
	} {
		if got := c.tenant.Limits(c.asked); got != c.want {
			t.Errorf("%+v asked %+v: %+v", c.tenant, c.asked, got)
		}
	}
}
