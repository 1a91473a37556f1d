// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

func setVersion(version string) func(*posthornv1.BrokerCluster) {
	return func(c *posthornv1.BrokerCluster) { c.Spec.Image, c.Spec.Version = "", version }
}

func stable(name, state string) broker.FeatureFlag {
	return broker.FeatureFlag{Name: name, State: state, Stability: broker.FlagStable}
}

// approve sets the approval that the status asks for.
func (w *world) approve(whole bool) {
	GinkgoHelper()
	value := ""
	Eventually(func() string {
		if r := w.cluster().Status.Rollout; r != nil {
			value = r.Approve
		}
		return value
	}).ShouldNot(BeEmpty())
	if whole {
		value, _, _ = strings.Cut(value, "/")
	}
	w.changeCluster(func(c *posthornv1.BrokerCluster) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, names.AnnotationApprove, value)
	})
}

var _ = Describe("an upgrade", func() {
	It("refuses an older version and one that skips others, and applies the rest of the spec", func() {
		w := newWorld(setVersion("1.1.0"))
		w.broker.SetVersion("1.1.0")
		w.readyWorld()
		for version, reason := range map[string]string{"1.0.9": "Downgrade", "1.3.0": "VersionSkipped", "3.0.0": "VersionSkipped"} {
			w.changeCluster(setVersion(version))
			Eventually(ready(w.cluster())).Should(HavePrefix("False "+reason), version)
			Expect(conditionOf(w.cluster(), posthornv1.ConditionUpgradeBlocked)()).To(HavePrefix("True " + reason))
			Expect(conditionOf(w.cluster(), posthornv1.ConditionStalled)()).To(HavePrefix("True " + reason))
			Consistently(w.images, "300ms").Should(HaveEach("1.1.0"))
			Expect(w.cluster().Status.CurrentVersion).To(Equal("1.1.0"))
		}
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.PodDisruptionBudget.Mode = "Off" })
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: clusterName}}
		Eventually(gone(budget)).Should(BeTrue())
		w.changeCluster(setVersion("1.2.0"))
		Eventually(w.images).Should(HaveEach("1.2.0"))
		w.readyWorld()
	})

	It("can be reverted during the roll", func() {
		w := newWorld(setVersion("1.0.0"))
		w.readyWorld()
		w.broker.SetLeaders("c-1", 3)
		w.changeCluster(setVersion("1.1.0"))
		Eventually(w.rollout).Should(Equal("Draining c-1"))
		w.changeCluster(setVersion("1.0.0"))
		w.broker.SetLeaders("c-1", 0)
		Eventually(w.images).Should(HaveEach("1.0.0"))
		w.readyWorld()
	})

	It("is followed by enabling the stable feature flags one after the other, each with an Event", func() {
		w := newWorld(setVersion("1.0.0"))
		w.readyWorld()
		w.broker.SetLeaders("c-0", 3)
		w.broker.SetFlag(broker.FeatureFlag{Name: "trial", State: broker.FlagDisabled, Stability: broker.FlagExperimental})
		w.changeCluster(setVersion("1.1.0"))
		Eventually(w.rollout).Should(Equal("Draining c-0"))
		// The new nodes know flags that the old node does not.
		w.broker.SetFlag(stable("message_containers", broker.FlagDisabled))
		w.broker.SetFlag(stable("new_hash", broker.FlagDisabled))
		told := make(chan string, 2)
		w.broker.OnFlag(func(name string) {
			defer GinkgoRecover()
			status := w.cluster().Status
			told <- fmt.Sprintf("%s at %s, %d enabled", name, status.CurrentVersion, status.FeatureFlags.Enabled)
		})
		Consistently(func() string { return w.broker.Flag("message_containers") }).Should(Equal(broker.FlagDisabled), "an old node is there")
		w.broker.SetLeaders("c-0", 0)
		Eventually(told).Should(Receive(Equal("message_containers at 1.1.0, 0 enabled")), "that there is no way back is known before the first")
		Eventually(told).Should(Receive(Equal("new_hash at 1.1.0, 1 enabled")), "the status tells of each before the next")
		Eventually(eventsOf(w.cluster(), "FeatureFlagEnabled")).Should(Equal(2))
		Expect(w.broker.Flag("trial")).To(Equal(broker.FlagDisabled))
		Eventually(func() *posthornv1.FeatureFlagsStatus { return w.cluster().Status.FeatureFlags }).Should(Equal(&posthornv1.FeatureFlagsStatus{Enabled: 2}))
		puts := len(w.broker.Calls("/api/feature-flags", http.MethodPut))
		Consistently(func() int { return len(w.broker.Calls("/api/feature-flags", http.MethodPut)) }).Should(Equal(puts))
	})

	It("leaves flags to people with the policy Manual, and refuses the next minor version until they are enabled", func() {
		w := newWorld(setVersion("1.0.0"), func(c *posthornv1.BrokerCluster) { c.Spec.FeatureFlags.Policy = posthornv1.FeatureFlagsManual })
		w.broker.SetFlag(stable("new_hash", broker.FlagDisabled))
		w.readyWorld()
		Eventually(func() []string {
			if f := w.cluster().Status.FeatureFlags; f != nil {
				return f.Disabled
			}
			return nil
		}).Should(Equal([]string{"new_hash"}))
		Eventually(eventsOf(w.cluster(), "FeatureFlagsDisabled")).Should(BeNumerically(">", 0))
		Expect(w.broker.Flag("new_hash")).To(Equal(broker.FlagDisabled))
		w.changeCluster(setVersion("1.1.0"))
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False FeatureFlagsDisabled"), ContainSubstring("new_hash")))
		Expect(w.images()).To(HaveEach("1.0.0"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.FeatureFlags.Policy = posthornv1.FeatureFlagsEnableStable })
		Eventually(w.images).Should(HaveEach("1.1.0"))
		Expect(w.broker.Flag("new_hash")).To(Equal(broker.FlagEnabled))
	})

	It("waits for an approval of each node when it is supervised, or of the whole roll", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Upgrade.Mode = posthornv1.UpgradeSupervised })
		w.readyWorld()
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.rollout).Should(Equal("ApprovalNeeded c-2"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionUpgradeBlocked)()).To(HavePrefix("True ApprovalNeeded"))
		Consistently(w.images).Should(HaveEach("1.0.0"))
		w.approve(false)
		Eventually(w.images).Should(Equal([]string{"1.0.0", "1.0.0", "1.1.0"}))
		Eventually(w.rollout).Should(Equal("ApprovalNeeded c-1"))
		Consistently(w.images).Should(Equal([]string{"1.0.0", "1.0.0", "1.1.0"}))
		w.approve(true)
		Eventually(w.images).Should(HaveEach("1.1.0"))
		w.readyWorld()
		// The approval was for that roll only.
		w.changeCluster(setImage("1.2.0"))
		Eventually(w.rollout).Should(Equal("ApprovalNeeded c-2"))
	})

	It("stops when a step takes too long, and revives the drained node", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) {
			c.Spec.Upgrade.StepTimeout = &metav1.Duration{Duration: 2 * time.Second}
		})
		w.readyWorld()
		w.broker.SetLeaders("c-2", 7)
		w.changeCluster(setImage("1.1.0"))
		Eventually(w.rollout).Should(Equal("StepTimeout c-2"))
		Eventually(func() bool { return w.broker.Drained("c-2") }).Should(BeFalse())
		w.broker.SetLeaders("c-2", 0)
		Eventually(w.rollout).Should(Equal("StepTimeout c-2"))
		Consistently(w.images).Should(HaveEach("1.0.0"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionUpgradeBlocked)()).To(HavePrefix("True StepTimeout"))
		// A second Event comes only from a reconciliation that began before the cache had the status.
		Expect(eventsOf(w.cluster(), "StepTimeout")()).To(BeNumerically("~", 1, 1))
		Expect(eventsOf(w.cluster(), "StepTimeout")()).NotTo(BeZero())
		w.approve(true)
		Eventually(w.images).Should(HaveEach("1.1.0"))
		w.readyWorld()
	})
})
