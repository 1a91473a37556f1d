// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package clustermetrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// lastBackup has the labels of the cluster and the name of the ScheduledBackup.
var lastBackup = desc("last_successful_backup_timestamp_seconds", "When the last successful Backup of a ScheduledBackup completed; 0 when none did.", "scheduledbackup")

// BackupCollector exports metrics about ScheduledBackups.
type BackupCollector struct {
	// Reader of ScheduledBackups, from a cache.
	Reader client.Reader
}

// Describe implements prometheus.Collector.
func (c BackupCollector) Describe(out chan<- *prometheus.Desc) { out <- lastBackup }

// Collect implements prometheus.Collector.
func (c BackupCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var list posthornv1.ScheduledBackupList
	if err := c.Reader.List(ctx, &list); err != nil {
		out <- prometheus.NewInvalidMetric(lastBackup, err)
		return
	}
	for i := range list.Items {
		object, at := &list.Items[i], 0.0
		if last := object.Status.LastSuccessfulTime; last != nil {
			at = float64(last.Unix())
		}
		out <- prometheus.MustNewConstMetric(lastBackup, prometheus.GaugeValue, at, object.Namespace, object.Spec.Template.ClusterRef.Name, object.Name)
	}
}
