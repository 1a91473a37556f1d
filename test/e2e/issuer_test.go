// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// company is an authority and the issuer that signs with it.
const company = "company"

const issuers = `
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: root}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: company}
spec:
  isCA: true
  commonName: company
  secretName: company
  privateKey: {algorithm: ECDSA, size: 256, rotationPolicy: Always}
  issuerRef: {name: root}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: company}
spec: {ca: {secretName: company}}
`

// renewed is what is compared after a renewal with what was before.
var renewed struct {
	held   *mqttClient
	pod    corev1.Pod
	serial string
}

// issueCertificate lets a cluster wait for cert-manager, which then issues its certificate. A client connects, and the
// certificate is renewed as cmctl renew does it.
func issueCertificate() {
	startSingles()
	cluster := singleCluster(issuedCluster)
	Eventually(readiness(cluster)).Should(HavePrefix("False CertManagerMissing: "))
	startCertManager()
	install := exec.Command(filepath.Join(root, "hack", "kubectl"), "-n", namespace, "apply", "-f", "-")
	install.Stdin = strings.NewReader(issuers)
	said, err := install.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", said)
	becomesReady(cluster)
	Expect(cluster.Status.Certificates.Serving.Source).To(Equal(posthornv1.SourceIssuer))

	var authority corev1.Secret
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: company}, &authority)).To(Succeed())
	Expect(authorities(issuedCluster)).To(Equal(string(authority.Data[corev1.TLSCertKey])))
	renewed.pod = brokerPod(issuedCluster + "-0")
	connection, err := dialTLS(issuedCluster, &renewed.pod)
	Expect(err).NotTo(HaveOccurred())
	renewed.serial = serialOf(connection)
	renewed.held, err = enterMQTT(connection, issuedCluster, "held")
	Expect(err).NotTo(HaveOccurred())

	certificate := &unstructured.Unstructured{}
	certificate.SetAPIVersion("cert-manager.io/v1")
	certificate.SetKind("Certificate")
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: names.TLSSecret(issuedCluster)}, certificate)).To(Succeed())
	before := certificate.DeepCopy()
	conditions, _, err := unstructured.NestedSlice(certificate.Object, "status", "conditions")
	Expect(err).NotTo(HaveOccurred())
	conditions = append(conditions, map[string]any{
		"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "as cmctl renew says",
		"lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339),
	})
	Expect(unstructured.SetNestedSlice(certificate.Object, conditions, "status", "conditions")).To(Succeed())
	Expect(k8s.Status().Patch(ctx, certificate, client.MergeFrom(before))).To(Succeed())
	Eventually(func() (string, error) {
		var secret corev1.Secret
		err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: names.TLSSecret(issuedCluster)}, &secret)
		if err != nil {
			return "", err
		}
		pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return "", err
		}
		return pair.Leaf.SerialNumber.String(), nil
	}).ShouldNot(Equal(renewed.serial), "cert-manager issues another")
}

// seeRenewal waits until the node shows the new certificate. Who was connected did not notice.
func seeRenewal() {
	if renewed.held == nil {
		Skip("no certificate was issued")
	}
	DeferCleanup(renewed.held.connection.Close)
	Eventually(func() (string, error) {
		connection, err := dialTLS(issuedCluster, &renewed.pod)
		if err != nil {
			return renewed.serial, err
		}
		defer func() { _ = connection.Close() }()
		return serialOf(connection), nil
	}).ShouldNot(Equal(renewed.serial))
	// The connection of before is answered on.
	Expect(renewed.held.write(mqttPublish, append(mqttText(nil, "renewed"), 0, 7))).To(Succeed())
	Expect(renewed.held.expect(mqttPuback)).To(Equal([]byte{0, 7}))
	again := brokerPod(renewed.pod.Name)
	Expect(again.UID).To(Equal(renewed.pod.UID))
	Expect(again.Status.ContainerStatuses[0].RestartCount).To(BeZero())
	Expect(readiness(singleCluster(issuedCluster))()).To(HavePrefix("True "))
}

// dialTLS connects to a node's MQTT over TLS, believing the authorities that clients are told.
func dialTLS(cluster string, pod *corev1.Pod) (*tls.Conn, error) {
	GinkgoHelper()
	roots := x509.NewCertPool()
	Expect(roots.AppendCertsFromPEM([]byte(authorities(cluster)))).To(BeTrue())
	raw, err := dialPod(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(names.PortMQTTS)))
	if err != nil {
		return nil, err
	}
	connection := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: names.Host(namespace, cluster), MinVersion: tls.VersionTLS12})
	return connection, connection.HandshakeContext(ctx)
}

func serialOf(connection *tls.Conn) string {
	return connection.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// certManager is the process of cert-manager's controllers.
var certManager *exec.Cmd

// startCertManager installs cert-manager's API, and runs its controllers on this machine until the suite's end.
func startCertManager() {
	GinkgoHelper()
	program, definitions := os.Getenv("POSTHORN_E2E_CERT_MANAGER"), os.Getenv("POSTHORN_E2E_CERT_MANAGER_CRDS")
	Expect(program).NotTo(BeEmpty(), "hack/e2e builds it")
	runScript("kubectl", "apply", "--server-side", "-f", definitions)
	runScript("kubectl", "wait", "--for=condition=Established", "--timeout=60s", "-f", definitions)
	log, err := os.Create(filepath.Join(artifacts, "cert-manager.log"))
	Expect(err).NotTo(HaveOccurred())
	certManager = exec.Command(program, os.Getenv("KUBECONFIG"))
	certManager.Stdout, certManager.Stderr = log, log
	Expect(certManager.Start()).To(Succeed())
}

var _ = AfterSuite(func() {
	if certManager != nil {
		_ = certManager.Process.Signal(os.Interrupt)
		_ = certManager.Wait()
	}
})
