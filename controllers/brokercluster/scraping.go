// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"cmp"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"posthorn.io/posthorn/internal/names"
)

const (
	// metricsPlain and metricsTLS name the ports for metrics without and with TLS.
	metricsPlain = "prometheus"
	metricsTLS   = "prometheus-tls"
	// queueMetricsInterval is the time between two scrapes of the metrics of each queue.
	queueMetricsInterval = "60s"
)

// metricsPortsOf returns the ports of a pod's metrics.
func metricsPortsOf(pod *corev1.Pod) portSet { return portSetOf(pod, metricsPlain, metricsTLS) }

// metricsPorts returns the ports for metrics. One that the spec no longer asks for stays while pods have it, which
// are scraped there.
func metricsPorts(open portSet) []corev1.ServicePort {
	return open.openPorts(port(metricsPlain, names.PortPrometheus), port(metricsTLS, names.PortPrometheusTLS))
}

// decideScrape returns the ports at which Prometheus scrapes, so that every node is scraped and, except in the last
// row, none twice. The first row that applies decides:
//
//	no pod exists, and the spec asks for TLS   | with TLS
//	no pod exists                              | without TLS
//	every pod has the port with TLS            | with TLS
//	every pod has the port without TLS         | without TLS
//	otherwise: a roll to or from TLS only      | both
func decideScrape(pods map[string]*corev1.Pod, wantsTLS bool) portSet {
	every := portSet{plain: true, secure: len(pods) > 0 || wantsTLS}
	for _, pod := range pods {
		has := metricsPortsOf(pod)
		every.plain, every.secure = every.plain && has.plain, every.secure && has.secure
	}
	switch {
	case every.secure:
		return portSet{secure: true}
	case every.plain:
		return portSet{plain: true}
	}
	return portSet{plain: true, secure: true}
}

// scrapeEndpoints returns the endpoints of the ServiceMonitor. Prometheus verifies the nodes with the CA certificates
// that clients use or, when the Secret has none, with its certificate chain.
func scrapeEndpoints(in *inputs, seen *observed, ports access) []any {
	var out []any
	if ports.scrape.plain {
		out = append(out, withQueueMetrics(in, map[string]any{"port": metricsPlain, "path": "/metrics"})...)
	}
	if !ports.scrape.secure {
		return out
	}
	secret := seen.serving.secret
	if secret == "" && len(ports.mounted) > 0 {
		// The spec no longer asks for TLS, but nodes still have it.
		secret = ports.mounted[0]
	}
	authorities := map[string]any{"secret": map[string]any{"name": secret, "key": corev1.TLSCertKey}}
	if len(seen.serving.authorities) > 0 {
		authorities = map[string]any{"configMap": map[string]any{"name": names.ClientCA(in.cluster.Name), "key": caKey}}
	}
	host := cmp.Or(seen.serving.name, names.Host(in.cluster.Namespace, in.cluster.Name))
	return append(out, withQueueMetrics(in, map[string]any{
		"port": metricsTLS, "path": "/metrics", "scheme": "https",
		"tlsConfig": map[string]any{"ca": authorities, "serverName": host},
	})...)
}

// withQueueMetrics returns the endpoint and, if the spec asks for it, the one of each queue at the same port. Both give
// the metric up, so the second has a label for its path, which alerts and dashboards exclude. Streams have metrics of
// their own, which tell them from queues.
func withQueueMetrics(in *inputs, endpoint map[string]any) []any {
	if !in.cluster.Spec.Monitoring.QueueMetrics {
		return []any{endpoint}
	}
	queues := maps.Clone(endpoint)
	queues["path"] = "/metrics/detailed"
	queues["params"] = map[string]any{
		"family": []any{"queue_coarse_metrics", "queue_consumer_count", "queue_metrics", "stream_metrics"},
	}
	queues["interval"] = queueMetricsInterval
	queues["relabelings"] = []any{map[string]any{
		"action": "replace", "sourceLabels": []any{"__metrics_path__"}, "targetLabel": "metrics_path",
	}}
	return []any{endpoint, queues}
}
