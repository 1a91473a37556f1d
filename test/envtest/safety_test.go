// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

var _ = Describe("safety of running clusters", func() {
	It("allows no eviction while a queue needs a node", func() {
		w := newWorld()
		w.readyWorld()
		allowed := func() int32 {
			budget := &policyv1.PodDisruptionBudget{}
			if k8s.Get(ctx, w.key("c"), budget) != nil || budget.Spec.MaxUnavailable == nil {
				return -1
			}
			return budget.Spec.MaxUnavailable.IntVal
		}
		Eventually(allowed).Should(BeEquivalentTo(1))
		w.broker.SetCritical("c-1", broker.QueueRef{Name: "q1", Vhost: "/", Type: "quorum"})
		Eventually(allowed).Should(BeEquivalentTo(0))
		// The status follows the budget in the same reconciliation.
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionQuorumSafe)).Should(HavePrefix("False"))
		w.broker.SetCritical("c-1")
		Eventually(allowed).Should(BeEquivalentTo(1))
	})

	It("says why nodes that run do not serve clients", func() {
		w := newWorld()
		w.readyWorld()
		const reason = "the metadata group has no leader that this node can reach"
		for _, name := range []string{"c-0", "c-1", "c-2"} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
			w.broker.SetNotReady(name, reason)
			change(pod, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, unreadyAnnotation, "yes") })
		}
		for _, kind := range []string{posthornv1.ConditionReady, posthornv1.ConditionAvailable} {
			Eventually(conditionOf(w.cluster(), kind)).Should(And(HavePrefix("False"), ContainSubstring("0 of 3 nodes ready; c-0: NotReady: "+reason+"; c-1: NotReady: "+reason)))
		}
		Expect(w.cluster().Status.Members[2].Message).To(Equal("NotReady: " + reason))
		for _, name := range []string{"c-0", "c-1", "c-2"} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
			w.broker.SetNotReady(name, "")
			change(pod, func(p *corev1.Pod) { delete(p.Annotations, unreadyAnnotation) })
		}
		w.readyWorld()
		Eventually(func() string { return w.cluster().Status.Members[2].Message }).Should(BeEmpty())
	})

	It("names the lost volumes of a majority", func() {
		w := newWorld()
		w.readyWorld()
		placed := func(node int) *posthornv1.MemberPlacement {
			if members := w.cluster().Status.Members; len(members) > node {
				return members[node].LastReady
			}
			return nil
		}
		volume := func(node string) string { return w.claim(node).Spec.VolumeName }
		var before []string
		for i, name := range []string{"c-0", "c-1", "c-2"} {
			Eventually(placed).WithArguments(i).Should(HaveField("Volume", volume(name)))
			before = append(before, volume(name))
		}
		lose := func(name string) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
			w.broker.SetNotReady(name, "this node has not joined the metadata group")
			change(pod, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, unreadyAnnotation, "yes") })
			Expect(deleteClaim(ctx, k8s, w.namespace, "data-"+name)).To(Succeed())
		}
		By("losing one, which the others survive")
		lose("c-1")
		Eventually(ready(w.cluster())).Should(HavePrefix("False NodesNotReady"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionAvailable)()).To(HavePrefix("True"))
		By("losing another one")
		lose("c-2")
		words := And(ContainSubstring("2 of 3 nodes no longer have the volumes"), ContainSubstring("c-1 (volume "+before[1]+"), c-2 (volume "+before[2]+")"),
			ContainSubstring("set spec.majorityRecovery"))
		for _, kind := range []string{posthornv1.ConditionReady, posthornv1.ConditionAvailable} {
			Eventually(conditionOf(w.cluster(), kind)).Should(And(HavePrefix("False MajorityLost"), words))
		}
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionStalled)).Should(HavePrefix("True MajorityLost"))
		Eventually(eventsOf(w.cluster(), "MajorityLost")).Should(Equal(1))
		Expect(w.cluster().Status.Members[1].LastReady).To(HaveField("Volume", before[1]), "until the node is ready again")
		By("getting the nodes back with their new volumes")
		for _, name := range []string{"c-1", "c-2"} {
			w.broker.SetNotReady(name, "")
			Expect(k8s.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}, client.GracePeriodSeconds(0))).To(Succeed())
		}
		w.readyWorld()
		Eventually(placed).WithArguments(1).Should(HaveField("Volume", volume("c-1")))
		Expect(volume("c-1")).NotTo(Equal(before[1]))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionStalled)()).NotTo(HavePrefix("True"))
		Expect(eventsOf(w.cluster(), "MajorityLost")()).To(Equal(1))
	})

	It("names a machine that is down, and machines that run several nodes", func() {
		w := newWorld()
		w.readyWorld()
		place := func(name, machine string) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
			binding := &corev1.Binding{ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: machine}}
			Expect(k8s.SubResource("binding").Create(ctx, pod, binding)).To(Succeed())
		}
		for name, machine := range map[string]string{"c-0": "w0", "c-1": "w1", "c-2": "w2"} {
			place(name, machine)
		}
		Eventually(func() string { return w.cluster().Status.Members[2].Machine }).Should(Equal("w2"))
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionSpread)).Should(HavePrefix("True OneNodeAMachine"))

		By("losing contact with a machine")
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-2"}}
		change(pod, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, machineDownAnnotation, "yes") })
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False NodesNotReady"), ContainSubstring("c-2: MachineDown: "), ContainSubstring("machine w2")))
		Expect(w.cluster().Status.Members[2].Message).To(HavePrefix("MachineDown: "))
		Eventually(eventsOf(w.cluster(), "MachineDown")).Should(Equal(1))

		By("deleting its pod, which waits for the machine")
		Expect(k8s.Delete(ctx, pod, client.GracePeriodSeconds(1))).To(Succeed())
		Eventually(ready(w.cluster())).WithTimeout(2 * time.Minute).Should(And(HavePrefix("False NodesNotReady"), ContainSubstring("c-2: MachineLost: "), ContainSubstring("machine w2")))

		By("starting the pod on a machine that runs another node")
		Expect(k8s.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		w.readyWorld()
		place("c-2", "w1")
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionSpread)).Should(And(HavePrefix("False MachineShared"), ContainSubstring("c-1 and c-2 on machine w1")))
		Eventually(eventsOf(w.cluster(), "MachineShared")).Should(Equal(1))
		Expect(ready(w.cluster())()).To(HavePrefix("True AllNodesReady"))
	})

	It("puts no pod that crashed on a revision that fails elsewhere", func() {
		w := newWorld()
		w.readyWorld()
		before := w.podUIDs()
		w.changeCluster(setImage("bad"))
		Eventually(w.images).Should(Equal([]string{"1.0.0", "1.0.0", "bad"}))
		crashed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-0"}}
		for _, how := range []string{"once", "loop"} {
			change(crashed, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, crashedAnnotation, how) })
			Eventually(func() string { return w.cluster().Status.Members[0].Message }).Should(HavePrefix(map[string]string{"once": "Error: exit code 137", "loop": "CrashLoopBackOff"}[how]))
			Consistently(func() types.UID { return w.podUIDs()[0] }).Should(Equal(before[0]), how)
		}
		Eventually(w.rollout).Should(Equal("RevisionFails c-2"))
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.images).Should(HaveEach("1.1.0"))
		w.readyWorld()
	})

	It("reports queues whose only copy was lost until they are gone", func() {
		w := newWorld()
		w.readyWorld()
		w.broker.SetLostQueues(broker.LostQueue{Vhost: "/", Name: "orders", Node: "c-2"})
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionQueuesLost)).Should(And(
			HavePrefix("True LastCopyLost"), ContainSubstring("orders (was on c-2)")))
		Eventually(eventsOf(w.cluster(), "QueuesLost")).Should(Equal(1))
		w.broker.SetLostQueues()
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionQueuesLost)).ShouldNot(HavePrefix("True"))
	})

	It("reports that a queue has no messages", func() {
		w := newWorld()
		w.readyWorld()
		q := w.queue("empty")
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		stored := &unstructured.Unstructured{}
		stored.SetGroupVersionKind(posthornv1.GroupVersion.WithKind("Queue"))
		Expect(k8s.Get(ctx, w.key("empty"), stored)).To(Succeed())
		messages, found, err := unstructured.NestedInt64(stored.Object, "status", "messages")
		Expect(err).NotTo(HaveOccurred())
		Expect(found).To(BeTrue())
		Expect(messages).To(BeZero())
	})

	It("spreads leaders after a roll", func() {
		w := newWorld()
		w.readyWorld()
		rebalances := func() int { return len(w.broker.Calls("/api/rebalance/queues", http.MethodPost)) }
		before := rebalances()
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.images).Should(HaveEach("1.1.0"))
		Eventually(rebalances).Should(Equal(before + 1))
		w.readyWorld()
		Consistently(rebalances).Should(Equal(before + 1))
	})

	It("continues a roll that makes queues unavailable only when that is accepted for the pod", func() {
		w := newWorld()
		w.readyWorld()
		w.broker.SetCritical("c-2", broker.QueueRef{Name: "pair", Vhost: "/", Type: "quorum"})
		w.changeCluster(setImage("1.1.0"))
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionUpgradeBlocked)).Should(And(
			HavePrefix("True QuorumCritical"), ContainSubstring("/pair"), ContainSubstring(names.AnnotationAcceptUnavailable)))
		Eventually(eventsOf(w.cluster(), "RollBlocked")).Should(Equal(1))
		revision := w.cluster().Status.Rollout.TargetRevision
		accept := func(value string) {
			w.changeCluster(func(c *posthornv1.BrokerCluster) {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, names.AnnotationAcceptUnavailable, value)
			})
		}
		accept(revision + "/c-1")
		Consistently(w.images).Should(HaveEach("1.0.0"))
		accept(revision + "/c-2")
		Eventually(w.images).Should(Equal([]string{"1.0.0", "1.0.0", "1.1.0"}))
	})
})
