// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"encoding/json"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// lifecycle is how a kind of object is tested. All objects that make returns stand for the same object in the broker.
type lifecycle struct {
	make func(w *world, name string) client.Object
	// exists reports whether the broker has the object.
	exists func(w *world) bool
	// spoil removes the object, or a part of it, in the broker, or changes it.
	spoil func(w *world)
	// intact reports whether the object is as its resource says; nil: exists does.
	intact func(w *world) bool
	// adoption lets a resource have an object that exists; IfMatching when empty.
	adoption posthornv1.AdoptionPolicy
}

// shared is the name in the broker.
const shared = "shared"

// with sets fields of the spec of an object that is not created yet.
func with(object client.Object, fields map[string]any) client.Object {
	GinkgoHelper()
	plain, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	Expect(err).NotTo(HaveOccurred())
	for name, value := range fields {
		Expect(unstructured.SetNestedField(plain, value, "spec", name)).To(Succeed())
	}
	Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(plain, object)).To(Succeed())
	return object
}

// patchSpec patches fields of the spec.
func patchSpec(object client.Object, fields map[string]any) {
	GinkgoHelper()
	patch, err := json.Marshal(map[string]any{"spec": fields})
	Expect(err).NotTo(HaveOccurred())
	Expect(k8s.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

var lifecycles = map[string]lifecycle{
	"Vhost": {
		make: func(w *world, name string) client.Object {
			return w.vhost(name, func(v *posthornv1.Vhost) { v.Spec.Name = shared })
		},
		exists: func(w *world) bool { _, found := w.broker.Vhost(shared); return found },
		spoil:  func(w *world) { w.broker.RemoveVhost(shared) },
	},
	"Queue": {
		make: func(w *world, name string) client.Object {
			return w.queue(name, func(q *posthornv1.Queue) { q.Spec.Name = shared })
		},
		exists: func(w *world) bool { _, found := w.broker.Queue("/", shared); return found },
		spoil:  func(w *world) { w.broker.RemoveQueue("/", shared) },
	},
	"Exchange": {
		make: func(w *world, name string) client.Object {
			return w.exchange(name, func(x *posthornv1.Exchange) { x.Spec.Name = shared })
		},
		exists: func(w *world) bool { _, found := w.broker.Exchange("/", shared); return found },
		spoil:  func(w *world) { w.broker.RemoveExchange("/", shared) },
	},
	"Binding": {
		make:   func(w *world, name string) client.Object { return w.bindingOf(name) },
		exists: func(w *world) bool { return len(w.broker.Bindings(toOrders)) > 0 },
		spoil:  func(w *world) { w.broker.RemoveBindings(toOrders) },
	},
	"SuperStream": {
		make: func(w *world, name string) client.Object {
			return w.superStream(name, func(s *posthornv1.SuperStream) { s.Spec.Name = shared })
		},
		exists: func(w *world) bool { _, found := w.broker.Exchange("/", shared); return found },
		spoil:  func(w *world) { w.broker.RemoveQueue("/", shared+"-1") },
		intact: func(w *world) bool { _, found := w.broker.Queue("/", shared+"-1"); return found },
	},
	"Policy": {
		make: func(w *world, name string) client.Object {
			return w.policy(name, func(p *posthornv1.Policy) { p.Spec.Name = shared })
		},
		exists: func(w *world) bool { _, found := w.broker.Policy(broker.UserPolicies, "/", shared); return found },
		spoil: func(w *world) {
			w.broker.SetPolicy(broker.UserPolicies, broker.Policy{Vhost: "/", Name: shared, Pattern: "^other", ApplyTo: "queues", Definition: map[string]any{"max-length": 1.0}})
		},
		intact: func(w *world) bool {
			p, _ := w.broker.Policy(broker.UserPolicies, "/", shared)
			return p.Pattern == "^o"
		},
	},
	"User": {
		make: func(w *world, name string) client.Object {
			return w.user(name, func(u *posthornv1.User) { u.Spec.Username = shared })
		},
		exists:   func(w *world) bool { _, found := w.broker.User(shared); return found },
		spoil:    func(w *world) { w.broker.SetUser(shared, "other", "administrator") },
		intact:   func(w *world) bool { return !w.broker.Accepts(shared, "other") },
		adoption: posthornv1.AdoptTakeover,
	},
	"Permission": {
		make: func(w *world, name string) client.Object {
			return w.permission(name, func(p *posthornv1.Permission) { p.Spec.UserRef, p.Spec.User = nil, "legacy" })
		},
		exists: func(w *world) bool { _, found := w.broker.Permission("/", "legacy"); return found },
		spoil:  func(w *world) { w.broker.SetPermission(broker.Permission{Vhost: "/", User: "legacy", Read: "^x"}) },
		intact: func(w *world) bool {
			p, _ := w.broker.Permission("/", "legacy")
			return p.Write == ".*" && p.Read == ""
		},
	},
	"TopicPermission": {
		make: func(w *world, name string) client.Object {
			return w.topicPermission(name, func(p *posthornv1.TopicPermission) { p.Spec.UserRef, p.Spec.User = nil, "legacy" })
		},
		exists: func(w *world) bool { _, found := w.broker.TopicPermission("/", "legacy", "events"); return found },
		spoil:  func(w *world) { w.broker.RemoveTopicPermission("/", "legacy", "events") },
	},
}

// lifecycleWorld has all that the objects of the table need.
func lifecycleWorld() *world {
	GinkgoHelper()
	w := newWorld()
	w.broker.SetUser("legacy", "x")
	w.routes()
	return w
}

var _ = Describe("the life of an object", func() {
	It("is tested for every kind of the topology", func() {
		Expect(lifecycles).To(HaveLen(len(kinds) - 1))
	})

	for kind, c := range lifecycles {
		adoption := c.adoption
		if adoption == "" {
			adoption = posthornv1.AdoptIfMatching
		}
		intact := c.intact
		if intact == nil {
			intact = c.exists
		}

		It("of kind "+kind+" begins with its creation, resists changes, and passes from the older to the younger resource", func() {
			w := lifecycleWorld()
			exists, isIntact := func() bool { return c.exists(w) }, func() bool { return intact(w) }
			older := c.make(w, "older")
			create(older)
			Eventually(ready(older)).Should(HavePrefix("True"))
			Expect(exists()).To(BeTrue())

			By("drift")
			c.spoil(w)
			Eventually(isIntact).Should(BeTrue())
			Eventually(eventsOf(older, "DriftCorrected")).Should(BeNumerically(">=", 1))
			Eventually(ready(older)).Should(HavePrefix("True"))

			By("conflict")
			heir := map[string]any{"adoption": string(adoption), "reclaimPolicy": "Delete"}
			nextSecond(older)
			younger := with(c.make(w, "younger"), heir)
			create(younger)
			Eventually(ready(younger)).Should(And(HavePrefix("False Conflict"), ContainSubstring("is claimed by "+w.namespace+"/older")))
			Expect(k8s.Delete(ctx, younger)).To(Succeed())
			Eventually(gone(younger)).Should(BeTrue())
			Expect(isIntact()).To(BeTrue(), "it never was the younger one's")

			By("reclaim policy Retain")
			younger = with(c.make(w, "younger"), heir)
			create(younger)
			Eventually(ready(younger)).Should(HavePrefix("False Conflict"))
			patchSpec(older, map[string]any{"reclaimPolicy": "Retain"})
			Expect(k8s.Delete(ctx, older)).To(Succeed())
			Eventually(gone(older)).Should(BeTrue())
			Eventually(ready(younger)).Should(HavePrefix("True"))
			Expect(exists()).To(BeTrue())

			By("reclaim policy Delete")
			Expect(k8s.Delete(ctx, younger)).To(Succeed())
			Eventually(gone(younger)).Should(BeTrue())
			Expect(exists()).To(BeFalse())
		})

		It("of kind "+kind+" that exists already is adopted only if the resource may", func() {
			w := lifecycleWorld()
			first := with(c.make(w, "first"), map[string]any{"reclaimPolicy": "Retain"})
			create(first)
			Eventually(ready(first)).Should(HavePrefix("True"))
			Expect(k8s.Delete(ctx, first)).To(Succeed())
			Eventually(gone(first)).Should(BeTrue())
			Expect(c.exists(w)).To(BeTrue())

			second := with(c.make(w, "second"), map[string]any{"adoption": string(posthornv1.AdoptNever), "reclaimPolicy": "Delete"})
			create(second)
			Eventually(ready(second)).Should(HavePrefix("False Conflict"))
			Expect(k8s.Delete(ctx, second)).To(Succeed())
			Eventually(gone(second)).Should(BeTrue())
			Expect(c.exists(w)).To(BeTrue(), "it was never the second one's")

			third := with(c.make(w, "third"), map[string]any{"adoption": string(adoption)})
			create(third)
			Eventually(ready(third)).Should(HavePrefix("True"))
		})
	}
})
