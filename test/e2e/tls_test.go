// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// takeTLSOnly creates a second cluster without any port without TLS: the kubelet's probes and the operator still
// reach it. Then its CA is replaced without a restart.
func takeTLSOnly() {
	startSingles()
	becomesReady(singleCluster(secureCluster))
	hasQueue(secureCluster, "first")
	pod := brokerPod(secureCluster + "-0")
	for _, port := range []int{names.PortAMQP, names.PortManagement, names.PortPrometheus} {
		_, err := dialPod(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(port)))
		Expect(err).To(MatchError(ContainSubstring("refused")), "port %d", port)
	}
	before := authorities(secureCluster)
	Expect(overTLS(&pod, before)).To(Succeed())
	Expect(metricsOverTLS(&pod, before)).To(ContainSubstring("\nrabbitmq_connections "))
	// Processes inside the pod need no more than without TLS.
	said, err := exec.Command(filepath.Join(root, "hack", "kubectl"), "-n", namespace, "exec", pod.Name, "--", "/posthorn", "ctl", "ping").CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", said)
	operators := restarts()

	for _, name := range []string{names.TLSCASecret(secureCluster), names.TLSSecret(secureCluster)} {
		Expect(k8s.Delete(ctx, &corev1.Secret{ObjectMeta: meta(name)})).To(Succeed())
	}
	Eventually(authorities).WithArguments(secureCluster).ShouldNot(Equal(before))
	hasQueue(secureCluster, "second")
	Expect(overTLS(&pod, authorities(secureCluster))).NotTo(Succeed(), "the node does not have it yet")
	// The kubelets of the local cluster update the files of pods every ten seconds.
	start := time.Now()
	Eventually(func() error { return overTLS(&pod, authorities(secureCluster)) }).WithTimeout(lifecycleTimeout).Should(Succeed())
	say("the node shows a certificate of the new authority after %.1fs", time.Since(start).Seconds())
	hasQueue(secureCluster, "third")
	again := brokerPod(pod.Name)
	Expect(again.UID).To(Equal(pod.UID))
	Expect(again.Status.ContainerStatuses[0].RestartCount).To(BeZero())
	Expect(restarts()).To(Equal(operators))
}

// hasQueue creates a queue in a cluster that accepts TLS only.
func hasQueue(cluster, name string) {
	GinkgoHelper()
	q := newQueue(cluster + "-" + name)
	q.Spec.ClusterRef.Name = cluster
	Expect(k8s.Create(ctx, q)).To(Succeed())
	DeferCleanup(func() { Expect(client.IgnoreNotFound(k8s.Delete(ctx, q))).To(Succeed()) })
	becomesReady(q)
}

// authorities returns the CA certificates that clients are to trust.
func authorities(cluster string) string {
	GinkgoHelper()
	var bundle corev1.ConfigMap
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: names.ClientCA(cluster)}, &bundle)).To(Succeed())
	return bundle.Data["ca.crt"]
}

// overTLS queries a node by the Service's name, with CA certificates.
func overTLS(pod *corev1.Pod, authorities string) error {
	one, err := askOverTLS(secureCluster, pod, authorities)
	if err != nil {
		return err
	}
	_, err = one.Overview(ctx)
	return err
}

// askOverTLS returns a client of one broker's HTTP API.
func askOverTLS(cluster string, pod *corev1.Pod, authorities string) (broker.Client, error) {
	var secret corev1.Secret
	if err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: names.DefaultUserSecret(cluster)}, &secret); err != nil {
		return nil, err
	}
	transport, err := trusting(cluster, authorities)
	if err != nil {
		return nil, err
	}
	return broker.New(broker.Access{
		URL:      fmt.Sprintf("https://%s", net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(names.PortManagementTLS))),
		Username: string(secret.Data["username"]), Password: string(secret.Data["password"]),
	}, transport), nil
}

// trusting returns a transport to pods of a cluster with TLS by the Service's name, which verifies them with the CA
// certificates.
func trusting(cluster, authorities string) (*http.Transport, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(authorities)) {
		return nil, fmt.Errorf("no authority in %q", authorities)
	}
	return &http.Transport{
		DialContext: dialPod, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: names.Host(namespace, cluster), MinVersion: tls.VersionTLS12},
	}, nil
}

// metricsOverTLS reads a node's metrics like Prometheus.
func metricsOverTLS(pod *corev1.Pod, authorities string) (string, error) {
	transport, err := trusting(secureCluster, authorities)
	if err != nil {
		return "", err
	}
	where := "https://" + net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(names.PortPrometheusTLS)) + "/metrics"
	response, err := (&http.Client{Transport: transport}).Get(where)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// restarts returns the restarts of the operator's containers by pod.
func restarts() map[string]int32 {
	GinkgoHelper()
	var pods corev1.PodList
	Expect(k8s.List(ctx, &pods, client.InNamespace(operatorNamespace), client.MatchingLabels{names.LabelName: names.Manager})).To(Succeed())
	out := map[string]int32{}
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			out[pod.Name] += status.RestartCount
		}
	}
	Expect(out).NotTo(BeEmpty())
	return out
}
