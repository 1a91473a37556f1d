// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// Versions of the programs in the two images. The second one has an additional feature flag.
const (
	version     = "0.2.0"
	nextVersion = "0.3.0"
	nextFlag    = "next_release"
)

// flagOf returns the state of a feature flag that a node of a cluster reports; empty for an unknown flag.
func flagOf(cluster string, pod *corev1.Pod, name string) (string, error) {
	one, err := askOf(cluster, pod)
	if err != nil {
		return "", err
	}
	flags, err := one.FeatureFlags(ctx)
	for _, flag := range flags {
		if flag.Name == name {
			return flag.State, err
		}
	}
	return "", err
}

// halfWay has the observations of the feature flag while nodes of both versions ran.
type halfWay struct {
	// refused is the broker's answer to a request to enable the flag; empty when none was made.
	refused string
	// early is how the flag was enabled before all nodes knew it; empty when it was not.
	early string
}

// look reads the flag through a ready node, and requests it once. Requests without an answer are repeated.
func (h *halfWay) look() {
	pods, err := brokerPods()
	if err != nil {
		return
	}
	for i := range pods {
		if !podReady(&pods[i]) {
			continue
		}
		state, err := flagOf(clusterName, &pods[i], nextFlag)
		if err != nil || state == "" {
			continue
		}
		// In this order: a node that is old now was old when the flag was read.
		running := runningVersions(clusterName)
		if state == broker.FlagEnabled && slices.Contains(running, version) {
			h.early = fmt.Sprintf("%s tells that it is on, and the nodes run %v", pods[i].Name, running)
		}
		if state == broker.FlagUnavailable && h.refused == "" {
			h.ask(&pods[i])
		}
		return
	}
}

func (h *halfWay) ask(pod *corev1.Pod) {
	one, err := ask(pod)
	if err != nil {
		return
	}
	if err = one.EnableFeatureFlag(ctx, nextFlag); err == nil {
		h.early = pod.Name + " let it be enabled"
	} else if broker.IsTerminal(err) {
		say("half-way: %v", err)
		h.refused = err.Error()
	}
}

// runningVersions returns the versions that a cluster's nodes reported to the operator.
func runningVersions(name string) []string {
	var cluster posthornv1.BrokerCluster
	if err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &cluster); err != nil {
		return nil
	}
	var out []string
	for _, member := range cluster.Status.Members {
		out = append(out, member.Version)
	}
	return out
}

// notesOf returns the different Events about a cluster with a reason.
func notesOf(name, reason string) []string {
	GinkgoHelper()
	var cluster posthornv1.BrokerCluster
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &cluster)).To(Succeed())
	var list eventsv1.EventList
	Expect(k8s.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
	var out []string
	for _, event := range list.Items {
		if event.Regarding.UID == cluster.UID && event.Reason == reason && !slices.Contains(out, event.Note) {
			out = append(out, event.Note)
		}
	}
	return out
}

// leaveFlagToPeople gives a cluster of one node, whose data an older version has written, the next version and the
// policy Manual: the flag stays disabled, and the version after that is refused. The other policy enables it.
func leaveFlagToPeople(name string) {
	one := singleCluster(name)
	flags := func() *posthornv1.FeatureFlagsStatus {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(one), one); err != nil || one.Status.FeatureFlags == nil {
			return &posthornv1.FeatureFlagsStatus{}
		}
		return one.Status.FeatureFlags
	}
	set := func(change func(*posthornv1.BrokerClusterSpec)) {
		GinkgoHelper()
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(one), one)).To(Succeed())
		before := one.DeepCopy()
		change(&one.Spec)
		Expect(k8s.Patch(ctx, one, client.MergeFrom(before))).To(Succeed())
	}
	Eventually(flags).Should(And(HaveField("Disabled", Equal([]string{nextFlag})), HaveField("Message", ContainSubstring("Manual"))))
	enabled := flags().Enabled
	Expect(notesOf(name, "FeatureFlagsDisabled")).To(ConsistOf(ContainSubstring(nextFlag)))
	pod := brokerPod(name + "-0")
	Expect(flagOf(name, &pod, nextFlag)).To(Equal(broker.FlagDisabled))

	set(func(spec *posthornv1.BrokerClusterSpec) { spec.Version = "0.4.0" })
	Eventually(readiness(one)).Should(And(HavePrefix("False FeatureFlagsDisabled: "), ContainSubstring(nextFlag)))
	Expect(brokerPod(pod.Name).UID).To(Equal(pod.UID), "nobody was replaced for a refused version")
	set(func(spec *posthornv1.BrokerClusterSpec) {
		spec.Version, spec.FeatureFlags.Policy = nextVersion, posthornv1.FeatureFlagsEnableStable
	})
	Eventually(flags).Should(And(HaveField("Disabled", BeEmpty()), HaveField("Enabled", enabled+1), HaveField("Message", BeEmpty())))
	Expect(notesOf(name, "FeatureFlagEnabled")).To(ConsistOf("enabled the feature flag " + nextFlag))
	Expect(flagOf(name, &pod, nextFlag)).To(Equal(broker.FlagEnabled))

	// The older version, labelled as the next one, exits and reports why.
	set(func(spec *posthornv1.BrokerClusterSpec) { spec.Image = image })
	Eventually(readiness(one)).Should(And(HavePrefix("False "), ContainSubstring(pod.Name+": "), ContainSubstring(nextFlag)))
	say("%s", readiness(one)())
	set(func(spec *posthornv1.BrokerClusterSpec) { spec.Image = nextImage })
	Eventually(readiness(one)).Should(HavePrefix("True "))
}
