// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

var release = flag.String("release", "", "note the pod templates' inputs of this release in testdata/releases")

// specs that users of any release may have, by the fields that they use.
var specs = map[string]func(*posthornv1.BrokerCluster){
	"plain": func(c *posthornv1.BrokerCluster) {
		c.Spec.Config, c.Spec.Resources = nil, corev1.ResourceRequirements{}
	},
	"config":    func(*posthornv1.BrokerCluster) {},
	"placement": func(c *posthornv1.BrokerCluster) { c.Spec.Placement.TopologyKey = "rack" },
	"registry": func(c *posthornv1.BrokerCluster) {
		c.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
	},
	"template": func(c *posthornv1.BrokerCluster) {
		c.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"spec":{"priorityClassName":"high"}}`)}
	},
	"tls": func(c *posthornv1.BrokerCluster) { c.Spec.TLS = &posthornv1.TLSSpec{ClientAuth: "None"} },
	"tls given": func(c *posthornv1.BrokerCluster) {
		c.Spec.TLS = &posthornv1.TLSSpec{ClientAuth: "Required", SecretName: "s"}
	},
	"tls only": func(c *posthornv1.BrokerCluster) {
		c.Spec.TLS = &posthornv1.TLSSpec{ClientAuth: "None", DisablePlaintext: true}
	},
	"surroundings": func(c *posthornv1.BrokerCluster) {
		c.Spec.NetworkPolicy.Mode, c.Spec.Monitoring.ServiceMonitor, c.Spec.Service.Type = "Strict", "On", "LoadBalancer"
	},
}

// inputsDigest is the digest that the operator records on the StatefulSet of a spec.
func inputsDigest(t *testing.T, change func(*posthornv1.BrokerCluster)) string {
	t.Helper()
	cluster := testCluster()
	change(cluster)
	sum, err := inputsOf(cluster, cluster.Spec.Image, nil).digest()
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestOperatorUpgradeRollsNoCluster compares the digests of pod template inputs with those that each release recorded
// on its StatefulSets. A difference means that an upgrade of the operator alone restarts every broker of a user of
// that release.
//
// When it fails, make the new input omitempty, and zero for specs that do not use it. A change of the template alone,
// and not of its inputs, reaches a cluster with the next change of its spec, and shows in statefulset.yaml. If a
// restart of all brokers is intended, say so in the release notes and write the lines of the releases again. With
// each release: go test ./controllers/brokercluster -release 1.2.3
func TestOperatorUpgradeRollsNoCluster(t *testing.T) {
	if *release != "" {
		var lines []string
		for _, name := range sortedKeys(specs) {
			lines = append(lines, fmt.Sprintf("%s: %s\n", name, inputsDigest(t, specs[name])))
		}
		if err := os.WriteFile(filepath.Join("testdata", "releases", *release+".txt"), []byte(strings.Join(lines, "")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join("testdata", "releases", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatal("no release is noted", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
			name, noted, _ := strings.Cut(line, ": ")
			change, known := specs[name]
			if !known {
				t.Errorf("%s: there is no spec %q any more", file, name)
				continue
			}
			if now := inputsDigest(t, change); now != noted {
				t.Errorf("%s: clusters like %q would be rolled: their template was made from %s, now from %s", file, name, noted, now)
			}
		}
	}
}
