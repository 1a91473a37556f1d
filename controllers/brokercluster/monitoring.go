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

// sidecarLabel is what the sidecar of Grafana's Helm chart looks for.
const sidecarLabel = "grafana_dashboard"

// Reasons of MonitoringReady.
const (
	reasonMonitored                 = "Monitored"
	reasonPrometheusOperatorMissing = "PrometheusOperatorMissing"
)

// ensureMonitoring keeps what Prometheus and Grafana pick up.
func (s *scope) ensureMonitoring(ctx context.Context) error {
	if err := s.ensureDashboards(ctx); err != nil {
		return err
	}
	spec, name := s.cluster.Spec.Monitoring, s.cluster.Name
	if spec.ServiceMonitor == posthornv1.MonitorOff {
		if err := s.removeOptional(ctx, serviceMonitorKind, name); err != nil {
			return err
		}
		return s.removeOptional(ctx, prometheusRuleKind, name)
	}
	object, err := s.ensureOptional(ctx, serviceMonitorKind, name, s.serviceMonitorSpec(), spec.Labels)
	if err != nil {
		return err
	}
	if object == nil {
		s.monitoring = finding{
			usable: spec.ServiceMonitor != posthornv1.MonitorOn, reason: reasonPrometheusOperatorMissing,
			message: "the API monitoring.coreos.com/v1 is not installed; it is used once it is",
		}
		return nil
	}
	s.monitoring = finding{usable: true, reason: reasonMonitored}
	if !spec.WantsRules() || s.cluster.Spec.Hibernated {
		return s.removeOptional(ctx, prometheusRuleKind, name)
	}
	rules, err := dashboards.Rules(dashboardScope(s.cluster))
	if err != nil {
		return err
	}
	_, err = s.ensureOptional(ctx, prometheusRuleKind, name, rules, spec.Labels)
	return err
}

// serviceMonitorSpec scrapes every node through the headless Service.
func (s *scope) serviceMonitorSpec() map[string]any {
	labels := map[string]any{names.LabelComponent: nodesComponent}
	for name, value := range names.Selector(s.cluster.Name) {
		labels[name] = value
	}
	return map[string]any{
		"selector":          map[string]any{"matchLabels": labels},
		"namespaceSelector": map[string]any{"matchNames": []any{s.cluster.Namespace}},
		"endpoints":         s.scrapeEndpoints(),
	}
}

func dashboardScope(cluster *posthornv1.BrokerCluster) dashboards.Scope {
	return dashboards.Scope{
		Namespace: cluster.Namespace, Cluster: cluster.Name, Job: names.NodesService(cluster.Name), Nodes: cluster.Spec.Replicas,
	}
}

// ensureDashboards keeps the ConfigMap of dashboards, or none at all.
func (s *scope) ensureDashboards(ctx context.Context) error {
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.Dashboards(s.cluster.Name)}}
	spec := s.cluster.Spec.Monitoring
	if !spec.WantsDashboards() {
		return s.remove(ctx, files)
	}
	boards, err := dashboards.Boards(dashboardScope(s.cluster))
	if err != nil {
		return err
	}
	return s.ensure(ctx, files, func() error {
		addLabels(files, map[string]string{sidecarLabel: "1"})
		addLabels(files, spec.Labels)
		files.Data = boards
		files.BinaryData = nil
		return nil
	})
}
