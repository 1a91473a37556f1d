// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"net/http"
	"slices"
	"sort"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// contents lists all objects in the namespace that the operator or a fake controller created.
func (w *world) contents() []client.Object {
	GinkgoHelper()
	var out []client.Object
	for _, list := range []client.ObjectList{
		&appsv1.StatefulSetList{}, &corev1.ServiceList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceAccountList{},
		&corev1.PersistentVolumeClaimList{}, &corev1.PodList{}, &policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{},
		&posthornv1.BrokerClusterList{}, &posthornv1.QueueList{}, &posthornv1.PolicyList{}, &posthornv1.UserList{}, &posthornv1.VhostList{},
		&posthornv1.ExchangeList{}, &posthornv1.BindingList{}, &posthornv1.PermissionList{}, &posthornv1.TopicPermissionList{},
		&posthornv1.SuperStreamList{},
	} {
		Expect(k8s.List(ctx, list, client.InNamespace(w.namespace))).To(Succeed())
		for _, object := range items(list) {
			kind, err := k8s.GroupVersionKindFor(object)
			Expect(err).NotTo(HaveOccurred())
			object.GetObjectKind().SetGroupVersionKind(kind)
			out = append(out, object)
		}
	}
	return out
}

// collect deletes objects none of whose owners exists, like the garbage collector.
func (w *world) collect() {
	GinkgoHelper()
	all := w.contents()
	exists := map[types.UID]bool{}
	for _, object := range all {
		exists[object.GetUID()] = true
	}
	for _, object := range all {
		orphan := len(object.GetOwnerReferences()) > 0
		for _, owner := range object.GetOwnerReferences() {
			orphan = orphan && !exists[owner.UID]
		}
		if orphan {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, object, client.GracePeriodSeconds(0)))).To(Succeed())
		}
	}
}

// left lists the objects that remain after the garbage collection.
func (w *world) left() []string {
	GinkgoHelper()
	w.collect()
	var out []string
	for _, object := range w.contents() {
		out = append(out, object.GetObjectKind().GroupVersionKind().Kind+" "+object.GetName())
	}
	sort.Strings(out)
	return out
}

var _ = Describe("the remains after a deletion of everything", func() {
	const given = "given-password"
	// The Secret belongs to the user, and spec.storage.whenDeleted retains volumes.
	own := "Secret " + given
	record := "ConfigMap c-leftovers"
	retained := []string{"PersistentVolumeClaim data-c-0", "PersistentVolumeClaim data-c-1", "PersistentVolumeClaim data-c-2", "Secret c-operator", own}

	DescribeTable("are the volumes and the access Secret that their broker needs", func(whenDeleted, order string, brokerUp, namespaceGoes bool) {
		w := newWorld(setMonitor("Off"), func(c *posthornv1.BrokerCluster) {
			c.Spec.Storage.WhenDeleted = whenDeleted
			c.Spec.TLS = &posthornv1.TLSSpec{}
			c.Spec.NetworkPolicy.Mode = "Strict"
			c.Spec.Config = map[string]posthornv1.ConfigValue{"log.level": "debug"}
		})
		w.readyWorld()
		create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: given}, StringData: map[string]string{"password": "a-given-password"}})
		q := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Delete" })
		p, u := w.policy("bound"), w.user("app")
		g := w.user("given", func(u *posthornv1.User) {
			u.Spec.Credentials = posthornv1.CredentialsSpec{SecretRef: &corev1.LocalObjectReference{Name: given}}
		})
		objects := map[string]client.Object{"q": q, "p": p, "u": u, "g": g}
		for _, object := range objects {
			create(object)
			Eventually(ready(object)).Should(HavePrefix("True"))
		}
		w.broker.SetDown(!brokerUp)
		if namespaceGoes {
			Expect(k8s.Delete(ctx, namespaceObject(w.namespace))).To(Succeed())
		}
		for _, what := range strings.Split(order, "") {
			if what == "c" {
				if brokerUp && strings.HasSuffix(order, "c") {
					// An object whose cluster is gone leaves the broker as it is.
					for _, object := range objects {
						Eventually(gone(object)).Should(BeTrue(), object.GetName())
					}
				}
				cluster := w.cluster()
				Expect(k8s.Delete(ctx, cluster)).To(Succeed())
				Eventually(gone(cluster)).Should(BeTrue())
				if strings.HasPrefix(order, "c") {
					// The operator's caches of two kinds do not follow each other.
					for _, object := range objects {
						Eventually(ready(object)).Should(HavePrefix("False ClusterNotFound"), object.GetName())
					}
				}
				continue
			}
			Expect(k8s.Delete(ctx, objects[what])).To(Succeed())
		}
		for _, object := range objects {
			Eventually(gone(object)).Should(BeTrue(), object.GetName())
		}
		if brokerUp && strings.HasSuffix(order, "c") {
			By("leaving nothing in the broker")
			Expect(w.there("/", "orders")()).To(BeFalse())
			_, found := w.broker.Policy(broker.UserPolicies, "/", "bound")
			Expect(found).To(BeFalse())
			for _, name := range []string{"app", "given"} {
				_, found = w.broker.User(w.namespace + "-" + name)
				Expect(found).To(BeFalse(), name)
			}
		}
		claims := []string{"data-c-0", "data-c-1", "data-c-2"}
		if whenDeleted == "Delete" {
			// Like the StatefulSet controller.
			for _, claim := range claims {
				Expect(deleteClaim(ctx, k8s, w.namespace, claim)).To(Succeed())
			}
			Eventually(w.left).Should(Equal([]string{own}))
			Consistently(w.left).Should(Equal([]string{own}))
			return
		}
		remains := retained
		if !brokerUp || strings.HasPrefix(order, "c") {
			// The broker on these volumes has the objects still.
			remains = append([]string{record}, retained...)
		}
		Eventually(w.left).Should(Equal(remains))
		Consistently(w.left).Should(Equal(remains))
		for i, claim := range claims {
			Expect(deleteClaim(ctx, k8s, w.namespace, claim)).To(Succeed())
			if i < len(claims)-1 {
				Expect(w.left()).To(ContainElement("Secret c-operator"), "another volume is left")
				Expect(slices.Contains(w.left(), record)).To(Equal(slices.Contains(remains, record)), "another volume is left")
			}
		}
		Eventually(w.left).Should(Equal([]string{own}), "the Secret and the record go with the last volume")
	},
		Entry("objects first", "Retain", "qpugc", true, false),
		Entry("objects first, in another order", "Retain", "gupqc", true, false),
		Entry("cluster first", "Retain", "cqpug", true, false),
		Entry("objects first, volumes too", "Delete", "qpugc", true, false),
		Entry("cluster first, volumes too", "Delete", "cqpug", true, false),
		Entry("objects first while the broker is down", "Retain", "qpugc", false, false),
		Entry("cluster first while the broker is down", "Retain", "cqpug", false, false),
		Entry("in the middle while the broker is down, volumes too", "Delete", "qpcug", false, false),
		Entry("namespace first", "Retain", "qpugc", true, true),
		Entry("namespace first while the broker is down", "Delete", "cqpug", false, true),
	)
})

var _ = Describe("objects that are deleted after their cluster", func() {
	It("are deleted in the broker when the cluster is created again with its volumes", func() {
		// No garbage collector deletes ServiceMonitors here.
		w := newWorld(setMonitor("Off"))
		w.readyWorld()
		deleted := w.queue("deleted", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Delete" })
		kept := w.queue("kept", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Retain" })
		again := w.queue("again", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Delete" })
		app := w.user("app")
		objects := []client.Object{deleted, kept, again, app}
		for _, object := range objects {
			create(object)
			Eventually(ready(object)).Should(HavePrefix("True"))
		}
		w.deleteCluster()
		for _, object := range objects {
			Eventually(ready(object)).Should(HavePrefix("False ClusterNotFound"))
			Expect(k8s.Delete(ctx, object)).To(Succeed())
			Eventually(gone(object)).Should(BeTrue(), object.GetName())
		}

		create(w.queue("again", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Delete" }))
		cluster := newCluster(w.namespace)
		setMonitor("Off")(cluster)
		create(cluster)
		w.readyWorld()
		Eventually(w.there("/", "deleted")).Should(BeFalse())
		Eventually(func() bool { _, found := w.broker.User(w.namespace + "-app"); return found }).Should(BeFalse())
		Eventually(func() map[string]string {
			found := &corev1.ConfigMap{}
			_ = k8s.Get(ctx, w.key("c-leftovers"), found)
			return found.Data
		}).Should(BeEmpty())
		Expect(w.there("/", "kept")()).To(BeTrue())
		Expect(w.there("/", "again")()).To(BeTrue())
		Expect(w.broker.Calls("/api/queues/%2F/again", http.MethodDelete)).To(BeEmpty(), "it was adopted, with its messages")
	})
})
