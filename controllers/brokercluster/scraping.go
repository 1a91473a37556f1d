// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"posthorn.io/posthorn/internal/names"
)

const (
	// metricsPlain and metricsTLS name the ports for metrics without and with TLS.
	metricsPlain = "prometheus"
	metricsTLS   = "prometheus-tls"
)

// scrapedAt is by which ports a pod gives metrics.
func scrapedAt(pod *corev1.Pod) reach { return openOf(pod, metricsPlain, metricsTLS) }

// metricsPorts are the ports for metrics. One that is not wanted any more stays as long as there are
// pods that have it: they are scraped by it.
func metricsPorts(r reach) []corev1.ServicePort {
	return r.ports(port(metricsPlain, names.PortPrometheus), port(metricsTLS, names.PortPrometheusTLS))
}

// decideScrape says by which ports nodes are scraped, so that each is and, but for the last row, none
// is twice. The first row that fits counts:
//
//	there is no pod, the spec asks for TLS  | with TLS
//	there is no pod                         | without
//	every pod has TLS                       | with TLS
//	every pod has a port without TLS        | without
//	otherwise: a roll to or from TLS only   | both
func decideScrape(pods map[string]*corev1.Pod, wanted bool) reach {
	every := reach{plain: true, secure: len(pods) > 0 || wanted}
	for _, pod := range pods {
		has := scrapedAt(pod)
		every.plain, every.secure = every.plain && has.plain, every.secure && has.secure
	}
	switch {
	case every.secure:
		return reach{secure: true}
	case every.plain:
		return reach{plain: true}
	}
	return reach{plain: true, secure: true}
}

// scrapeEndpoints are those of the ServiceMonitor. Nodes are verified by what clients verify them by
// and, where the Secret tells no authorities, by its certificate and those that it is signed with.
func (s *scope) scrapeEndpoints() []any {
	var out []any
	if s.scrape.plain {
		out = append(out, map[string]any{"port": metricsPlain, "path": "/metrics"})
	}
	if !s.scrape.secure {
		return out
	}
	secret := s.serving.secret
	if secret == "" && len(s.mounted) > 0 {
		// The spec asks for TLS no more, and nodes still have it.
		secret = s.mounted[0]
	}
	authorities := map[string]any{"secret": map[string]any{"name": secret, "key": corev1.TLSCertKey}}
	if len(s.serving.authorities) > 0 {
		authorities = map[string]any{"configMap": map[string]any{"name": names.ClientCA(s.cluster.Name), "key": caKey}}
	}
	host := cmp.Or(s.serving.name, names.Host(s.cluster.Namespace, s.cluster.Name))
	return append(out, map[string]any{
		"port": metricsTLS, "path": "/metrics", "scheme": "https",
		"tlsConfig": map[string]any{"ca": authorities, "serverName": host},
	})
}
