// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/dashboards"
	"posthorn.io/posthorn/internal/names"
)

// +kubebuilder:rbac:groups=monitoring.coreos.com,resources=servicemonitors;prometheusrules,verbs=get;create;update;delete
// +kubebuilder:rbac:groups=core,resources=configmaps,verbs=delete

// Kinds of the Prometheus operator.
var (
	serviceMonitorKind = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "ServiceMonitor"}
	prometheusRuleKind = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "PrometheusRule"}
)

// sidecarLabel selects ConfigMaps for the dashboard sidecar of Grafana's Helm chart.
const sidecarLabel = "grafana_dashboard"

// Reasons of MonitoringReady.
const (
	reasonMonitored                 = "Monitored"
	reasonPrometheusOperatorMissing = "PrometheusOperatorMissing"
)

// ensureMonitoring keeps the objects for Prometheus and Grafana.
func (r *reconciliation) ensureMonitoring(ctx context.Context) error {
	if err := r.ensureDashboards(ctx); err != nil {
		return err
	}
	spec, name := r.in.cluster.Spec.Monitoring, r.in.cluster.Name
	if spec.ServiceMonitor == posthornv1.MonitorOff {
		if err := r.removeOptional(ctx, serviceMonitorKind, name); err != nil {
			return err
		}
		return r.removeOptional(ctx, prometheusRuleKind, name)
	}
	object, err := r.ensureOptional(ctx, serviceMonitorKind, name, serviceMonitorSpec(&r.in, &r.seen, r.out.access), spec.Labels)
	if err != nil {
		return err
	}
	if object == nil {
		r.seen.monitoring = finding{
			usable: spec.ServiceMonitor != posthornv1.MonitorOn, reason: reasonPrometheusOperatorMissing,
			message: "the API monitoring.coreos.com/v1 is not installed; the ServiceMonitor is created once the Prometheus operator is installed",
		}
		return nil
	}
	r.seen.monitoring = finding{usable: true, reason: reasonMonitored, message: "the objects for Prometheus exist"}
	if !spec.WantsRules() || r.in.cluster.Spec.Hibernated {
		return r.removeOptional(ctx, prometheusRuleKind, name)
	}
	rules, err := dashboards.Rules(dashboardScope(r.in.cluster))
	if err != nil {
		return err
	}
	_, err = r.ensureOptional(ctx, prometheusRuleKind, name, rules, spec.Labels)
	return err
}

// serviceMonitorSpec scrapes every node through the headless Service.
func serviceMonitorSpec(in *inputs, seen *observed, ports access) map[string]any {
	labels := map[string]any{names.LabelComponent: nodesComponent}
	for name, value := range names.Selector(in.cluster.Name) {
		labels[name] = value
	}
	return map[string]any{
		"selector":          map[string]any{"matchLabels": labels},
		"namespaceSelector": map[string]any{"matchNames": []any{in.cluster.Namespace}},
		"endpoints":         scrapeEndpoints(in, seen, ports),
	}
}

func dashboardScope(cluster *posthornv1.BrokerCluster) dashboards.Scope {
	return dashboards.Scope{
		Namespace: cluster.Namespace, Cluster: cluster.Name, Job: names.NodesService(cluster.Name), Nodes: cluster.Spec.Replicas,
		Queues: cluster.Spec.Monitoring.QueueMetrics,
	}
}

// ensureDashboards keeps the ConfigMap of dashboards, or deletes it when the spec does not ask for it.
func (r *reconciliation) ensureDashboards(ctx context.Context) error {
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.Dashboards(r.in.cluster.Name)}}
	spec := r.in.cluster.Spec.Monitoring
	if !spec.WantsDashboards() {
		return r.remove(ctx, files)
	}
	boards, err := dashboards.Boards(dashboardScope(r.in.cluster))
	if err != nil {
		return err
	}
	return r.ensure(ctx, files, func() error {
		addLabels(files, map[string]string{sidecarLabel: "1"})
		addLabels(files, spec.Labels)
		files.Data = boards
		files.BinaryData = nil
		return nil
	})
}
