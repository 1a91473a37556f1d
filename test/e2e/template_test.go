// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

const (
	// reshaped has fields of a pod that a platform team may need and that the operator's API lacks.
	reshaped = `{"metadata":{"annotations":{"example.com/team":"halls"}},
		"spec":{"terminationGracePeriodSeconds":45,"containers":[{"name":"posthorn","env":[{"name":"TZ","value":"Europe/Oslo"}]}]}}`
	// misshapen removes the broker's program.
	misshapen = `{"spec":{"containers":[{"name":"posthorn","image":"example.com/other:1"}]}}`
)

// reshapePods changes the pod template of a cluster of one node: not while the cluster is paused, and never to a
// template with which no broker can run.
func reshapePods() {
	startSingles()
	cluster := singleCluster(againCluster)
	becomesReady(cluster)
	change := func(change func(*posthornv1.BrokerClusterSpec)) {
		GinkgoHelper()
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
		before := cluster.DeepCopy()
		change(&cluster.Spec)
		Expect(k8s.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	}
	first := brokerPod(againCluster + "-0")

	change(func(spec *posthornv1.BrokerClusterSpec) {
		spec.Paused, spec.PodTemplate = true, &runtime.RawExtension{Raw: []byte(reshaped)}
	})
	Eventually(func(g Gomega) {
		readiness(cluster)()
		g.Expect(cluster.Status.ObservedGeneration).To(Equal(cluster.Generation))
		g.Expect(cluster.Status.Phase).To(Equal(posthornv1.PhasePaused))
	}).Should(Succeed())
	Expect(brokerPod(first.Name).UID).To(Equal(first.UID), "nothing happens to a cluster that is paused")

	change(func(spec *posthornv1.BrokerClusterSpec) { spec.Paused = false })
	var second corev1.Pod
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(&first), &second)).To(Succeed())
		g.Expect(second.UID).NotTo(Equal(first.UID))
		g.Expect(podReady(&second)).To(BeTrue())
	}).Should(Succeed())
	becomesReady(cluster)
	Expect(second.Annotations).To(HaveKeyWithValue("example.com/team", "halls"))
	Expect(*second.Spec.TerminationGracePeriodSeconds).To(BeEquivalentTo(45))
	Expect(second.Spec.Containers[0].Env).To(ContainElement(corev1.EnvVar{Name: "TZ", Value: "Europe/Oslo"}))
	Expect(second.Spec.Containers[0].Image).To(Equal(first.Spec.Containers[0].Image))

	for _, refused := range []struct{ template, words string }{
		{misshapen, "the broker's image"},
		{`{"spec":{"terminationGracePeriodSeconds":"45s"}}`, "spec.podTemplate.spec.terminationGracePeriodSeconds"},
	} {
		before := cluster.DeepCopy()
		changed := cluster.DeepCopy()
		changed.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(refused.template)}
		refusedWith(k8s.Patch(ctx, changed, client.MergeFrom(before)), refused.words)
	}
	change(func(spec *posthornv1.BrokerClusterSpec) {
		spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"spec":{"volumes":[{"$patch":"replace"}]}}`)}
	})
	Eventually(readiness(cluster)).Should(HavePrefix("False InvalidPodTemplate: "))
	Expect(brokerPod(first.Name).UID).To(Equal(second.UID), "nobody is replaced for a template that is refused")
	change(func(spec *posthornv1.BrokerClusterSpec) {
		spec.PodTemplate = &runtime.RawExtension{Raw: []byte(reshaped)}
	})
	becomesReady(cluster)
	Expect(brokerPod(first.Name).UID).To(Equal(second.UID))
}
