// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"net/http"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

func (w *world) hasVhost(name string) func() bool {
	return func() bool {
		_, found := w.broker.Vhost(name)
		return found
	}
}

// reclaim sets the reclaim policy of a vhost.
func reclaim(policy string) func(*posthornv1.Vhost) {
	return func(v *posthornv1.Vhost) { v.Spec.ReclaimPolicy = policy }
}

var _ = Describe("Vhost", func() {
	It("is created with limits, changed, and kept when the object is deleted", func() {
		w := newWorld()
		v := w.vhost("shop", func(v *posthornv1.Vhost) {
			v.Spec.DefaultQueueType, v.Spec.Tags, v.Spec.Tracing = "quorum", []string{"b", "a"}, true
			v.Spec.Limits = posthornv1.VhostLimits{MaxConnections: new(int32(0)), MaxQueues: new(int32(5))}
		})
		create(v)
		Eventually(ready(v)).Should(HavePrefix("True"))
		made, _ := w.broker.Vhost("shop")
		Expect(made).To(Equal(broker.Vhost{
			Name: "shop", DefaultQueueType: "quorum", Tags: broker.Tags{"b", "a"}, Tracing: true,
			Limits: map[string]int64{"max-connections": 0, "max-queues": 5},
		}))
		change(v, func(v *posthornv1.Vhost) {
			v.Spec.Tags, v.Spec.Tracing, v.Spec.DefaultQueueType = nil, false, ""
			v.Spec.Limits = posthornv1.VhostLimits{MaxQueues: new(int32(6))}
		})
		Eventually(func() broker.Vhost { made, _ := w.broker.Vhost("shop"); return made }).Should(Equal(broker.Vhost{
			Name: "shop", DefaultQueueType: "quorum", Tags: broker.Tags{}, Limits: map[string]int64{"max-queues": 6},
		}))
		change(v, func(v *posthornv1.Vhost) {
			v.Spec.Limits = posthornv1.VhostLimits{MaxQueues: new(int32(6)), MaxChannels: new(int32(7)), MaxMessageRate: new(int64(8)), MaxByteRate: new(int64(1 << 40)), MaxStoredBytes: new(int64(1 << 41))}
		})
		limits := func() map[string]int64 { made, _ := w.broker.Vhost("shop"); return made.Limits }
		Eventually(limits).Should(Equal(map[string]int64{"max-queues": 6, "max-channels": 7, "max-message-rate": 8, "max-byte-rate": 1 << 40, "max-stored-bytes": 1 << 41}))
		Eventually(ready(v)).Should(HavePrefix("True"))
		Expect(eventsOf(v, "DriftCorrected")()).To(BeZero())
		writes := len(w.broker.Calls("/api/vhost", http.MethodPut, http.MethodDelete))
		Consistently(func() int { return len(w.broker.Calls("/api/vhost", http.MethodPut, http.MethodDelete)) }).Should(Equal(writes), "nothing is written when nothing differs")
		Expect(k8s.Delete(ctx, v)).To(Succeed())
		Eventually(gone(v)).Should(BeTrue())
		Expect(w.hasVhost("shop")()).To(BeTrue())
	})

	It("is corrected when somebody changes or deletes it in the broker", func() {
		w := newWorld()
		v := w.vhost("shop", func(v *posthornv1.Vhost) { v.Spec.Limits.MaxQueues = new(int32(5)) })
		create(v)
		Eventually(ready(v)).Should(HavePrefix("True"))
		w.broker.SetVhost(broker.Vhost{Name: "shop", DefaultQueueType: "classic", Tracing: true, Limits: map[string]int64{"max-connections": 1}})
		Eventually(func() map[string]int64 { made, _ := w.broker.Vhost("shop"); return made.Limits }).Should(Equal(map[string]int64{"max-queues": 5}))
		Eventually(eventsOf(v, "DriftCorrected")).Should(Equal(1))
		w.broker.RemoveVhost("shop")
		Eventually(w.hasVhost("shop")).Should(BeTrue())
		Eventually(func() int64 { made, _ := w.broker.Vhost("shop"); return made.Limits["max-queues"] }).Should(BeEquivalentTo(5))
		Eventually(eventsOf(v, "DriftCorrected")).Should(Equal(2))
	})

	It("counts its queues, and holds up objects until it exists", func() {
		w := newWorld()
		q := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.Vhost = "shop" })
		u := w.user("app", func(u *posthornv1.User) { u.Spec.Permissions[0].Vhost = "shop" })
		create(q)
		create(u)
		Eventually(ready(q)).Should(HavePrefix("False VhostNotFound: the broker has no vhost \"shop\""))
		Expect(conditionOf(q, posthornv1.ConditionStalled)()).To(HavePrefix("True"), "no object creates the vhost")
		v := w.vhost("shop")
		create(v)
		Eventually(ready(v)).Should(HavePrefix("True"))
		Eventually(ready(q)).Should(HavePrefix("True"))
		Eventually(ready(u)).Should(HavePrefix("True"))
		Eventually(func() int64 { _ = ready(v)(); return v.Status.Queues }).Should(BeEquivalentTo(1))
	})

	It("is adopted when it matches, changed with Takeover, and never taken over from another object", func() {
		w := newWorld()
		w.broker.SetVhost(broker.Vhost{Name: "shop", DefaultQueueType: "classic", Tags: broker.Tags{"x"}})
		v := w.vhost("shop")
		create(v)
		Eventually(ready(v)).Should(And(HavePrefix("False Conflict"), ContainSubstring("tags")))
		change(v, func(v *posthornv1.Vhost) { v.Spec.Adoption = posthornv1.AdoptTakeover })
		Eventually(ready(v)).Should(HavePrefix("True"))
		made, _ := w.broker.Vhost("shop")
		Expect(made.Tags).To(BeEmpty())
		younger := w.vhost("another", func(v *posthornv1.Vhost) { v.Spec.Name, v.Spec.ReclaimPolicy = "shop", "Delete" })
		create(younger)
		Eventually(ready(younger)).Should(Equal("False Conflict: shop is claimed by " + w.namespace + "/shop"))
		Eventually(conditionOf(younger, posthornv1.ConditionConflict)).Should(HavePrefix("True"))
		Expect(k8s.Delete(ctx, younger)).To(Succeed())
		Eventually(gone(younger)).Should(BeTrue())
		Expect(w.hasVhost("shop")()).To(BeTrue())
	})

	It("is deleted with everything in it only with reclaimPolicy Delete", func() {
		w := newWorld()
		v := w.vhost("shop", reclaim("Delete"))
		create(v)
		Eventually(ready(v)).Should(HavePrefix("True"))
		w.broker.SetQueue(broker.Queue{Vhost: "shop", Name: "orders", Type: "classic"})
		Expect(k8s.Delete(ctx, v)).To(Succeed())
		Eventually(gone(v)).Should(BeTrue())
		Expect(w.hasVhost("shop")()).To(BeFalse())
		Expect(w.there("shop", "orders")()).To(BeFalse())
	})

	It("with DeleteIfEmpty stays in the broker while it has a queue", func() {
		w := newWorld()
		full, empty := w.vhost("full", reclaim("DeleteIfEmpty")), w.vhost("empty", reclaim("DeleteIfEmpty"))
		for _, v := range []*posthornv1.Vhost{full, empty} {
			create(v)
			Eventually(ready(v)).Should(HavePrefix("True"))
		}
		w.broker.SetQueue(broker.Queue{Vhost: "full", Name: "orders", Type: "classic"})
		for _, v := range []*posthornv1.Vhost{full, empty} {
			Expect(k8s.Delete(ctx, v)).To(Succeed())
			Eventually(gone(v)).Should(BeTrue())
		}
		Expect(w.hasVhost("full")()).To(BeTrue())
		Expect(w.there("full", "orders")()).To(BeTrue())
		Expect(w.hasVhost("empty")()).To(BeFalse())
		Eventually(eventsOf(full, "LeftBehind")).Should(Equal(1))
	})

	DescribeTable("with DeleteIfEmpty goes after the objects in it, in any order of deletion", func(vhostFirst, namespaceGoes bool) {
		w := newWorld(open)
		tenant := newNamespace(map[string]string{"messaging": "yes"})
		own := "t-" + tenant
		v := w.vhost("own", reclaim("DeleteIfEmpty"), func(v *posthornv1.Vhost) { v.Namespace, v.Spec.Name = tenant, own })
		q := w.queue("orders", func(q *posthornv1.Queue) {
			q.Namespace, q.Spec.Vhost, q.Spec.ReclaimPolicy = tenant, own, "Delete"
			q.Finalizers = []string{"test.posthorn.io/hold"}
		})
		objects := []client.Object{v, q}
		for _, object := range objects {
			create(object)
			Eventually(ready(object)).Should(HavePrefix("True"))
		}
		if namespaceGoes {
			Expect(k8s.Delete(ctx, namespaceObject(tenant))).To(Succeed())
		}
		if !vhostFirst {
			objects = []client.Object{q, v}
		}
		for _, object := range objects {
			Expect(k8s.Delete(ctx, object)).To(Succeed())
		}
		if !vhostFirst {
			Eventually(w.there(own, "orders")).Should(BeFalse())
		}
		change(q, func(q *posthornv1.Queue) { q.Finalizers = nil })
		for _, object := range objects {
			Eventually(gone(object)).Should(BeTrue())
		}
		Eventually(w.hasVhost(own)).Should(BeFalse())
	},
		Entry("the queue first", false, false), Entry("the vhost first", true, false),
		Entry("the queue first, with the namespace", false, true), Entry("the vhost first, with the namespace", true, true),
	)

	It("of a tenant is one that the tenant may use, and can hold its objects", func() {
		w := newWorld(open)
		ns, other := newNamespace(map[string]string{"messaging": "yes"}), newNamespace(map[string]string{"messaging": "yes"})
		for name, vhost := range map[string]string{"root": "/", "plain": ns, "other": "t-" + other, "prefix": "t-" + ns + "x"} {
			v := w.vhost(name, func(v *posthornv1.Vhost) { v.Namespace, v.Spec.Name, v.Spec.ReclaimPolicy = ns, vhost, "Delete" })
			create(v)
			Eventually(ready(v)).Should(HavePrefix("False NotAllowed"), vhost)
			Expect(k8s.Delete(ctx, v)).To(Succeed())
			Eventually(gone(v)).Should(BeTrue())
		}
		Expect(w.hasVhost("/")()).To(BeTrue())
		for name, vhost := range map[string]string{"own": "t-" + ns, "dot": "t-" + ns + ".two"} {
			v := w.vhost(name, func(v *posthornv1.Vhost) { v.Namespace, v.Spec.Name = ns, vhost })
			create(v)
			Eventually(ready(v)).Should(HavePrefix("True"), vhost)
		}
		takeover := w.vhost("take", func(v *posthornv1.Vhost) {
			v.Namespace, v.Spec.Name, v.Spec.Adoption, v.Spec.Tags = ns, "t-"+ns+".three", posthornv1.AdoptTakeover, []string{"x"}
		})
		w.broker.AddVhost("t-" + ns + ".three")
		create(takeover)
		Eventually(ready(takeover)).Should(And(HavePrefix("False NotAllowed"), ContainSubstring("Takeover")))
	})

	It("of a tenant cannot have higher limits than the cluster's owner allows", func() {
		w := newWorld(open, func(c *posthornv1.BrokerCluster) {
			c.Spec.Tenancy.VhostLimits = &posthornv1.VhostLimits{MaxConnections: new(int32(5)), MaxQueues: new(int32(50))}
		})
		ns := newNamespace(map[string]string{"messaging": "yes"})
		v := w.vhost("own", func(v *posthornv1.Vhost) {
			v.Namespace, v.Spec.Name = ns, "t-"+ns
			v.Spec.Limits = posthornv1.VhostLimits{MaxConnections: new(int32(1000)), MaxQueues: new(int32(20))}
		})
		create(v)
		Eventually(ready(v)).Should(HavePrefix("True"))
		limits := func() map[string]int64 { made, _ := w.broker.Vhost("t-" + ns); return made.Limits }
		Expect(limits()).To(Equal(map[string]int64{"max-connections": 5, "max-queues": 20}))
		Expect(*v.Status.Limits).To(Equal(posthornv1.VhostLimits{MaxConnections: new(int32(5)), MaxQueues: new(int32(20))}))
		Eventually(conditionOf(v, posthornv1.ConditionLimitsCapped)).Should(Equal(
			"True TenancyVhostLimits: 5 of 1000 connections: spec.tenancy.vhostLimits of BrokerCluster " + w.namespace + "/c is lower than spec.limits, and in force"))
		change(v, func(v *posthornv1.Vhost) { v.Spec.Limits = posthornv1.VhostLimits{} })
		Eventually(limits).Should(Equal(map[string]int64{"max-connections": 5, "max-queues": 50}))
		Eventually(conditionOf(v, posthornv1.ConditionLimitsCapped)).Should(HavePrefix("False AsSpecified"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Tenancy.VhostLimits.MaxQueues = new(int32(2)) })
		Eventually(limits).Should(Equal(map[string]int64{"max-connections": 5, "max-queues": 2}))

		home := w.vhost("home", func(v *posthornv1.Vhost) { v.Spec.Limits.MaxQueues = new(int32(99)) })
		create(home)
		Eventually(ready(home)).Should(HavePrefix("True"))
		made, _ := w.broker.Vhost("home")
		Expect(made.Limits).To(Equal(map[string]int64{"max-queues": 99}), "the cluster's own namespace has all rights")
	})
})
