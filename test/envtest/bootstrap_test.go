// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"net/http"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

var _ = Describe("bootstrap", func() {
	definitions := func(w *world, text string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "begin"}, Data: map[string][]byte{"definitions.json": []byte(text)}}
	}
	begin := func(c *posthornv1.BrokerCluster) {
		c.Spec.Bootstrap = &posthornv1.BootstrapSpec{DefinitionsSecretRef: &posthornv1.SecretKeyReference{Name: "begin"}}
	}

	It("imports definitions once, and reports why they cannot be imported until then", func() {
		w := newWorld(begin)
		Eventually(ready(w.cluster())).Should(HavePrefix("False DefinitionsNotImported: Secret begin does not exist"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionAvailable)()).To(HavePrefix("True"), "the cluster works meanwhile")
		secret := definitions(w, `{"queues":`)
		create(secret)
		Eventually(ready(w.cluster())).Should(HavePrefix("False DefinitionsNotImported: key definitions.json of Secret begin is not a JSON object"))
		change(secret, func(s *corev1.Secret) {
			s.Data["definitions.json"] = []byte(`{"queues":[{"name":"orders","vhost":"shop","type":"quorum","durable":true}]}`)
		})
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False DefinitionsNotImported"), ContainSubstring("vhost 'shop' does not exist")))
		change(secret, func(s *corev1.Secret) {
			s.Data["definitions.json"] = []byte(`{"vhosts":[{"name":"shop"}],"queues":[{"name":"orders","vhost":"shop","type":"quorum","durable":true}]}`)
		})
		Eventually(ready(w.cluster())).Should(HavePrefix("True"))
		Expect(w.there("shop", "orders")()).To(BeTrue())
		Eventually(eventsOf(w.cluster(), "DefinitionsImported")).Should(Equal(1))

		// No second import, even if the queue, the Secret or the status changes.
		imports := len(w.broker.Calls("/api/definitions", http.MethodPost))
		w.broker.RemoveQueue("shop", "orders")
		Expect(k8s.Delete(ctx, secret)).To(Succeed())
		cluster := w.cluster()
		before := cluster.DeepCopy()
		cluster.Status = posthornv1.BrokerClusterStatus{}
		Expect(k8s.Status().Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
		w.readyWorld()
		Consistently(func() int { return len(w.broker.Calls("/api/definitions", http.MethodPost)) }).Should(Equal(imports))
		refusedWith(w.tryCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Bootstrap = nil }), "bootstrap applies to new clusters only")
	})
})
