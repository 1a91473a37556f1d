// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func testCluster() *posthornv1.BrokerCluster {
	return &posthornv1.BrokerCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c"},
		Spec: posthornv1.BrokerClusterSpec{
			Replicas:  3,
			Image:     "example.test/posthorn:1.0.0",
			Storage:   posthornv1.StorageSpec{Size: resource.MustParse("20Gi"), WhenDeleted: "Retain", WhenScaled: "Retain"},
			Placement: posthornv1.PlacementSpec{TopologyKey: "topology.kubernetes.io/zone"},
			Config:    map[string]posthornv1.ConfigValue{"log.level": "debug"},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
		},
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what is made now:\n%s", file, got)
	}
}

// TestStatefulSetGolden shows in review how a change affects a new cluster, and that the digest of the inputs, which
// decides whether existing clusters are rolled, has not changed.
func TestStatefulSetGolden(t *testing.T) {
	cluster := testCluster()
	inputs := inputsOf(cluster, cluster.Spec.Image, nil)
	sum, err := inputs.digest()
	if err != nil {
		t.Fatal(err)
	}
	template, err := buildTemplate(cluster, inputs)
	if err != nil {
		t.Fatal(err)
	}
	data, err := yaml.Marshal(newStatefulSet(cluster, template, sum))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "statefulset.yaml", data)
}

func TestInputsDigestFollowsOnlyPodTemplateInputs(t *testing.T) {
	base, err := inputsOf(testCluster(), "i", nil).digest()
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		change  func(*posthornv1.BrokerCluster)
		restart bool
	}{
		"replicas":    {func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 5 }, false},
		"service":     {func(c *posthornv1.BrokerCluster) { c.Spec.Service.Type = "LoadBalancer" }, false},
		"budget":      {func(c *posthornv1.BrokerCluster) { c.Spec.PodDisruptionBudget.Mode = "Off" }, false},
		"tenancy":     {func(c *posthornv1.BrokerCluster) { c.Spec.Tenancy = &posthornv1.TenancySpec{VhostPrefix: "x"} }, false},
		"retention":   {func(c *posthornv1.BrokerCluster) { c.Spec.Storage.WhenDeleted = "Delete" }, false},
		"paused":      {func(c *posthornv1.BrokerCluster) { c.Spec.Paused = true }, false},
		"config":      {func(c *posthornv1.BrokerCluster) { c.Spec.Config["log.level"] = "info" }, true},
		"resources":   {func(c *posthornv1.BrokerCluster) { c.Spec.Resources = corev1.ResourceRequirements{} }, true},
		"topologyKey": {func(c *posthornv1.BrokerCluster) { c.Spec.Placement.TopologyKey = "rack" }, true},
		"podTemplate": {func(c *posthornv1.BrokerCluster) { c.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte("{}")} }, true},
		"monitoring":  {func(c *posthornv1.BrokerCluster) { c.Spec.Monitoring.ServiceMonitor = "Off" }, false},
		"network":     {func(c *posthornv1.BrokerCluster) { c.Spec.NetworkPolicy.Mode = "Strict" }, false},
		"tls":         {func(c *posthornv1.BrokerCluster) { c.Spec.TLS = &posthornv1.TLSSpec{} }, true},
		"pullSecrets": {func(c *posthornv1.BrokerCluster) {
			c.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
		}, true},
	}
	for name, c := range cases {
		cluster := testCluster()
		c.change(cluster)
		got, err := inputsOf(cluster, "i", nil).digest()
		if err != nil || (got != base) != c.restart {
			t.Errorf("%s: restart %v, want %v (%v)", name, got != base, c.restart, err)
		}
	}
	if other, _ := inputsOf(testCluster(), "j", nil).digest(); other == base {
		t.Error("another image is not seen")
	}
}

func TestOverrideMergesIntoThePodTemplate(t *testing.T) {
	cluster := testCluster()
	plain, err := buildTemplate(cluster, inputsOf(cluster, "i", nil))
	if err != nil {
		t.Fatal(err)
	}
	cluster.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"metadata":{"annotations":{"a":"b"}},"spec":{"containers":[
		{"name":"posthorn","env":[{"name":"EXTRA","value":"1"}]},{"name":"sidecar","image":"s"}]}}`)}
	template, err := buildTemplate(cluster, inputsOf(cluster, "i", nil))
	if err != nil {
		t.Fatal(err)
	}
	if len(template.Spec.Containers) != 2 || len(template.Spec.Containers[0].Env) != len(plain.Spec.Containers[0].Env)+1 || template.Annotations["a"] != "b" {
		t.Errorf("merged to %+v", template)
	}
	for _, bad := range []string{`[]`, `{"spec":{"containers":7}}`, `{"metadata":{"labels":{"app.kubernetes.io/instance":"x"}}}`, `{"metadata":{"labels":null}}`} {
		cluster.Spec.PodTemplate.Raw = []byte(bad)
		_, err := buildTemplate(cluster, inputsOf(cluster, "i", nil))
		if found, is := asTerminalError(err); !is || found.reason != "InvalidPodTemplate" {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestImageOfPrefersTheSpec(t *testing.T) {
	sts := &appsv1.StatefulSet{}
	sts.Spec.Template.Spec.Containers = []corev1.Container{{Name: "sidecar", Image: "no"}, {Name: containerName, Image: "kept:1"}}
	cases := []struct {
		image, version string
		sts            *appsv1.StatefulSet
		want           string
	}{
		{"a/b:1", "", sts, "a/b:1"}, {"a/b:1", "2", nil, "a/b:1"}, {"", "2", sts, "repo:2"}, {"", "", sts, "kept:1"}, {"", "", nil, "default:0"},
	}
	for _, c := range cases {
		got := imageOf(&posthornv1.BrokerClusterSpec{Image: c.image, Version: c.version}, c.sts, "repo", "default:0")
		if got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	for image, want := range map[string]string{"a:5000/b": "latest", "a:5000/b:2": "2", "a/b@sha256:77": "sha256:77", "b": "latest"} {
		if got := versionOf(&posthornv1.BrokerClusterSpec{}, image); got != want {
			t.Errorf("%s: %s", image, got)
		}
	}
}

func TestNotRunningReasonNamesTheCause(t *testing.T) {
	pod := func(state corev1.ContainerState) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "sidecar", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}},
			{Name: containerName, State: state},
		}}}
	}
	ended := pod(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}})
	ended.Status.ContainerStatuses[1].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 2, Message: "unknown key x"}
	unschedulable := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no room"},
	}}}
	cases := map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"running":              {pod(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), ""},
		"being created":        {pod(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}), ""},
		"no image":             {pod(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "gone"}}), "ErrImagePull: gone"},
		"ended":                {pod(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 3}}), "Error: exit code 3"},
		"ended with words":     {pod(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 2, Message: "unknown key x\n"}}), "Error: exit code 2: unknown key x"},
		"ends again and again": {ended, "CrashLoopBackOff: exit code 2: unknown key x"},
		"nothing known":        {&corev1.Pod{}, ""},
		"no node":              {unschedulable, "Unschedulable: no room"},
	}
	for name, c := range cases {
		if stuck, why := notRunningReason(c.pod); why != c.want || stuck != (c.want != "") {
			t.Errorf("%s: %v %q", name, stuck, why)
		}
	}
}

func TestConfigHasOneSettingPerLine(t *testing.T) {
	cluster := testCluster()
	for _, text := range []string{mainConfig(cluster, 3), userConfig(cluster.Spec.Config)} {
		for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			if key, value, found := strings.Cut(line, " = "); !found || key == "" || value == "" {
				t.Errorf("line %q", line)
			}
		}
	}
}
