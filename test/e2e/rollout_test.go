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
	"posthorn.io/posthorn/internal/names"
)

// rollRecord is what a watch saw of the cluster's pods: every change, in order.
type rollRecord struct {
	mu       sync.Mutex
	up       map[string]bool // pods that are ready and not going
	uids     map[string]types.UID
	replaced []string // pods that were made anew, in order
	mostDown int      // how many were not up at once, at the worst
	stopped  bool
	failure  error
}

// recordRoll watches until the returned function is called, which gives the record.
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

// rollUnderLoad changes the image under load: clients publish and consume until the last pod is new.
func rollUnderLoad() {
	newWorkQueue("rolled")
	record := recordRoll()
	messages := 6000
	c := start("roll-1", work{command: "run", queue: "rolled", messages: messages, rate: 400, overlap: true})
	c.confirmedAtLeast(400)
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Image = nextImage })).To(Succeed())
	say("the image changes to %s", nextImage)
	start0 := time.Now()
	var told []string
	rolled := func() bool {
		cluster := currentCluster()
		if r := cluster.Status.Rollout; r != nil {
			if line := r.Reason + " " + r.WaitingFor; len(told) == 0 || told[len(told)-1] != line {
				told = append(told, line)
				say("status.rollout: %s", line)
			}
		}
		ready := apimeta.FindStatusCondition(cluster.Status.Conditions, posthornv1.ConditionReady)
		return cluster.Status.ObservedGeneration == cluster.Generation && ready != nil && ready.Status == metav1.ConditionTrue &&
			cluster.Status.Rollout == nil && cluster.Status.CurrentVersion == cluster.Status.TargetVersion && len(told) > 0
	}
	for run := 2; ; run++ {
		// One client after the other, until the roll is over.
		Eventually(func() bool { return rolled() || !c.running() }).WithTimeout(clientTimeout).Should(BeTrue())
		if rolled() {
			break
		}
		Expect(time.Since(start0)).To(BeNumerically("<", 3*time.Minute), "the roll does not end: %v", told)
		c.keptItsWord()
		c = start(fmt.Sprintf("roll-%d", run), work{command: "run", queue: "rolled", messages: messages, rate: 400, overlap: true})
	}
	say("rolled in %.1fs", time.Since(start0).Seconds())
	c.keptItsWord()
	seen := record()
	Expect(seen.replaced).To(Equal([]string{"c-2", "c-1", "c-0"}), "each once, the highest ordinal first")
	Expect(seen.mostDown).To(Equal(1), "never two at once")
	pods, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	for i := range pods {
		Expect(pods[i].Spec.Containers[0].Image).To(Equal(nextImage))
	}
	for _, name := range memberNames() {
		Expect(slices.ContainsFunc(told, func(line string) bool { return strings.HasSuffix(line, " "+name) })).
			To(BeTrue(), "status.rollout told of %s: %v", name, told)
	}
	becomesWhole("rolled")
}

// stopAtWrongSetting gives running brokers a setting that they do not know.
func stopAtWrongSetting() {
	newWorkQueue("settings")
	c := start("wrong-setting", work{command: "run", queue: "settings", messages: 6000, rate: 300, overlap: true})
	c.confirmedAtLeast(300)
	before, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	const key = "no.such_setting"
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) {
		spec.Config = map[string]posthornv1.ConfigValue{key: "1"}
	})).To(Succeed())
	DeferCleanup(func() {
		Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Config = nil })).To(Succeed())
	})
	broken := clusterName + "-2"
	Eventually(readiness(newCluster())).Should(And(HavePrefix("False "), ContainSubstring(broken+": "), ContainSubstring(key)),
		"the status names the pod that does not run and the setting")
	Eventually(func() string { return lastWords(broken) }).Should(ContainSubstring(key), "the broker's log names the setting")
	say("%s", readiness(newCluster())())
	available := apimeta.FindStatusCondition(currentCluster().Status.Conditions, posthornv1.ConditionAvailable)
	Expect(available.Status).To(Equal(metav1.ConditionTrue))
	Expect(currentCluster().Status.Rollout).NotTo(BeNil())
	for _, pod := range before[:2] {
		Expect(brokerPod(pod.Name).UID).To(Equal(pod.UID), "the others stay as they are")
	}
	say("the setting is taken back")
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Config = nil })).To(Succeed())
	becomesWhole("settings")
	c.keptItsWord()
	for _, pod := range before[:2] {
		Expect(brokerPod(pod.Name).UID).To(Equal(pod.UID), "only the broken pod was replaced")
	}
}

// lastWords is what the broker in a pod said, also one that has ended.
func lastWords(pod string) string {
	out := ""
	for _, previous := range []bool{true, false} {
		data, err := logs.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Previous: previous}).DoRaw(ctx)
		if err == nil {
			out += string(data)
		}
	}
	return out
}
