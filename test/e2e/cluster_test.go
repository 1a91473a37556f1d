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
	// mainQueue is there from the beginning to the end.
	mainQueue = "orders"
)

// One cluster goes through everything, as a real one does: what a failure leaves behind shows in
// what comes after it.
var _ = Describe("three brokers", Ordered, ContinueOnFailure, func() {
	BeforeAll(func() {
		for _, object := range []client.Object{newCluster(), newQueue(mainQueue), newPolicy(), newUser()} {
			Expect(k8s.Create(ctx, object)).To(Succeed())
		}
	})

	It("come up from four resources", func() {
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

	It("pass on what MQTT clients publish on one of them to those on the others", speakMQTT)
	It("keep two teams apart, whatever one of them tries", keepTeamsApart)
	It("run as nobody in particular, with a read-only root, in a restricted namespace", runRestricted)

	Context("that are whole", func() {
		BeforeEach(func() { becomesWhole(mainQueue) })

		It("keep every confirmed message while the leader's node is cut off", keepMessagesThroughCutOfLeader)
		It("keep every confirmed message while the leader's pod is deleted", keepMessagesThroughDeletionOfLeader)
		It("keep every confirmed message while a follower's node is cut off", keepMessagesThroughCutOfFollower)
		It("are upgraded to the next version one at a time under load, also when the image is mended on the way", rollUnderLoad)
		It("hold a roll up while a queue needs one of them, name it, and let the spec be taken back", waitForQuorum)
		It("stop a roll at the first pod that a wrong setting breaks, and go on when it is taken back", stopAtWrongSetting)
		It("get larger volumes, stay as they are, and keep what is on them", growDisks)
		It("lose their disks one after the other and no message with them", replaceEveryDisk)
		It("sleep and wake with their messages", sleepAndWake)
		It("are reached only by those whom their network policy lets in", enforcePolicy)
		It("take a new password, refuse the old one, and disturb nobody who is connected", rotatePassword)
		It("become five and three again under load, and no message is lost", shrinkUnderLoad)
	})

	It("are joined by two in a namespace that is deleted with all that is in it", deleteNamespace)
	It("are joined by one whose pod is made from another template, but not while it is paused, nor without a broker", reshapePods)
	It("are joined by one that is deleted and made again over its volume with the next version, whose flag is left to people", makeAgain)
	It("are joined by one that gets its certificate from cert-manager", issueCertificate)
	It("are joined by one that is given a certificate, in a Secret that somebody else keeps", giveCertificate)
	It("are joined by one that takes TLS only, whose authority is replaced without a restart", takeTLSOnly)

	It("see that one show the certificate that cert-manager has renewed, and nobody is disconnected for it", seeRenewal)
	It("see another show the certificate that it was given in place of the one before, and nobody is disconnected for it", seeGiven)

	Context("refuse", func() {
		It("impossible values, with the reason", refuseImpossibleValues)
		It("changes of what cannot change, with the reason", refuseImmutableChanges)
		It("a wrong password", refuseWrongPassword)
		It("an unknown vhost", refuseUnknownVhost)
		It("what the user has no permission for", refuseWithoutPermission)
		It("an unknown setting of a new cluster, in its status", reportUnknownSetting)
	})

	It("see that namespace gone within two minutes, the broker that ran in it and the one that never did", namespaceWent)
})

// newWorkQueue makes a queue for one spec, and takes it away after it.
func newWorkQueue(name string) {
	GinkgoHelper()
	q := newQueue(name)
	Expect(k8s.Create(ctx, q)).To(Succeed())
	DeferCleanup(func() { Expect(client.IgnoreNotFound(k8s.Delete(ctx, newQueue(name)))).To(Succeed()) })
	Eventually(readiness(q)).Should(HavePrefix("True "))
	Eventually(whole(name)).Should(Succeed())
}

// followerOf is a pod that neither leads the queue nor is on the node.
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
