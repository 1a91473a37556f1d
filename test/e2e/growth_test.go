// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// growDisks gives every broker a larger volume that has messages on it. The local cluster's provisioner does the work
// of a CSI driver's resizer.
func growDisks() {
	const messages, larger = 2000, "2Gi"
	newWorkQueue("grown")
	ledger := publishKept("grown", messages)
	claims, pods := volumes(), podUIDs()
	Expect(sizes()).To(Equal([]string{"1Gi", "1Gi", "1Gi"}))
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Storage.Size = resource.MustParse(larger) })).To(Succeed())
	Eventually(sizes).Should(Equal([]string{larger, larger, larger}))
	Eventually(func() bool {
		cluster := currentCluster()
		found := apimeta.FindStatusCondition(cluster.Status.Conditions, posthornv1.ConditionStorageReady)
		return found != nil && found.ObservedGeneration == cluster.Generation && apimeta.IsStatusConditionTrue(cluster.Status.Conditions, found.Type)
	}).Should(BeTrue(), "the operator sees it")
	becomesWhole("grown")
	Expect(volumes()).To(Equal(claims), "the same claims")
	Expect(podUIDs()).To(Equal(pods), "the same pods")
	v := start("grown-consume", work{command: "consume", queue: "grown", ledger: ledger}).keptItsWord()
	Expect(v.Arrived).To(Equal(messages))
}

// sizes returns the sizes of the brokers' volumes whose claim and volume agree.
func sizes() ([]string, error) {
	var out []string
	for _, name := range memberNames() {
		var claim corev1.PersistentVolumeClaim
		if err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "data-" + name}, &claim); err != nil {
			return nil, err
		}
		var volume corev1.PersistentVolume
		if err := k8s.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, &volume); err != nil {
			return nil, err
		}
		size := claim.Status.Capacity.Storage().String()
		if has := volume.Spec.Capacity.Storage().String(); has != size {
			size = fmt.Sprintf("%s, and %s has %s", size, volume.Name, has)
		}
		out = append(out, size)
	}
	return out, nil
}

// podUIDs returns the UIDs of the brokers, each with the number of its container's restarts.
func podUIDs() map[types.UID]int32 {
	GinkgoHelper()
	pods, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	out := map[types.UID]int32{}
	for i := range pods {
		out[pods[i].UID] = pods[i].Status.ContainerStatuses[0].RestartCount
	}
	return out
}
