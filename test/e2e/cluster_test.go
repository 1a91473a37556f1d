// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

const (
	operatorNamespace = "posthorn-system"
	// mainQueue exists from the beginning to the end.
	mainQueue = "orders"
)

// One cluster goes through all specs, like a real one: the consequences of a failure show in later specs.
var _ = Describe("three brokers", Ordered, ContinueOnFailure, func() {
	BeforeAll(func() {
		for _, object := range []client.Object{newCluster(), newQueue(mainQueue), newPolicy(), newUser()} {
			Expect(k8s.Create(ctx, object)).To(Succeed())
		}
	})

	It("start from four resources", func() {
		for _, object := range []client.Object{newCluster(), newQueue(mainQueue), newPolicy(), newUser()} {
			becomesReady(object)
		}
		becomesWhole(mainQueue)
		var q posthornv1.Queue
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: mainQueue}, &q)).To(Succeed())
			g.Expect(q.Status.EffectivePolicy).To(Equal(policyName))
			g.Expect(q.Status.Members).To(ConsistOf(memberNames()))
			g.Expect(q.Status.Leader).To(BeElementOf(memberNames()))
		}).Should(Succeed(), "the queue's status")
		pods, err := brokerPods()
		Expect(err).NotTo(HaveOccurred())
		places := map[string]bool{}
		for i := range pods {
			places[pods[i].Spec.NodeName] = true
		}
		Expect(places).To(HaveLen(replicas), "each broker is on a node of its own")
		zones := map[string]bool{}
		for _, member := range currentCluster().Status.Members {
			zones[member.Zone] = true
		}
		Expect(zones).To(And(HaveLen(replicas), Not(HaveKey(""))), "each broker knows its zone")
	})

	It("route messages of MQTT clients between all of them", speakMQTT)
	It("isolate two teams from each other", keepTeamsApart)
	It("run without privileges, with a read-only root, in a restricted namespace", runRestricted)

	Context("that are whole", func() {
		BeforeEach(func() { becomesWhole(mainQueue) })

		It("keep every confirmed message while the leader's node is cut off", keepMessagesThroughCutOfLeader)
		It("keep every confirmed message while the leader's pod is deleted", keepMessagesThroughDeletionOfLeader)
		It("keep every confirmed message while a follower's node is cut off", keepMessagesThroughCutOfFollower)
		It("are upgraded one at a time under load, also when the image is corrected during the roll", rollUnderLoad)
		It("block a roll while a queue needs one of them, name the queue, and unblock when the spec is reverted", waitForQuorum)
		It("refuse an unknown setting before any pod changes, and continue when it is reverted", stopAtWrongSetting)
		It("get larger volumes without a restart and without losing data", growDisks)
		It("lose no message when their disks are lost one after the other", replaceEveryDisk)
		It("keep their messages through hibernation", sleepAndWake)
		It("accept connections only from peers of their network policy", enforcePolicy)
		It("accept a new password, refuse the old one, and keep open connections", rotatePassword)
		It("scale to five and back to three under load without losing a message", shrinkUnderLoad)
	})

	It("start to delete a namespace with two other clusters in it", deleteNamespace)
	It("apply a pod template to another cluster, except while it is paused or without a broker", reshapePods)
	It("recreate another cluster on its volume with the next version, whose flag stays disabled", makeAgain)
	It("restore the backup of a deleted cluster into a new cluster", restoreNewCluster)
	It("give another cluster a certificate from cert-manager", issueCertificate)
	It("give another cluster a certificate from a given Secret", giveCertificate)
	It("replace the CA of another cluster that accepts TLS only, without a restart", takeTLSOnly)

	It("see the renewed certificate of cert-manager without a disconnection", seeRenewal)
	It("see the replaced certificate of the given Secret without a disconnection", seeGiven)

	Context("refuse", func() {
		It("impossible values, with the reason", refuseImpossibleValues)
		It("changes of immutable fields, with the reason", refuseImmutableChanges)
		It("a wrong password", refuseWrongPassword)
		It("an unknown vhost", refuseUnknownVhost)
		It("operations without permission", refuseWithoutPermission)
		It("an unknown setting of a new cluster, in its status", reportUnknownSetting)
	})

	It("see the deletion of that namespace end within two minutes", namespaceWent)
})

// newWorkQueue creates a queue for one spec and deletes it afterwards.
func newWorkQueue(name string) {
	GinkgoHelper()
	q := newQueue(name)
	Expect(k8s.Create(ctx, q)).To(Succeed())
	DeferCleanup(func() { Expect(client.IgnoreNotFound(k8s.Delete(ctx, newQueue(name)))).To(Succeed()) })
	Eventually(readiness(q)).Should(HavePrefix("True "))
	Eventually(whole(name)).Should(Succeed())
}

// followerOf returns a pod that neither leads the queue nor runs on the node.
func followerOf(leader *corev1.Pod, notOn string) corev1.Pod {
	GinkgoHelper()
	pods, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	for _, pod := range pods {
		if pod.Name != leader.Name && pod.Spec.NodeName != notOn {
			return pod
		}
	}
	Fail("no follower off " + notOn)
	return corev1.Pod{}
}
