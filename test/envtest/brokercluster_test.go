// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// images returns the image of each pod, in ordinal order.
func (w *world) images() []string {
	var out []string
	for i := 0; i < 3; i++ {
		var pod corev1.Pod
		if err := k8s.Get(ctx, w.key(fmt.Sprintf("%s-%d", clusterName, i)), &pod); err != nil {
			out = append(out, "none")
			continue
		}
		out = append(out, pod.Spec.Containers[0].Image[strings.LastIndex(pod.Spec.Containers[0].Image, ":")+1:])
	}
	return out
}

func (w *world) rollout() string {
	if r := w.cluster().Status.Rollout; r != nil {
		return r.Reason + " " + r.WaitingFor
	}
	return "none"
}

func (w *world) readyWorld() {
	GinkgoHelper()
	Eventually(ready(w.cluster())).Should(HavePrefix("True AllNodesReady"))
}

func setImage(tag string) func(*posthornv1.BrokerCluster) {
	return func(c *posthornv1.BrokerCluster) { c.Spec.Image = "example.test/posthorn:" + tag }
}

var _ = Describe("BrokerCluster", func() {
	It("creates every child and becomes Ready", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"vm_memory_high_watermark.relative": "0.5", "log.level": "debug"}
		})
		w.readyWorld()

		var sts appsv1.StatefulSet
		Expect(k8s.Get(ctx, w.key(clusterName), &sts)).To(Succeed())
		Expect(*sts.Spec.Replicas).To(BeEquivalentTo(3))
		Expect(sts.Spec.UpdateStrategy.Type).To(Equal(appsv1.OnDeleteStatefulSetStrategyType))
		Expect(sts.Spec.PodManagementPolicy).To(Equal(appsv1.ParallelPodManagement))
		Expect(sts.Spec.ServiceName).To(Equal("c-nodes"))

		settings := w.settings()
		Expect(settings).To(HaveLen(1))
		Expect(*settings[0].Immutable).To(BeTrue())
		Expect(settings[0].Data["90-user.conf"]).To(Equal("log.level = debug\nvm_memory_high_watermark.relative = 0.5\n"))
		var files corev1.ConfigMap
		Expect(k8s.Get(ctx, w.key("c-config"), &files)).To(Succeed())
		Expect(files.Data["posthorn.conf"]).To(ContainSubstring(fmt.Sprintf(
			"cluster.peers = c-0.c-nodes.%[1]s.svc:25672, c-1.c-nodes.%[1]s.svc:25672, c-2.c-nodes.%[1]s.svc:25672\n", w.namespace)))

		var nodes, clients corev1.Service
		Expect(k8s.Get(ctx, w.key("c-nodes"), &nodes)).To(Succeed())
		Expect(nodes.Spec.ClusterIP).To(Equal("None"))
		Expect(nodes.Spec.PublishNotReadyAddresses).To(BeTrue())
		Expect(k8s.Get(ctx, w.key("c"), &clients)).To(Succeed())
		Expect(clients.Spec.PublishNotReadyAddresses).To(BeFalse())

		var user, internode corev1.Secret
		Expect(k8s.Get(ctx, w.key("c-default-user"), &user)).To(Succeed())
		Expect(user.Type).To(BeEquivalentTo("servicebinding.io/rabbitmq"))
		Expect(string(user.Data["host"])).To(Equal("c." + w.namespace + ".svc"))
		Expect(string(user.Data["default_user.conf"])).To(Equal(fmt.Sprintf("default_user = %s\ndefault_pass = %s\n", user.Data["username"], user.Data["password"])))
		Expect(k8s.Get(ctx, w.key("c-internode"), &internode)).To(Succeed())
		_, err := tls.X509KeyPair(internode.Data["tls.crt"], internode.Data["tls.key"])
		Expect(err).NotTo(HaveOccurred())

		var budget policyv1.PodDisruptionBudget
		Expect(k8s.Get(ctx, w.key("c"), &budget)).To(Succeed())
		Expect(budget.Spec.MaxUnavailable.IntValue()).To(Equal(1))

		status := w.cluster().Status
		Expect(status.Phase).To(Equal(posthornv1.PhaseReady))
		Expect(status.CurrentVersion).To(Equal("1.0.0"))
		Expect(status.Binding.Name).To(Equal("c-default-user"))
		Expect(status.Certificates.NotAfter).NotTo(BeNil())
		Expect(status.Selector).To(ContainSubstring("app.kubernetes.io/instance=c"))
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionQuorumSafe)).Should(HavePrefix("True Safe"))
		for kind, want := range map[string]string{
			posthornv1.ConditionAvailable: "True", posthornv1.ConditionProgressing: "False", posthornv1.ConditionUpgradeBlocked: "False",
			posthornv1.ConditionCertificatesReady: "True", posthornv1.ConditionStorageReady: "True", posthornv1.ConditionPaused: "False",
		} {
			Eventually(conditionOf(w.cluster(), kind)).Should(HavePrefix(want), kind)
		}
		running := func(name, zone string) posthornv1.MemberStatus {
			return posthornv1.MemberStatus{
				Name: name, Zone: zone, Version: "1.0.0", State: "Running",
				LastReady: &posthornv1.MemberPlacement{Volume: w.claim(name).Spec.VolumeName},
			}
		}
		Expect(w.cluster().Status.Members).To(HaveExactElements(running("c-0", "zone-0"), running("c-1", "zone-1"), running("c-2", "zone-2")))
	})

	It("repairs children that somebody changed", func() {
		w := newWorld()
		w.readyWorld()
		files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-config"}}
		change(files, func(f *corev1.ConfigMap) { f.Data["posthorn.conf"] = "broken" })
		Eventually(func() string {
			_ = k8s.Get(ctx, w.key("c-config"), files)
			return files.Data["posthorn.conf"]
		}).Should(ContainSubstring("cluster.name = c\n"))

		sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
		change(sts, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "evil.test/posthorn:6.6.6" })
		Eventually(func() string {
			_ = k8s.Get(ctx, w.key("c"), sts)
			return sts.Spec.Template.Spec.Containers[0].Image
		}).Should(Equal("example.test/posthorn:1.0.0"))
		Eventually(eventsOf(w.cluster(), "ChildUpdated")).Should(BeNumerically(">=", 2))
	})

	It("records an Event about recreated children", func() {
		w := newWorld(setMonitor("Off"))
		w.readyWorld()
		Expect(eventsOf(w.cluster(), "ChildCreated")()).To(BeZero(), "a new cluster's children were not missing")
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-nodes"}}
		Expect(k8s.Delete(ctx, service)).To(Succeed())
		Eventually(eventsOf(w.cluster(), "ChildCreated")).Should(Equal(1))
		Expect(k8s.Get(ctx, w.key("c-nodes"), service)).To(Succeed())
	})

	It("changes no StatefulSet when only the operator's version changes", func() {
		w := newWorld()
		w.readyWorld()
		// Like an older operator: another template, recorded as its own.
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Paused = true })
		Eventually(ready(w.cluster())).Should(HavePrefix("True"))
		sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
		change(sts, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].LivenessProbe.FailureThreshold = 42 })
		change(sts, func(s *appsv1.StatefulSet) { s.Annotations[names.AnnotationStored] = storedDigest(s) })
		older := sts.Generation
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Paused = false })
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionPaused)).Should(HavePrefix("False"))
		Consistently(func() int64 {
			_ = k8s.Get(ctx, w.key("c"), sts)
			return sts.Generation
		}).Should(Equal(older))
		// A change of the spec replaces that template too.
		w.changeCluster(setImage("1.1.0"))
		Eventually(func() int32 {
			_ = k8s.Get(ctx, w.key("c"), sts)
			return sts.Spec.Template.Spec.Containers[0].LivenessProbe.FailureThreshold
		}).Should(BeEquivalentTo(6))
	})

	It("starts a cluster without an image with the default, and keeps that image", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Image = "" })
		w.readyWorld()
		Expect(w.images()).To(HaveEach("1.0.0"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Version = "2.0.0" })
		Eventually(w.images).Should(HaveEach("2.0.0"))
		Eventually(func() string { return w.cluster().Status.CurrentVersion }).Should(Equal("2.0.0"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Version = "" })
		Consistently(w.images).Should(HaveEach("2.0.0"))
	})

	It("does not change objects of the same name that it does not own", func() {
		ns := newNamespace(nil)
		foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: clusterName}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		create(foreign)
		cluster := newCluster(ns)
		create(cluster)
		Eventually(ready(cluster)).Should(HavePrefix("False NameTaken"))
		Expect(conditionOf(cluster, posthornv1.ConditionStalled)()).To(HavePrefix("True NameTaken"))
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(foreign), foreign)).To(Succeed())
		Expect(foreign.Spec.Ports).To(HaveLen(1))
		Expect(foreign.OwnerReferences).To(BeEmpty())
		Expect(k8s.Delete(ctx, foreign)).To(Succeed())
		Eventually(conditionOf(cluster, posthornv1.ConditionStalled)).Should(Equal("absent"))
	})

	It("reports an invalid pod template with the observed generation", func() {
		w := newWorld()
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			c.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"spec":{"volumes":[{"$patch":"replace"}]}}`)}
		})
		Eventually(ready(w.cluster())).Should(HavePrefix("False InvalidPodTemplate"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			c.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"spec":{"priority":5,"tolerations":[{"operator":"Sometimes"}]}}`)}
		})
		Eventually(ready(w.cluster())).Should(HavePrefix("False Refused"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			c.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"spec":{"priorityClassName":"","nodeSelector":{"kind":"broker"}}}`)}
		})
		w.readyWorld()
		var pod corev1.Pod
		Expect(k8s.Get(ctx, w.key("c-0"), &pod)).To(Succeed())
		Expect(pod.Spec.NodeSelector).To(HaveKeyWithValue("kind", "broker"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionStalled)()).To(Equal("absent"))
	})

	It("changes nothing while paused and continues afterwards", func() {
		w := newWorld()
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Paused = true; setImage("1.1.0")(c) })
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionPaused)).Should(HavePrefix("True"))
		// Manual changes in the meantime, also deletions, are kept too.
		files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-config"}}
		change(files, func(f *corev1.ConfigMap) { f.Data["posthorn.conf"] = "by hand" })
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
		Expect(k8s.Delete(ctx, budget)).To(Succeed())
		config := func() string {
			_ = k8s.Get(ctx, client.ObjectKeyFromObject(files), files)
			return files.Data["posthorn.conf"]
		}
		Consistently(func(g Gomega) {
			g.Expect(w.images()).To(HaveEach("1.0.0"))
			g.Expect(config()).To(Equal("by hand"))
			g.Expect(gone(budget)()).To(BeTrue())
		}).Should(Succeed())
		Expect(w.cluster().Status.Phase).To(Equal(posthornv1.PhasePaused))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Paused = false })
		Eventually(w.images).Should(HaveEach("1.1.0"))
		Expect(config()).To(ContainSubstring("cluster.name = c\n"))
		Expect(gone(budget)()).To(BeFalse())
	})

	It("sets a new password of the default user in the broker, and recreates a deleted Secret", func() {
		w := newWorld()
		w.readyWorld()
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-default-user"}}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(secret), secret)).To(Succeed())
		name, old := string(secret.Data["username"]), string(secret.Data["password"])
		change(secret, func(s *corev1.Secret) { s.Data["password"] = []byte("rotated"); s.Data["username"] = []byte("other") })
		Eventually(func() bool { return w.broker.Accepts(name, "rotated") }).Should(BeTrue())
		Expect(w.broker.Accepts(name, old)).To(BeFalse())
		made, _ := w.broker.User(name)
		Expect(made.Tags).To(Equal(broker.Tags{"administrator"}))
		w.readyWorld()

		change(secret, func(s *corev1.Secret) { s.Data["password"] = []byte("a\nlog.level = none") })
		Eventually(ready(w.cluster())).Should(HavePrefix("False InvalidSecret"))
		Expect(w.broker.Accepts(name, "rotated")).To(BeTrue())

		Expect(k8s.Delete(ctx, secret)).To(Succeed())
		Eventually(func() string {
			again := &corev1.Secret{}
			_ = k8s.Get(ctx, client.ObjectKeyFromObject(secret), again)
			return string(again.Data["username"]) + " " + string(again.Data["password"])
		}).Should(Equal(name + " rotated"))
		q := w.queue("orders")
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
	})

	It("is Ready after a restart of a node only when its queues have caught up", func() {
		w := newWorld()
		w.readyWorld()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-1"}}
		change(pod, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, unreadyAnnotation, "yes") })
		Eventually(ready(w.cluster())).Should(HavePrefix("False NodesNotReady: 2 of 3 nodes ready"))
		Expect(w.cluster().Status.Phase).To(Equal(posthornv1.PhaseDegraded))
		w.broker.SetCritical("c-0", broker.QueueRef{Name: "q1", Vhost: "/", Type: "quorum"})
		change(pod, func(p *corev1.Pod) { delete(p.Annotations, unreadyAnnotation) })
		Eventually(ready(w.cluster())).Should(HavePrefix("False CatchingUp: 3 of 3 nodes ready; queues are still catching up"))
		Consistently(ready(w.cluster())).Should(HavePrefix("False CatchingUp"))
		Expect(w.cluster().Status.Phase).To(Equal(posthornv1.PhaseDegraded))
		w.broker.SetCritical("c-0")
		w.readyWorld()
		Expect(w.cluster().Status.Phase).To(Equal(posthornv1.PhaseReady))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionQuorumSafe)()).To(HavePrefix("True Safe"))

		// A queue that never has enough members is not a restart.
		w.broker.SetCritical("c-0", broker.QueueRef{Name: "pair", Vhost: "/", Type: "quorum"})
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionQuorumSafe)).Should(HavePrefix("False QuorumCritical"))
		Expect(ready(w.cluster())()).To(HavePrefix("True AllNodesReady"))
		for _, condition := range w.cluster().Status.Conditions {
			Expect(condition.Message).NotTo(Or(BeEmpty(), ContainSubstring("\n")), condition.Type)
		}
	})

	It("is not Ready while a pause holds back changes", func() {
		w := newWorld()
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Paused = true })
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionPaused)).Should(HavePrefix("True"))
		Expect(ready(w.cluster())()).To(HavePrefix("True AllNodesReady"))
		w.changeCluster(setImage("1.1.0"))
		Eventually(ready(w.cluster())).Should(HavePrefix("False PendingChanges: spec.paused is true"))
		w.changeCluster(setImage("1.0.0"))
		w.readyWorld()
	})

	It("deletes the budget when it is switched off", func() {
		w := newWorld()
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.PodDisruptionBudget.Mode = "Off" })
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
		Eventually(gone(budget)).Should(BeTrue())
	})

	It("adds nodes when replicas is raised", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 1 })
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 3 })
		Eventually(func() int32 { return w.cluster().Status.ReadyReplicas }).Should(BeEquivalentTo(3))
		w.readyWorld()
		Expect(w.images()).To(HaveEach("1.0.0"))
	})
})

var _ = Describe("a roll", func() {
	It("drains and replaces one pod after the other, the highest ordinal first", func() {
		w := newWorld()
		w.readyWorld()
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.images).Should(HaveEach("1.1.0"))
		w.readyWorld()
		var drained []string
		for _, call := range w.broker.Calls("/api/nodes/", http.MethodPut) {
			Expect(call.Path).To(Equal("/api/nodes/" + call.Node + "/maintenance"))
			if len(drained) == 0 || drained[len(drained)-1] != call.Node {
				drained = append(drained, call.Node)
			}
		}
		Expect(drained).To(Equal([]string{"c-2", "c-1", "c-0"}))
		Expect(w.cluster().Status.CurrentVersion).To(Equal("1.1.0"))
		Expect(w.cluster().Status.Rollout).To(BeNil())
	})

	It("replaces pods for a changed setting", func() {
		w := newWorld()
		w.readyWorld()
		var before corev1.Pod
		Expect(k8s.Get(ctx, w.key("c-0"), &before)).To(Succeed())
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"log.level": "debug"}
		})
		Eventually(func() bool {
			var pod corev1.Pod
			return k8s.Get(ctx, w.key("c-0"), &pod) == nil && pod.UID != before.UID
		}).Should(BeTrue())
		w.readyWorld()
	})

	It("waits until leaders have moved away", func() {
		w := newWorld()
		w.readyWorld()
		w.broker.SetLeaders("c-2", 7)
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.rollout).Should(Equal("Draining c-2"))
		Consistently(w.images).Should(HaveEach("1.0.0"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionUpgradeBlocked)()).To(HavePrefix("False"))
		w.broker.SetLeaders("c-2", 0)
		Eventually(w.images).Should(HaveEach("1.1.0"))
	})

	It("names the queues that block it, and is unblocked by reverting the spec", func() {
		w := newWorld()
		w.readyWorld()
		w.broker.SetCritical("c-2", broker.QueueRef{Name: "q1", Vhost: "orders", Type: "quorum"})
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.rollout).Should(Equal("QuorumCritical c-2"))
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionUpgradeBlocked)).Should(HavePrefix("True QuorumCritical"))
		status := w.cluster().Status
		Expect(status.Rollout.Queues).To(Equal([]string{"orders/q1"}))
		Expect(status.Rollout.Since).NotTo(BeNil())
		Expect(status.Phase).To(Equal(posthornv1.PhaseRolling))
		Expect(status.Members[2].QuorumCritical).To(BeTrue())
		Consistently(w.images).Should(HaveEach("1.0.0"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionQuorumSafe)()).To(HavePrefix("False"))

		w.changeCluster(setImage("1.0.0"))
		Eventually(w.rollout).Should(Equal("none"))
		w.readyWorld()
		Expect(w.broker.Drained("c-2")).To(BeFalse())

		w.changeCluster(setImage("1.1.0"))
		Eventually(w.rollout).Should(Equal("QuorumCritical c-2"))
		w.broker.SetCritical("c-2")
		Eventually(w.images).Should(HaveEach("1.1.0"))
	})

	It("revives a node whose drain is no longer needed", func() {
		w := newWorld()
		w.readyWorld()
		w.broker.SetLeaders("c-2", 1)
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.rollout).Should(Equal("Draining c-2"))
		Expect(w.broker.Drained("c-2")).To(BeTrue())
		w.changeCluster(setImage("1.0.0"))
		Eventually(func() bool { return w.broker.Drained("c-2") }).Should(BeFalse())
		w.readyWorld()
		var pod corev1.Pod
		Expect(k8s.Get(ctx, w.key("c-2"), &pod)).To(Succeed())
		Expect(pod.Annotations).NotTo(HaveKey(names.AnnotationDraining))
	})

	It("replaces no second node when one does not become ready, and recovers when a bad image is corrected", func() {
		w := newWorld()
		w.readyWorld()
		w.changeCluster(setImage("bad"))
		Eventually(w.images).Should(Equal([]string{"1.0.0", "1.0.0", "bad"}))
		Eventually(w.rollout).Should(Equal("MemberNotReady c-2"))
		Consistently(w.images).Should(Equal([]string{"1.0.0", "1.0.0", "bad"}))
		Expect(ready(w.cluster())()).To(ContainSubstring("c-2: ImagePullBackOff: no such image"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionUpgradeBlocked)()).To(HavePrefix("True MemberNotReady"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionAvailable)()).To(HavePrefix("True"))
		w.changeCluster(setImage("1.0.1"))
		Eventually(w.images).Should(HaveEach("1.0.1"))
		w.readyWorld()
	})

	It("recovers a cluster that never started", func() {
		w := newWorld(setImage("bad"))
		Eventually(ready(w.cluster())).Should(ContainSubstring("c-0: ImagePullBackOff"))
		Expect(w.cluster().Status.Phase).To(Equal(posthornv1.PhaseCreating))
		w.changeCluster(setImage("1.0.0"))
		w.readyWorld()
	})

	It("waits while another node is not ready", func() {
		w := newWorld()
		w.readyWorld()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-0"}}
		change(pod, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, unreadyAnnotation, "yes") })
		Eventually(ready(w.cluster())).Should(HavePrefix("False NodesNotReady: 2 of 3 nodes ready"))
		w.broker.SetNode("c-0", false)
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.rollout).Should(Equal("HealthUnknown c-0"))
		Consistently(w.images).Should(HaveEach("1.0.0"))
		w.broker.SetNode("c-0", true)
		change(pod, func(p *corev1.Pod) { delete(p.Annotations, unreadyAnnotation) })
		Eventually(w.images).Should(HaveEach("1.1.0"))
	})
})
