// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package clustermetrics

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// fixedReader is a reader with fixed clusters.
type fixedReader struct {
	client.Reader
	items []posthornv1.BrokerCluster
	// schedules are the ScheduledBackups.
	schedules []posthornv1.ScheduledBackup
	err       error
}

func (s fixedReader) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch into := list.(type) {
	case *posthornv1.BrokerClusterList:
		into.Items = s.items
	case *posthornv1.ScheduledBackupList:
		into.Items = s.schedules
	default:
		return errors.New("another kind was asked for")
	}
	return s.err
}

func rolling() posthornv1.BrokerCluster {
	at := func(seconds int64) *metav1.Time { t := metav1.Unix(seconds, 0); return &t }
	return posthornv1.BrokerCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c"},
		Spec:       posthornv1.BrokerClusterSpec{Replicas: 3},
		Status: posthornv1.BrokerClusterStatus{
			Phase: posthornv1.PhaseRolling, CurrentVersion: "1.0.0", TargetVersion: "1.1.0", ReadyReplicas: 2,
			Rollout: &posthornv1.RolloutStatus{WaitingFor: "c-2", Reason: "QuorumCritical", Since: at(500)},
			Certificates: &posthornv1.CertificatesStatus{NotAfter: at(1000), Internode: at(2000),
				Serving: &posthornv1.ServingCertificateStatus{NotAfter: at(1000)}},
			Conditions: []metav1.Condition{{Type: "Ready", Status: "False"}, {Type: "UpgradeBlocked", Status: "True"}, {Type: "QuorumSafe", Status: "Unknown"}},
		},
	}
}

func TestCollectorExportsEveryCluster(t *testing.T) {
	want := `
# HELP posthorn_cluster_certificate_end_timestamp_seconds When the certificate ends.
# TYPE posthorn_cluster_certificate_end_timestamp_seconds gauge
posthorn_cluster_certificate_end_timestamp_seconds{brokercluster="c",brokercluster_namespace="mq",certificate="internode"} 2000
posthorn_cluster_certificate_end_timestamp_seconds{brokercluster="c",brokercluster_namespace="mq",certificate="serving"} 1000
# HELP posthorn_cluster_condition 1 when the condition is True, 0 when it is False, -1 when it is Unknown.
# TYPE posthorn_cluster_condition gauge
posthorn_cluster_condition{brokercluster="c",brokercluster_namespace="mq",condition="QuorumSafe"} -1
posthorn_cluster_condition{brokercluster="c",brokercluster_namespace="mq",condition="Ready"} 0
posthorn_cluster_condition{brokercluster="c",brokercluster_namespace="mq",condition="UpgradeBlocked"} 1
# HELP posthorn_cluster_info 1 for each cluster, with its phase and versions.
# TYPE posthorn_cluster_info gauge
posthorn_cluster_info{brokercluster="c",brokercluster_namespace="mq",current_version="1.0.0",phase="Rolling",target_version="1.1.0"} 1
# HELP posthorn_cluster_nodes_ready Nodes that are ready.
# TYPE posthorn_cluster_nodes_ready gauge
posthorn_cluster_nodes_ready{brokercluster="c",brokercluster_namespace="mq"} 2
# HELP posthorn_cluster_nodes_wanted Nodes that the cluster is to have.
# TYPE posthorn_cluster_nodes_wanted gauge
posthorn_cluster_nodes_wanted{brokercluster="c",brokercluster_namespace="mq"} 3
# HELP posthorn_cluster_rollout_waiting_since_timestamp_seconds Since when a roll waits for this pod, for this reason.
# TYPE posthorn_cluster_rollout_waiting_since_timestamp_seconds gauge
posthorn_cluster_rollout_waiting_since_timestamp_seconds{brokercluster="c",brokercluster_namespace="mq",pod="c-2",reason="QuorumCritical"} 500
`
	collector := Collector{Reader: fixedReader{items: []posthornv1.BrokerCluster{rolling()}}}
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestDeletedClusterHasNoMetrics(t *testing.T) {
	if n := testutil.CollectAndCount(Collector{Reader: fixedReader{}}); n != 0 {
		t.Errorf("%d numbers about no cluster", n)
	}
	fresh := posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "new"}}
	if n := testutil.CollectAndCount(Collector{Reader: fixedReader{items: []posthornv1.BrokerCluster{fresh}}}); n != 3 {
		t.Errorf("%d numbers about a cluster without a status", n)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(Collector{Reader: fixedReader{err: errors.New("no cache")}})
	if _, err := registry.Gather(); err == nil {
		t.Error("a failure to read looks like no clusters")
	}
}

func TestRequestsAreCountedByOutcome(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	requests := NewRequests()
	transport := requests.Around(http.DefaultTransport)
	send := func() {
		request, err := http.NewRequest(http.MethodPut, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if response, err := transport.RoundTrip(request); err == nil {
			_ = response.Body.Close()
		}
	}
	send()
	server.Close()
	send()
	send()
	for status, want := range map[string]float64{"404": 1, "error": 2} {
		if got := testutil.ToFloat64(requests.count.WithLabelValues("PUT", status)); got != want {
			t.Errorf("%s: %v", status, got)
		}
	}
}

// nightly returns a ScheduledBackup whose last Backup completed at a time; nil for none.
func nightly(name string, last *metav1.Time) posthornv1.ScheduledBackup {
	return posthornv1.ScheduledBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: name},
		Spec:       posthornv1.ScheduledBackupSpec{Template: posthornv1.BackupSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}}},
		Status:     posthornv1.ScheduledBackupStatus{LastSuccessfulTime: last},
	}
}

func TestLastSuccessfulBackupIsExported(t *testing.T) {
	last := metav1.Unix(500, 0)
	want := `
# HELP posthorn_cluster_last_successful_backup_timestamp_seconds When the last successful Backup of a ScheduledBackup completed; 0 when none did.
# TYPE posthorn_cluster_last_successful_backup_timestamp_seconds gauge
posthorn_cluster_last_successful_backup_timestamp_seconds{brokercluster="c",brokercluster_namespace="mq",scheduledbackup="new"} 0
posthorn_cluster_last_successful_backup_timestamp_seconds{brokercluster="c",brokercluster_namespace="mq",scheduledbackup="old"} 500
`
	reader := fixedReader{schedules: []posthornv1.ScheduledBackup{nightly("old", &last), nightly("new", nil)}}
	if err := testutil.CollectAndCompare(BackupCollector{Reader: reader}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(BackupCollector{Reader: fixedReader{err: errors.New("no cache")}})
	if _, err := registry.Gather(); err == nil {
		t.Error("a failure to read looks like no schedules")
	}
}

// TestFamilies keeps the list with which dashboards and alerts are compared.
func TestFamilies(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	requests := NewRequests()
	requests.count.WithLabelValues("GET", "200").Inc()
	registry.MustRegister(Collector{Reader: fixedReader{items: []posthornv1.BrokerCluster{rolling()}}},
		BackupCollector{Reader: fixedReader{schedules: []posthornv1.ScheduledBackup{nightly("nightly", nil)}}}, requests)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, family := range families {
		got = append(got, family.GetName())
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "dashboards", "exported.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if name, found := strings.CutPrefix(line, "operator "); found {
			want = append(want, name)
		}
	}
	sort.Strings(want)
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("exported %v, listed %v", got, want)
	}
}
