// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

const monitoringGroup = "monitoring.coreos.com"

func setMonitor(mode string) func(*posthornv1.BrokerCluster) {
	return func(c *posthornv1.BrokerCluster) { c.Spec.Monitoring.ServiceMonitor = mode }
}

// exists reports whether an object exists.
func exists(object client.Object) func() error {
	return func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(object), object) }
}

// endpoints returns the endpoints of the ServiceMonitor; none when it does not exist.
func (w *world) endpoints() []map[string]any {
	GinkgoHelper()
	monitor := optional(monitoringGroup, "ServiceMonitor", w.namespace, "c")
	if exists(monitor)() != nil {
		return nil
	}
	list, _, err := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
	Expect(err).NotTo(HaveOccurred())
	var out []map[string]any
	for _, each := range list {
		endpoint, is := each.(map[string]any)
		Expect(is).To(BeTrue())
		out = append(out, endpoint)
	}
	return out
}

// scraped returns the ports of the endpoints.
func (w *world) scraped() []string {
	GinkgoHelper()
	var out []string
	for _, endpoint := range w.endpoints() {
		out = append(out, fmt.Sprint(endpoint["port"]))
	}
	return out
}

// verifies reports whether the CA certificates verify the certificate in a Secret for a host.
func verifies(secret client.ObjectKey, authorities []byte, host string) error {
	GinkgoHelper()
	var shown corev1.Secret
	Expect(k8s.Get(ctx, secret, &shown)).To(Succeed())
	pair, err := tls.X509KeyPair(shown.Data[corev1.TLSCertKey], shown.Data[corev1.TLSPrivateKeyKey])
	Expect(err).NotTo(HaveOccurred())
	roots := x509.NewCertPool()
	Expect(roots.AppendCertsFromPEM(authorities)).To(BeTrue())
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
	return err
}

var _ = Describe("monitoring", Ordered, func() {
	It("works without the Prometheus operator, and uses it once it is installed", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) {
			c.Spec.Monitoring.Labels = map[string]string{"release": "prometheus"}
		})
		strict := newWorld(setMonitor("On"))
		w.readyWorld()
		Expect(conditionOf(w.cluster(), posthornv1.ConditionMonitoringReady)()).To(HavePrefix("True PrometheusOperatorMissing"))
		Eventually(conditionOf(strict.cluster(), posthornv1.ConditionMonitoringReady)).Should(HavePrefix("False PrometheusOperatorMissing"))

		installCRD(monitoringGroup, "servicemonitors", "ServiceMonitor")
		installCRD(monitoringGroup, "prometheusrules", "PrometheusRule")
		monitor := optional(monitoringGroup, "ServiceMonitor", w.namespace, "c")
		rule := optional(monitoringGroup, "PrometheusRule", w.namespace, "c")
		Eventually(exists(monitor)).Should(Succeed())
		Eventually(exists(rule)).Should(Succeed())
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionMonitoringReady)).Should(HavePrefix("True Monitored"))
		Eventually(conditionOf(strict.cluster(), posthornv1.ConditionMonitoringReady)).Should(HavePrefix("True Monitored"))
		Expect(rule.GetLabels()).To(HaveKeyWithValue("release", "prometheus"))
		Expect(rule.GetOwnerReferences()).To(HaveLen(1))

		// Its selector matches exactly the headless Service, which has the named port.
		labels, _, err := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
		Expect(err).NotTo(HaveOccurred())
		var services corev1.ServiceList
		Expect(k8s.List(ctx, &services, client.InNamespace(w.namespace), client.MatchingLabels(labels))).To(Succeed())
		Expect(services.Items).To(HaveLen(1))
		Expect(services.Items[0].Name).To(Equal("c-nodes"))
		Expect(services.Items[0].Spec.Ports).To(ContainElement(HaveField("Name", "prometheus")))

		change(rule, func(r *unstructured.Unstructured) { r.Object["spec"] = map[string]any{"groups": []any{}} })
		Eventually(func() int {
			_ = exists(rule)()
			groups, _, _ := unstructured.NestedSlice(rule.Object, "spec", "groups")
			return len(groups)
		}).Should(Equal(1))
		Eventually(eventsOf(w.cluster(), "ChildUpdated")).Should(BeNumerically(">=", 1))
	})

	It("creates the objects that the spec asks for and deletes the others", func() {
		w := newWorld()
		w.readyWorld()
		monitor := optional(monitoringGroup, "ServiceMonitor", w.namespace, "c")
		rule := optional(monitoringGroup, "PrometheusRule", w.namespace, "c")
		boards := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-dashboards"}}
		Eventually(exists(rule)).Should(Succeed())
		Expect(exists(boards)()).To(Succeed())
		Expect(boards.Labels).To(HaveKeyWithValue("grafana_dashboard", "1"))
		Expect(boards.Data).NotTo(BeEmpty())
		for file, text := range boards.Data {
			Expect(json.Valid([]byte(text))).To(BeTrue(), file)
		}
		endpoints := func() []any {
			_ = exists(monitor)()
			list, _, _ := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
			return list
		}
		Expect(endpoints()).To(HaveLen(1))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Monitoring.QueueMetrics = true })
		Eventually(endpoints).Should(ContainElement(HaveKeyWithValue("path", "/metrics/detailed")))
		Eventually(func() map[string]string { _ = exists(boards)(); return boards.Data }).Should(HaveKey("c-queue-by-name.json"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Monitoring.QueueMetrics = false })
		Eventually(endpoints).Should(HaveLen(1))
		Eventually(func() map[string]string { _ = exists(boards)(); return boards.Data }).ShouldNot(HaveKey("c-queue-by-name.json"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Hibernated = true })
		Eventually(gone(rule)).Should(BeTrue())
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Hibernated = false })
		Eventually(exists(rule)).Should(Succeed())
		no := false
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Monitoring.Rules = &no })
		Eventually(gone(rule)).Should(BeTrue())
		Expect(gone(monitor)()).To(BeFalse())
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Monitoring.Dashboards = &no })
		Eventually(gone(boards)).Should(BeTrue())
		w.changeCluster(setMonitor("Off"))
		Eventually(gone(monitor)).Should(BeTrue())
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionMonitoringReady)).Should(Equal("absent"))
	})

	It("scrapes over TLS once a node has no other port for metrics, with the CA certificates", func() {
		w := newWorld()
		w.readyWorld()
		Eventually(w.scraped).Should(Equal([]string{"prometheus"}))
		w.broker.SetLeaders("c-1", 7)
		w.changeCluster(setTLS(posthornv1.TLSSpec{DisablePlaintext: true}))
		Eventually(w.rollout).Should(Equal("Draining c-1"))
		Eventually(w.scraped).Should(Equal([]string{"prometheus", "prometheus-tls"}))
		Expect(w.servicePorts()).To(And(HaveKey("prometheus"), HaveKey("prometheus-tls")), "both kinds of nodes are there")
		w.broker.SetLeaders("c-1", 0)
		w.readyWorld()
		Eventually(w.scraped).Should(Equal([]string{"prometheus-tls"}))
		Eventually(w.servicePorts).ShouldNot(HaveKey("prometheus"))

		endpoint := w.endpoints()[0]
		Expect(endpoint["scheme"]).To(Equal("https"))
		host, _, err := unstructured.NestedString(endpoint, "tlsConfig", "serverName")
		Expect(err).NotTo(HaveOccurred())
		from, _, err := unstructured.NestedStringMap(endpoint, "tlsConfig", "ca", "configMap")
		Expect(err).NotTo(HaveOccurred())
		var bundle corev1.ConfigMap
		Expect(k8s.Get(ctx, w.key(from["name"]), &bundle)).To(Succeed())
		Expect(verifies(w.key("c-tls"), []byte(bundle.Data[from["key"]]), host)).To(Succeed())

		// A Secret without CA certificates: its own certificate is trusted.
		given := tlsSecret(w.namespace, "given", 1000*time.Hour, "mq.example.com")
		delete(given.Data, "ca.crt")
		create(given)
		w.changeCluster(setTLS(posthornv1.TLSSpec{SecretName: "given"}))
		w.readyWorld()
		Eventually(func() map[string]string {
			from, _, _ = unstructured.NestedStringMap(w.endpoints()[0], "tlsConfig", "ca", "secret")
			return from
		}).Should(Equal(map[string]string{"name": "given", "key": "tls.crt"}))
		host, _, err = unstructured.NestedString(w.endpoints()[0], "tlsConfig", "serverName")
		Expect(err).NotTo(HaveOccurred())
		Expect(verifies(w.key("given"), given.Data["tls.crt"], host)).To(Succeed())
		Expect(w.servicePorts()).To(HaveKey("prometheus"), "whoever scrapes by his own rules may go on without")
	})

	It("keeps a ServiceMonitor of that name that it does not own", func() {
		w := newWorld(setMonitor("Off"))
		w.readyWorld()
		foreign := optional(monitoringGroup, "ServiceMonitor", w.namespace, "c")
		foreign.Object["spec"] = map[string]any{"mine": "yes"}
		create(foreign)
		Consistently(gone(foreign)).Should(BeFalse())
		w.changeCluster(setMonitor("Auto"))
		Eventually(ready(w.cluster())).Should(HavePrefix("False NameTaken"))
		Expect(exists(foreign)()).To(Succeed())
		Expect(foreign.Object["spec"]).To(Equal(map[string]any{"mine": "yes"}))
	})

	It("includes the operator itself", func() {
		installCRD(monitoringGroup, "podmonitors", "PodMonitor")
		Eventually(func() error {
			return k8s.List(ctx, &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": monitoringGroup + "/v1", "kind": "PodMonitorList"}})
		}).Should(Succeed())
		kubectl("", "apply", "-k", filepath.Join("..", "..", "config", "prometheus"))
		monitor := optional(monitoringGroup, "PodMonitor", "posthorn-system", "posthorn-operator")
		Expect(exists(monitor)()).To(Succeed())
		Expect(k8s.Delete(ctx, monitor)).To(Succeed())
	})
})

var _ = Describe("network policy", func() {
	It("exists while the spec asks for it", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.NetworkPolicy.Mode = "Strict" })
		w.readyWorld()
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
		Expect(exists(policy)()).To(Succeed())
		Expect(policy.Spec.PolicyTypes).To(HaveLen(2))
		change(policy, func(p *networkingv1.NetworkPolicy) { p.Spec.Ingress = nil })
		Eventually(func() int {
			_ = exists(policy)()
			return len(policy.Spec.Ingress)
		}).Should(Equal(5))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.NetworkPolicy.Mode = "Off" })
		Eventually(gone(policy)).Should(BeTrue())
	})
})

var _ = Describe("client Service", func() {
	It("has the type and the annotations of the spec", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) {
			c.Spec.Service.Type = corev1.ServiceTypeNodePort
			c.Spec.Service.Annotations = map[string]string{"example.com/internal": "true"}
			c.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
		})
		w.readyWorld()
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
		Expect(exists(service)()).To(Succeed())
		Expect(service.Annotations).To(HaveKeyWithValue("example.com/internal", "true"))
		given := service.Spec.Ports[0].NodePort
		Expect(given).NotTo(BeZero())
		Expect(w.statefulSet().Spec.Template.Spec.ImagePullSecrets).To(ConsistOf(corev1.LocalObjectReference{Name: "registry"}))
		change(service, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"no": "pod"} })
		Eventually(func() map[string]string {
			_ = exists(service)()
			return service.Spec.Selector
		}).ShouldNot(HaveKey("no"))
		Expect(service.Spec.Ports[0].NodePort).To(Equal(given))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Service = posthornv1.ServiceSpec{} })
		Eventually(func() corev1.ServiceType {
			_ = exists(service)()
			return service.Spec.Type
		}).Should(Equal(corev1.ServiceTypeClusterIP))
		Eventually(func() map[string]string {
			_ = exists(service)()
			return service.Annotations
		}).ShouldNot(HaveKey("example.com/internal"))
	})
})
