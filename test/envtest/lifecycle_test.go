// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

func hibernate(asleep bool) func(*posthornv1.BrokerCluster) {
	return func(c *posthornv1.BrokerCluster) { c.Spec.Hibernated = asleep }
}

// claim returns the volume of a node.
func (w *world) claim(node string) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	var claim corev1.PersistentVolumeClaim
	Expect(k8s.Get(ctx, w.key("data-"+node), &claim)).To(Succeed())
	return &claim
}

// storageClass creates a class whose volumes may or may not grow.
func storageClass(name string, grows bool) {
	GinkgoHelper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "test.posthorn.io/none", AllowVolumeExpansion: &grows}
	create(class)
	DeferCleanup(func() { Expect(k8s.Delete(ctx, class)).To(Succeed()) })
}

var _ = Describe("hibernation", func() {
	It("stops every node, always keeps the volumes, and starts the same cluster again", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Storage.WhenScaled = "Delete" })
		w.readyWorld()
		q := w.queue("orders")
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		before := w.claim("c-2").UID
		w.changeCluster(hibernate(true))
		Eventually(w.pods).Should(BeEmpty())
		Eventually(ready(w.cluster())).Should(HavePrefix("True Hibernated: 3 nodes are hibernated"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionAvailable)()).To(HavePrefix("False Hibernated"))
		Expect(w.cluster().Status.Phase).To(Equal(posthornv1.PhaseHibernated))
		Expect(w.cluster().Status.ReadyReplicas).To(BeZero())
		Expect(w.claim("c-2").UID).To(Equal(before))
		Eventually(ready(q)).Should(HavePrefix("False ClusterHibernated"))
		calls := len(w.broker.Calls("/api/queues"))
		Consistently(func() int { return len(w.broker.Calls("/api/queues")) }).Should(Equal(calls), "nobody asks a broker that sleeps")

		// Settings that changed during hibernation apply when the cluster wakes.
		w.changeCluster(func(c *posthornv1.BrokerCluster) { setImage("1.1.0")(c); c.Spec.Replicas = 5 })
		Consistently(w.pods).Should(BeEmpty())
		w.changeCluster(hibernate(false))
		Eventually(w.pods).Should(HaveLen(5))
		w.readyWorld()
		Expect(w.images()).To(HaveEach("1.1.0"))
		Expect(w.claim("c-2").UID).To(Equal(before))
		Eventually(ready(q)).Should(HavePrefix("True"))
		var sts appsv1.StatefulSet
		Expect(k8s.Get(ctx, w.key(clusterName), &sts)).To(Succeed())
		Expect(sts.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled).To(Equal(appsv1.RetainPersistentVolumeClaimRetentionPolicyType))
	})

	It("wakes only with settings that the broker has accepted", func() {
		w := newWorld(setConfig(map[string]posthornv1.ConfigValue{"shards": "1"}))
		w.readyWorld()
		w.changeCluster(hibernate(true))
		Eventually(ready(w.cluster())).Should(HavePrefix("True Hibernated"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			skipValidation(c)
			setConfig(map[string]posthornv1.ConfigValue{"shards": "2", "nonsense.key": "1"})(c)
		})
		w.changeCluster(hibernate(false))
		Eventually(ready(w.cluster())).Should(Equal("False InvalidConfig: the broker refuses spec.config, so the cluster stays hibernated: unknown key `nonsense.key`"))
		Consistently(w.pods).Should(BeEmpty())

		// Until the image can be pulled nobody knows whether the broker accepts the settings.
		w.changeCluster(hibernate(true))
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			setImage("bad")(c)
			setConfig(map[string]posthornv1.ConfigValue{"shards": "2"})(c)
		})
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 5; c.Spec.Hibernated = false })
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False CheckingConfig"), ContainSubstring("ImagePullBackOff: no such image")))
		Consistently(w.pods).Should(BeEmpty())
		w.changeCluster(func(c *posthornv1.BrokerCluster) { setImage("1.1.0")(c); c.Spec.Replicas = 3 })
		Eventually(w.pods).Should(HaveLen(3))
		w.readyWorld()
		Expect(w.settingsOf("c-0")).To(Equal("shards = 2\n"))
		Expect(w.images()).To(HaveEach("1.1.0"))
		Expect(eventsOf(w.cluster(), "Replacing")()).To(BeZero(), "no node woke with the old settings")
	})

	It("remembers the number of nodes when replicas is lowered meanwhile", func() {
		w := fiveNodes()
		w.changeCluster(hibernate(true))
		Eventually(w.pods).Should(BeEmpty())
		w.setReplicas(3)
		var files corev1.ConfigMap
		Consistently(func() string {
			_ = k8s.Get(ctx, w.key("c-config"), &files)
			return files.Data["posthorn.conf"]
		}).Should(ContainSubstring("c-4.c-nodes"))
		w.changeCluster(hibernate(false))
		Eventually(eventsOf(w.cluster(), "NodeRemoved")).Should(Equal(2), "all five woke, and two went in the way that nodes go")
		Eventually(w.pods).Should(HaveLen(3))
		Expect(w.broker.Forgotten("c-3")).To(BeTrue())
		w.readyWorld()
	})
})

var _ = Describe("volumes", func() {
	It("grow if their class allows it, also those of later nodes", func() {
		storageClass("grows", true)
		class := "grows"
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Storage.StorageClassName = &class })
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Storage.Size = resource.MustParse("2Gi") })
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionStorageReady)).Should(Equal("False Expanding: growing: data-c-0, data-c-1, data-c-2"))
		Expect(ready(w.cluster())()).To(HavePrefix("True"), "the nodes go on with what they have")
		for i := 0; i < 3; i++ {
			claim := w.claim(fmt.Sprintf("c-%d", i))
			Expect(claim.Spec.Resources.Requests.Storage().String()).To(Equal("2Gi"))
			claim.Status.Capacity = claim.Spec.Resources.Requests
			Expect(k8s.Status().Update(ctx, claim)).To(Succeed())
		}
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionStorageReady)).Should(HavePrefix("True Bound"))
		w.setReplicas(5)
		Eventually(func() string {
			claim := &corev1.PersistentVolumeClaim{}
			_ = k8s.Get(ctx, w.key("data-c-4"), claim)
			return claim.Spec.Resources.Requests.Storage().String()
		}).Should(Equal("2Gi"))
	})

	It("that cannot grow are reported with Kubernetes' message, and hold up nothing else", func() {
		storageClass("stays", false)
		class := "stays"
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Storage.StorageClassName = &class })
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Storage.Size = resource.MustParse("2Gi") })
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False ExpansionRefused"), ContainSubstring("only dynamically provisioned pvc can be resized")))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionStorageReady)()).To(HavePrefix("False ExpansionRefused"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionStalled)()).To(HavePrefix("True"))
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.images).Should(HaveEach("1.1.0"))
	})
})
