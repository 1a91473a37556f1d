// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strings"
	"testing"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// TestNodesAlwaysVerifyEachOther checks that the configuration names the certificate files between nodes and that
// they are mounted there, whatever TLS clients use.
func TestNodesAlwaysVerifyEachOther(t *testing.T) {
	for name, tls := range map[string]*posthornv1.TLSSpec{
		"clients without TLS": nil, "clients with TLS": {}, "clients with certificates": {SecretName: "s", ClientAuth: "Required", DisablePlaintext: true},
	} {
		cluster := testCluster()
		cluster.Spec.TLS = tls
		template, err := buildTemplate(cluster, inputsOf(cluster, "i", nil))
		if err != nil {
			t.Fatal(err)
		}
		mounted := map[string]bool{}
		for _, source := range template.Spec.Volumes[0].Projected.Sources {
			if source.Secret == nil || source.Secret.Name != names.InternodeSecret("c") {
				continue
			}
			if source.Secret.Optional != nil {
				t.Errorf("%s: a node may start without its certificate", name)
			}
			for _, item := range source.Secret.Items {
				mounted[configDir+"/"+item.Path] = true
			}
		}
		settings := map[string]string{}
		for _, line := range strings.Split(mainConfig(cluster, 3), "\n") {
			if key, value, found := strings.Cut(line, " = "); found {
				settings[key] = value
			}
		}
		for _, key := range []string{"cluster.auth.cacertfile", "cluster.auth.certfile", "cluster.auth.keyfile"} {
			if !mounted[settings[key]] {
				t.Errorf("%s: %s is %q, which is not mounted", name, key, settings[key])
			}
		}
		for variable := range env(template) {
			if strings.HasPrefix(variable, "POSTHORN_CLUSTER_AUTH") || strings.HasPrefix(variable, "POSTHORN_CLUSTER_LISTENER") {
				t.Errorf("%s: %s changes it", name, variable)
			}
		}
	}
}
