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

func (w *world) hasExchange(name string) func() bool {
	return func() bool {
		_, found := w.broker.Exchange("/", name)
		return found
	}
}

var _ = Describe("Exchange", func() {
	It("is declared, and kept when the object is deleted", func() {
		w := newWorld()
		x := w.exchange("events", func(x *posthornv1.Exchange) {
			x.Spec.Type, x.Spec.Durable, x.Spec.Internal = "topic", new(false), true
			x.Spec.Arguments = map[string]apiextensionsv1.JSON{"alternate-exchange": value(`"amq.fanout"`)}
		})
		create(x)
		Eventually(ready(x)).Should(HavePrefix("True"))
		made, _ := w.broker.Exchange("/", "events")
		Expect(made).To(Equal(broker.Exchange{
			Name: "events", Vhost: "/", Type: "topic", Internal: true, Arguments: map[string]any{"alternate-exchange": "amq.fanout"},
		}))
		made.Policy = "routed"
		w.broker.SetExchange(made)
		Eventually(func() string { _ = ready(x)(); return x.Status.EffectivePolicy }).Should(Equal("routed"))
		puts := len(w.broker.Calls("/api/exchanges/", http.MethodPut))
		Consistently(func() int { return len(w.broker.Calls("/api/exchanges/", http.MethodPut)) }).Should(Equal(puts), "nothing is written when nothing differs")
		Expect(k8s.Delete(ctx, x)).To(Succeed())
		Eventually(gone(x)).Should(BeTrue())
		Expect(w.hasExchange("events")()).To(BeTrue())
	})

	It("is durable and direct by default, declared again when somebody deletes it, and deleted with reclaimPolicy Delete", func() {
		w := newWorld()
		x := w.exchange("events", func(x *posthornv1.Exchange) { x.Spec.ReclaimPolicy = "Delete" })
		create(x)
		Eventually(ready(x)).Should(HavePrefix("True"))
		made, _ := w.broker.Exchange("/", "events")
		Expect(made.Durable).To(BeTrue())
		Expect(made.Type).To(Equal("direct"))
		w.broker.RemoveExchange("/", "events")
		Eventually(w.hasExchange("events")).Should(BeTrue())
		Eventually(eventsOf(x, "DriftCorrected")).Should(Equal(1))
		Expect(k8s.Delete(ctx, x)).To(Succeed())
		Eventually(gone(x)).Should(BeTrue())
		Expect(w.hasExchange("events")()).To(BeFalse())
	})

	It("with other immutable properties than the one in the broker is a terminal error that names them", func() {
		w := newWorld()
		w.broker.SetExchange(broker.Exchange{Name: "events", Vhost: "/", Type: "fanout", AutoDelete: true, Arguments: map[string]any{"a": 1.0}})
		x := w.exchange("events", func(x *posthornv1.Exchange) { x.Spec.Type = "topic" })
		create(x)
		Eventually(ready(x)).Should(And(HavePrefix("False Conflict"), ContainSubstring("type, durable, autoDelete, arguments.a")))
		change(x, func(x *posthornv1.Exchange) { x.Spec.Adoption = posthornv1.AdoptTakeover })
		Eventually(ready(x)).Should(And(HavePrefix("False ImmutableChange"), ContainSubstring("[type durable autoDelete arguments.a], which cannot be changed")))
		Expect(conditionOf(x, posthornv1.ConditionStalled)()).To(HavePrefix("True"))
		Expect(x.Status.ObservedGeneration).To(Equal(x.Generation))
		Expect(w.broker.Calls("/api/exchanges/", http.MethodPut, http.MethodDelete)).To(BeEmpty())
		w.broker.RemoveExchange("/", "events")
		Eventually(ready(x)).Should(HavePrefix("True"))
		change(x, func(x *posthornv1.Exchange) {
			x.Spec.Arguments = map[string]apiextensionsv1.JSON{"alternate-exchange": value(`"a"`)}
		})
		Eventually(ready(x)).Should(And(HavePrefix("False ImmutableChange"), ContainSubstring("[arguments.alternate-exchange]")))
	})

	It("conflicts with an older object for the same exchange, and takes over from it when that is deleted", func() {
		w := newWorld()
		first := w.exchange("first", func(x *posthornv1.Exchange) { x.Spec.Name, x.Spec.ReclaimPolicy = "events", "Delete" })
		create(first)
		Eventually(ready(first)).Should(HavePrefix("True"))
		second := w.exchange("second", func(x *posthornv1.Exchange) { x.Spec.Name, x.Spec.Type = "events", "topic" })
		create(second)
		Eventually(ready(second)).Should(HavePrefix("False Conflict: events is claimed by"))
		Expect(k8s.Delete(ctx, first)).To(Succeed())
		Eventually(ready(second)).Should(HavePrefix("True"))
		made, _ := w.broker.Exchange("/", "events")
		Expect(made.Type).To(Equal("topic"))
	})

	It("reports the broker's message about invalid arguments, and a missing vhost", func() {
		w := newWorld()
		x := w.exchange("events", func(x *posthornv1.Exchange) { x.Spec.Vhost = "nowhere" })
		create(x)
		Eventually(ready(x)).Should(Equal(`False VhostNotFound: the broker has no vhost "nowhere"`))
		null := w.exchange("null", func(x *posthornv1.Exchange) { x.Spec.Arguments = map[string]apiextensionsv1.JSON{"a": value("null")} })
		create(null)
		Eventually(ready(null)).Should(Or(HavePrefix("True"), HavePrefix("False Invalid: a has no value")))
	})

	It("of a tenant is in a vhost of the tenant", func() {
		w := newWorld(open)
		ns := newNamespace(map[string]string{"messaging": "yes"})
		own := "t-" + ns
		w.broker.AddForeignVhost(own)
		in := func(name, vhost string) *posthornv1.Exchange {
			return w.exchange(name, func(x *posthornv1.Exchange) { x.Namespace, x.Spec.Vhost = ns, vhost })
		}
		outside, inside := in("outside", "/"), in("inside", own)
		create(outside)
		create(inside)
		Eventually(ready(outside)).Should(HavePrefix("False NotAllowed"))
		Eventually(ready(inside)).Should(HavePrefix("True"))
	})
})
