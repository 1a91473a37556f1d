// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

func TestConfigCheckIsInvalidOnlyIfTheBrokerRefusesTheSettings(t *testing.T) {
	ended := func(phase corev1.PodPhase, code int32, said string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
			Name: containerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: code, Message: said}},
		}}}}
	}
	evicted := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource"}}
	for name, row := range map[string]struct {
		pod     *corev1.Pod
		result  checkResult
		message string
	}{
		"not started": {&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}}, configPending, ""},
		"good":        {ended(corev1.PodSucceeded, 0, "posthorn.conf: good"), configValid, ""},
		"refused": {
			ended(corev1.PodFailed, 2, "/etc/posthorn/conf.d/90-user.conf:1: unknown key `a.b`\n/etc/posthorn/conf.d/90-user.conf:2: `log.level`: bad value `x`; expected error or warn\n"),
			configInvalid, "unknown key `a.b`; `log.level`: bad value `x`; expected error or warn",
		},
		"killed":            {ended(corev1.PodFailed, 137, ""), configUnknown, "Error: exit code 137"},
		"crashed":           {ended(corev1.PodFailed, 101, "thread main\npanicked\n"), configUnknown, "Error: exit code 101: thread main; panicked"},
		"no words":          {ended(corev1.PodFailed, 2, " \n"), configUnknown, "Error: exit code 2"},
		"evicted":           {evicted, configUnknown, "Evicted: The node was low on resource"},
		"contradicts":       {ended(corev1.PodFailed, 2, "configuration: `a` needs `b`"), configInvalid, "configuration: `a` needs `b`"},
		"another container": {&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Failed"}}, configUnknown, "Failed"},
	} {
		if result, message := resultOfCheck(row.pod); result != row.result || message != row.message {
			t.Errorf("%s: %s %q, want %s %q", name, result, message, row.result, row.message)
		}
	}
}

func TestNewSettingsAndNewImagesAreChecked(t *testing.T) {
	running := func(change func(*posthornv1.BrokerCluster)) *appsv1.StatefulSet {
		cluster := testCluster()
		change(cluster)
		template, err := buildTemplate(cluster, inputsOf(cluster, cluster.Spec.Image, nil))
		if err != nil {
			t.Fatal(err)
		}
		return newStatefulSet(cluster, template, "")
	}
	cluster := testCluster()
	wanted := inputsOf(cluster, cluster.Spec.Image, nil)
	for name, row := range map[string]struct {
		sts      *appsv1.StatefulSet
		settings int
		want     bool
	}{
		"new cluster":                  {nil, 1, true},
		"new cluster, no settings":     {nil, 0, false},
		"same":                         {running(func(*posthornv1.BrokerCluster) {}), 1, false},
		"other settings":               {running(func(c *posthornv1.BrokerCluster) { c.Spec.Config = nil }), 1, true},
		"other image":                  {running(func(c *posthornv1.BrokerCluster) { c.Spec.Image = "other" }), 1, true},
		"other resources":              {running(func(c *posthornv1.BrokerCluster) { c.Spec.Resources = corev1.ResourceRequirements{} }), 1, false},
		"other image, but no settings": {running(func(c *posthornv1.BrokerCluster) { c.Spec.Image = "other" }), 0, false},
	} {
		if got := needsConfigCheck(row.sts, wanted, row.settings); got != row.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestConfigCheckPodMountsOnlyTheConfiguration(t *testing.T) {
	cluster := testCluster()
	template, err := buildTemplate(cluster, inputsOf(cluster, cluster.Spec.Image, nil))
	if err != nil {
		t.Fatal(err)
	}
	pod := configCheckPod(&template)
	if !mountsConfigMap(&pod.Spec, "c-config") || !mountsConfigMap(&pod.Spec, "c-config-"+configDigest(cluster.Spec.Config)[:12]) {
		t.Errorf("%+v", pod.Spec.Volumes)
	}
	container := pod.Spec.Containers[0]
	if len(pod.Spec.Containers) != 1 || len(container.VolumeMounts) != 1 || len(container.Env) != 0 || container.Ports != nil || container.LivenessProbe != nil {
		t.Errorf("%+v", container)
	}
	if container.SecurityContext == nil || pod.Spec.SecurityContext == nil || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("%+v", pod.Spec)
	}
}
