// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// fiveNodes returns a world with a ready cluster of five nodes.
func fiveNodes(changes ...func(*posthornv1.BrokerCluster)) *world {
	GinkgoHelper()
	w := newWorld(append(changes, func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 5 })...)
	w.broker.StartNode("c-3")
	w.broker.StartNode("c-4")
	w.readyWorld()
	Eventually(func() int32 { return w.cluster().Status.BalancedFor }).Should(BeEquivalentTo(5))
	return w
}

func (w *world) setReplicas(n int32) {
	GinkgoHelper()
	w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = n })
}

// pods returns the names of the existing pods.
func (w *world) pods() []string {
	var out []string
	for i := 0; i < 9; i++ {
		var pod corev1.Pod
		if k8s.Get(ctx, w.key(fmt.Sprintf("%s-%d", clusterName, i)), &pod) == nil {
			out = append(out, pod.Name)
		}
	}
	return out
}

// scaling returns reason and node of the removal in progress.
func (w *world) scaling() string {
	if s := w.cluster().Status.Scaling; s != nil {
		return s.Reason + " " + s.Removing
	}
	return "none"
}

func replicatedQueue(name string, members ...string) broker.Queue {
	q := quorumQueue(name, nil)
	q.Members, q.Online, q.Leader = members, members, members[len(members)-1]
	return q
}

var _ = Describe("scaling down", func() {
	It("empties, forgets and removes one node after the other, the highest ordinal first", func() {
		w := fiveNodes()
		w.broker.SetQueue(replicatedQueue("upper", "c-2", "c-3", "c-4"))
		w.broker.SetQueue(replicatedQueue("spread", "c-0", "c-1", "c-4"))
		w.broker.SetQueue(replicatedQueue("everywhere", "c-0", "c-1", "c-2", "c-3", "c-4"))
		stream := replicatedQueue("stream", "c-1", "c-3", "c-4")
		stream.Type, stream.Arguments = "stream", map[string]any{"x-queue-type": "stream", "x-initial-cluster-size": 3.0}
		w.broker.SetQueue(stream)
		w.setReplicas(3)
		Eventually(w.pods).Should(Equal([]string{"c-0", "c-1", "c-2"}))
		w.readyWorld()
		for _, name := range []string{"upper", "spread", "everywhere", "stream"} {
			q, _ := w.broker.Queue("/", name)
			slices.Sort(q.Members)
			Expect(q.Members).To(Equal([]string{"c-0", "c-1", "c-2"}), name)
		}
		var order []string
		for _, call := range w.broker.Calls("/api/nodes/") {
			switch step := call.Method + " " + strings.TrimPrefix(call.Path, "/api/nodes/"); {
			case call.Method == http.MethodGet:
			case len(order) == 0 || order[len(order)-1] != step:
				order = append(order, step)
			}
		}
		Expect(order).To(Equal([]string{"PUT c-4/maintenance", "DELETE c-4", "PUT c-3/maintenance", "DELETE c-3"}))
		status := w.cluster().Status
		Expect(status.Phase).To(Equal(posthornv1.PhaseReady))
		Expect(status.Scaling).To(BeNil())
		Expect(status.Members).To(HaveLen(3))
		Expect(status.Replicas).To(BeEquivalentTo(3))
		// Once, unless somebody changes the cluster meanwhile, which a unit test covers.
		Eventually(func() int { return len(w.broker.Calls("/api/rebalance/queues", http.MethodPost)) }).Should(BeNumerically(">", 0))
		Eventually(eventsOf(w.cluster(), "NodeRemoved")).Should(Equal(2))
		var files corev1.ConfigMap
		Expect(k8s.Get(ctx, w.key("c-config"), &files)).To(Succeed())
		Expect(files.Data["posthorn.conf"]).NotTo(ContainSubstring("c-3.c-nodes"))

		// The volumes are kept, and no node can join again with one of them.
		w.setReplicas(5)
		Eventually(ready(w.cluster())).Should(HavePrefix("False VolumeRetained: volume data-c-3"))
		Consistently(w.pods).Should(HaveLen(3))
		Expect(deleteClaim(ctx, k8s, w.namespace, "data-c-3")).To(Succeed())
		Eventually(ready(w.cluster())).Should(HavePrefix("False VolumeRetained: volume data-c-4"))
		Expect(deleteClaim(ctx, k8s, w.namespace, "data-c-4")).To(Succeed())
		Eventually(w.pods).Should(HaveLen(5))
		w.readyWorld()
	})

	It("deletes the volumes where the spec says so", func() {
		w := fiveNodes(func(c *posthornv1.BrokerCluster) { c.Spec.Storage.WhenScaled = "Delete" })
		policy := func() appsv1.PersistentVolumeClaimRetentionPolicyType {
			var sts appsv1.StatefulSet
			_ = k8s.Get(ctx, w.key(clusterName), &sts)
			return sts.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled
		}
		Expect(policy()).To(Equal(appsv1.RetainPersistentVolumeClaimRetentionPolicyType))
		// Somebody else scales the StatefulSet: no volume is deleted.
		before := w.claim("c-4").UID
		sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: clusterName}}
		change(sts, func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(4)) })
		Eventually(func() int32 { _ = k8s.Get(ctx, w.key(clusterName), sts); return *sts.Spec.Replicas }).Should(BeEquivalentTo(5))
		Eventually(w.pods).Should(HaveLen(5))
		w.readyWorld()
		Expect(w.claim("c-4").UID).To(Equal(before))

		w.setReplicas(3)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "data-c-3"}}
		Eventually(gone(claim)).Should(BeTrue())
		Eventually(policy).Should(Equal(appsv1.RetainPersistentVolumeClaimRetentionPolicyType))
		w.setReplicas(5)
		Eventually(w.pods).Should(HaveLen(5))
		w.readyWorld()
	})

	It("does not begin while it would lose queues, and names them", func() {
		w := fiveNodes()
		w.broker.SetQueue(broker.Queue{Name: "local", Vhost: "/", Type: "classic", Durable: true, Node: "c-4", Members: []string{"c-4"}})
		five := quorumQueue("wide", map[string]any{"x-quorum-initial-group-size": 5.0})
		five.Members = []string{"c-0", "c-1", "c-2", "c-3", "c-4"}
		five.Online = five.Members
		w.broker.SetQueue(five)
		w.setReplicas(3)
		Eventually(ready(w.cluster())).Should(HavePrefix("False ScaleDownBlocked: removing c-4: QueuesNeedNodes"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionStalled)()).To(HavePrefix("True ScaleDownBlocked"))
		Expect(w.cluster().Status.Scaling.Queues).To(Equal([]string{"/wide"}))
		Expect(w.cluster().Status.Phase).To(Equal(posthornv1.PhaseScalingDown))
		w.broker.RemoveQueue("/", "wide")
		Eventually(ready(w.cluster())).Should(HavePrefix("False ScaleDownBlocked: removing c-4: UnmovableQueues"))
		Expect(w.cluster().Status.Scaling.Queues).To(Equal([]string{"/local"}))
		Expect(w.broker.Calls("/api/nodes/", http.MethodPut, http.MethodDelete)).To(BeEmpty())

		// It does not hold up a roll.
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.images).Should(HaveEach("1.1.0"))
		Expect(w.pods()).To(HaveLen(5))
		w.broker.RemoveQueue("/", "local")
		Eventually(w.pods).Should(HaveLen(3))
		w.readyWorld()
	})

	It("reports the broker's refusal, and is called off by raising replicas again", func() {
		w := fiveNodes()
		w.broker.SetQueue(replicatedQueue("busy", "c-2", "c-3", "c-4"))
		w.broker.RefuseMoves("cluster_change_not_permitted")
		w.setReplicas(3)
		Eventually(func() string {
			if s := w.cluster().Status.Scaling; s != nil {
				return s.Reason + " " + s.Message
			}
			return ""
		}).Should(And(HavePrefix("MovingReplicas"), ContainSubstring("/busy"), ContainSubstring("cluster_change_not_permitted")))
		Expect(w.cluster().Status.Scaling.Remaining).To(BeEquivalentTo(1))
		Expect(w.broker.Drained("c-4")).To(BeTrue())
		w.setReplicas(5)
		Eventually(func() bool { return w.broker.Drained("c-4") }).Should(BeFalse())
		w.readyWorld()
		Expect(w.pods()).To(HaveLen(5))
		var pod corev1.Pod
		Expect(k8s.Get(ctx, w.key("c-4"), &pod)).To(Succeed())
		Expect(pod.Annotations).NotTo(HaveKey(names.AnnotationDraining))
		Expect(w.broker.Forgotten("c-4")).To(BeFalse())
	})

	It("keeps a member until its replacement has caught up", func() {
		w := fiveNodes()
		w.broker.SetQueue(replicatedQueue("long", "c-1", "c-2", "c-4"))
		w.broker.SetCatchingUp("c-0")
		w.setReplicas(3)
		Eventually(func() string {
			if s := w.cluster().Status.Scaling; s != nil {
				return s.Message
			}
			return ""
		}).Should(Equal("/long: waiting for its new member to catch up"))
		q, _ := w.broker.Queue("/", "long")
		Expect(q.Members).To(ConsistOf("c-0", "c-1", "c-2", "c-4"))
		w.broker.SetCatchingUp("")
		Eventually(w.pods).Should(HaveLen(3))
		w.readyWorld()
	})

	It("stops a node first if the broker forgets only stopped nodes", func() {
		w := fiveNodes()
		w.broker.ForgetOnlyStopped()
		w.broker.SetQueue(replicatedQueue("upper", "c-2", "c-3", "c-4"))
		w.setReplicas(3)
		Eventually(w.pods).Should(HaveLen(3))
		w.readyWorld()
		for _, node := range []string{"c-3", "c-4"} {
			Expect(w.broker.Forgotten(node)).To(BeTrue())
			Expect(w.claim(node).Annotations).To(HaveKey(names.AnnotationForgotten))
		}
	})

	It("continues after a crash between forgetting the node and removing it", func() {
		w := fiveNodes()
		w.broker.Forget("c-4")
		w.setReplicas(3)
		Eventually(w.pods).Should(HaveLen(3))
		w.readyWorld()
	})

	It("removes no node while another is not ready, but removes a lost one", func() {
		w := fiveNodes()
		w.broker.SetQueue(replicatedQueue("held", "c-2", "c-3", "c-4"))
		away := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-1"}}
		change(away, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, unreadyAnnotation, "yes") })
		Eventually(ready(w.cluster())).Should(HavePrefix("False NodesNotReady"))
		w.setReplicas(3)
		Eventually(w.scaling).Should(Equal("MemberNotReady c-4"))
		Consistently(w.pods).Should(HaveLen(5))
		lost := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-4"}}
		change(lost, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, unreadyAnnotation, "yes") })
		w.broker.SetNode("c-4", false)
		change(away, func(p *corev1.Pod) { delete(p.Annotations, unreadyAnnotation) })
		Eventually(w.pods).Should(HaveLen(3))
		q, _ := w.broker.Queue("/", "held")
		Expect(q.Members).To(HaveLen(3))
		Expect(q.Members).NotTo(ContainElement("c-4"))
	})

	It("is refused while the policy is Deny", func() {
		w := fiveNodes(func(c *posthornv1.BrokerCluster) { c.Spec.ScaleDown.Policy = posthornv1.ScaleDownDeny })
		refusedWith(w.tryCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 3 }), "replicas cannot be lowered while scaleDown.policy is Deny")
		// Members that nobody asked for are kept too.
		sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: clusterName}}
		six := int32(6)
		change(sts, func(s *appsv1.StatefulSet) { s.Spec.Replicas = &six })
		Eventually(ready(w.cluster())).Should(HavePrefix("False ScaleDownBlocked: removing c-5: ScaleDownDenied"))
		Eventually(w.pods).Should(HaveLen(6))
		Consistently(w.pods).Should(HaveLen(6))
	})
})
