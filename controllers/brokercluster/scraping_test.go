// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

func TestDecideScrapeFollowsItsTable(t *testing.T) {
	plain := podOf(t, true, nil)
	secure := podOf(t, true, &posthornv1.TLSSpec{})
	only := podOf(t, true, &posthornv1.TLSSpec{DisablePlaintext: true})
	cases := map[string]struct {
		pods   []*corev1.Pod
		wanted bool
		want   portSet
	}{
		"no pod":                       {nil, false, portSet{plain: true}},
		"no pod, TLS wanted":           {nil, true, portSet{secure: true}},
		"without TLS":                  {[]*corev1.Pod{plain, plain}, false, portSet{plain: true}},
		"TLS is coming":                {[]*corev1.Pod{plain, secure}, true, portSet{plain: true}},
		"TLS is there":                 {[]*corev1.Pod{secure, secure}, true, portSet{secure: true}},
		"TLS is going":                 {[]*corev1.Pod{secure, plain}, false, portSet{plain: true}},
		"nothing but TLS is coming":    {[]*corev1.Pod{plain, only}, true, portSet{true, true}},
		"the other port is going":      {[]*corev1.Pod{secure, only}, true, portSet{secure: true}},
		"nothing but TLS":              {[]*corev1.Pod{only, only}, true, portSet{secure: true}},
		"from TLS alone to none":       {[]*corev1.Pod{only, plain}, false, portSet{true, true}},
		"TLS is wanted, no pod has it": {[]*corev1.Pod{plain}, true, portSet{plain: true}},
	}
	for name, c := range cases {
		pods := map[string]*corev1.Pod{}
		for i, pod := range c.pods {
			pods[string(rune('a'+i))] = pod
		}
		if got := decideScrape(pods, c.wanted); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestServiceMonitorNamesTheCertificateToTrust(t *testing.T) {
	const overTLS = "port: prometheus-tls scheme: https tlsConfig: ca: "
	cases := map[string]struct {
		ports access
		seen  observed
		want  string
	}{
		"without TLS":             {access{scrape: portSet{plain: true}}, observed{}, "- path: /metrics port: prometheus"},
		"an authority is told":    {access{scrape: portSet{secure: true}}, observed{serving: servingCertificate{secret: "s", name: "mq.example.com", authorities: []byte("x")}}, "- path: /metrics " + overTLS + "configMap: key: ca.crt name: c-ca serverName: mq.example.com"},
		"no authority is told":    {access{scrape: portSet{secure: true}}, observed{serving: servingCertificate{secret: "s", name: "mq.example.com"}}, "- path: /metrics " + overTLS + "secret: key: tls.crt name: s serverName: mq.example.com"},
		"the Secret is no use":    {access{scrape: portSet{secure: true}}, observed{serving: servingCertificate{secret: "s"}}, "- path: /metrics " + overTLS + "secret: key: tls.crt name: s serverName: c.mq.svc"},
		"TLS was taken away":      {access{scrape: portSet{secure: true}, mounted: []string{"old"}}, observed{}, "- path: /metrics " + overTLS + "secret: key: tls.crt name: old serverName: c.mq.svc"},
		"there and back half-way": {access{scrape: portSet{true, true}}, observed{serving: servingCertificate{secret: "s", name: "mq.example.com"}}, "- path: /metrics port: prometheus - path: /metrics " + overTLS + "secret: key: tls.crt name: s serverName: mq.example.com"},
	}
	for name, c := range cases {
		data, err := yaml.Marshal(scrapeEndpoints(&inputs{cluster: testCluster()}, &c.seen, c.ports))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(string(data)), " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestQueueMetricsHaveEndpointsOfTheirOwn(t *testing.T) {
	cluster := testCluster()
	cluster.Spec.Monitoring.QueueMetrics = true
	seen := observed{serving: servingCertificate{secret: "s", name: "mq.example.com"}}
	data, err := yaml.Marshal(scrapeEndpoints(&inputs{cluster: cluster}, &seen, access{scrape: portSet{true, true}}))
	if err != nil {
		t.Fatal(err)
	}
	const queues = "params: family: - queue_coarse_metrics - queue_consumer_count - queue_metrics - stream_metrics path: /metrics/detailed "
	const path = "relabelings: - action: replace sourceLabels: - __metrics_path__ targetLabel: metrics_path "
	const trust = "scheme: https tlsConfig: ca: secret: key: tls.crt name: s serverName: mq.example.com"
	want := "- path: /metrics port: prometheus - interval: 60s " + queues + "port: prometheus " + path +
		"- path: /metrics port: prometheus-tls " + trust + " - interval: 60s " + queues + "port: prometheus-tls " + path + trust
	if got := strings.Join(strings.Fields(string(data)), " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
