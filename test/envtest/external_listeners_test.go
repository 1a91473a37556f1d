// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// withExternal gives a cluster AMQP, streams and external listeners.
func withExternal(spec posthornv1.ExternalListenersSpec) func(*posthornv1.BrokerCluster) {
	return func(c *posthornv1.BrokerCluster) {
		c.Spec.Protocols = []posthornv1.Protocol{posthornv1.ProtocolAMQP, posthornv1.ProtocolStream}
		c.Spec.ExternalListeners = &spec
	}
}

func (w *world) externalService(ordinal int) *corev1.Service {
	GinkgoHelper()
	var service corev1.Service
	Eventually(func() error { return k8s.Get(ctx, w.key(fmt.Sprintf("c-%d-external", ordinal)), &service) }).Should(Succeed())
	return &service
}

// externalServices counts the Services of single nodes.
func (w *world) externalServices() int {
	var list corev1.ServiceList
	if err := k8s.List(ctx, &list, client.InNamespace(w.namespace), client.MatchingLabels{"app.kubernetes.io/component": "external"}); err != nil {
		return -1
	}
	return len(list.Items)
}

// giveAddress takes the place of the controller of load balancers.
func (w *world) giveAddress(ordinal int, ip string) {
	GinkgoHelper()
	service := w.externalService(ordinal)
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
	Expect(k8s.Status().Update(ctx, service)).To(Succeed())
}

var _ = Describe("external listeners", func() {
	It("advertises the address of each node's load balancer without a restart", func() {
		w := newWorld(withExternal(posthornv1.ExternalListenersSpec{
			Protocols:                []posthornv1.Protocol{posthornv1.ProtocolStream},
			Annotations:              map[string]string{"dns.example/host": "{node}.{namespace}.example", "plain": "x"},
			LoadBalancerSourceRanges: []posthornv1.SourceRange{"10.0.0.0/8"},
		}))
		w.readyWorld()
		w.reloadable()
		before := w.podUIDs()
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionExternalReady)).Should(And(
			HavePrefix("False NoAddress: no external address of c-0, c-1, c-2: its load balancer has no address yet")))
		service := w.externalService(1)
		Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeLoadBalancer))
		Expect(service.Spec.Selector).To(HaveKeyWithValue("statefulset.kubernetes.io/pod-name", "c-1"))
		Expect(service.Spec.LoadBalancerSourceRanges).To(Equal([]string{"10.0.0.0/8"}))
		Expect(service.Annotations).To(And(HaveKeyWithValue("dns.example/host", "c-1."+w.namespace+".example"), HaveKeyWithValue("plain", "x")))
		Expect(service.Spec.Ports).To(HaveLen(1))
		Expect(service.Spec.Ports[0].Port).To(Equal(int32(5552)))
		for i := range 3 {
			w.giveAddress(i, fmt.Sprintf("192.0.2.%d", i+1))
		}
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionExternalReady)).Should(HavePrefix("True AddressesKnown"))
		Eventually(w.running("advertised_nodes.c-1.stream")).Should(HaveEach("192.0.2.2:5552"))
		Eventually(w.running("advertised_nodes.c-2.stream")).Should(HaveEach("192.0.2.3:5552"))
		Expect(w.cluster().Status.Members[2].External).To(Equal([]posthornv1.ExternalAddress{{Listener: "stream", Host: "192.0.2.3", Port: 5552}}))
		Expect(w.podUIDs()).To(Equal(before))

		By("another address of a load balancer")
		w.giveAddress(1, "192.0.2.99")
		Eventually(w.running("advertised_nodes.c-1.stream")).Should(HaveEach("192.0.2.99:5552"))

		By("a repair by the operator")
		change(w.externalService(0), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"other": "x"} })
		Eventually(func() map[string]string { return w.externalService(0).Spec.Selector }).Should(HaveKey("statefulset.kubernetes.io/pod-name"))

		By("no external listeners")
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.ExternalListeners = nil })
		Eventually(w.externalServices).Should(BeZero())
		Eventually(w.running("advertised_nodes.c-1.stream")).Should(HaveEach(""))
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionExternalReady)).Should(Equal("absent"))
		Expect(w.podUIDs()).To(Equal(before))
	})

	It("names hosts from the template, in the certificate too, and removes the Service of a removed node", func() {
		w := newWorld(withExternal(posthornv1.ExternalListenersSpec{Type: corev1.ServiceTypeNodePort, HostTemplate: "{node}.mq.example"}), setTLS(posthornv1.TLSSpec{}))
		w.readyWorld()
		w.reloadable()
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionExternalReady)).Should(HavePrefix("True AddressesKnown"))
		port := int32(0)
		for _, each := range w.externalService(2).Spec.Ports {
			if each.Name == "streams" {
				port = each.NodePort
			}
		}
		Expect(port).NotTo(BeZero())
		Eventually(w.running("advertised_nodes.c-2.stream/ssl")).Should(HaveEach(fmt.Sprintf("c-2.mq.example:%d", port)))
		var bundle corev1.ConfigMap
		Eventually(func() error { return k8s.Get(ctx, w.key("c-ca"), &bundle) }).Should(Succeed())
		Expect(verifies(w.key("c-tls"), []byte(bundle.Data["ca.crt"]), "c-2.mq.example")).To(Succeed())
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 1 })
		Eventually(w.externalServices).Should(Equal(1))
	})

	It("leaves the address to the node when it is not to be advertised, and waits for brokers that know the setting", func() {
		no := false
		w := newWorld(withExternal(posthornv1.ExternalListenersSpec{HostTemplate: "{ordinal}.example", Advertise: &no}))
		w.readyWorld()
		w.reloadable()
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionExternalReady)).Should(HavePrefix("True"))
		Consistently(w.liveSettings).Should(BeEmpty())

		older := newWorld(withExternal(posthornv1.ExternalListenersSpec{HostTemplate: "{ordinal}.example"}))
		older.readyWorld()
		Eventually(conditionOf(older.cluster(), posthornv1.ConditionExternalReady)).Should(HavePrefix("False NotAdvertised"))
		Expect(older.liveSettings()).To(BeEmpty(), "a node of an older version would refuse to start")
	})
})
