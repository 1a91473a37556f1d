// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/pki"
)

// asked returns the calls to the broker since a number of them, with TLS or without.
func (w *world) asked(since int, secure bool) []brokertest.Call {
	var out []brokertest.Call
	for _, call := range w.broker.Calls("/")[since:] {
		if call.Secure == secure {
			out = append(out, call)
		}
	}
	return out
}

// worksWithQueues creates a queue to check that the operator reaches the broker.
func (w *world) worksWithQueues(name string) {
	GinkgoHelper()
	q := w.queue(name)
	create(q)
	Eventually(ready(q)).Should(HavePrefix("True"))
}

// secretOf returns a Secret with a certificate of a CA.
func secretOf(namespace, name string, authority pki.Pair, lifetime time.Duration, hosts ...string) *corev1.Secret {
	GinkgoHelper()
	made := tlsSecret(namespace, name, lifetime, hosts...)
	pair, err := pki.Issue(authority, pki.Leaf{Name: "test", Hosts: hosts, Lifetime: lifetime}, time.Now())
	Expect(err).NotTo(HaveOccurred())
	made.Data = map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key, "ca.crt": authority.Cert}
	return made
}

// servicePorts returns the ports of both Services by name.
func (w *world) servicePorts() map[string]bool {
	GinkgoHelper()
	out := map[string]bool{}
	for _, name := range []string{"c", "c-nodes"} {
		var service corev1.Service
		Expect(k8s.Get(ctx, w.key(name), &service)).To(Succeed())
		for _, port := range service.Spec.Ports {
			out[port.Name] = true
		}
	}
	return out
}

var _ = Describe("the operator asks nodes", func() {
	It("with its own certificate, and follows the replacement of its CA", func() {
		w := newWorld()
		w.readyWorld()
		w.worksWithQueues("orders")
		for _, call := range w.asked(0, true) {
			Expect(call.Operator).To(BeTrue(), "%+v", call)
		}
		secret, authority := &corev1.Secret{}, &corev1.Secret{}
		Expect(k8s.Get(ctx, w.key("c-operator-certificate"), secret)).To(Succeed())
		Expect(k8s.Get(ctx, w.key("c-operator-ca"), authority)).To(Succeed())
		// Both are lost: the nodes learn of another CA, and the operator presents a certificate of it.
		Expect(k8s.Delete(ctx, authority)).To(Succeed())
		Expect(k8s.Delete(ctx, secret)).To(Succeed())
		lost := strings.Split(string(secret.Data["tls.crt"]), "\n")[1]
		var note corev1.Secret
		Eventually(func() string {
			_ = k8s.Get(ctx, w.key("c-operator"), &note)
			return string(note.Data["identity.json"])
		}).ShouldNot(ContainSubstring(lost))
		w.broker.DropConnections()
		w.worksWithQueues("after")
		w.readyWorld()
	})

	It("by password where they support nothing else, also during a roll", func() {
		w := newWorld(setEarlier)
		w.readyWorld()
		w.worksWithQueues("before")
		name, _, _ := strings.Cut(w.credentials(), " ")
		for _, call := range w.broker.Calls("/") {
			Expect(call.Operator && call.Node != "").To(BeFalse(), "%+v", call)
		}
		w.broker.SetLeaders("c-1", 7)
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.PodTemplate = nil })
		Eventually(w.rollout).Should(Equal("Draining c-1"))
		w.worksWithQueues("halfway")
		w.broker.SetLeaders("c-1", 0)
		w.readyWorld()
		since := len(w.broker.Calls("/"))
		w.broker.SetUser(name, "changed behind its back", "administrator")
		w.worksWithQueues("there")
		for _, call := range w.broker.Calls("/")[since:] {
			Expect(call.Operator).To(BeTrue(), "%+v", call)
		}
	})
})

var _ = Describe("the operator asks nodes that know passwords only over TLS", func() {
	It("over TLS alone, and verifies their certificates", func() {
		w := newWorld(setEarlier, setTLS(posthornv1.TLSSpec{DisablePlaintext: true}), func(c *posthornv1.BrokerCluster) {
			c.Spec.NetworkPolicy.Mode = posthornv1.NetworkPolicyStrict
		})
		w.readyWorld()
		w.worksWithQueues("orders")
		Expect(w.asked(0, false)).To(BeEmpty())
		Expect(w.servicePorts()).To(And(HaveKey("management-tls"), Not(HaveKey("management"))))
		var policy networkingv1.NetworkPolicy
		Expect(k8s.Get(ctx, w.key("c"), &policy)).To(Succeed())
		for _, rule := range policy.Spec.Ingress {
			for _, port := range rule.Ports {
				Expect(port.Port.IntValue()).NotTo(Or(Equal(15672), Equal(5672)))
			}
		}

		// A certificate of another CA for the same names: not one request succeeds.
		stranger := tlsSecret(w.namespace, "stranger", time.Hour, "c."+w.namespace+".svc")
		Expect(brokers.pretend(w.key(clusterName), stranger)).To(Succeed())
		w.broker.DropConnections()
		calls := len(w.broker.Calls("/"))
		q := w.queue("secret")
		create(q)
		Eventually(ready(q)).Should(And(HavePrefix("False BrokerUnreachable"), ContainSubstring("certificate")))
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionQuorumSafe)).Should(And(HavePrefix("Unknown CertificateNotBelieved"), ContainSubstring("c-0, c-1, c-2")))
		Expect(w.broker.Calls("/")).To(HaveLen(calls))
		brokers.release(w.key(clusterName))
		Eventually(ready(q)).Should(HavePrefix("True"))
	})

	It("over TLS while any node has it, on the way there and back", func() {
		w := newWorld(setEarlier)
		w.readyWorld()
		w.broker.SetLeaders("c-1", 7)
		w.changeCluster(setTLS(posthornv1.TLSSpec{DisablePlaintext: true}))
		Eventually(w.rollout).Should(Equal("Draining c-1"))
		w.worksWithQueues("halfway")
		Expect(w.servicePorts()).To(And(HaveKey("management-tls"), HaveKey("management")), "both kinds of nodes are there")
		w.broker.SetLeaders("c-1", 0)
		w.readyWorld()
		Eventually(w.servicePorts).ShouldNot(HaveKey("management"))
		since := len(w.broker.Calls("/"))
		w.worksWithQueues("there")
		Expect(w.asked(since, false)).To(BeEmpty())

		w.broker.SetLeaders("c-1", 7)
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.TLS = nil })
		Eventually(w.rollout).Should(Equal("Draining c-1"))
		w.worksWithQueues("back")
		w.broker.SetLeaders("c-1", 0)
		w.readyWorld()
		Eventually(w.servicePorts).ShouldNot(HaveKey("management-tls"))
		w.worksWithQueues("plain")
		var note corev1.Secret
		Eventually(func() map[string][]byte {
			_ = k8s.Get(ctx, w.key("c-operator"), &note)
			return note.Data
		}).ShouldNot(HaveKey("scheme"))
	})

	It("and follows the replacement of the CA, also while nodes still show the old certificate", func() {
		w := newWorld(setEarlier, setTLS(posthornv1.TLSSpec{SecretName: "mine"}))
		now := time.Now()
		first, err := pki.NewAuthority("first", now)
		Expect(err).NotTo(HaveOccurred())
		second, err := pki.NewAuthority("second", now)
		Expect(err).NotTo(HaveOccurred())
		host := "c." + w.namespace + ".svc"
		secret := secretOf(w.namespace, "mine", first, 1000*time.Hour, host)
		create(secret)
		w.readyWorld()
		w.worksWithQueues("before")
		Expect(brokers.hold(w.key(clusterName))).To(Succeed())
		next := secretOf(w.namespace, "mine", second, 1000*time.Hour, host)
		change(secret, func(s *corev1.Secret) { s.Data = next.Data })
		var note corev1.Secret
		Eventually(func() string {
			_ = k8s.Get(ctx, w.key("c-operator"), &note)
			return string(note.Data["trust.json"])
		}).Should(ContainSubstring("superseded"))
		w.broker.DropConnections()
		w.worksWithQueues("meanwhile")
		brokers.release(w.key(clusterName))
		w.broker.DropConnections()
		since := len(w.broker.Calls("/"))
		w.worksWithQueues("after")
		Expect(w.asked(since, true)).NotTo(BeEmpty())
		w.readyWorld()
		Expect(w.cluster().Status.Rollout).To(BeNil())
	})

	It("for any host name in the certificate of a given Secret, and changes to another Secret", func() {
		w := newWorld(setEarlier, setTLS(posthornv1.TLSSpec{SecretName: "public", DNSNames: []posthornv1.DNSName{"mq.example.com"}}))
		// Like a certificate of a public CA: no name inside Kubernetes, no CA certificate in the Secret.
		public := tlsSecret(w.namespace, "public", 1000*time.Hour, "mq.example.com")
		delete(public.Data, "ca.crt")
		create(public)
		w.readyWorld()
		Expect(conditionOf(w.cluster(), certificatesReady)()).To(HavePrefix("True NameMissing"))
		w.worksWithQueues("public")
		create(tlsSecret(w.namespace, "own", 1000*time.Hour, "c."+w.namespace+".svc"))
		w.broker.SetLeaders("c-1", 7)
		w.changeCluster(setTLS(posthornv1.TLSSpec{SecretName: "own"}))
		Eventually(w.rollout).Should(Equal("Draining c-1"))
		Expect(k8s.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "public"}})).To(Succeed())
		Expect(brokers.pretend(w.key(clusterName), public)).To(Succeed())
		w.broker.DropConnections()
		w.worksWithQueues("halfway")
		brokers.release(w.key(clusterName))
		w.broker.SetLeaders("c-1", 0)
	})

	It("also in a pause, when another controller renews the certificate", func() {
		w := newWorld(setEarlier, setTLS(posthornv1.TLSSpec{SecretName: "mine"}))
		host := "c." + w.namespace + ".svc"
		secret := tlsSecret(w.namespace, "mine", 1000*time.Hour, host)
		create(secret)
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Paused = true })
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionPaused)).Should(HavePrefix("True"))
		next := tlsSecret(w.namespace, "mine", 1000*time.Hour, host)
		change(secret, func(s *corev1.Secret) { s.Data = next.Data })
		w.broker.DropConnections()
		w.worksWithQueues("orders")
	})

	It("and starts no node with a certificate without a host name", func() {
		w := newWorld(setEarlier, setTLS(posthornv1.TLSSpec{SecretName: "mine"}))
		create(tlsSecret(w.namespace, "mine", 1000*time.Hour))
		Eventually(conditionOf(w.cluster(), certificatesReady)).Should(And(HavePrefix("False InvalidCertificate"), ContainSubstring("has no host name")))
		Expect(client.IgnoreNotFound(k8s.Get(ctx, w.key("c"), &corev1.Service{}))).To(Succeed())
		Expect(w.statefulSet()).To(BeNil())
	})
})
