// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// perKind is the number of objects of each kind of the idle operator.
const perKind = 20

// writesIn returns the operator's writes to objects of a namespace since a number of writes, and the present number.
func (r *rights) writesIn(namespace string, since int) (found []string, now int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, write := range r.writes[since:] {
		if strings.Contains(write, "/namespaces/"+namespace+"/") {
			found = append(found, write)
		}
	}
	return found, len(r.writes)
}

// manyObjects returns objects of all kinds inside a broker, perKind of each.
func (w *world) manyObjects() []client.Object {
	var out []client.Object
	for i := range perKind {
		name := func(kind string) string { return fmt.Sprintf("%s-%d", kind, i) }
		out = append(out, w.vhost(name("vhost")), w.queue(name("queue")), w.exchange(name("exchange")),
			w.policy(name("policy"), func(p *posthornv1.Policy) { p.Spec.Pattern = "^none" }),
			w.user(name("user"), func(u *posthornv1.User) { u.Spec.Permissions = nil }),
			w.superStream(name("super"), func(s *posthornv1.SuperStream) { s.Spec.Partitions = 1 }),
			w.bindingOf(name("binding"), func(b *posthornv1.Binding) { b.Spec.Source, b.Spec.Destination = name("exchange"), name("queue") }),
			w.permission(name("permission"), func(p *posthornv1.Permission) { p.Spec.UserRef.Name = name("user") }),
			w.topicPermission(name("topic"), func(p *posthornv1.TopicPermission) { p.Spec.UserRef.Name = name("user") }))
	}
	return out
}

// comparisons returns the lowest number of comparisons with the broker of one of the objects with a path of their own.
func (w *world) comparisons() int {
	counts := map[string]int{}
	for _, call := range w.broker.Calls("/api/", http.MethodGet) {
		counts[call.Path]++
	}
	lowest := counts["/api/nodes"]
	for i := range perKind {
		for _, path := range []string{
			"/api/vhosts/vhost-%d", "/api/queues/%%2F/queue-%d", "/api/exchanges/%%2F/exchange-%d", "/api/policies/%%2F/policy-%d",
			"/api/users/" + w.namespace + "-user-%d",
		} {
			lowest = min(lowest, counts[fmt.Sprintf(path, i)])
		}
	}
	return lowest
}

var _ = Describe("an idle operator", func() {
	It("compares hundreds of objects with the broker and writes nothing", func() {
		w := newWorld()
		w.readyWorld()
		objects := w.manyObjects()
		for _, object := range objects {
			create(object)
		}
		for _, object := range objects {
			Eventually(ready(object)).Should(HavePrefix("True"), "%T", object)
		}
		// round waits until each object has been compared a number of times more, and returns the writes since then.
		round := func(times int) []string {
			GinkgoHelper()
			_, since := asked.writesIn(w.namespace, 0)
			// One comparison may have begun before.
			reached := w.comparisons() + times + 1
			Eventually(w.comparisons).Should(BeNumerically(">=", reached))
			found, _ := asked.writesIn(w.namespace, since)
			return found
		}
		Eventually(func() []string { return round(1) }).Should(BeEmpty(), "the first states are written")
		Expect(round(2)).To(BeEmpty())
		q := w.queue("queue-0")
		change(q, func(q *posthornv1.Queue) { q.Spec.Replicas = 3 })
		Expect(round(1)).NotTo(BeEmpty(), "the check sees writes")
	})
})
