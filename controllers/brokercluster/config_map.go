// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// Keys of the ConfigMap.
const (
	mainConfigKey = "posthorn.conf"
	userConfigKey = "90-user.conf"
)

// ensureConfigMap keeps the configuration files. Nodes read them when they start.
func (s *scope) ensureConfigMap(ctx context.Context) error {
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.ConfigMap(s.cluster.Name)}}
	return s.ensure(ctx, files, func() error {
		files.Data = map[string]string{
			mainConfigKey: mainConfig(s.cluster, s.total()),
			userConfigKey: userConfig(s.cluster.Spec.Config),
		}
		files.BinaryData = nil
		return nil
	})
}

// mainConfig is what the operator sets. The initial voters are exactly cluster.peers; a node whose
// peers have a cluster already joins it. A node that is to be removed is a peer until it is gone.
func mainConfig(cluster *posthornv1.BrokerCluster, nodes int32) string {
	peers := make([]string, 0, nodes)
	for i := int32(0); i < nodes; i++ {
		pod := fmt.Sprintf("%s-%d", cluster.Name, i)
		peers = append(peers, fmt.Sprintf("%s:%d", names.NodeHost(cluster.Namespace, cluster.Name, pod), names.PortCluster))
	}
	var b strings.Builder
	for _, line := range [][2]string{
		{"cluster.name", cluster.Name},
		{"cluster.peers", strings.Join(peers, ", ")},
		{"cluster.listener", fmt.Sprint(names.PortCluster)},
		{"cluster.auth.cacertfile", internodeDir + "/" + caKey},
		{"cluster.auth.certfile", internodeDir + "/" + corev1.TLSCertKey},
		{"cluster.auth.keyfile", internodeDir + "/" + corev1.TLSPrivateKeyKey},
		{"listeners.tcp.default", fmt.Sprint(names.PortAMQP)},
		{"management.tcp.port", fmt.Sprint(names.PortManagement)},
		{"prometheus.tcp.port", fmt.Sprint(names.PortPrometheus)},
	} {
		fmt.Fprintf(&b, "%s = %s\n", line[0], line[1])
	}
	return b.String()
}

// userConfig is spec.config, in key order.
func userConfig(config map[string]posthornv1.ConfigValue) string {
	var b strings.Builder
	for _, key := range sortedKeys(config) {
		fmt.Fprintf(&b, "%s = %s\n", key, config[key])
	}
	return b.String()
}

// configDigest changes when spec.config changes, and with nothing else: what the operator renders
// beside it may differ between versions of the operator without a restart.
func configDigest(config map[string]posthornv1.ConfigValue) string {
	return digest([]byte(userConfig(config)))
}

// digest is short enough for an annotation and long enough not to collide.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
