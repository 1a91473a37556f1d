// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// podUIDs returns the UIDs of the cluster's pods by name.
func (w *world) uidsOf(nodes ...string) map[string]types.UID {
	GinkgoHelper()
	uids := map[string]types.UID{}
	for _, name := range nodes {
		var pod corev1.Pod
		if err := k8s.Get(ctx, w.key(name), &pod); err == nil && pod.DeletionTimestamp == nil {
			uids[name] = pod.UID
		}
	}
	return uids
}

// requestRestart sets the annotation that makes the roll replace a pod.
func (w *world) requestRestart(name string) {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	change(pod, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, names.AnnotationRestart, "true") })
}

var _ = Describe("a restart", func() {
	It("of one node drains and replaces its pod alone", func() {
		w := newWorld()
		w.readyWorld()
		before := w.uidsOf("c-0", "c-1", "c-2")
		Expect(before).To(HaveLen(3))
		w.broker.SetLeaders("c-1", 2)
		w.requestRestart("c-1")
		Eventually(w.rollout).Should(Equal("Draining c-1"))
		Expect(w.uidsOf("c-0", "c-1", "c-2")).To(Equal(before), "leaders are still moving")
		w.broker.SetLeaders("c-1", 0)
		Eventually(func() types.UID { return w.uidsOf("c-1")["c-1"] }).ShouldNot(Or(Equal(before["c-1"]), BeEmpty()))
		w.readyWorld()
		Expect(w.uidsOf("c-0", "c-2")).To(Equal(map[string]types.UID{"c-0": before["c-0"], "c-2": before["c-2"]}))
		Expect(w.broker.Drained("c-1")).To(BeFalse())
	})

	It("of one node waits for its queues, also if an earlier roll was allowed to make them unavailable", func() {
		w := newWorld()
		w.readyWorld()
		w.broker.SetCritical("c-2", broker.QueueRef{Name: "q", Vhost: "/", Type: "quorum"})
		before := w.uidsOf("c-2")
		w.requestRestart("c-2")
		Eventually(w.rollout).Should(Equal("QuorumCritical c-2"))
		revision := w.cluster().Status.Rollout.TargetRevision
		accept := func(value string) {
			w.changeCluster(func(c *posthornv1.BrokerCluster) {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, names.AnnotationAcceptUnavailable, value)
			})
		}
		accept(revision + "/c-2")
		Consistently(func() map[string]types.UID { return w.uidsOf("c-2") }).Should(Equal(before))
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionUpgradeBlocked)).Should(ContainSubstring(string(before["c-2"]) + "/c-2"))
		accept(string(before["c-2"]) + "/c-2")
		Eventually(func() types.UID { return w.uidsOf("c-2")["c-2"] }).ShouldNot(Or(Equal(before["c-2"]), BeEmpty()))
		w.broker.SetCritical("c-2")
		w.readyWorld()
	})

	It("of a cluster replaces every pod one after the other, and none when the annotation is removed", func() {
		w := newWorld()
		w.readyWorld()
		before := w.uidsOf("c-0", "c-1", "c-2")
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, names.AnnotationRestartedAt, "2026-01-01T00:00:00Z")
		})
		Eventually(func() map[string]types.UID { return w.uidsOf("c-0", "c-1", "c-2") }).Should(And(
			HaveLen(3), HaveKeyWithValue("c-0", Not(Equal(before["c-0"]))),
			HaveKeyWithValue("c-1", Not(Equal(before["c-1"]))), HaveKeyWithValue("c-2", Not(Equal(before["c-2"])))))
		w.readyWorld()
		after := w.uidsOf("c-0", "c-1", "c-2")
		w.changeCluster(func(c *posthornv1.BrokerCluster) { delete(c.Annotations, names.AnnotationRestartedAt) })
		Consistently(func() map[string]types.UID { return w.uidsOf("c-0", "c-1", "c-2") }).Should(Equal(after))
	})
})
