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

// toOrders are the ends of the binding of bindingOf.
var toOrders = broker.BindingEnds{Vhost: "/", Source: "events", Destination: "orders"}

func (w *world) bindingCount(ends broker.BindingEnds) func() int {
	return func() int { return len(w.broker.Bindings(ends)) }
}

// routes creates the exchange events and the queue orders in the broker.
func (w *world) routes() {
	w.broker.SetExchange(broker.Exchange{Name: "events", Vhost: "/", Type: "topic", Durable: true})
	w.broker.SetQueue(broker.Queue{Name: "orders", Vhost: "/", Type: "quorum", Durable: true})
}

var _ = Describe("Binding", func() {
	It("waits for its exchange and its queue, and says for which", func() {
		w := newWorld()
		b := w.bindingOf("b")
		create(b)
		Eventually(ready(b)).Should(Equal(`False SourceNotFound: waits for exchange "events" in vhost "/"`))
		Expect(conditionOf(b, posthornv1.ConditionStalled)()).To(Equal("absent"), "it is no failure")
		create(w.exchange("events"))
		Eventually(ready(b)).Should(Equal(`False DestinationNotFound: waits for queue "orders" in vhost "/"`))
		create(w.queue("orders"))
		Eventually(ready(b)).Should(HavePrefix("True"))
		Expect(w.broker.Bindings(toOrders)).To(ConsistOf(broker.Binding{RoutingKey: "a.b", Arguments: map[string]any{}, PropertiesKey: "a.b"}))
		Expect(b.Status.PropertiesKey).To(Equal("a.b"))
		posts := len(w.broker.Calls("/api/bindings/", http.MethodPost))
		Consistently(func() int { return len(w.broker.Calls("/api/bindings/", http.MethodPost)) }).Should(Equal(posts))
		Expect(k8s.Delete(ctx, b)).To(Succeed())
		Eventually(gone(b)).Should(BeTrue())
		Expect(w.bindingCount(toOrders)()).To(BeZero())
	})

	It("of two exchanges waits for the destination", func() {
		w := newWorld()
		w.routes()
		b := w.bindingOf("b", func(b *posthornv1.Binding) {
			b.Spec.Source, b.Spec.Destination, b.Spec.DestinationType = "events", "audit", "exchange"
		})
		create(b)
		Eventually(ready(b)).Should(Equal(`False DestinationNotFound: waits for exchange "audit" in vhost "/"`))
		create(w.exchange("audit"))
		Eventually(ready(b)).Should(HavePrefix("True"))
		Expect(w.bindingCount(broker.BindingEnds{Vhost: "/", Source: "events", Destination: "audit", ToExchange: true})()).To(Equal(1))
	})

	It("is created again when somebody deletes it or its queue", func() {
		w := newWorld()
		w.routes()
		b := w.bindingOf("b")
		create(b)
		Eventually(ready(b)).Should(HavePrefix("True"))
		w.broker.RemoveBindings(toOrders)
		Eventually(w.bindingCount(toOrders)).Should(Equal(1))
		Eventually(eventsOf(b, "DriftCorrected")).Should(Equal(1))
		w.broker.RemoveQueue("/", "orders")
		Eventually(ready(b)).Should(HavePrefix("False DestinationNotFound"))
		w.routes()
		Eventually(ready(b)).Should(HavePrefix("True"))
	})

	It("distinguishes bindings by routing key and arguments, deletes only its own, and keeps one with Retain", func() {
		w := newWorld()
		w.broker.SetExchange(broker.Exchange{Name: "events", Vhost: "/", Type: "headers", Durable: true})
		w.broker.SetQueue(broker.Queue{Name: "orders", Vhost: "/", Type: "quorum", Durable: true})
		matching := func(json string) func(*posthornv1.Binding) {
			return func(b *posthornv1.Binding) {
				b.Spec.RoutingKey = ""
				b.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-match": value(`"all"`), "n": value(json)}
			}
		}
		one, two, plain := w.bindingOf("one", matching("1")), w.bindingOf("two", matching("true")), w.bindingOf("plain", func(b *posthornv1.Binding) {
			b.Spec.RoutingKey, b.Spec.ReclaimPolicy = "", "Retain"
		})
		for _, b := range []*posthornv1.Binding{one, two, plain} {
			create(b)
			Eventually(ready(b)).Should(HavePrefix("True"))
		}
		Expect(plain.Status.PropertiesKey).To(Equal("~"))
		Expect(w.bindingCount(toOrders)()).To(Equal(3))
		Expect(k8s.Delete(ctx, one)).To(Succeed())
		Eventually(gone(one)).Should(BeTrue())
		Expect(w.bindingCount(toOrders)()).To(Equal(2))
		Expect(k8s.Delete(ctx, plain)).To(Succeed())
		Eventually(gone(plain)).Should(BeTrue())
		Expect(w.bindingCount(toOrders)()).To(Equal(2))
		Expect(ready(two)()).To(HavePrefix("True"))
	})

	It("refuses other arguments, and still deletes the binding that it created", func() {
		w := newWorld()
		w.routes()
		b := w.bindingOf("b")
		create(b)
		Eventually(ready(b)).Should(HavePrefix("True"))
		change(b, func(b *posthornv1.Binding) { b.Spec.Arguments = map[string]apiextensionsv1.JSON{"a": value("1")} })
		Eventually(ready(b)).Should(HavePrefix("False ImmutableChange: spec.arguments is immutable"))
		Expect(w.bindingCount(toOrders)()).To(Equal(1))
		Expect(k8s.Delete(ctx, b)).To(Succeed())
		Eventually(gone(b)).Should(BeTrue())
		Expect(w.bindingCount(toOrders)()).To(BeZero())
	})

	It("reports the broker's message about invalid arguments, and corrected arguments work", func() {
		w := newWorld()
		w.broker.SetExchange(broker.Exchange{Name: "events", Vhost: "/", Type: "headers", Durable: true})
		w.broker.SetQueue(broker.Queue{Name: "orders", Vhost: "/", Type: "quorum", Durable: true})
		b := w.bindingOf("b", func(b *posthornv1.Binding) {
			b.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-match": value(`"most"`)}
		})
		create(b)
		Eventually(ready(b)).Should(And(HavePrefix("False BrokerRefused"), ContainSubstring("x-match")))
		Expect(k8s.Delete(ctx, b)).To(Succeed())
		Eventually(gone(b)).Should(BeTrue())
	})

	It("is adopted when it exists, unless adoption is Never, and belongs to the older of two objects", func() {
		w := newWorld()
		w.routes()
		first := w.bindingOf("first")
		create(first)
		Eventually(ready(first)).Should(HavePrefix("True"))
		second := w.bindingOf("second")
		create(second)
		Eventually(ready(second)).Should(And(HavePrefix("False Conflict"), ContainSubstring("is claimed by "+w.namespace+"/first")))
		Expect(k8s.Delete(ctx, second)).To(Succeed())
		Eventually(gone(second)).Should(BeTrue())
		Expect(w.bindingCount(toOrders)()).To(Equal(1))
		change(first, func(b *posthornv1.Binding) { b.Spec.ReclaimPolicy = "Retain" })
		Expect(k8s.Delete(ctx, first)).To(Succeed())
		Eventually(gone(first)).Should(BeTrue())
		never := w.bindingOf("never", func(b *posthornv1.Binding) { b.Spec.Adoption = posthornv1.AdoptNever })
		create(never)
		Eventually(ready(never)).Should(And(HavePrefix("False Conflict"), ContainSubstring("did not create it")))
		Expect(k8s.Delete(ctx, never)).To(Succeed())
		adopting := w.bindingOf("adopting")
		create(adopting)
		Eventually(ready(adopting)).Should(HavePrefix("True"))
	})

	It("of a tenant is in a vhost of the tenant", func() {
		w := newWorld(open)
		ns := newNamespace(map[string]string{"messaging": "yes"})
		w.routes()
		b := w.bindingOf("outside", func(b *posthornv1.Binding) { b.Namespace = ns })
		create(b)
		Eventually(ready(b)).Should(HavePrefix("False NotAllowed"))
		Expect(w.bindingCount(toOrders)()).To(BeZero())
	})
})
