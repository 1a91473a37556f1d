// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"net/http"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// there reports whether the broker has a queue.
func (w *world) there(vhost, name string) func() bool {
	return func() bool {
		_, found := w.broker.Queue(vhost, name)
		return found
	}
}

// quorumQueue is a queue that somebody else has declared.
func quorumQueue(name string, arguments map[string]any) broker.Queue {
	all := map[string]any{"x-queue-type": "quorum"}
	for key, argument := range arguments {
		all[key] = argument
	}
	return broker.Queue{Name: name, Vhost: "/", Type: "quorum", Durable: true, Arguments: all}
}

var _ = Describe("Queue", func() {
	It("is declared and reported in its status", func() {
		w := newWorld()
		q := w.queue("orders", func(q *posthornv1.Queue) {
			q.Spec.Replicas = 3
			q.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-delivery-limit": value("5"), "x-single-active-consumer": value("true")}
		})
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True InSync"))
		made, found := w.broker.Queue("/", "orders")
		Expect(found).To(BeTrue())
		Expect(made.Type).To(Equal("quorum"))
		Expect(made.Durable).To(BeTrue())
		Expect(made.Arguments).To(Equal(map[string]any{
			"x-queue-type": "quorum", "x-quorum-initial-group-size": 3.0, "x-delivery-limit": 5.0, "x-single-active-consumer": true,
		}))
		Expect(q.Status.Leader).To(Equal("c-0"))
		Expect(q.Status.Members).To(Equal([]string{"c-0", "c-1", "c-2"}))
		Expect(q.Status.OnlineMembers).To(Equal([]string{"c-0", "c-1", "c-2"}))
		Expect(q.Status.LastSyncTime).NotTo(BeNil())
		Expect(q.Finalizers).To(ContainElement(names.Finalizer))
		Expect(conditionOf(q, posthornv1.ConditionReplicasPlaced)()).To(HavePrefix("True"))
		Expect(conditionOf(q, posthornv1.ConditionConflict)()).To(HavePrefix("False"))

		made.Messages, made.Leader, made.Online = 42, "c-1", []string{"c-1", "c-2"}
		w.broker.SetQueue(made)
		Eventually(conditionOf(q, posthornv1.ConditionReplicasPlaced)).Should(HavePrefix("False MembersOffline"))
		Expect(q.Status.Messages).To(BeEquivalentTo(42))
		Expect(q.Status.Leader).To(Equal("c-1"))
		Expect(ready(q)()).To(HavePrefix("True"))
	})

	It("is declared again when it vanishes, with one Event", func() {
		w := newWorld()
		q := w.queue("orders")
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		w.broker.RemoveQueue("/", "orders")
		Eventually(w.there("/", "orders")).Should(BeTrue())
		Eventually(eventsOf(q, "DriftCorrected")).Should(Equal(1))
		Consistently(eventsOf(q, "DriftCorrected")).Should(Equal(1))
	})

	It("reports the broker's own message", func() {
		w := newWorld()
		q := w.queue("orders", func(q *posthornv1.Queue) {
			skipValidation(q)
			q.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-max-length": value("-1")}
		})
		create(q)
		Eventually(ready(q)).Should(Equal("False BrokerRefused: PUT /api/queues/%2F/orders: broker answered 400: invalid arg 'x-max-length' for queue 'orders' in vhost '/'"))
		Expect(conditionOf(q, posthornv1.ConditionStalled)()).To(HavePrefix("True"))
		change(q, func(q *posthornv1.Queue) {
			q.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-max-length": value("10")}
		})
		Eventually(ready(q)).Should(HavePrefix("True"))
		Expect(conditionOf(q, posthornv1.ConditionStalled)()).To(Equal("absent"))
	})

	It("refuses arguments that the operator sets, and an unknown vhost", func() {
		w := newWorld()
		typed := w.queue("typed", func(q *posthornv1.Queue) {
			skipValidation(q)
			q.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-queue-type": value(`"stream"`)}
		})
		create(typed)
		Eventually(ready(typed)).Should(HavePrefix("False Invalid: spec.arguments must not have x-queue-type"))
		lost := w.queue("lost", func(q *posthornv1.Queue) { q.Spec.Vhost = "nowhere" })
		create(lost)
		Eventually(ready(lost)).Should(HavePrefix("False VhostNotFound"))
		w.broker.AddVhost("nowhere")
		Eventually(ready(lost)).Should(HavePrefix("True"))
	})

	It("recreates a queue for an immutable change only if it is empty and the spec allows it", func() {
		w := newWorld()
		q := w.queue("orders")
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		change(q, func(q *posthornv1.Queue) {
			q.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-delivery-limit": value("7")}
		})
		Eventually(ready(q)).Should(HavePrefix("False ImmutableChange"))
		Expect(q.Status.ObservedGeneration).To(Equal(q.Generation))
		Expect(w.broker.Calls("/api/queues/", http.MethodDelete)).To(BeEmpty())

		full, _ := w.broker.Queue("/", "orders")
		full.Messages = 1
		w.broker.SetQueue(full)
		change(q, func(q *posthornv1.Queue) { q.Spec.OnImmutableChange = "RecreateIfEmpty" })
		Eventually(ready(q)).Should(ContainSubstring("is not empty"))
		Expect(w.there("/", "orders")()).To(BeTrue())

		full.Messages = 0
		w.broker.SetQueue(full)
		Eventually(ready(q)).Should(HavePrefix("True"))
		made, _ := w.broker.Queue("/", "orders")
		Expect(made.Arguments).To(HaveKeyWithValue("x-delivery-limit", 7.0))
	})

	It("of type stream keeps its messages through an immutable change and through a deletion with DeleteIfEmpty", func() {
		w := newWorld()
		q := w.queue("log", func(q *posthornv1.Queue) {
			q.Spec.Type, q.Spec.ReclaimPolicy, q.Spec.OnImmutableChange = "stream", "DeleteIfEmpty", "RecreateIfEmpty"
		})
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		made, _ := w.broker.Queue("/", "log")
		made.Messages = 1
		w.broker.SetQueue(made)
		change(q, func(q *posthornv1.Queue) {
			q.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-max-age": value(`"1D"`)}
		})
		Eventually(ready(q)).Should(And(HavePrefix("False ImmutableChange"), ContainSubstring(`stream "log" in vhost "/" has 1 messages`)))
		Expect(w.there("/", "log")()).To(BeTrue())

		// Without an answer of a node the number of messages is not known.
		made.Messages, made.State = 0, "down"
		w.broker.SetQueue(made)
		Eventually(ready(q)).Should(ContainSubstring("is unknown"))
		Expect(w.there("/", "log")()).To(BeTrue())

		made.State = "running"
		w.broker.SetQueue(made)
		Eventually(ready(q)).Should(HavePrefix("True"))
		made, _ = w.broker.Queue("/", "log")
		Expect(made.Arguments).To(HaveKeyWithValue("x-max-age", "1D"))
		made.Messages = 1
		w.broker.SetQueue(made)
		Expect(k8s.Delete(ctx, q)).To(Succeed())
		Eventually(gone(q)).Should(BeTrue())
		Expect(w.there("/", "log")()).To(BeTrue())
		Eventually(eventsOf(q, "LeftBehind")).Should(Equal(1))
	})

	It("gets and loses members when its replicas change, except while a node is removed", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 5 })
		w.broker.StartNode("c-3")
		w.broker.StartNode("c-4")
		w.readyWorld()
		q := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.Replicas = 3 })
		create(q)
		members := func() int { made, _ := w.broker.Queue("/", "orders"); return len(made.Members) }
		Eventually(ready(q)).Should(HavePrefix("True"))
		Expect(members()).To(Equal(3))
		change(q, func(q *posthornv1.Queue) { q.Spec.Replicas = 5 })
		Eventually(members).Should(Equal(5))
		Eventually(conditionOf(q, posthornv1.ConditionReplicasPlaced)).Should(HavePrefix("True Placed: 5 members"))
		Expect(ready(q)()).To(HavePrefix("True"))

		w.broker.RefuseMoves("cluster_change_not_permitted")
		change(q, func(q *posthornv1.Queue) { q.Spec.Replicas = 3 })
		Eventually(conditionOf(q, posthornv1.ConditionReplicasPlaced)).Should(And(HavePrefix("False MoveRefused"), ContainSubstring("cluster_change_not_permitted")))
		Expect(ready(q)()).To(HavePrefix("True"), "it works meanwhile")
		w.broker.RefuseMoves("")
		Eventually(members).Should(Equal(3))
		made, _ := w.broker.Queue("/", "orders")
		Expect(made.Members).To(ContainElement("c-0"), "its leader stays")
		Expect(w.broker.Calls("/api/queues/%2F/orders", http.MethodDelete)).To(BeEmpty())

		// It was declared with three members and now asks for one, which decides whether the cluster can shrink.
		change(q, func(q *posthornv1.Queue) { q.Spec.Replicas = 1 })
		Eventually(members).Should(Equal(1))
		w.setReplicas(1)
		Eventually(w.pods).Should(Equal([]string{"c-0"}))
		Expect(members()).To(Equal(1))
	})

	It("has the cluster's number of members when its object sets none", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Placement.QuorumReplicas = 1 })
		w.readyWorld()
		members := func(name string) func() int {
			return func() int { found, _ := w.broker.Queue("/", name); return len(found.Members) }
		}
		w.broker.SetQueue(quorumQueue("adopted", nil))
		silent, asking, adopted := w.queue("silent"), w.queue("asking", func(q *posthornv1.Queue) { q.Spec.Replicas = 3 }), w.queue("adopted")
		for _, q := range []*posthornv1.Queue{silent, asking, adopted} {
			create(q)
			Eventually(ready(q)).Should(HavePrefix("True"), q.Name)
		}
		Expect(members("silent")()).To(Equal(1))
		Expect(members("asking")()).To(Equal(3))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Placement.QuorumReplicas = 3 })
		Eventually(members("silent")).Should(Equal(3))
		Eventually(conditionOf(silent, posthornv1.ConditionReplicasPlaced)).Should(HavePrefix("True Placed: 3 members"))
		// No member is removed when the cluster no longer sets a number.
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Placement.QuorumReplicas = 0 })
		Consistently(members("silent")).Should(Equal(3))
	})

	It("is Ready only while clients can use it", func() {
		w := newWorld()
		w.readyWorld()
		q := w.queue("orders")
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		made, _ := w.broker.Queue("/", "orders")
		stuck := made
		stuck.Leader, stuck.Node, stuck.State, stuck.Online = "", "", "down", made.Members[:1]
		w.broker.SetQueue(stuck)
		Eventually(ready(q)).Should(HavePrefix("False NoLeader: 1 of 3 members are online"))
		Expect(conditionOf(q, posthornv1.ConditionSynced)()).To(HavePrefix("True"), "it is declared")
		w.broker.SetQueue(made)
		Eventually(ready(q)).Should(HavePrefix("True"))
	})

	It("is adopted by an identical object after a deletion that kept the queue", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Placement.QuorumReplicas = 3 })
		w.readyWorld()
		members := func(name string) func() int {
			return func() int { found, _ := w.broker.Queue("/", name); return len(found.Members) }
		}
		silent := func() *posthornv1.Queue { return w.queue("silent") }
		grown := func() *posthornv1.Queue { return w.queue("grown", func(q *posthornv1.Queue) { q.Spec.Replicas = 3 }) }
		create(silent())
		first := grown()
		first.Spec.Replicas = 1
		create(first)
		Eventually(ready(first)).Should(HavePrefix("True"))
		change(first, func(q *posthornv1.Queue) { q.Spec.Replicas = 3 })
		Eventually(members("grown")).Should(Equal(3))
		for _, again := range []func() *posthornv1.Queue{silent, grown} {
			q := again()
			Eventually(ready(q)).Should(HavePrefix("True"), q.Name)
			Expect(k8s.Delete(ctx, q)).To(Succeed())
			Eventually(gone(q)).Should(BeTrue())
			Expect(w.there("/", q.Name)()).To(BeTrue(), q.Name)
			q = again()
			create(q)
			Eventually(ready(q)).Should(HavePrefix("True"), q.Name)
			Expect(conditionOf(q, posthornv1.ConditionConflict)()).NotTo(HavePrefix("True"), q.Name)
		}
	})

	DescribeTable("adoption of an existing queue", func(policy posthornv1.AdoptionPolicy, arguments map[string]any, immutable, want string) {
		w := newWorld()
		w.broker.SetQueue(quorumQueue("orders", arguments))
		q := w.queue("orders", func(q *posthornv1.Queue) {
			q.Spec.Adoption, q.Spec.OnImmutableChange, q.Spec.ReclaimPolicy = policy, immutable, "Delete"
		})
		create(q)
		Eventually(ready(q)).Should(HavePrefix(want))
		adopted := want == "True"
		Expect(conditionOf(q, posthornv1.ConditionConflict)()).To(HavePrefix(map[bool]string{true: "False", false: "True"}[adopted]))
		Expect(k8s.Delete(ctx, q)).To(Succeed())
		Eventually(gone(q)).Should(BeTrue())
		Expect(w.there("/", "orders")()).To(Equal(!adopted), "only what is owned is deleted")
	},
		Entry("Never", posthornv1.AdoptNever, nil, "Fail", "False Conflict"),
		Entry("IfMatching, the same", posthornv1.AdoptIfMatching, nil, "Fail", "True"),
		Entry("IfMatching, another", posthornv1.AdoptIfMatching, map[string]any{"x-max-length": 1.0}, "Fail", "False Conflict"),
		Entry("Takeover, another", posthornv1.AdoptTakeover, map[string]any{"x-max-length": 1.0}, "RecreateIfEmpty", "True"),
	)

	It("belongs to the older of two objects, and to the younger one after its deletion", func() {
		w := newWorld()
		older := w.queue("older", func(q *posthornv1.Queue) { q.Spec.Name = "orders" })
		create(older)
		Eventually(ready(older)).Should(HavePrefix("True"))
		younger := w.queue("younger", func(q *posthornv1.Queue) { q.Spec.Name, q.Spec.ReclaimPolicy = "orders", "Delete" })
		create(younger)
		Eventually(ready(younger)).Should(Equal("False Conflict: orders is claimed by " + w.namespace + "/older"))
		Expect(ready(older)()).To(HavePrefix("True"))
		Expect(k8s.Delete(ctx, older)).To(Succeed())
		Eventually(ready(younger)).Should(HavePrefix("True"))
		Expect(w.there("/", "orders")()).To(BeTrue())
	})

	It("keeps the queue of another object when an object without it is deleted", func() {
		w := newWorld()
		winner := w.queue("a", func(q *posthornv1.Queue) { q.Spec.Name = "orders" })
		create(winner)
		Eventually(ready(winner)).Should(HavePrefix("True"))
		loser := w.queue("b", func(q *posthornv1.Queue) { q.Spec.Name, q.Spec.ReclaimPolicy = "orders", "Delete" })
		create(loser)
		Eventually(ready(loser)).Should(HavePrefix("False Conflict"))
		Expect(k8s.Delete(ctx, loser)).To(Succeed())
		Eventually(gone(loser)).Should(BeTrue())
		Expect(w.there("/", "orders")()).To(BeTrue())
	})

	DescribeTable("reclaim policy", func(policy string, messages int64, stays bool) {
		w := newWorld()
		q := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = policy })
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		made, _ := w.broker.Queue("/", "orders")
		made.Messages = messages
		w.broker.SetQueue(made)
		Expect(k8s.Delete(ctx, q)).To(Succeed())
		Eventually(gone(q)).Should(BeTrue())
		Expect(w.there("/", "orders")()).To(Equal(stays))
	},
		Entry("Retain", "Retain", int64(0), true),
		Entry("the default keeps data", "", int64(0), true),
		Entry("Delete", "Delete", int64(9), false),
		Entry("DeleteIfEmpty, empty", "DeleteIfEmpty", int64(0), false),
		Entry("DeleteIfEmpty, not empty", "DeleteIfEmpty", int64(9), true),
	)

	It("waits for a broker that does not answer, and recovers with it", func() {
		w := newWorld()
		w.broker.SetDown(true)
		q := w.queue("orders")
		create(q)
		Eventually(ready(q)).Should(HavePrefix("False BrokerUnreachable"))
		Expect(conditionOf(q, posthornv1.ConditionStalled)()).To(Equal("absent"))
		w.broker.SetDown(false)
		Eventually(ready(q)).Should(HavePrefix("True"))
	})

	It("loses its finalizer when the broker does not answer past the bound", func() {
		w := newWorld()
		// Another finalizer keeps the object, so that its last status can be read.
		q := w.queue("orders", func(q *posthornv1.Queue) {
			q.Spec.ReclaimPolicy, q.Finalizers = "Delete", []string{"test.posthorn.io/hold"}
		})
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		w.broker.SetDown(true)
		Expect(k8s.Delete(ctx, q)).To(Succeed())
		Eventually(ready(q)).Should(HavePrefix("False BrokerUnreachable: deleting"))
		Eventually(func() []string { _ = ready(q)(); return q.Finalizers }).ShouldNot(ContainElement(names.Finalizer))
		Eventually(eventsOf(q, "LeftBehind")).Should(BeNumerically(">", 0))
		change(q, func(q *posthornv1.Queue) { q.Finalizers = nil })
		Eventually(gone(q)).Should(BeTrue())
	})

	It("loses its finalizer when its cluster is gone", func() {
		w := newWorld()
		q := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Delete" })
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		Expect(k8s.Delete(ctx, w.cluster())).To(Succeed())
		Eventually(ready(q)).Should(HavePrefix("False ClusterNotFound"))
		Expect(k8s.Delete(ctx, q)).To(Succeed())
		Eventually(gone(q)).Should(BeTrue())
	})

	It("loses its finalizer at once when its namespace is deleted and the broker is down", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) {
			c.Spec.Tenancy = &posthornv1.TenancySpec{AllowedNamespaces: &metav1.LabelSelector{}}
		})
		tenant := newNamespace(nil)
		w.broker.AddVhost(tenant)
		q := w.queue("orders", func(q *posthornv1.Queue) {
			q.Namespace, q.Spec.Vhost, q.Spec.ReclaimPolicy = tenant, tenant, "Delete"
		})
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		w.broker.SetDown(true)
		ns := namespaceObject(tenant)
		Expect(k8s.Delete(ctx, ns)).To(Succeed())
		// No namespace controller deletes the contents of the namespace here.
		Expect(k8s.Delete(ctx, q)).To(Succeed())
		Eventually(gone(q)).Should(BeTrue())
	})

	It("waits for the creation of its cluster", func() {
		ns := newNamespace(nil)
		w := &world{namespace: ns}
		q := w.queue("orders")
		create(q)
		Eventually(ready(q)).Should(HavePrefix("False ClusterNotFound"))
		Expect(q.Finalizers).To(BeEmpty())
		create(newCluster(ns))
		w.startBroker()
		Eventually(ready(q)).Should(HavePrefix("True"))
	})

	It("recognises a queue that it created before a crash, with any adoption policy", func() {
		w := newWorld()
		w.broker.SetDown(true)
		q := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.Adoption = posthornv1.AdoptNever })
		create(q)
		Eventually(ready(q)).Should(HavePrefix("False BrokerUnreachable"))
		// Like an operator that ended between creating the queue and writing the status: only the claim, which comes
		// first, exists.
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(q), q)).To(Succeed())
		before := q.DeepCopy()
		q.Status.Claim = w.namespace + "/c|%2F/orders"
		Expect(k8s.Status().Patch(ctx, q, client.MergeFrom(before))).To(Succeed())
		w.broker.SetQueue(quorumQueue("orders", nil))
		w.broker.SetDown(false)
		Eventually(ready(q)).Should(HavePrefix("True"))
	})
})

// open admits the namespaces with the label messaging: yes.
func open(c *posthornv1.BrokerCluster) {
	c.Spec.Tenancy = &posthornv1.TenancySpec{
		AllowedNamespaces: &metav1.LabelSelector{MatchLabels: map[string]string{"messaging": "yes"}}, VhostPrefix: "t-",
	}
}

var _ = Describe("tenancy", func() {
	It("admits only the namespaces that the cluster selects", func() {
		w := newWorld(open)
		stranger := w.queue("orders", func(q *posthornv1.Queue) { q.Namespace = newNamespace(nil) })
		create(stranger)
		Eventually(ready(stranger)).Should(HavePrefix("False NotAllowed"))
		Expect(stranger.Finalizers).To(BeEmpty())
		guest := newNamespace(map[string]string{"messaging": "yes"})
		w.broker.AddVhost("t-" + guest)
		tenant := w.queue("orders", func(q *posthornv1.Queue) { q.Namespace, q.Spec.Vhost = guest, "t-"+guest })
		create(tenant)
		Eventually(ready(tenant)).Should(HavePrefix("True"))
		Expect(w.there("t-"+guest, "orders")()).To(BeTrue())
	})

	It("gets permissions in vhosts that somebody else has created", func() {
		w := newWorld(open)
		guest := newNamespace(map[string]string{"messaging": "yes"})
		own := "t-" + guest
		w.broker.AddForeignVhost(own)
		queue := w.queue("orders", func(q *posthornv1.Queue) { q.Namespace, q.Spec.Vhost = guest, own })
		policy := w.policy("bound", func(p *posthornv1.Policy) { p.Namespace, p.Spec.Vhost = guest, own })
		create(queue)
		create(policy)
		Eventually(ready(queue)).Should(HavePrefix("True"))
		Eventually(ready(policy)).Should(HavePrefix("True"))
		// Not before the operator has admitted the tenant.
		w.broker.AddForeignVhost("theirs")
		before := len(w.broker.Calls("/api/permissions/", http.MethodPut))
		reaching := w.queue("reaching", func(q *posthornv1.Queue) { q.Namespace, q.Spec.Vhost = guest, "theirs" })
		create(reaching)
		Eventually(ready(reaching)).Should(HavePrefix("False NotAllowed"))
		Expect(w.broker.Calls("/api/permissions/", http.MethodPut)).To(HaveLen(before))
	})

	It("admits a namespace when the cluster begins to select it", func() {
		w := newWorld()
		tenant := newNamespace(nil)
		w.broker.AddVhost(tenant)
		q := w.queue("orders", func(q *posthornv1.Queue) { q.Namespace, q.Spec.Vhost = tenant, tenant })
		create(q)
		Eventually(ready(q)).Should(HavePrefix("False NotAllowed"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			c.Spec.Tenancy = &posthornv1.TenancySpec{AllowedNamespaces: &metav1.LabelSelector{}}
		})
		Eventually(ready(q)).Should(HavePrefix("True"))
	})

	It("keeps a tenant out of other vhosts, of takeovers, of operator policies and of administration", func() {
		w := newWorld(open)
		ns := newNamespace(map[string]string{"messaging": "yes"})
		own := "t-" + ns
		w.broker.AddVhost(own)
		w.broker.AddVhost(own + "x")
		w.broker.SetQueue(broker.Queue{Name: "q", Vhost: own, Type: "quorum", Durable: true, Arguments: map[string]any{"x-max-length": 1.0}})

		for _, vhost := range []string{"/", own + "x", "t-other"} {
			q := w.queue("q-"+map[string]string{"/": "root", own + "x": "longer", "t-other": "other"}[vhost], func(q *posthornv1.Queue) { q.Namespace, q.Spec.Vhost = ns, vhost })
			create(q)
			Eventually(ready(q)).Should(HavePrefix("False NotAllowed"), vhost)
		}
		takeover := w.queue("q", func(q *posthornv1.Queue) {
			q.Namespace, q.Spec.Vhost, q.Spec.Adoption, q.Spec.OnImmutableChange = ns, own, posthornv1.AdoptTakeover, "RecreateIfEmpty"
		})
		create(takeover)
		Eventually(ready(takeover)).Should(HavePrefix("False NotAllowed: adoption"))
		limit := w.policy("p", func(p *posthornv1.Policy) { p.Namespace, p.Spec.Vhost, p.Spec.Scope = ns, own, "Operator" })
		create(limit)
		Eventually(ready(limit)).Should(HavePrefix("False NotAllowed"))

		users := map[string]func(*posthornv1.User){
			"named":  func(u *posthornv1.User) { u.Spec.Username = "root" },
			"admin":  func(u *posthornv1.User) { u.Spec.Tags = []posthornv1.UserTag{"administrator"} },
			"spy":    func(u *posthornv1.User) { u.Spec.Tags = []posthornv1.UserTag{"monitoring"} },
			"reader": func(u *posthornv1.User) { u.Spec.Permissions = []posthornv1.UserPermission{{Vhost: "/", Read: ".*"}} },
			"topics": func(u *posthornv1.User) {
				u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "/", Exchange: "amq.topic"}}
			},
		}
		for name, modify := range users {
			u := w.user(name, func(u *posthornv1.User) { u.Namespace, u.Spec.Permissions = ns, nil; modify(u) })
			create(u)
			Eventually(ready(u)).Should(HavePrefix("False NotAllowed"), name)
		}
		Expect(w.broker.Calls("/api/users/", http.MethodPut)).To(BeEmpty())
		fine := w.user("fine", func(u *posthornv1.User) {
			u.Namespace, u.Spec.Permissions = ns, []posthornv1.UserPermission{{Vhost: own, Read: ".*"}, {Vhost: own + ".two", Read: ""}}
			u.Spec.Tags = []posthornv1.UserTag{"management"}
		})
		w.broker.AddVhost(own + ".two")
		create(fine)
		Eventually(ready(fine)).Should(HavePrefix("True"))
		Expect(fine.Status.Username).To(Equal(ns + "-fine"))
	})

	It("reads claims only from the status, not from annotations or the spec", func() {
		w := newWorld(open)
		ns := newNamespace(map[string]string{"messaging": "yes"})
		victim := ns + "-victim"
		w.broker.SetUser(victim, "hers")
		thief := w.user("victim", func(u *posthornv1.User) {
			u.Namespace, u.Spec.Permissions = ns, nil
			u.Status.Claim = w.namespace + "/c|" + victim
			u.Annotations = map[string]string{"posthorn.io/claim": w.namespace + "/c|" + victim}
		})
		create(thief)
		Eventually(ready(thief)).Should(HavePrefix("False Conflict"))
		Expect(w.broker.Accepts(victim, "hers")).To(BeTrue())
		Expect(k8s.Delete(ctx, thief)).To(Succeed())
		Eventually(gone(thief)).Should(BeTrue())
		Expect(w.broker.Accepts(victim, "hers")).To(BeTrue())
	})
})
