// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

var _ = Describe("Policy", func() {
	It("is set, changed and removed", func() {
		w := newWorld()
		q := w.queue("orders")
		create(q)
		p := w.policy("bound")
		create(p)
		Eventually(ready(p)).Should(HavePrefix("True"))
		made, _ := w.broker.Policy(broker.UserPolicies, "/", "bound")
		Expect(made).To(Equal(broker.Policy{Vhost: "/", Name: "bound", Pattern: "^o", ApplyTo: "queues", Priority: 1, Definition: map[string]any{"max-length": 10.0}}))
		Eventually(func() string { _ = ready(q)(); return q.Status.EffectivePolicy }).Should(Equal("bound"))
		Eventually(func() int32 { _ = ready(p)(); return p.Status.MatchedQueues }).Should(BeEquivalentTo(1))

		change(p, func(p *posthornv1.Policy) { p.Spec.Priority, p.Spec.Pattern = 7, "^x" })
		Eventually(func() int32 { made, _ := w.broker.Policy(broker.UserPolicies, "/", "bound"); return made.Priority }).Should(BeEquivalentTo(7))
		Eventually(func() int32 { _ = ready(p)(); return p.Status.MatchedQueues }).Should(BeEquivalentTo(0))
		Expect(eventsOf(p, "DriftCorrected")()).To(Equal(0), "a change of the spec is no drift")

		Expect(k8s.Delete(ctx, p)).To(Succeed())
		Eventually(gone(p)).Should(BeTrue())
		_, found := w.broker.Policy(broker.UserPolicies, "/", "bound")
		Expect(found).To(BeFalse())
	})

	It("is corrected when somebody changes it in the broker", func() {
		w := newWorld()
		p := w.policy("bound")
		create(p)
		Eventually(ready(p)).Should(HavePrefix("True"))
		made, _ := w.broker.Policy(broker.UserPolicies, "/", "bound")
		made.Definition = map[string]any{"max-length": 999.0, "expires": 1.0}
		w.broker.SetPolicy(broker.UserPolicies, made)
		Eventually(func() any {
			made, _ := w.broker.Policy(broker.UserPolicies, "/", "bound")
			return made.Definition
		}).Should(Equal(map[string]any{"max-length": 10.0}))
		Eventually(eventsOf(p, "DriftCorrected")).Should(Equal(1))
	})

	It("reports the broker's message about an unknown definition", func() {
		w := newWorld()
		p := w.policy("bound", func(p *posthornv1.Policy) {
			skipValidation(p)
			p.Spec.Definition = map[string]apiextensionsv1.JSON{"max-size": value("10")}
		})
		create(p)
		Eventually(ready(p)).Should(And(HavePrefix("False BrokerRefused"), ContainSubstring("not recognised policy settings")))
		Expect(p.Status.ObservedGeneration).To(Equal(p.Generation))
		change(p, func(p *posthornv1.Policy) {
			p.Spec.Definition = map[string]apiextensionsv1.JSON{"max-length": value("10")}
		})
		Eventually(ready(p)).Should(HavePrefix("True"))
	})

	It("keeps operator policies apart from user policies of the same name", func() {
		w := newWorld()
		q := w.queue("orders")
		create(q)
		create(w.policy("user-one", func(p *posthornv1.Policy) { p.Spec.Name = "bound" }))
		limit := w.policy("operator-one", func(p *posthornv1.Policy) { p.Spec.Name, p.Spec.Scope = "bound", "Operator" })
		create(limit)
		Eventually(ready(limit)).Should(HavePrefix("True"))
		_, found := w.broker.Policy(broker.OperatorPolicies, "/", "bound")
		Expect(found).To(BeTrue())
		Eventually(func() string { _ = ready(q)(); return q.Status.EffectiveOperatorPolicy }).Should(Equal("bound"))
	})

	It("names the policies that apply instead of it", func() {
		w := newWorld()
		create(w.queue("orders"))
		weak := w.policy("weak")
		create(weak)
		create(w.policy("strong", func(p *posthornv1.Policy) { p.Spec.Priority = 9 }))
		Eventually(func() []string { _ = ready(weak)(); return weak.Status.ShadowedBy }).Should(Equal([]string{"strong"}))
		Expect(weak.Status.MatchedQueues).To(BeEquivalentTo(0))
	})

	It("adopts a policy only when it is equal", func() {
		w := newWorld()
		w.broker.SetPolicy(broker.UserPolicies, broker.Policy{Vhost: "/", Name: "bound", Pattern: "^o", ApplyTo: "queues", Priority: 2, Definition: map[string]any{"max-length": 10.0}})
		p := w.policy("bound")
		create(p)
		Eventually(ready(p)).Should(And(HavePrefix("False Conflict"), ContainSubstring("priority")))
		change(p, func(p *posthornv1.Policy) { p.Spec.Priority = 2 })
		Eventually(ready(p)).Should(HavePrefix("True"))
	})
})
