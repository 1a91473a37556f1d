// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/pki"
)

// handed is the state of the cluster with a given certificate.
var handed *held

// giveCertificate lets a cluster wait for a given Secret. A client connects, and the Secret gets a certificate of
// another CA.
func giveCertificate() {
	startSingles()
	cluster := singleCluster(givenCluster)
	Eventually(readiness(cluster)).Should(HavePrefix("False SecretNotFound: "))
	Expect(k8s.Create(ctx, keptSecret("first"))).To(Succeed())
	becomesReady(cluster)
	Expect(cluster.Status.Certificates.Serving.Source).To(Equal(posthornv1.SourceSecret))
	hasQueue(givenCluster, "first")
	handed = hold(givenCluster)

	var secret corev1.Secret
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(keptSecret("")), &secret)).To(Succeed())
	before := secret.DeepCopy()
	secret.Data = keptSecret("second").Data
	Expect(k8s.Patch(ctx, &secret, client.MergeFrom(before))).To(Succeed())
}

// seeGiven waits until the node shows the certificate of the other CA, and the operator trusts it.
func seeGiven() {
	if handed == nil {
		Skip("no certificate was given")
	}
	handed.seesAnother()
	hasQueue(givenCluster, "second")
}

// keptSecret returns a Secret with a certificate of a new CA.
func keptSecret(authority string) *corev1.Secret {
	GinkgoHelper()
	secret := &corev1.Secret{ObjectMeta: meta(givenCluster), Type: corev1.SecretTypeTLS}
	if authority == "" {
		return secret
	}
	signer, err := pki.NewAuthority(authority, time.Now())
	Expect(err).NotTo(HaveOccurred())
	leaf, err := pki.Issue(signer, pki.Leaf{
		Name: givenCluster, Hosts: []string{names.Host(namespace, givenCluster)},
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Lifetime: 30 * 24 * time.Hour,
	}, time.Now())
	Expect(err).NotTo(HaveOccurred())
	secret.Data = map[string][]byte{corev1.TLSCertKey: leaf.Cert, corev1.TLSPrivateKeyKey: leaf.Key, "ca.crt": signer.Cert}
	return secret
}

// held is a TLS connection that stays open while the certificate changes.
type held struct {
	cluster string
	client  *mqttClient
	pod     corev1.Pod
	serial  string
}

// hold connects to a cluster's node.
func hold(cluster string) *held {
	GinkgoHelper()
	h := &held{cluster: cluster, pod: brokerPod(cluster + "-0")}
	connection, err := dialTLS(cluster, &h.pod)
	Expect(err).NotTo(HaveOccurred())
	h.serial = serialOf(connection)
	h.client, err = enterMQTT(connection, cluster, "held")
	Expect(err).NotTo(HaveOccurred())
	return h
}

// seesAnother waits until new connections see another certificate, and checks that the open connection survived and
// that no pod restarted.
func (h *held) seesAnother() {
	GinkgoHelper()
	DeferCleanup(h.client.connection.Close)
	Eventually(func() (string, error) {
		connection, err := dialTLS(h.cluster, &h.pod)
		if err != nil {
			return h.serial, err
		}
		defer func() { _ = connection.Close() }()
		return serialOf(connection), nil
	}).ShouldNot(Equal(h.serial))
	Expect(h.client.write(mqttPublish, append(mqttText(nil, "renewed"), 0, 7))).To(Succeed())
	Expect(h.client.expect(mqttPuback)).To(Equal([]byte{0, 7}))
	again := brokerPod(h.pod.Name)
	Expect(again.UID).To(Equal(h.pod.UID))
	Expect(again.Status.ContainerStatuses[0].RestartCount).To(BeZero())
	Expect(readiness(singleCluster(h.cluster))()).To(HavePrefix("True "))
}

// dialTLS connects to a node's MQTT over TLS, with the published CA certificates.
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
