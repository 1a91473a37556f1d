// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"os"
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

// company is a CA and the issuer that signs with it.
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

// renewed is the state of the cluster with cert-manager's certificate.
var renewed *held

// issueCertificate lets a cluster wait for cert-manager, which then issues its certificate. A client connects, and
// the certificate is renewed in the way of cmctl renew.
func issueCertificate() {
	startSingles()
	cluster := singleCluster(issuedCluster)
	Eventually(readiness(cluster)).Should(HavePrefix("False CertManagerMissing: "))
	startCertManager()
	applyText(issuers)
	becomesReady(cluster)
	Expect(cluster.Status.Certificates.Serving.Source).To(Equal(posthornv1.SourceIssuer))

	var authority corev1.Secret
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: company}, &authority)).To(Succeed())
	Expect(authorities(issuedCluster)).To(Equal(string(authority.Data[corev1.TLSCertKey])))
	renewed = hold(issuedCluster)

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

// seeRenewal waits until the node shows the new certificate.
func seeRenewal() {
	if renewed == nil {
		Skip("no certificate was issued")
	}
	renewed.seesAnother()
}

// startCertManager installs cert-manager's API, and runs its controllers on this machine until the suite's end.
func startCertManager() {
	GinkgoHelper()
	program, definitions := os.Getenv("POSTHORN_E2E_CERT_MANAGER"), os.Getenv("POSTHORN_E2E_CERT_MANAGER_CRDS")
	Expect(program).NotTo(BeEmpty(), "hack/e2e builds it")
	define(definitions)
	runBeside("cert-manager", program, os.Getenv("KUBECONFIG"))
}
