// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/pki"
)

// givenFor creates a certificate and parses it.
func givenFor(t *testing.T, now time.Time, lifetime time.Duration, hosts ...string) pki.Given {
	t.Helper()
	authority, err := pki.NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := pki.Issue(authority, pki.Leaf{Name: "test", Hosts: hosts, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Lifetime: lifetime}, now)
	if err != nil {
		t.Fatal(err)
	}
	given, err := pki.Inspect(pair)
	if err != nil {
		t.Fatal(err)
	}
	return given
}

func TestJudgeGivenFollowsItsTable(t *testing.T) {
	start := time.Now()
	const host, day = "c.mq.svc", 24 * time.Hour
	given := givenFor(t, start, 100*day, host, "mq.example.com")
	outside := givenFor(t, start, 100*day, "mq.example.com")
	cases := map[string]struct {
		given       pki.Given
		authorities bool
		clientAuth  string
		names       []posthornv1.DNSName
		now         time.Time
		usable      bool
		reason      string
	}{
		"good":                            {given, false, "", nil, start, true, reasonValid},
		"good, asked for a name":          {given, false, "None", []posthornv1.DNSName{"mq.example.com"}, start, true, reasonValid},
		"another name is wanted":          {given, false, "None", []posthornv1.DNSName{"other.example.com"}, start, false, reasonInvalidCertificate},
		"not for the Service":             {outside, false, "None", []posthornv1.DNSName{"mq.example.com"}, start, true, reasonNameMissing},
		"clients cannot be checked":       {given, false, "Optional", nil, start, false, reasonInvalidCertificate},
		"clients must be checked, cannot": {given, false, "Required", nil, start, false, reasonInvalidCertificate},
		"clients can be checked":          {given, true, "Required", nil, start, true, reasonValid},
		"two weeks before its end":        {given, false, "", nil, start.Add(86*day + time.Hour), true, reasonExpiresSoon},
		"before that":                     {given, false, "", nil, start.Add(86*day - time.Hour), true, reasonValid},
		"ended":                           {given, false, "", nil, start.Add(100 * day), false, reasonExpired},
		"not begun":                       {given, false, "", nil, start.Add(-day), false, reasonNotYetValid},
	}
	for name, c := range cases {
		cluster := testCluster()
		cluster.Spec.TLS = &posthornv1.TLSSpec{SecretName: "s", ClientAuth: c.clientAuth, DNSNames: c.names}
		got := judgeGiven(c.given, c.authorities, cluster, c.now)
		if got.usable != c.usable || got.reason != c.reason || (got.message == "") != (c.reason == reasonValid) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// env returns the environment of the broker's container.
func env(template corev1.PodTemplateSpec) map[string]string {
	out := map[string]string{}
	for _, each := range template.Spec.Containers[0].Env {
		out[each.Name] = each.Value
	}
	return out
}

func TestTLSSettingsAndFilesReachThePodTogether(t *testing.T) {
	cases := map[string]struct {
		tls     *posthornv1.TLSSpec
		secret  string
		files   int
		verify  string
		require string
		ports   []string
	}{
		"none":         {nil, "", 0, "", "", []string{"amqp"}},
		"own":          {&posthornv1.TLSSpec{}, "c-tls", 2, "verify_none", "", []string{"amqp", "amqps"}},
		"issuer":       {&posthornv1.TLSSpec{IssuerRef: &posthornv1.IssuerReference{Name: "i"}}, "c-tls", 2, "verify_none", "", []string{"amqp", "amqps"}},
		"given, asked": {&posthornv1.TLSSpec{SecretName: "s", ClientAuth: "Optional"}, "s", 3, "verify_peer", "false", []string{"amqp", "amqps"}},
		"only TLS":     {&posthornv1.TLSSpec{SecretName: "s", ClientAuth: "Required", DisablePlaintext: true}, "s", 3, "verify_peer", "true", []string{"amqps"}},
	}
	for name, c := range cases {
		cluster := testCluster()
		cluster.Spec.TLS = c.tls
		template, err := buildTemplate(cluster, inputsOf(cluster, "i", nil))
		if err != nil {
			t.Fatal(err)
		}
		settings := env(template)
		if settings["POSTHORN_SSL__OPTIONS_VERIFY"] != c.verify || settings["POSTHORN_SSL__OPTIONS_FAIL__IF__NO__PEER__CERT"] != c.require ||
			(settings["POSTHORN_LISTENERS_TCP"] == "none") != cluster.Spec.TLSOnly() {
			t.Errorf("%s: %v", name, settings)
		}
		secret, files := "", 0
		sources := template.Spec.Volumes[0].Projected.Sources
		if last := sources[len(sources)-1].Secret; last.Name != names.OperatorCertificateSecret("c") {
			secret, files = last.Name, len(last.Items)
		}
		if secret != c.secret || files != c.files {
			t.Errorf("%s: %d files of Secret %q", name, files, secret)
		}
		var ports []string
		for _, port := range template.Spec.Containers[0].Ports {
			if strings.HasPrefix(port.Name, "amqp") {
				ports = append(ports, port.Name)
			}
		}
		if !slices.Equal(ports, c.ports) {
			t.Errorf("%s: ports %v", name, ports)
		}
		var services []string
		for _, port := range clientPorts(&cluster.Spec, []posthornv1.Protocol{posthornv1.ProtocolAMQP}) {
			services = append(services, port.Name)
		}
		if !slices.Equal(services, c.ports) {
			t.Errorf("%s: ports of Services %v", name, services)
		}
	}
}

func TestTLSGolden(t *testing.T) {
	cluster := testCluster()
	cluster.Spec.TLS = &posthornv1.TLSSpec{ClientAuth: "Required", DisablePlaintext: true}
	template, err := buildTemplate(cluster, inputsOf(cluster, cluster.Spec.Image, nil))
	if err != nil {
		t.Fatal(err)
	}
	data, err := yaml.Marshal(map[string]any{
		"env": template.Spec.Containers[0].Env, "ports": template.Spec.Containers[0].Ports, "volumes": template.Spec.Volumes,
	})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "tls.yaml", data)
}

func TestCertificatesFindingNamesTheWorstCertificate(t *testing.T) {
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	cases := map[string]struct {
		seen   observed
		usable bool
		reason string
		end    time.Time
	}{
		"no inter-node certificate": {observed{}, false, reasonNotIssued, time.Time{}},
		"no TLS":                    {observed{internodeEnd: late, serving: servingCertificate{checked: true}}, true, reasonValid, late},
		"TLS ends first": {observed{internodeEnd: late, serving: servingCertificate{checked: true, source: "Secret", end: early, finding: finding{usable: true, reason: reasonValid}}},
			true, reasonValid, early},
		"TLS ends last": {observed{internodeEnd: early, serving: servingCertificate{checked: true, source: "Secret", end: late, finding: finding{usable: true, reason: reasonValid}}},
			true, reasonValid, early},
		"TLS of no use": {observed{internodeEnd: late, serving: servingCertificate{checked: true, source: "Secret", finding: finding{reason: reasonExpired}}}, false, reasonExpired, late},
		"not checked": {observed{internodeEnd: late}, false, reasonNotIssued, late},
	}
	for name, c := range cases {
		cluster := testCluster()
		if name != "no TLS" {
			cluster.Spec.TLS = &posthornv1.TLSSpec{}
		}
		in := inputs{cluster: cluster}
		if got := certificatesFinding(&in, &c.seen); got.usable != c.usable || got.reason != c.reason {
			t.Errorf("%s: %+v", name, got)
		}
		if status := certificatesStatus(&in, &c.seen); !c.end.IsZero() && !status.NotAfter.Time.Equal(c.end) {
			t.Errorf("%s: ends %v", name, status.NotAfter)
		}
	}
	// A certificate that this reconciliation did not check keeps its status.
	known := &posthornv1.ServingCertificateStatus{Source: "Issuer", SecretName: "c-tls", NotAfter: &metav1.Time{Time: early}}
	cluster := testCluster()
	cluster.Status.Certificates = &posthornv1.CertificatesStatus{Serving: known}
	if status := certificatesStatus(&inputs{cluster: cluster}, &observed{internodeEnd: late}); status.Serving != known || !status.NotAfter.Time.Equal(early) {
		t.Errorf("%+v", status)
	}
}

func TestOverlayMergesMapsAndKeepsItsArguments(t *testing.T) {
	base := map[string]any{"a": "1", "b": map[string]any{"c": "2", "d": []any{"x"}}}
	got := overlay(base, map[string]any{"b": map[string]any{"d": []any{"y"}, "e": "3"}, "f": map[string]any{"g": "4"}})
	data, err := yaml.Marshal(got)
	if err != nil || string(data) != "a: \"1\"\nb:\n  c: \"2\"\n  d:\n  - \"y\"\n  e: \"3\"\nf:\n  g: \"4\"\n" {
		t.Errorf("%s %v", data, err)
	}
	if inner, _ := base["b"].(map[string]any); len(inner) != 2 || inner["e"] != nil {
		t.Error("the base was changed")
	}
}
