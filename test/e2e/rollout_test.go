// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// rollRecord has every change of the cluster's pods that a watch saw, in order.
type rollRecord struct {
	mu       sync.Mutex
	up       map[string]bool // pods that are ready and not terminating
	uids     map[string]types.UID
	replaced []string // replaced pods, in order
	mostDown int      // how many were not up at once, at the worst
	stopped  bool
	failure  error
}

// recordRoll records until the returned function is called, which returns the record.
func recordRoll() func() *rollRecord {
	GinkgoHelper()
	pods, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	r := &rollRecord{up: map[string]bool{}, uids: map[string]types.UID{}}
	for i := range pods {
		Expect(podReady(&pods[i])).To(BeTrue())
		r.up[pods[i].Name], r.uids[pods[i].Name] = true, pods[i].UID
	}
	var list corev1.PodList
	watcher, err := k8s.Watch(ctx, &list, client.InNamespace(namespace), client.MatchingLabels(names.Selector(clusterName)))
	Expect(err).NotTo(HaveOccurred())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watcher.ResultChan() {
			r.take(event)
		}
	}()
	return func() *rollRecord {
		r.mu.Lock()
		r.stopped = true
		r.mu.Unlock()
		watcher.Stop()
		<-ended
		Expect(r.failure).NotTo(HaveOccurred())
		return r
	}
}

func (r *rollRecord) take(event watch.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod, isPod := event.Object.(*corev1.Pod)
	if r.stopped {
		return
	}
	if !isPod {
		r.failure = fmt.Errorf("the watch of the pods broke: %v", event.Object)
		return
	}
	r.up[pod.Name] = event.Type != watch.Deleted && podReady(pod)
	if event.Type == watch.Added && r.uids[pod.Name] != pod.UID {
		r.uids[pod.Name] = pod.UID
		r.replaced = append(r.replaced, pod.Name)
	}
	down := 0
	for _, up := range r.up {
		if !up {
			down++
		}
	}
	r.mostDown = max(r.mostDown, down)
}

// badImage cannot be pulled: the address has no listener.
const badImage = "127.0.0.1:1/posthorn:none"

// rollUnderLoad upgrades the cluster to the next version under load. The first image does not exist, and a change of
// the spec alone corrects it. A client publishes and consumes until the last pod is new. The new version's feature
// flag is enabled then, and not earlier.
func rollUnderLoad() {
	newWorkQueue("rolled")
	Expect(runningVersions(clusterName)).To(Equal([]string{version, version, version}))
	Eventually(func() *posthornv1.FeatureFlagsStatus { return currentCluster().Status.FeatureFlags }).ShouldNot(BeNil())
	enabled := currentCluster().Status.FeatureFlags.Enabled
	record := recordRoll()
	c := start("roll", work{command: "run", queue: "rolled", messages: endless, rate: 400, overlap: true})
	c.confirmedAtLeast(400)
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Image, spec.Version = badImage, nextVersion })).To(Succeed())
	Eventually(readiness(newCluster())).Should(And(HavePrefix("False Rolling: "), MatchRegexp(clusterName+"-2: (ErrImagePull|ImagePullBackOff)")))
	say("%s", readiness(newCluster())())
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Image = nextImage })).To(Succeed())
	say("the image changes to %s", nextImage)
	began, told, between := time.Now(), []string{}, halfWay{}
	Eventually(func() bool {
		between.look()
		cluster := currentCluster()
		if r := cluster.Status.Rollout; r != nil {
			if line := r.Reason + " " + r.WaitingFor; len(told) == 0 || told[len(told)-1] != line {
				told = append(told, line)
				say("status.rollout: %s", line)
			}
		}
		return cluster.Status.CurrentVersion == nextVersion && operatorContent() == nil
	}).WithTimeout(lifecycleTimeout).Should(BeTrue(), "%v", &told)
	say("rolled in %.1fs", time.Since(began).Seconds())
	Eventually(func() *posthornv1.FeatureFlagsStatus { return currentCluster().Status.FeatureFlags }).
		Should(And(HaveField("Enabled", enabled+1), HaveField("Disabled", BeEmpty()), HaveField("Message", BeEmpty())))
	Expect(between.early).To(BeEmpty())
	Expect(between.refused).To(And(ContainSubstring(nextFlag), MatchRegexp(`\bc-[01]\b`)), "half-way it is refused, with the nodes that do not know it")
	c.moreConfirmed(400)
	Expect(c.enough().Rejected).To(BeZero(), "no publish fails that is tried again when its connection ends")
	seen := record()
	Expect(seen.replaced).To(Equal([]string{"c-2", "c-2", "c-1", "c-0"}), "each once, the highest ordinal first and again for the bad image")
	Expect(seen.mostDown).To(Equal(1), "never two at once")
	Expect(notesOf(clusterName, "Replacing")).To(ConsistOf("replacing c-2: Drained", "replacing c-2: NotRunning",
		"replacing c-1: Drained", "replacing c-0: Drained"), "no node went that led a queue")
	Expect(runningVersions(clusterName)).To(Equal([]string{nextVersion, nextVersion, nextVersion}))
	pods, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	for i := range pods {
		Expect(pods[i].Spec.Containers[0].Image).To(Equal(nextImage))
		Expect(flagOf(clusterName, &pods[i], nextFlag)).To(Equal(broker.FlagEnabled), pods[i].Name)
	}
	Expect(notesOf(clusterName, "FeatureFlagEnabled")).To(ConsistOf("enabled the feature flag " + nextFlag))
	for _, name := range memberNames() {
		Expect(slices.ContainsFunc(told, func(line string) bool { return strings.HasSuffix(line, " "+name) })).
			To(BeTrue(), "status.rollout told of %s: %v", name, told)
	}
	becomesWhole("rolled")
	refuseOtherVersions(pods)
}

// refuseOtherVersions asks for versions to which the cluster must not change.
func refuseOtherVersions(before []corev1.Pod) {
	GinkgoHelper()
	for wanted, reason := range map[string]string{version: "Downgrade", "0.5.0": "VersionSkipped"} {
		Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Version, spec.Image = wanted, image })).To(Succeed())
		Eventually(readiness(newCluster())).Should(HavePrefix("False " + reason + ": "))
	}
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Version, spec.Image = nextVersion, nextImage })).To(Succeed())
	Eventually(operatorContent).Should(Succeed())
	for i := range before {
		Expect(brokerPod(before[i].Name).UID).To(Equal(before[i].UID), "nobody was replaced for a refused version")
	}
}

// waitForQuorum begins a roll while a queue has two members and would lose its majority without either of them. The
// roll names the queue and replaces neither, until the spec is reverted.
func waitForQuorum() {
	q := newQueue("pair")
	q.Spec.Replicas = 2
	Expect(k8s.Create(ctx, q)).To(Succeed())
	DeferCleanup(func() { Expect(client.IgnoreNotFound(k8s.Delete(ctx, newQueue("pair")))).To(Succeed()) })
	becomesReady(q)
	var members []string
	Eventually(func() ([]string, error) {
		found, err := queueOf("pair")
		members = found.Members
		return found.Online, err
	}).Should(HaveLen(2))
	needed := map[string]types.UID{}
	for _, name := range members {
		needed[name] = brokerPod(name).UID
	}
	setConfig := func(config map[string]posthornv1.ConfigValue) error {
		return changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Config = config })
	}
	// A setting that nodes do not apply while they run.
	Expect(setConfig(map[string]posthornv1.ConfigValue{"frame_max": "131073"})).To(Succeed())
	DeferCleanup(func() { Expect(setConfig(nil)).To(Succeed()) })
	Eventually(func(g Gomega) {
		cluster := currentCluster()
		g.Expect(cluster.Status.Rollout).NotTo(BeNil())
		g.Expect(cluster.Status.Rollout.Reason).To(Equal("QuorumCritical"))
		g.Expect(cluster.Status.Rollout.WaitingFor).To(Equal(slices.Max(members)))
		g.Expect(cluster.Status.Rollout.Queues).To(Equal([]string{"/pair"}))
		g.Expect(apimeta.IsStatusConditionTrue(cluster.Status.Conditions, posthornv1.ConditionUpgradeBlocked)).To(BeTrue())
		g.Expect(apimeta.IsStatusConditionFalse(cluster.Status.Conditions, posthornv1.ConditionQuorumSafe)).To(BeTrue())
	}).Should(Succeed())
	Expect(setConfig(nil)).To(Succeed())
	Eventually(operatorContent).Should(Succeed())
	for name, uid := range needed {
		Expect(brokerPod(name).UID).To(Equal(uid), "%s was needed", name)
	}
}

// annotateCluster changes the annotations of the cluster.
func annotateCluster(annotate func(client.Object)) {
	GinkgoHelper()
	cluster := currentCluster()
	before := cluster.DeepCopy()
	annotate(cluster)
	Expect(k8s.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
}

// stopAtWrongSetting asks for a setting that the brokers do not know: no pod gets it.
func stopAtWrongSetting() {
	newWorkQueue("settings")
	c := start("wrong-setting", work{command: "run", queue: "settings", messages: endless, rate: 300, overlap: true})
	c.confirmedAtLeast(300)
	before, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	const key = "no.such_setting"
	setUnknown := func(spec *posthornv1.BrokerClusterSpec) { spec.Config = map[string]posthornv1.ConfigValue{key: "1"} }
	refusedWith(changeCluster(setUnknown), "the broker knows no key "+key)
	annotateCluster(func(object client.Object) { skipValidation(object) })
	DeferCleanup(func() {
		Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Config = nil })).To(Succeed())
		annotateCluster(func(object client.Object) { object.SetAnnotations(nil) })
	})
	Expect(changeCluster(setUnknown)).To(Succeed())
	Eventually(readiness(newCluster())).Should(And(HavePrefix("False InvalidConfig"), ContainSubstring("unknown key `"+key+"`")),
		"the status names the setting")
	say("%s", readiness(newCluster())())
	available := apimeta.FindStatusCondition(currentCluster().Status.Conditions, posthornv1.ConditionAvailable)
	Expect(available.Status).To(Equal(metav1.ConditionTrue))
	Expect(currentCluster().Status.Rollout).To(BeNil())
	say("the setting is taken back")
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Config = nil })).To(Succeed())
	becomesWhole("settings")
	c.moreConfirmed(300)
	c.enough()
	for i := range before {
		Expect(brokerPod(before[i].Name).UID).To(Equal(before[i].UID), "no pod was replaced")
	}
}
