// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// settings returns the ConfigMaps of settings.
func (w *world) settings() []corev1.ConfigMap {
	var all corev1.ConfigMapList
	if err := k8s.List(ctx, &all, client.InNamespace(w.namespace), client.MatchingLabels{names.LabelInstance: clusterName}); err != nil {
		return nil
	}
	var out []corev1.ConfigMap
	for i := range all.Items {
		if strings.HasPrefix(all.Items[i].Name, "c-config-") {
			out = append(out, all.Items[i])
		}
	}
	return out
}

// settingsOf returns the settings that a pod reads when it restarts.
func (w *world) settingsOf(pod string) string {
	var found corev1.Pod
	if err := k8s.Get(ctx, w.key(pod), &found); err != nil {
		return err.Error()
	}
	for _, volume := range found.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			var files corev1.ConfigMap
			if source.ConfigMap != nil && k8s.Get(ctx, w.key(source.ConfigMap.Name), &files) == nil && files.Data["90-user.conf"] != "" {
				return files.Data["90-user.conf"]
			}
		}
	}
	return ""
}

// checks counts the pods that check settings.
func (w *world) checks() int {
	var pods corev1.PodList
	if err := k8s.List(ctx, &pods, client.InNamespace(w.namespace), client.MatchingLabels{names.LabelName: names.ConfigCheck}); err != nil {
		return -1
	}
	return len(pods.Items)
}

func (w *world) podUIDs() []types.UID {
	var out []types.UID
	for i := range 3 {
		var pod corev1.Pod
		_ = k8s.Get(ctx, w.key(fmt.Sprintf("%s-%d", clusterName, i)), &pod)
		out = append(out, pod.UID)
	}
	return out
}

func setConfig(config map[string]posthornv1.ConfigValue) func(*posthornv1.BrokerCluster) {
	return func(c *posthornv1.BrokerCluster) { c.Spec.Config = config }
}

var _ = Describe("configuration", func() {
	It("keeps the settings of every pod's revision, and deletes them when no pod uses them", func() {
		w := newWorld(setConfig(map[string]posthornv1.ConfigValue{"log.level": "debug"}))
		w.readyWorld()
		w.broker.SetCritical("c-1", broker.QueueRef{Name: "q", Vhost: "/", Type: "quorum"})
		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"log.level": "warn"}))
		Eventually(w.rollout).Should(Equal("QuorumCritical c-1"))
		Expect(w.settingsOf("c-2")).To(Equal("log.level = warn\n"))
		Expect(w.settingsOf("c-1")).To(Equal("log.level = debug\n"))
		Expect(w.settingsOf("c-0")).To(Equal("log.level = debug\n"))
		settings := w.settings()
		Expect(settings).To(HaveLen(2))
		settings[0].Data["90-user.conf"] = "by hand"
		Expect(k8s.Update(ctx, &settings[0])).To(MatchError(ContainSubstring("immutable")))
		w.broker.SetCritical("c-1")
		w.readyWorld()
		Eventually(w.settings).Should(HaveLen(1))
		Expect(w.settingsOf("c-0")).To(Equal("log.level = warn\n"))
		Eventually(w.checks).Should(BeZero())
	})

	It("refuses a setting that the broker does not know before any pod changes", func() {
		w := newWorld(setConfig(map[string]posthornv1.ConfigValue{"log.level": "debug"}))
		w.readyWorld()
		before := w.podUIDs()
		var sts appsv1.StatefulSet
		Expect(k8s.Get(ctx, w.key(clusterName), &sts)).To(Succeed())
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			skipValidation(c)
			c.Spec.Config = map[string]posthornv1.ConfigValue{"log.level": "debug", "nonsense.key": "1"}
		})
		Eventually(ready(w.cluster())).Should(Equal("False InvalidConfig: the broker refuses spec.config, so no pod is changed: unknown key `nonsense.key`"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionStalled)()).To(HavePrefix("True InvalidConfig"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionAvailable)()).To(HavePrefix("True"))
		Eventually(eventsOf(w.cluster(), "InvalidConfig")).Should(BeNumerically(">=", 1))
		Consistently(w.podUIDs).Should(Equal(before))
		for i := range 3 {
			Expect(w.settingsOf(fmt.Sprintf("c-%d", i))).To(Equal("log.level = debug\n"))
		}
		generation := sts.Generation
		Expect(k8s.Get(ctx, w.key(clusterName), &sts)).To(Succeed())
		Expect(sts.Generation).To(Equal(generation))

		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"log.level": "debug"}))
		w.readyWorld()
		Expect(conditionOf(w.cluster(), posthornv1.ConditionStalled)()).To(Equal("absent"))
		Expect(w.podUIDs()).To(Equal(before))
		Eventually(w.checks).Should(BeZero())
		Eventually(w.settings).Should(HaveLen(1))
	})

	It("replaces no pod for settings while the image that checks them cannot be pulled", func() {
		w := newWorld()
		w.readyWorld()
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			setImage("bad")(c)
			setConfig(map[string]posthornv1.ConfigValue{"log.level": "debug"})(c)
		})
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False CheckingConfig"), ContainSubstring("ImagePullBackOff: no such image")))
		Consistently(w.images).Should(HaveEach("1.0.0"))
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.images).Should(HaveEach("1.1.0"))
		w.readyWorld()
	})

	It("refuses another number of shards while nodes run and their feature flag is off", func() {
		w := newWorld(setConfig(map[string]posthornv1.ConfigValue{"shards": "1"}), func(c *posthornv1.BrokerCluster) {
			c.Spec.FeatureFlags.Policy = posthornv1.FeatureFlagsManual
		})
		w.broker.SetFlag(stable("shards_per_node", broker.FlagDisabled))
		w.readyWorld()
		Eventually(func() []string {
			if flags := w.cluster().Status.FeatureFlags; flags != nil {
				return flags.Disabled
			}
			return nil
		}).Should(ConsistOf("shards_per_node"))
		refused := MatchError(ContainSubstring("config.shards cannot change while nodes run and the feature flag shards_per_node is not enabled"))
		Expect(w.tryCluster(setConfig(map[string]posthornv1.ConfigValue{"shards": "2"}))).To(refused)
		Expect(w.tryCluster(setConfig(nil))).To(refused)
		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"shards": "1", "log.level": "debug"}))
		w.readyWorld()

		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Hibernated = true })
		Eventually(ready(w.cluster())).Should(HavePrefix("True Hibernated"))
		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"shards": "2"}))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Hibernated = false })
		w.readyWorld()
		Expect(w.settingsOf("c-0")).To(Equal("shards = 2\n"))
	})

	It("rolls the nodes to another number of shards once their feature flag is enabled", func() {
		w := newWorld(setConfig(map[string]posthornv1.ConfigValue{"shards": "1"}))
		w.broker.SetFlag(stable("shards_per_node", broker.FlagEnabled))
		w.readyWorld()
		Eventually(func() *posthornv1.FeatureFlagsStatus { return w.cluster().Status.FeatureFlags }).ShouldNot(BeNil())
		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"shards": "2"}))
		Eventually(func() string { return w.settingsOf("c-0") }).Should(Equal("shards = 2\n"))
		w.readyWorld()
	})
})
