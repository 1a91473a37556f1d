// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clustermetrics exports metrics about the operator's clusters. It reads the BrokerClusters at each scrape,
// so that a deleted cluster has no metrics.
package clustermetrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// readTimeout bounds the read, which is from a cache.
const readTimeout = 5 * time.Second

// Labels of one cluster. Prometheus uses the name "namespace" for the operator's own namespace.
const (
	labelNamespace = "brokercluster_namespace"
	labelName      = "brokercluster"
)

func desc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("posthorn_cluster_"+name, help, append([]string{labelNamespace, labelName}, more...), nil)
}

var (
	info        = desc("info", "1 for each cluster, with its phase and versions.", "phase", "current_version", "target_version")
	wantedNodes = desc("nodes_wanted", "Nodes that the cluster is to have.")
	readyNodes  = desc("nodes_ready", "Nodes that are ready.")
	conditions  = desc("condition", "1 when the condition is True, 0 when it is False, -1 when it is Unknown.", "condition")
	waiting     = desc("rollout_waiting_since_timestamp_seconds", "Since when a roll waits for this pod, for this reason.", "pod", "reason")
	ends        = desc("certificate_end_timestamp_seconds", "When the certificate ends.", "certificate")
)

// Collector exports metrics about clusters.
type Collector struct {
	// Reader of BrokerClusters, from a cache.
	Reader client.Reader
}

// Describe implements prometheus.Collector.
func (c Collector) Describe(out chan<- *prometheus.Desc) {
	for _, each := range []*prometheus.Desc{info, wantedNodes, readyNodes, conditions, waiting, ends} {
		out <- each
	}
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var list posthornv1.BrokerClusterList
	if err := c.Reader.List(ctx, &list); err != nil {
		out <- prometheus.NewInvalidMetric(info, err)
		return
	}
	for i := range list.Items {
		collectCluster(out, &list.Items[i])
	}
}

func collectCluster(out chan<- prometheus.Metric, cluster *posthornv1.BrokerCluster) {
	gauge := func(desc *prometheus.Desc, value float64, more ...string) {
		labels := append([]string{cluster.Namespace, cluster.Name}, more...)
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	at := func(desc *prometheus.Desc, when *metav1.Time, more ...string) {
		if when != nil {
			gauge(desc, float64(when.Unix()), more...)
		}
	}
	status := &cluster.Status
	gauge(info, 1, string(status.Phase), status.CurrentVersion, status.TargetVersion)
	gauge(wantedNodes, float64(cluster.Spec.Replicas))
	gauge(readyNodes, float64(status.ReadyReplicas))
	for _, condition := range status.Conditions {
		gauge(conditions, truth(condition.Status), condition.Type)
	}
	if r := status.Rollout; r != nil {
		at(waiting, r.Since, r.WaitingFor, r.Reason)
	}
	if certificates := status.Certificates; certificates != nil {
		at(ends, certificates.Internode, "internode")
		if certificates.Serving != nil {
			at(ends, certificates.Serving.NotAfter, "serving")
		}
	}
}

func truth(status metav1.ConditionStatus) float64 {
	switch status {
	case metav1.ConditionTrue:
		return 1
	case metav1.ConditionFalse:
		return 0
	default:
		return -1
	}
}
