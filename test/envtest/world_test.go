// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/topology"
)

// world is a namespace with a cluster and a fake broker.
type world struct {
	namespace string
	broker    *brokertest.Server
}

const clusterName = "c"

// kinds are the kinds of the operator.
var kinds = map[string]func() client.Object{
	"BrokerCluster":   func() client.Object { return &posthornv1.BrokerCluster{} },
	"Vhost":           func() client.Object { return &posthornv1.Vhost{} },
	"Queue":           func() client.Object { return &posthornv1.Queue{} },
	"Exchange":        func() client.Object { return &posthornv1.Exchange{} },
	"Binding":         func() client.Object { return &posthornv1.Binding{} },
	"Policy":          func() client.Object { return &posthornv1.Policy{} },
	"User":            func() client.Object { return &posthornv1.User{} },
	"Permission":      func() client.Object { return &posthornv1.Permission{} },
	"TopicPermission": func() client.Object { return &posthornv1.TopicPermission{} },
	"SuperStream":     func() client.Object { return &posthornv1.SuperStream{} },
}

// jobKinds are the kinds whose objects are Ready only after a Job that no controller runs here.
var jobKinds = map[string]func() client.Object{
	"Backup":          func() client.Object { return &posthornv1.Backup{} },
	"ScheduledBackup": func() client.Object { return &posthornv1.ScheduledBackup{} },
	"Restore":         func() client.Object { return &posthornv1.Restore{} },
}

// newNamespace creates a namespace for one spec. Its pods must satisfy the restricted Pod Security standard.
func newNamespace(labels map[string]string) string {
	GinkgoHelper()
	return makeNamespace(metav1.ObjectMeta{GenerateName: "t-"}, labels)
}

// makeNamespace is newNamespace with a given name.
func makeNamespace(named metav1.ObjectMeta, labels map[string]string) string {
	GinkgoHelper()
	all := map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	for name, label := range labels {
		all[name] = label
	}
	named.Labels = all
	ns := &corev1.Namespace{ObjectMeta: named}
	Expect(k8s.Create(ctx, ns)).To(Succeed())
	// The operator reconciles everything again and again: the objects of finished specs would slow down the others.
	DeferCleanup(func() {
		for _, all := range []map[string]func() client.Object{jobKinds, kinds} {
			for _, kind := range all {
				Expect(k8s.DeleteAllOf(ctx, kind(), client.InNamespace(ns.Name))).To(Succeed())
			}
		}
	})
	return ns.Name
}

// newCluster returns a BrokerCluster with an image.
func newCluster(namespace string) *posthornv1.BrokerCluster {
	return &posthornv1.BrokerCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: clusterName},
		Spec: posthornv1.BrokerClusterSpec{
			Replicas: 3, Image: "example.test/posthorn:1.0.0",
			Storage: posthornv1.StorageSpec{Size: resource.MustParse("1Gi")},
		},
	}
}

// newWorld creates a namespace, a cluster and, once the cluster's credentials exist, its broker.
func newWorld(changes ...func(*posthornv1.BrokerCluster)) *world {
	GinkgoHelper()
	w := &world{namespace: newNamespace(nil)}
	cluster := newCluster(w.namespace)
	for _, change := range changes {
		change(cluster)
	}
	Expect(k8s.Create(ctx, cluster)).To(Succeed())
	w.startBroker()
	return w
}

func (w *world) startBroker() {
	GinkgoHelper()
	w.broker = startBroker(w.key(clusterName), 3, "1.0.0")
}

// startBroker starts the broker of a cluster once its credentials exist.
func startBroker(cluster client.ObjectKey, nodes int32, version string) *brokertest.Server {
	GinkgoHelper()
	var secret corev1.Secret
	Eventually(func() error {
		return k8s.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: names.DefaultUserSecret(cluster.Name)}, &secret)
	}).Should(Succeed())
	return registerBroker(cluster, &secret, nodes, version)
}

// registerBroker starts the broker of a cluster with the credentials of its default user.
func registerBroker(cluster client.ObjectKey, secret *corev1.Secret, nodes int32, version string) *brokertest.Server {
	broker := brokertest.Start(string(secret.Data["username"]), string(secret.Data["password"]))
	broker.SetVersion(version)
	for i := range nodes {
		broker.SetNode(fmt.Sprintf("%s-%d", cluster.Name, i), true)
	}
	brokers.set(cluster, broker)
	return broker
}

func (w *world) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: w.namespace, Name: name}
}

func (w *world) ref() posthornv1.ClusterReference {
	return posthornv1.ClusterReference{Name: clusterName, Namespace: w.namespace}
}

func (w *world) cluster() *posthornv1.BrokerCluster {
	GinkgoHelper()
	var cluster posthornv1.BrokerCluster
	Expect(k8s.Get(ctx, w.key(clusterName), &cluster)).To(Succeed())
	return &cluster
}

// changeCluster patches the cluster's spec.
func (w *world) changeCluster(change func(*posthornv1.BrokerCluster)) {
	GinkgoHelper()
	Expect(w.tryCluster(change)).To(Succeed())
}

// tryCluster patches the cluster's spec, retries after conflicts, and returns the API server's answer.
func (w *world) tryCluster(change func(*posthornv1.BrokerCluster)) error {
	GinkgoHelper()
	cluster := w.cluster()
	before := cluster.DeepCopy()
	change(cluster)
	return k8s.Patch(ctx, cluster, client.MergeFrom(before))
}

func (w *world) queue(name string, changes ...func(*posthornv1.Queue)) *posthornv1.Queue {
	q := &posthornv1.Queue{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Spec: posthornv1.QueueSpec{ClusterRef: w.ref()}}
	for _, change := range changes {
		change(q)
	}
	return q
}

func (w *world) policy(name string, changes ...func(*posthornv1.Policy)) *posthornv1.Policy {
	p := &posthornv1.Policy{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: posthornv1.PolicySpec{
			ClusterRef: w.ref(), Pattern: "^o", Priority: 1,
			Definition: map[string]apiextensionsv1.JSON{"max-length": value("10")},
		},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func (w *world) user(name string, changes ...func(*posthornv1.User)) *posthornv1.User {
	u := &posthornv1.User{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: posthornv1.UserSpec{
			ClusterRef: w.ref(), Credentials: posthornv1.CredentialsSpec{Generate: &posthornv1.GenerateSpec{}},
			Permissions: []posthornv1.UserPermission{{Vhost: "/", Write: ".*", Read: "^a"}},
		},
	}
	for _, change := range changes {
		change(u)
	}
	return u
}

func (w *world) vhost(name string, changes ...func(*posthornv1.Vhost)) *posthornv1.Vhost {
	return changed(&posthornv1.Vhost{ObjectMeta: w.meta(name), Spec: posthornv1.VhostSpec{ClusterRef: w.ref()}}, changes)
}

func (w *world) exchange(name string, changes ...func(*posthornv1.Exchange)) *posthornv1.Exchange {
	return changed(&posthornv1.Exchange{ObjectMeta: w.meta(name), Spec: posthornv1.ExchangeSpec{ClusterRef: w.ref()}}, changes)
}

// superStream returns a SuperStream with three partitions.
func (w *world) superStream(name string, changes ...func(*posthornv1.SuperStream)) *posthornv1.SuperStream {
	return changed(&posthornv1.SuperStream{ObjectMeta: w.meta(name), Spec: posthornv1.SuperStreamSpec{ClusterRef: w.ref(), Partitions: 3}}, changes)
}

// bindingOf returns a Binding of the queue orders to the exchange events.
func (w *world) bindingOf(name string, changes ...func(*posthornv1.Binding)) *posthornv1.Binding {
	return changed(&posthornv1.Binding{ObjectMeta: w.meta(name), Spec: posthornv1.BindingSpec{
		ClusterRef: w.ref(), Source: "events", Destination: "orders", RoutingKey: "a.b",
	}}, changes)
}

// permission returns a Permission of the User app.
func (w *world) permission(name string, changes ...func(*posthornv1.Permission)) *posthornv1.Permission {
	return changed(&posthornv1.Permission{ObjectMeta: w.meta(name), Spec: posthornv1.PermissionSpec{
		ClusterRef: w.ref(), UserRef: &posthornv1.UserReference{Name: "app"}, Write: ".*",
	}}, changes)
}

// topicPermission returns a TopicPermission of the User app.
func (w *world) topicPermission(name string, changes ...func(*posthornv1.TopicPermission)) *posthornv1.TopicPermission {
	return changed(&posthornv1.TopicPermission{ObjectMeta: w.meta(name), Spec: posthornv1.TopicPermissionSpec{
		ClusterRef: w.ref(), UserRef: &posthornv1.UserReference{Name: "app"}, Exchange: "events", Write: "^w",
	}}, changes)
}

func (w *world) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.namespace, Name: name}
}

func changed[T any](object T, changes []func(T)) T {
	for _, change := range changes {
		change(object)
	}
	return object
}

func value(json string) apiextensionsv1.JSON { return apiextensionsv1.JSON{Raw: []byte(json)} }

// create creates an object.
func create(object client.Object) {
	GinkgoHelper()
	Expect(k8s.Create(ctx, object)).To(Succeed())
}

// change patches an existing object.
func change[T client.Object](object T, modify func(T)) {
	GinkgoHelper()
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
	before, isT := object.DeepCopyObject().(T)
	Expect(isT).To(BeTrue())
	modify(object)
	Expect(k8s.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
}

// conditionOf returns "Status Reason: Message" of a condition, once it is about the newest spec.
func conditionOf(object client.Object, kind string) func() string {
	return func() string {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err.Error()
		}
		var conditions []metav1.Condition
		observed := int64(0)
		switch o := object.(type) {
		case *posthornv1.BrokerCluster:
			conditions, observed = o.Status.Conditions, o.Status.ObservedGeneration
		case *posthornv1.Backup:
			conditions, observed = o.Status.Conditions, o.Status.ObservedGeneration
		case *posthornv1.Restore:
			conditions, observed = o.Status.Conditions, o.Status.ObservedGeneration
		case *posthornv1.ScheduledBackup:
			conditions, observed = o.Status.Conditions, o.Status.ObservedGeneration
		case topology.Object:
			conditions, observed = o.Topology().Conditions, o.Topology().ObservedGeneration
		}
		if observed != object.GetGeneration() {
			return "stale"
		}
		found := meta.FindStatusCondition(conditions, kind)
		if found == nil {
			return "absent"
		}
		return fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message)
	}
}

func ready(object client.Object) func() string { return conditionOf(object, posthornv1.ConditionReady) }

// gone reports whether an object does not exist.
func gone(object client.Object) func() bool {
	return func() bool {
		return client.IgnoreNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(object), object)) == nil &&
			k8s.Get(ctx, client.ObjectKeyFromObject(object), object) != nil
	}
}

// eventsOf counts the Events about an object with a reason.
func eventsOf(object client.Object, reason string) func() int {
	return func() int {
		var list eventsv1.EventList
		if err := k8s.List(ctx, &list, client.InNamespace(object.GetNamespace())); err != nil {
			return -1
		}
		count := 0
		for _, event := range list.Items {
			if event.Regarding.UID == object.GetUID() && event.Reason == reason {
				count++
				if event.Series != nil {
					count += int(event.Series.Count) - 1
				}
			}
		}
		return count
	}
}
