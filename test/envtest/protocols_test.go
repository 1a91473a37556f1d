// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

func speak(protocols ...posthornv1.Protocol) func(*posthornv1.BrokerCluster) {
	return func(c *posthornv1.BrokerCluster) { c.Spec.Protocols = protocols }
}

// podPorts returns the ports of a node by name.
func (w *world) podPorts(node string) map[string]bool {
	GinkgoHelper()
	var pod corev1.Pod
	Expect(k8s.Get(ctx, w.key(node), &pod)).To(Succeed())
	out := map[string]bool{}
	for _, port := range pod.Spec.Containers[0].Ports {
		out[port.Name] = true
	}
	return out
}

var _ = Describe("protocols", func() {
	It("follow the spec in pods, Services and bindings, node by node", func() {
		w := newWorld(speak("amqp", "mqtt"))
		w.readyWorld()
		Expect(w.cluster().Status.Protocols).To(ConsistOf(posthornv1.ProtocolAMQP, posthornv1.ProtocolMQTT))
		for _, ports := range []map[string]bool{w.podPorts("c-0"), w.servicePorts()} {
			Expect(ports).To(And(HaveKey("amqp"), HaveKey("mqtt"), HaveKey("web-mqtt"), Not(HaveKey("mqtts"))))
		}
		u := w.user("app")
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		Expect(string(w.binding("app").Data["mqtt-port"])).To(Equal("1883"))

		w.broker.SetLeaders("c-1", 7)
		w.changeCluster(speak("mqtt"))
		Eventually(w.rollout).Should(Equal("Draining c-1"))
		Expect(w.podPorts("c-2")).NotTo(HaveKey("amqp"))
		Expect(w.podPorts("c-0")).To(HaveKey("amqp"))
		w.broker.SetLeaders("c-1", 0)
		w.readyWorld()
		Expect(w.servicePorts()).NotTo(HaveKey("amqp"))
		Eventually(func() string { return string(w.binding("app").Data["uri"]) }).Should(HavePrefix("mqtt://"))
		var user corev1.Secret
		Expect(k8s.Get(ctx, w.key("c-default-user"), &user)).To(Succeed())
		Expect(string(user.Data["uri"])).To(HavePrefix("mqtt://"))

		// Removing the field leaves the cluster as it is.
		before := w.statefulSet().Spec.Template
		w.changeCluster(speak())
		w.readyWorld()
		Consistently(func() corev1.PodTemplateSpec { return w.statefulSet().Spec.Template }).Should(Equal(before))
		Expect(w.cluster().Status.Protocols).To(ConsistOf(posthornv1.ProtocolMQTT))
	})
})
