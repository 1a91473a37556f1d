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

func TestDecideScrape(t *testing.T) {
	plain := podOf(t, true, nil)
	secure := podOf(t, true, &posthornv1.TLSSpec{})
	only := podOf(t, true, &posthornv1.TLSSpec{DisablePlaintext: true})
	cases := map[string]struct {
		pods   []*corev1.Pod
		wanted bool
		want   reach
	}{
		"no pod":                       {nil, false, reach{plain: true}},
		"no pod, TLS wanted":           {nil, true, reach{secure: true}},
		"without TLS":                  {[]*corev1.Pod{plain, plain}, false, reach{plain: true}},
		"TLS is coming":                {[]*corev1.Pod{plain, secure}, true, reach{plain: true}},
		"TLS is there":                 {[]*corev1.Pod{secure, secure}, true, reach{secure: true}},
		"TLS is going":                 {[]*corev1.Pod{secure, plain}, false, reach{plain: true}},
		"nothing but TLS is coming":    {[]*corev1.Pod{plain, only}, true, reach{true, true}},
		"the other port is going":      {[]*corev1.Pod{secure, only}, true, reach{secure: true}},
		"nothing but TLS":              {[]*corev1.Pod{only, only}, true, reach{secure: true}},
		"from TLS alone to none":       {[]*corev1.Pod{only, plain}, false, reach{true, true}},
		"TLS is wanted, no pod has it": {[]*corev1.Pod{plain}, true, reach{plain: true}},
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

func TestScrapersAreToldWhomToBelieve(t *testing.T) {
	const overTLS = "port: prometheus-tls scheme: https tlsConfig: ca: "
	cases := map[string]struct {
		scope scope
		want  string
	}{
		"without TLS":             {scope{scrape: reach{plain: true}}, "- path: /metrics port: prometheus"},
		"an authority is told":    {scope{scrape: reach{secure: true}, serving: serving{secret: "s", name: "mq.example.com", authorities: []byte("x")}}, "- path: /metrics " + overTLS + "configMap: key: ca.crt name: c-ca serverName: mq.example.com"},
		"no authority is told":    {scope{scrape: reach{secure: true}, serving: serving{secret: "s", name: "mq.example.com"}}, "- path: /metrics " + overTLS + "secret: key: tls.crt name: s serverName: mq.example.com"},
		"the Secret is no use":    {scope{scrape: reach{secure: true}, serving: serving{secret: "s"}}, "- path: /metrics " + overTLS + "secret: key: tls.crt name: s serverName: c.mq.svc"},
		"TLS was taken away":      {scope{scrape: reach{secure: true}, mounted: []string{"old"}}, "- path: /metrics " + overTLS + "secret: key: tls.crt name: old serverName: c.mq.svc"},
		"there and back half-way": {scope{scrape: reach{true, true}, serving: serving{secret: "s", name: "mq.example.com"}}, "- path: /metrics port: prometheus - path: /metrics " + overTLS + "secret: key: tls.crt name: s serverName: mq.example.com"},
	}
	for name, c := range cases {
		c.scope.cluster = testCluster()
		data, err := yaml.Marshal(c.scope.scrapeEndpoints())
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(string(data)), " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
