// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// lastVolume returns the volume with which a node was last ready.
func (w *world) lastVolume(node int) func() string {
	return func() string {
		if members := w.cluster().Status.Members; len(members) > node && members[node].LastReady != nil {
			return members[node].LastReady.Volume
		}
		return ""
	}
}

// loseVolumes takes the volumes of c-1 and c-2, and returns them as spec.majorityRecovery.lost.
func (w *world) loseVolumes(results ...[]broker.RecoveredQueue) []posthornv1.LostNode {
	GinkgoHelper()
	var lost []posthornv1.LostNode
	w.broker.LoseMajority(results...)
	for i, name := range []string{"c-1", "c-2"} {
		volume := w.claim(name).Spec.VolumeName
		Eventually(w.lastVolume(i + 1)).Should(Equal(volume))
		lost = append(lost, posthornv1.LostNode{Node: name, Volume: volume})
		w.broker.SetNotReady(name, "this node has not joined the metadata group")
		w.broker.SetNode(name, false)
		pod := &corev1.Pod{ObjectMeta: w.meta(name)}
		change(pod, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, unreadyAnnotation, "yes") })
		Expect(deleteClaim(ctx, k8s, w.namespace, "data-"+name)).To(Succeed())
	}
	Eventually(conditionOf(w.cluster(), posthornv1.ConditionStalled)).Should(HavePrefix("True MajorityLost"))
	return lost
}

// recover sets spec.majorityRecovery.
func (w *world) recover(lost ...posthornv1.LostNode) {
	GinkgoHelper()
	w.changeCluster(func(c *posthornv1.BrokerCluster) {
		c.Spec.MajorityRecovery = &posthornv1.MajorityRecoverySpec{Lost: lost, AcceptLoss: posthornv1.AcceptedLoss}
	})
}

func (w *world) recovered() func() string {
	return conditionOf(w.cluster(), posthornv1.ConditionMajorityRecovered)
}

// recoverySteps returns the number of steps that the broker was asked for.
func (w *world) recoverySteps() int {
	return len(w.broker.Calls("/api/recovery/majority", http.MethodPost))
}

// join starts the lost nodes as new ones.
func (w *world) join() {
	GinkgoHelper()
	for _, name := range []string{"c-1", "c-2"} {
		w.broker.SetNotReady(name, "")
		Expect(k8s.Delete(ctx, &corev1.Pod{ObjectMeta: w.meta(name)}, client.GracePeriodSeconds(0))).To(Succeed())
	}
}

var _ = Describe("recovery from a lost majority", func() {
	It("continues on the remaining node, replaces the others, and does nothing after a later loss", func() {
		w := newWorld()
		w.readyWorld()
		w.broker.SetQueue(replicatedQueue("kept", "c-0", "c-1", "c-2"))
		results := []broker.RecoveredQueue{{Vhost: "/", Name: "kept", Result: broker.QueueRecovered}}
		lost := w.loseVolumes(results)
		Expect(ready(w.cluster())()).To(ContainSubstring("set spec.majorityRecovery"))
		Expect(w.recovered()()).NotTo(ContainSubstring("MajorityLost"), "without the field nothing changes")
		Consistently(w.recoverySteps).Should(BeZero())
		w.recover(lost...)
		Eventually(func() bool { return w.broker.Forgotten("c-1") && w.broker.Forgotten("c-2") }).Should(BeTrue())
		Eventually(w.recovered()).Should(And(HavePrefix("False NodesJoining"), ContainSubstring("waiting for c-1, c-2")))
		Eventually(ready(w.cluster())).Should(HavePrefix("False RecoveringMajority"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionStalled)()).NotTo(HavePrefix("True"))
		Expect(w.cluster().Status.MajorityRecovery).To(And(HaveField("State", posthornv1.MajorityRecovering), HaveField("MetadataNode", "c-0"), HaveField("Removed", ConsistOf("c-1", "c-2"))))

		By("joining with new volumes")
		rebalances := func() int { return len(w.broker.Calls("/api/rebalance/queues", http.MethodPost)) }
		before := rebalances()
		w.join()
		Eventually(w.recovered()).Should(HavePrefix("True Recovered"))
		w.readyWorld()
		kept, _ := w.broker.Queue("/", "kept")
		Expect(kept.Members).To(ConsistOf("c-0", "c-1", "c-2"))
		Eventually(rebalances).Should(BeNumerically(">", before))
		Expect(w.cluster().Status.MajorityRecovery.State).To(Equal(posthornv1.MajorityRecovered))
		for reason, count := range map[string]int{"MajorityLost": 1, "MajorityRecoveryBegins": 1, "NodeRemoved": 2, "MajorityRecovered": 1, "MajorityRecoveryRefused": 0} {
			Eventually(eventsOf(w.cluster(), reason)).Should(Equal(count), reason)
		}

		By("losing the same nodes again, with the same spec")
		steps := w.recoverySteps()
		again := w.loseVolumes()
		Expect(again).NotTo(Equal(lost))
		Consistently(w.recoverySteps).Should(Equal(steps))
		Expect(w.broker.Forgotten("c-1")).To(BeFalse())
		By("naming the new loss")
		w.recover(again...)
		Eventually(w.recovered()).Should(HavePrefix("False NodesJoining"))
		w.join()
		Eventually(w.recovered()).Should(HavePrefix("True Recovered"))
		By("removing the field")
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.MajorityRecovery = nil })
		Eventually(w.recovered()).ShouldNot(ContainSubstring("Recovered"))
		w.readyWorld()
	})

	It("is refused when the spec names other nodes, when a named node runs, or by the broker", func() {
		w := newWorld()
		w.readyWorld()
		healthy := posthornv1.LostNode{Node: "c-1", Volume: w.claim("c-1").Spec.VolumeName}
		By("naming a volume that is not lost")
		w.recover(healthy)
		Eventually(w.recovered()).Should(And(HavePrefix("False VolumeReturned"), ContainSubstring("it is not lost")))
		w.readyWorld()
		w.recover(posthornv1.LostNode{Node: "c-1", Volume: "pv-earlier"})
		Eventually(w.recovered()).Should(HavePrefix("False MajorityNotLost"))
		w.readyWorld()

		lost := w.loseVolumes()
		By("naming one of two")
		w.recover(lost[0])
		refused := And(ContainSubstring("NodesDiffer"), ContainSubstring("c-1 (volume "+lost[0].Volume+"), c-2 (volume "+lost[1].Volume+")"))
		Eventually(w.recovered()).Should(refused)
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False MajorityLost"), refused))
		By("naming a volume of an earlier loss")
		w.recover(lost[0], posthornv1.LostNode{Node: "c-2", Volume: "pv-earlier"})
		Eventually(w.recovered()).Should(And(HavePrefix("False NodesDiffer"), ContainSubstring("pv-earlier")))
		By("naming a node that runs somewhere")
		w.broker.SetNode("c-2", true)
		w.recover(lost...)
		Eventually(w.recovered()).Should(And(HavePrefix("False NodeRunning"), ContainSubstring("c-2")))
		Expect(w.recoverySteps()).To(BeZero())
		Expect(w.cluster().Status.MajorityRecovery).To(BeNil())
		By("being refused by the broker")
		const flag = "feature flag 'majority_recovery' is not enabled in this cluster"
		w.broker.RefuseRecovery(http.StatusBadRequest, flag)
		w.broker.SetNode("c-2", false)
		Eventually(w.recovered()).Should(And(HavePrefix("False BrokerRefuses"), ContainSubstring(flag)))
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False MajorityLost"), ContainSubstring(flag)))
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionStalled)).Should(HavePrefix("True MajorityLost"))
		By("being asked to wait")
		const slow = "node 'c-1' may only be slow or restart"
		w.broker.RefuseRecovery(http.StatusServiceUnavailable, slow)
		Eventually(w.recovered()).Should(And(HavePrefix("False RemovingNodes"), ContainSubstring(slow)))
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False RecoveringMajority"), ContainSubstring(slow)))
		Expect(w.broker.Forgotten("c-1")).To(BeFalse())
		Eventually(eventsOf(w.cluster(), "MajorityRecoveryRefused")).Should(Equal(5))
		By("being accepted")
		w.broker.RefuseRecovery(0, "")
		Eventually(w.recovered()).Should(HavePrefix("False NodesJoining"))
		w.join()
		Eventually(w.recovered()).Should(HavePrefix("True Recovered"))
		w.readyWorld()
	})
})

var _ = DescribeTable("a nonsense recovery is refused by the API server", refuses("BrokerCluster"),
	Entry("no lost node", `spec.majorityRecovery.lost`, `{majorityRecovery: {acceptLoss: MessagesOnLostVolumes, lost: []}}`),
	Entry("no accepted loss", `spec.majorityRecovery.acceptLoss`, `{majorityRecovery: {lost: [{node: n-1, volume: v}]}}`),
	Entry("a loss that is accepted with true", `spec.majorityRecovery.acceptLoss`, `{majorityRecovery: {acceptLoss: true, lost: [{node: n-1, volume: v}]}}`),
	Entry("another loss", `also confirmed messages`, `{majorityRecovery: {acceptLoss: "yes", lost: [{node: n-1, volume: v}]}}`),
	Entry("no volume", `spec.majorityRecovery.lost[0].volume`, `{majorityRecovery: {acceptLoss: MessagesOnLostVolumes, lost: [{node: n-1}]}}`),
	Entry("an empty volume", `spec.majorityRecovery.lost[0].volume`, `{majorityRecovery: {acceptLoss: MessagesOnLostVolumes, lost: [{node: n-1, volume: ""}]}}`),
	Entry("a number as node", `spec.majorityRecovery.lost[0].node`, `{majorityRecovery: {acceptLoss: MessagesOnLostVolumes, lost: [{node: 1, volume: v}]}}`),
	Entry("a node that is no pod", `for example c-1`, `{majorityRecovery: {acceptLoss: MessagesOnLostVolumes, lost: [{node: "n-1\nn-2", volume: v}]}}`),
	Entry("a node of another cluster", `names pods of this cluster`, `{majorityRecovery: {acceptLoss: MessagesOnLostVolumes, lost: [{node: m-1, volume: v}]}}`),
	Entry("a node that is named twice", `Duplicate value`, `{majorityRecovery: {acceptLoss: MessagesOnLostVolumes, lost: [{node: n-1, volume: v}, {node: n-1, volume: w}]}}`),
	Entry("too many nodes", `spec.majorityRecovery.lost`, `{majorityRecovery: {acceptLoss: MessagesOnLostVolumes, lost: [`+strings.TrimSuffix(strings.Repeat(`{node: n-1, volume: v}, `, 10), ", ")+`]}}`),
	Entry("an unknown field", `force`, `{majorityRecovery: {force: true, acceptLoss: MessagesOnLostVolumes, lost: [{node: n-1, volume: v}]}}`),
)
