// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

const (
	// idleImage is an image of the local cluster that does nothing.
	idleImage = "posthorn.local/pause:1"
	// strangers is a namespace without access to the cluster.
	strangers = "e2e-strangers"
	// scraper is the label of pods that may read metrics.
	scraper = "scraper"
)

// enforcePolicy tries every port of a broker from pods of all kinds, under a policy that the local cluster enforces.
// Brokers, clients and the operator keep working under it, also with a replaced broker.
func enforcePolicy() {
	newWorkQueue("policed")
	makeNamespace(strangers)
	DeferCleanup(func() {
		Expect(k8s.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: strangers}})).To(Succeed())
	})
	broker, other := brokerPod(clusterName+"-0"), brokerPod(clusterName+"-1")
	stranger, customer, watcher := idle(strangers, "stranger"), idle(namespace, "customer"), idle(namespace, scraper)
	all := []int{names.PortAMQP, names.PortMQTT, names.PortManagement, names.PortPrometheus, names.PortCluster}
	Expect(reached(stranger, &broker, all)).To(Equal(all), "nothing is closed without a policy")
	Expect(reached(&broker, customer, all[:1])).To(Equal(all[:1]), "which is refused there, but not on the way")

	setPolicy(posthornv1.NetworkPolicySpec{
		Mode:       posthornv1.NetworkPolicyStrict,
		Clients:    []posthornv1.NetworkPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}}},
		Monitoring: []posthornv1.NetworkPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{scraper: "yes"}}}},
	})
	DeferCleanup(func() {
		setPolicy(posthornv1.NetworkPolicySpec{Mode: posthornv1.NetworkPolicyOff})
		becomesWhole("policed")
	})
	Eventually(reached).WithArguments(stranger, &broker, all).Should(BeEmpty(), "the stranger is shut out")
	Expect(reached(customer, &broker, all)).To(Equal([]int{names.PortAMQP, names.PortMQTT}), "a client")
	Expect(reached(watcher, &broker, all)).To(Equal([]int{names.PortAMQP, names.PortMQTT, names.PortPrometheus}), "Prometheus, in a namespace of clients")
	Expect(reached(&other, &broker, all)).To(ContainElement(names.PortCluster), "another broker")
	Expect(reached(&broker, customer, all[:1])).To(BeEmpty(), "a broker connects to nobody but brokers")

	c := start("policed", work{command: "run", queue: "policed", messages: endless, rate: 300, overlap: true})
	c.confirmedAtLeast(300)
	last := brokerPod(clusterName + "-2")
	Expect(k8s.Delete(ctx, last.DeepCopy(), client.GracePeriodSeconds(1))).To(Succeed())
	isMadeAgain(&last)
	Eventually(func() bool { pod := brokerPod(last.Name); return podReady(&pod) }).Should(BeTrue(), "it finds the others")
	Eventually(operatorContent).Should(Succeed())
	again := brokerPod(last.Name)
	Expect(reached(stranger, &again, all)).To(BeEmpty())
	c.moreConfirmed(300)
	c.enough()
}

func setPolicy(policy posthornv1.NetworkPolicySpec) {
	GinkgoHelper()
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.NetworkPolicy = policy })).To(Succeed())
	Eventually(operatorContent).Should(Succeed())
}

// idle creates a pod that does nothing, and waits until it has an address.
func idle(namespace, name string) *corev1.Pod {
	GinkgoHelper()
	pod := restrictedPod(corev1.Container{Name: "idle", Image: idleImage})
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{name: "yes"}}
	Expect(k8s.Create(ctx, pod)).To(Succeed())
	DeferCleanup(func() {
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
	})
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
		g.Expect(pod.Status.PodIP).NotTo(BeEmpty())
	}).Should(Succeed(), name)
	return pod
}

// reached returns the ports of a pod to which a connection from another pod's network succeeds or is refused.
func reached(from, to *corev1.Pod, ports []int) []int {
	GinkgoHelper()
	file := filepath.Join(processOf(from), "ns", "net")
	open := make([]bool, len(ports))
	var all sync.WaitGroup
	for at, port := range ports {
		all.Go(func() {
			connection, err := dialFrom(ctx, file, "tcp", net.JoinHostPort(to.Status.PodIP, strconv.Itoa(port)))
			if err == nil {
				_ = connection.Close()
			}
			open[at] = err == nil || !isTimeout(err)
		})
	}
	all.Wait()
	out := []int{}
	for at, port := range ports {
		if open[at] {
			out = append(out, port)
		}
	}
	say("%s/%s reaches %s on %s", from.Namespace, from.Name, to.Name, fmt.Sprint(out))
	return out
}

// isTimeout reports whether there was no answer at all, not even a refusal.
func isTimeout(err error) bool {
	var failure net.Error
	return errors.As(err, &failure) && failure.Timeout()
}
