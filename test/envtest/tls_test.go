// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"crypto/tls"
	"crypto/x509"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/pki"
)

const certificatesReady = posthornv1.ConditionCertificatesReady

// tlsSecret returns a Secret with a certificate for hosts, of a CA of its own.
func tlsSecret(namespace, name string, lifetime time.Duration, hosts ...string) *corev1.Secret {
	GinkgoHelper()
	now := time.Now()
	authority, err := pki.NewAuthority("test", now)
	Expect(err).NotTo(HaveOccurred())
	pair, err := pki.Issue(authority, pki.Leaf{Name: "test", Hosts: hosts, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Lifetime: lifetime}, now)
	Expect(err).NotTo(HaveOccurred())
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key, "ca.crt": authority.Cert},
	}
}

func setTLS(spec posthornv1.TLSSpec) func(*posthornv1.BrokerCluster) {
	return func(c *posthornv1.BrokerCluster) { c.Spec.TLS = &spec }
}

// statefulSet returns the present StatefulSet; nil when it does not exist.
func (w *world) statefulSet() *appsv1.StatefulSet {
	GinkgoHelper()
	var sts appsv1.StatefulSet
	err := k8s.Get(ctx, w.key(clusterName), &sts)
	if apierrors.IsNotFound(err) {
		return nil
	}
	Expect(err).NotTo(HaveOccurred())
	return &sts
}

// mountsTLS reports whether the StatefulSet's pods have a port for TLS.
func (w *world) mountsTLS() bool {
	sts := w.statefulSet()
	if sts == nil {
		return false
	}
	for _, port := range sts.Spec.Template.Spec.Containers[0].Ports {
		if port.Name == "amqps" {
			return true
		}
	}
	return false
}

// installCRD creates an API like that of another project's operator, which accepts any spec and status.
func installCRD(group, plural, kind string) {
	GinkgoHelper()
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + group, "annotations": map[string]any{"api-approved.kubernetes.io": "test"}},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": plural, "kind": kind, "listKind": kind + "List"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": open, "status": open}}},
			}},
		},
	}}
	if err := k8s.Create(ctx, crd); !apierrors.IsAlreadyExists(err) {
		Expect(err).NotTo(HaveOccurred())
	}
}

func optional(group, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(group + "/v1")
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

var _ = Describe("TLS for clients", func() {
	It("issues its own certificate, and publishes the CA to clients", func() {
		w := newWorld(setTLS(posthornv1.TLSSpec{DisablePlaintext: true, DNSNames: []posthornv1.DNSName{"mq.example.com"}}))
		w.readyWorld()
		Expect(conditionOf(w.cluster(), certificatesReady)()).To(HavePrefix("True Valid"))
		var bundle corev1.ConfigMap
		Expect(k8s.Get(ctx, w.key("c-ca"), &bundle)).To(Succeed())
		var secret, internode corev1.Secret
		Expect(k8s.Get(ctx, w.key("c-tls"), &secret)).To(Succeed())
		Expect(k8s.Get(ctx, w.key("c-internode"), &internode)).To(Succeed())
		pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
		Expect(err).NotTo(HaveOccurred())
		roots := x509.NewCertPool()
		Expect(roots.AppendCertsFromPEM([]byte(bundle.Data["ca.crt"]))).To(BeTrue())
		for _, host := range []string{"c." + w.namespace + ".svc", "c-0.c-nodes." + w.namespace + ".svc", "mq.example.com"} {
			_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
			Expect(err).NotTo(HaveOccurred())
		}
		// A client with a client certificate is not treated as a node.
		nodes := x509.NewCertPool()
		Expect(nodes.AppendCertsFromPEM(internode.Data["ca.crt"])).To(BeTrue())
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: nodes})
		Expect(err).To(HaveOccurred())

		status := w.cluster().Status.Certificates
		Expect(status.Serving.Source).To(Equal("Operator"))
		Expect(status.NotAfter.Time).To(BeTemporally("~", pair.Leaf.NotAfter, time.Second))
		var clients corev1.Service
		Expect(k8s.Get(ctx, w.key("c"), &clients)).To(Succeed())
		Expect(clients.Spec.Ports[0].Port).To(BeEquivalentTo(5671))
		for _, port := range clients.Spec.Ports {
			Expect(port.Port).NotTo(BeEquivalentTo(5672))
		}
		Expect(clients.Spec.Ports).To(ContainElement(And(HaveField("Name", "management-tls"), HaveField("Port", BeEquivalentTo(15671)))))
		var user corev1.Secret
		Expect(k8s.Get(ctx, w.key("c-default-user"), &user)).To(Succeed())
		Expect(string(user.Data["uri"])).To(HavePrefix("amqps://"))
		Expect(string(user.Data["port"])).To(Equal("5671"))
	})

	It("puts a new certificate into the same Secret and restarts no pod", func() {
		w := newWorld(setTLS(posthornv1.TLSSpec{}))
		w.readyWorld()
		before := w.statefulSet().Spec.Template
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-tls"}}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(secret), secret)).To(Succeed())
		old := string(secret.Data["tls.crt"])
		// Like an expired certificate, which is unusable.
		change(secret, func(s *corev1.Secret) { s.Data["tls.key"] = []byte("nonsense") })
		Eventually(func() bool {
			_ = k8s.Get(ctx, client.ObjectKeyFromObject(secret), secret)
			_, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
			return err == nil && string(secret.Data["tls.crt"]) != old
		}).Should(BeTrue())
		Eventually(eventsOf(w.cluster(), "CertificateRenewed")).Should(Equal(1))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.TLS.DNSNames = []posthornv1.DNSName{"later.example.com"} })
		Eventually(eventsOf(w.cluster(), "CertificateRenewed")).Should(Equal(2))
		w.readyWorld()
		Expect(w.statefulSet().Spec.Template).To(Equal(before))
	})

	It("starts no pod with a given Secret that is missing or unusable", func() {
		ns := newNamespace(nil)
		cluster := newCluster(ns)
		cluster.Spec.TLS = &posthornv1.TLSSpec{SecretName: "mine"}
		create(cluster)
		w := &world{namespace: ns}
		Eventually(conditionOf(cluster, certificatesReady)).Should(HavePrefix("False SecretNotFound"))
		Expect(ready(cluster)()).To(HavePrefix("False SecretNotFound: Secret mine does not exist"))
		Expect(conditionOf(cluster, posthornv1.ConditionStalled)()).To(Equal("absent"))
		Consistently(w.statefulSet).Should(BeNil())
		secret := tlsSecret(ns, "mine", time.Hour, "other.example.com")
		good := secret.Data["tls.key"]
		secret.Data["tls.key"] = []byte("x")
		create(secret)
		Eventually(conditionOf(cluster, certificatesReady)).Should(HavePrefix("False InvalidCertificate: Secret mine: "))
		Expect(w.statefulSet()).To(BeNil())
		change(secret, func(s *corev1.Secret) { s.Data["tls.key"] = good })
		Eventually(w.mountsTLS).Should(BeTrue())
		Eventually(conditionOf(cluster, certificatesReady)).Should(HavePrefix("True ExpiresSoon"))
	})

	It("keeps running nodes until their certificate exists, and after it is gone", func() {
		w := newWorld()
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			setTLS(posthornv1.TLSSpec{SecretName: "mine", ClientAuth: "Required"})(c)
			setImage("1.1.0")(c)
		})
		Eventually(ready(w.cluster())).Should(HavePrefix("False SecretNotFound"))
		Consistently(w.images).Should(HaveEach("1.0.0"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionAvailable)()).To(HavePrefix("True"))
		secret := tlsSecret(w.namespace, "mine", 1000*time.Hour, "c."+w.namespace+".svc")
		authority := secret.Data["ca.crt"]
		delete(secret.Data, "ca.crt")
		create(secret)
		Eventually(ready(w.cluster())).Should(ContainSubstring("clientAuth needs one"))
		Expect(w.images()).To(HaveEach("1.0.0"))
		change(secret, func(s *corev1.Secret) { s.Data["ca.crt"] = authority })
		Eventually(w.images).Should(HaveEach("1.1.0"))
		w.readyWorld()
		Expect(w.mountsTLS()).To(BeTrue())

		// Nodes have it in memory, but none of them could start again.
		Expect(brokers.hold(w.key(clusterName))).To(Succeed())
		Expect(k8s.Delete(ctx, secret)).To(Succeed())
		Eventually(conditionOf(w.cluster(), certificatesReady)).Should(HavePrefix("False SecretNotFound"))
		Expect(ready(w.cluster())()).To(HavePrefix("False SecretNotFound"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionAvailable)()).To(HavePrefix("True"))
		Expect(w.images()).To(HaveEach("1.1.0"))
	})

	It("uses cert-manager as soon as it is installed", func() {
		w := newWorld(setTLS(posthornv1.TLSSpec{IssuerRef: &posthornv1.IssuerReference{Name: "company"}}))
		Eventually(conditionOf(w.cluster(), certificatesReady)).Should(HavePrefix("False CertManagerMissing"))
		Expect(w.statefulSet()).To(BeNil())
		installCRD("cert-manager.io", "certificates", "Certificate")
		certificate := optional("cert-manager.io", "Certificate", w.namespace, "c-tls")
		Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(certificate), certificate) }).Should(Succeed())
		spec, _, err := unstructured.NestedMap(certificate.Object, "spec")
		Expect(err).NotTo(HaveOccurred())
		Expect(spec["issuerRef"]).To(Equal(map[string]any{"name": "company", "kind": "Issuer", "group": "cert-manager.io"}))
		Expect(spec["secretName"]).To(Equal("c-tls"))
		Expect(spec["dnsNames"]).To(ContainElement("c." + w.namespace + ".svc"))
		Expect(certificate.GetOwnerReferences()).To(HaveLen(1))
		Eventually(conditionOf(w.cluster(), certificatesReady)).Should(HavePrefix("False Issuing: Certificate c-tls: cert-manager has not processed it yet"))

		Expect(unstructured.SetNestedSlice(certificate.Object, []any{map[string]any{
			"type": "Ready", "status": "False", "reason": "DoesNotExist", "message": "no such issuer",
		}}, "status", "conditions")).To(Succeed())
		Expect(k8s.Status().Update(ctx, certificate)).To(Succeed())
		Eventually(conditionOf(w.cluster(), certificatesReady)).Should(HaveSuffix("DoesNotExist: no such issuer"))
		Expect(w.statefulSet()).To(BeNil())

		create(tlsSecret(w.namespace, "c-tls", 1000*time.Hour, "c."+w.namespace+".svc"))
		w.readyWorld()
		Expect(w.mountsTLS()).To(BeTrue())
		Expect(w.cluster().Status.Certificates.Serving.Source).To(Equal("Issuer"))

		// The operator keeps additions by cert-manager or its webhook, and corrects its own fields.
		change(certificate, func(c *unstructured.Unstructured) {
			Expect(unstructured.SetNestedField(c.Object, int64(7), "spec", "revisionHistoryLimit")).To(Succeed())
			Expect(unstructured.SetNestedField(c.Object, "elsewhere", "spec", "secretName")).To(Succeed())
		})
		Eventually(func() any {
			_ = k8s.Get(ctx, client.ObjectKeyFromObject(certificate), certificate)
			name, _, _ := unstructured.NestedString(certificate.Object, "spec", "secretName")
			return name
		}).Should(Equal("c-tls"))
		Expect(certificate.Object["spec"]).To(HaveKeyWithValue("revisionHistoryLimit", BeNumerically("==", 7)))

		create(tlsSecret(w.namespace, "mine", 1000*time.Hour, "c."+w.namespace+".svc"))
		w.changeCluster(setTLS(posthornv1.TLSSpec{SecretName: "mine"}))
		Eventually(gone(certificate)).Should(BeTrue())
	})

	It("is enabled in the production sample", productionSample)
})
