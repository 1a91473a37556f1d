// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"net/http"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// partition returns the ends of the binding of a partition of the super stream invoices.
func partition(stream string) broker.BindingEnds {
	return broker.BindingEnds{Vhost: "/", Source: "invoices", Destination: stream}
}

// changes counts the requests that change something in the broker.
func (w *world) changes() int {
	return len(w.broker.Calls("/api/", http.MethodPut, http.MethodPost, http.MethodDelete))
}

var _ = Describe("SuperStream", func() {
	It("has an exchange and a stream for each partition, and stays when the object is deleted", func() {
		w := newWorld()
		s := w.superStream("invoices", func(s *posthornv1.SuperStream) {
			s.Spec.Replicas = 3
			s.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-max-age": value(`"7D"`)}
		})
		create(s)
		Eventually(ready(s)).Should(HavePrefix("True InSync"))
		x, _ := w.broker.Exchange("/", "invoices")
		Expect(x).To(Equal(broker.Exchange{Name: "invoices", Vhost: "/", Type: "direct", Durable: true, Arguments: map[string]any{"x-super-stream": true}}))
		for i, name := range []string{"invoices-0", "invoices-1", "invoices-2"} {
			q, found := w.broker.Queue("/", name)
			Expect(found).To(BeTrue(), name)
			Expect(q.Durable).To(BeTrue())
			Expect(q.Arguments).To(Equal(map[string]any{
				"x-queue-type": "stream", "x-queue-leader-locator": "balanced", "x-initial-cluster-size": 3.0, "x-max-age": "7D",
			}))
			bindings := w.broker.Bindings(partition(name))
			Expect(bindings).To(HaveLen(1))
			Expect(bindings[0].RoutingKey).To(Equal(name[len(name)-1:]))
			Expect(bindings[0].Arguments).To(Equal(map[string]any{"x-stream-partition-order": float64(i)}))
			q.Messages = 5
			w.broker.SetQueue(q)
		}
		Eventually(func() int64 { _ = ready(s)(); return s.Status.Messages }).Should(BeEquivalentTo(15))
		Expect(s.Status.Partitions).To(BeEquivalentTo(3))
		Expect(s.Status.UsablePartitions).To(BeEquivalentTo(3))
		Expect(conditionOf(s, posthornv1.ConditionReplicasPlaced)()).To(HavePrefix("True"))
		before := w.changes()
		Consistently(w.changes).Should(Equal(before), "nothing is written when nothing differs")
		Expect(k8s.Delete(ctx, s)).To(Succeed())
		Eventually(gone(s)).Should(BeTrue())
		Expect(w.hasExchange("invoices")()).To(BeTrue())
		Expect(w.there("/", "invoices-2")()).To(BeTrue())
	})

	It("has partitions by routing keys, and is deleted with reclaimPolicy Delete", func() {
		w := newWorld()
		s := w.superStream("regions", func(s *posthornv1.SuperStream) {
			s.Spec.Name, s.Spec.Partitions, s.Spec.RoutingKeys, s.Spec.ReclaimPolicy = "invoices", 0, []posthornv1.RoutingKey{"emea", "amer"}, "Delete"
		})
		create(s)
		Eventually(ready(s)).Should(HavePrefix("True InSync"))
		bound := w.broker.Bindings(partition("invoices-amer"))
		Expect(bound).To(HaveLen(1))
		Expect(bound[0].RoutingKey).To(Equal("amer"))
		Expect(bound[0].Arguments).To(Equal(map[string]any{"x-stream-partition-order": 1.0}))
		Expect(k8s.Delete(ctx, s)).To(Succeed())
		Eventually(gone(s)).Should(BeTrue())
		Expect(w.hasExchange("invoices")()).To(BeFalse())
		Expect(w.there("/", "invoices-emea")()).To(BeFalse())
		Expect(w.there("/", "invoices-amer")()).To(BeFalse())
	})

	It("is repaired when a part is missing or a partition was added, with an Event", func() {
		w := newWorld()
		s := w.superStream("invoices")
		create(s)
		Eventually(ready(s)).Should(HavePrefix("True"))
		w.broker.RemoveQueue("/", "invoices-1")
		Eventually(w.there("/", "invoices-1")).Should(BeTrue())
		Eventually(func() int { return len(w.broker.Bindings(partition("invoices-1"))) }).Should(Equal(1))
		Eventually(eventsOf(s, "DriftCorrected")).Should(Equal(1))
		Eventually(ready(s)).Should(HavePrefix("True"))

		w.broker.RemoveExchange("/", "invoices")
		Eventually(w.hasExchange("invoices")).Should(BeTrue())
		for _, name := range []string{"invoices-0", "invoices-1", "invoices-2"} {
			Eventually(func() int { return len(w.broker.Bindings(partition(name))) }).Should(Equal(1))
		}
		Eventually(ready(s)).Should(HavePrefix("True"))

		// A stream that somebody binds is a partition for clients; a queue is not.
		w.broker.SetQueue(broker.Queue{Name: "more", Vhost: "/", Type: "stream", Durable: true, Arguments: map[string]any{"x-queue-type": "stream"}})
		w.broker.SetQueue(quorumQueue("audit", nil))
		w.broker.AddBinding(partition("audit"), "a")
		w.broker.AddBinding(partition("more"), "7")
		Eventually(func() int { return len(w.broker.Bindings(partition("more"))) }).Should(Equal(0))
		Expect(w.broker.Bindings(partition("audit"))).To(HaveLen(1))
		Expect(w.there("/", "more")()).To(BeTrue())
	})

	It("adopts an equal super stream, and leaves another one alone", func() {
		w := newWorld()
		first := w.superStream("first", func(s *posthornv1.SuperStream) { s.Spec.Name = "invoices" })
		create(first)
		Eventually(ready(first)).Should(HavePrefix("True"))
		Expect(k8s.Delete(ctx, first)).To(Succeed())
		Eventually(gone(first)).Should(BeTrue())
		before := w.changes()

		fewer := w.superStream("fewer", func(s *posthornv1.SuperStream) { s.Spec.Name, s.Spec.Partitions = "invoices", 2 })
		create(fewer)
		Eventually(ready(fewer)).Should(And(HavePrefix("False Conflict"), ContainSubstring("differs in bindings.invoices-2")))
		never := w.superStream("never", func(s *posthornv1.SuperStream) { s.Spec.Name, s.Spec.Adoption = "invoices", "Never" })
		create(never)
		Eventually(ready(never)).Should(HavePrefix("False Conflict"))
		Expect(w.changes()).To(Equal(before))
		Expect(k8s.Delete(ctx, fewer)).To(Succeed())
		Expect(k8s.Delete(ctx, never)).To(Succeed())
		Eventually(gone(fewer)).Should(BeTrue())
		Eventually(gone(never)).Should(BeTrue())

		same := w.superStream("same", func(s *posthornv1.SuperStream) { s.Spec.Name = "invoices" })
		create(same)
		Eventually(ready(same)).Should(HavePrefix("True"))
		Expect(w.changes()).To(Equal(before))
	})

	It("does not take over a single stream of its name", func() {
		w := newWorld()
		w.broker.SetQueue(broker.Queue{Name: "invoices-1", Vhost: "/", Type: "stream", Durable: true, Arguments: map[string]any{"x-queue-type": "stream"}})
		s := w.superStream("invoices")
		create(s)
		Eventually(ready(s)).Should(And(HavePrefix("False Conflict"), ContainSubstring("exchange, partitions.invoices-0")))
		Expect(w.hasExchange("invoices")()).To(BeFalse())
		change(s, func(s *posthornv1.SuperStream) { s.Spec.Adoption = posthornv1.AdoptTakeover })
		Eventually(ready(s)).Should(HavePrefix("True"))
	})

	It("reports arguments that cannot change, a missing vhost, and the broker's own message", func() {
		w := newWorld()
		s := w.superStream("invoices")
		create(s)
		Eventually(ready(s)).Should(HavePrefix("True"))
		change(s, func(s *posthornv1.SuperStream) {
			s.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-max-age": value(`"1h"`)}
		})
		Eventually(ready(s)).Should(And(HavePrefix("False ImmutableChange"), ContainSubstring("partitions.invoices-0.arguments.x-max-age")))
		Expect(conditionOf(s, posthornv1.ConditionStalled)()).To(HavePrefix("True"))
		Expect(s.Status.ObservedGeneration).To(Equal(s.Generation))
		Expect(w.there("/", "invoices-0")()).To(BeTrue())

		lost := w.superStream("lost", func(s *posthornv1.SuperStream) { s.Spec.Vhost = "nowhere" })
		create(lost)
		Eventually(ready(lost)).Should(Equal(`False VhostNotFound: the broker has no vhost "nowhere"`))
		w.broker.AddVhost("nowhere")
		Eventually(ready(lost)).Should(HavePrefix("True"))

		refused := w.superStream("refused", func(s *posthornv1.SuperStream) {
			skipValidation(s)
			s.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-max-length": value("-1")}
		})
		create(refused)
		Eventually(ready(refused)).Should(And(HavePrefix("False BrokerRefused"), ContainSubstring("invalid arg 'x-max-length' for queue 'refused-0'")))
	})

	It("moves the members of its streams, and those of a Queue of type stream", func() {
		w := newWorld()
		s := w.superStream("invoices")
		q := w.queue("log", func(q *posthornv1.Queue) { q.Spec.Type = "stream" })
		create(s)
		create(q)
		Eventually(ready(s)).Should(HavePrefix("True"))
		Eventually(ready(q)).Should(HavePrefix("True"))
		Expect(q.Status.Members).To(HaveLen(3))
		change(s, func(s *posthornv1.SuperStream) { s.Spec.Replicas = 1 })
		change(q, func(q *posthornv1.Queue) { q.Spec.Replicas = 1 })
		for _, name := range []string{"invoices-0", "invoices-1", "invoices-2", "log"} {
			Eventually(func() []string { found, _ := w.broker.Queue("/", name); return found.Members }).Should(Equal([]string{"c-0"}), name)
		}
		Eventually(conditionOf(s, posthornv1.ConditionReplicasPlaced)).Should(HavePrefix("True"))
		Eventually(conditionOf(q, posthornv1.ConditionReplicasPlaced)).Should(HavePrefix("True"))
	})

	It("keeps its names from Queues and Exchanges, and a Queue keeps its name from it", func() {
		w := newWorld()
		s := w.superStream("invoices", func(s *posthornv1.SuperStream) { s.Spec.ReclaimPolicy = "Delete" })
		create(s)
		Eventually(ready(s)).Should(HavePrefix("True"))
		q := w.queue("invoices-0", func(q *posthornv1.Queue) { q.Spec.Type, q.Spec.ReclaimPolicy = "stream", "Delete" })
		x := w.exchange("invoices", func(x *posthornv1.Exchange) { x.Spec.Adoption = posthornv1.AdoptTakeover })
		create(q)
		create(x)
		Eventually(ready(q)).Should(Equal("False Conflict: invoices-0 is set by SuperStream " + w.namespace + "/invoices"))
		Eventually(ready(x)).Should(HavePrefix("False Conflict: invoices is set by SuperStream"))
		Expect(k8s.Delete(ctx, q)).To(Succeed())
		Eventually(gone(q)).Should(BeTrue())
		Expect(w.there("/", "invoices-0")()).To(BeTrue())

		own := w.queue("bills-1", func(q *posthornv1.Queue) { q.Spec.Type = "stream" })
		create(own)
		Eventually(ready(own)).Should(HavePrefix("True"))
		bills := w.superStream("bills", func(s *posthornv1.SuperStream) { s.Spec.Adoption = posthornv1.AdoptTakeover })
		create(bills)
		Eventually(ready(bills)).Should(Equal("False Conflict: bills is set by Queue " + w.namespace + "/bills-1"))
		Expect(w.there("/", "bills-0")()).To(BeFalse())

		Expect(k8s.Delete(ctx, s)).To(Succeed())
		Eventually(gone(s)).Should(BeTrue())
		Eventually(ready(x)).Should(HavePrefix("True"))
	})

	It("of a tenant is in a vhost of the tenant, and goes with it", func() {
		w := newWorld(open)
		ns := newNamespace(map[string]string{"messaging": "yes"})
		own := "t-" + ns
		w.broker.AddForeignVhost(own)
		in := func(name, vhost string) *posthornv1.SuperStream {
			return w.superStream(name, func(s *posthornv1.SuperStream) { s.Namespace, s.Spec.Vhost, s.Spec.ReclaimPolicy = ns, vhost, "Delete" })
		}
		outside, inside := in("outside", "/"), in("inside", own)
		create(outside)
		create(inside)
		Eventually(ready(outside)).Should(HavePrefix("False NotAllowed"))
		Eventually(ready(inside)).Should(HavePrefix("True"))
		Expect(k8s.Delete(ctx, inside)).To(Succeed())
		Eventually(gone(inside)).Should(BeTrue())
		Expect(w.there(own, "inside-0")()).To(BeFalse())
	})
})

var _ = Describe("streams", func() {
	It("have a port in pods, Services and bindings", func() {
		w := newWorld(speak("amqp", "stream"))
		w.readyWorld()
		for _, ports := range []map[string]bool{w.podPorts("c-0"), w.servicePorts()} {
			Expect(ports).To(And(HaveKey("amqp"), HaveKey("stream"), Not(HaveKey("streams"))))
		}
		u := w.user("app")
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		Expect(string(w.binding("app").Data["stream-port"])).To(Equal("5552"))
		Expect(string(w.binding("app").Data["uri"])).To(HavePrefix("amqp://"))
	})
})
