// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// settingKeys are keys of a broker, some of which it reloads.
var settingKeys = []broker.SettingKey{
	{Key: "advertised_nodes.*", Live: true},
	{Key: "heartbeat", Default: "60", Live: true},
	{Key: "log.level", Default: "info", Live: true},
	{Key: "stream.advertised_host", Live: true},
	{Key: "frame_max", Default: "131072"},
}

// reloadable gives the broker a reload: its nodes read the files that their pods mount.
func (w *world) reloadable() {
	w.broker.SetConfiguration(settingKeys, func(node string) map[string]broker.Setting {
		out := map[string]broker.Setting{}
		var pod corev1.Pod
		if err := k8s.Get(ctx, w.key(node), &pod); err != nil {
			return out
		}
		for _, volume := range pod.Spec.Volumes {
			if volume.Projected == nil {
				continue
			}
			for _, source := range volume.Projected.Sources {
				w.readFiles(source.ConfigMap, out)
			}
		}
		return out
	})
}

func (w *world) readFiles(source *corev1.ConfigMapProjection, out map[string]broker.Setting) {
	var files corev1.ConfigMap
	if source == nil || k8s.Get(ctx, w.key(source.Name), &files) != nil {
		return
	}
	for _, item := range source.Items {
		if !strings.HasPrefix(item.Path, "conf.d/") {
			continue
		}
		for line := range strings.Lines(files.Data[item.Key]) {
			if key, value, found := strings.Cut(strings.TrimSpace(line), " = "); found {
				out[key] = broker.Setting{Value: value, Source: "/etc/posthorn/" + item.Path + ":1"}
			}
		}
	}
}

// running returns a setting of every node as it applies, in the order of the nodes.
func (w *world) running(key string) func() []string {
	return func() []string {
		var out []string
		for i := range 3 {
			out = append(out, w.broker.RunningSetting(fmt.Sprintf("c-%d", i), key))
		}
		return out
	}
}

func (w *world) liveSettings() string {
	var files corev1.ConfigMap
	if err := k8s.Get(ctx, w.key(names.LiveConfigMap(clusterName)), &files); client.IgnoreNotFound(err) != nil {
		return err.Error()
	}
	return files.Data["95-live.conf"]
}

var _ = Describe("live settings", func() {
	It("applies settings that the broker reloads without replacing a pod", func() {
		w := newWorld(setConfig(map[string]posthornv1.ConfigValue{"heartbeat": "30", "frame_max": "9000"}))
		w.readyWorld()
		w.reloadable()
		before := w.podUIDs()
		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"heartbeat": "40", "frame_max": "9000", "log.level": "debug"}))
		Eventually(w.running("heartbeat")).Should(HaveEach("40"))
		Eventually(w.running("log.level")).Should(HaveEach("debug"))
		w.readyWorld()
		Expect(w.podUIDs()).To(Equal(before))
		Expect(w.liveSettings()).To(Equal("heartbeat = 40\nlog.level = debug\n"))
		Expect(w.settingsOf("c-0")).To(Equal("frame_max = 9000\nheartbeat = 30\n"), "the pod's revision")
		Expect(w.cluster().Status.Configuration).To(BeNil())

		By("a removed setting returns to its default")
		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"frame_max": "9000"}))
		Eventually(w.running("heartbeat")).Should(HaveEach("60"))
		w.readyWorld()
		Expect(w.podUIDs()).To(Equal(before))

		By("the settings of the pods' revision need no live settings")
		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"heartbeat": "30", "frame_max": "9000"}))
		Eventually(w.running("heartbeat")).Should(HaveEach("30"))
		w.readyWorld()
		Expect(w.liveSettings()).To(BeEmpty())
		Expect(w.podUIDs()).To(Equal(before))
		Eventually(w.checks).Should(BeZero())
	})

	It("restarts the nodes for other settings, and names those in the status", func() {
		w := newWorld(setConfig(map[string]posthornv1.ConfigValue{"heartbeat": "30"}))
		w.readyWorld()
		w.reloadable()
		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"heartbeat": "40"}))
		Eventually(w.running("heartbeat")).Should(HaveEach("40"))
		w.broker.SetCritical("c-1", broker.QueueRef{Name: "q", Vhost: "/", Type: "quorum"})
		w.changeCluster(setConfig(map[string]posthornv1.ConfigValue{"heartbeat": "40", "frame_max": "9000"}))
		Eventually(w.rollout).Should(Equal("QuorumCritical c-1"))
		Eventually(func() *posthornv1.ConfigurationStatus { return w.cluster().Status.Configuration }).
			Should(HaveField("PendingRestart", Equal([]string{"frame_max"})))
		Expect(w.running("heartbeat")()).To(HaveEach("40"), "also nodes that wait for their restart")
		w.broker.SetCritical("c-1")
		w.readyWorld()
		Expect(w.running("frame_max")()).To(HaveEach("9000"))
		Expect(w.running("heartbeat")()).To(HaveEach("40"))
		Eventually(w.liveSettings).Should(BeEmpty())
		Expect(w.cluster().Status.Configuration).To(BeNil())
	})

	It("refuses an invalid live setting before a node loads it", func() {
		w := newWorld(setConfig(map[string]posthornv1.ConfigValue{"heartbeat": "30"}))
		w.readyWorld()
		w.broker.SetConfiguration(append([]broker.SettingKey{{Key: "nonsense.*", Live: true}}, settingKeys...), func(string) map[string]broker.Setting {
			return map[string]broker.Setting{"heartbeat": {Value: "30", Source: "file"}}
		})
		before := w.podUIDs()
		w.changeCluster(func(c *posthornv1.BrokerCluster) {
			skipValidation(c)
			c.Spec.Config = map[string]posthornv1.ConfigValue{"heartbeat": "30", "nonsense.key": "1"}
		})
		Eventually(ready(w.cluster())).Should(HavePrefix("False InvalidConfig: the broker refuses spec.config"))
		Expect(w.liveSettings()).To(BeEmpty())
		Expect(w.podUIDs()).To(Equal(before))
	})

	It("rolls a setting that was removed and has no default", func() {
		w := newWorld(setConfig(map[string]posthornv1.ConfigValue{"stream.advertised_host": "a.example"}))
		w.readyWorld()
		w.reloadable()
		before := w.podUIDs()
		w.changeCluster(setConfig(nil))
		Eventually(w.podUIDs).ShouldNot(ContainElements(before[0], before[1], before[2]))
		w.readyWorld()
		Expect(w.running("stream.advertised_host")()).To(HaveEach(""))
	})
})
