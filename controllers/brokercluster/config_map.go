// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// Keys of the ConfigMap.
const (
	mainConfigKey = "posthorn.conf"
	userConfigKey = "90-user.conf"
)

// ensureConfigMap keeps the file with the operator's own settings, which all revisions share: its list of
// peers follows the size of the cluster, and a node reads it only until it has joined. The settings of
// spec.config are in a ConfigMap of each revision.
func (s *scope) ensureConfigMap(ctx context.Context) error {
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.ConfigMap(s.cluster.Name)}}
	err := s.ensure(ctx, files, func() error {
		data := map[string]string{mainConfigKey: mainConfig(s.cluster, s.total())}
		// Pods of an earlier operator version mount their settings from here and keep them.
		if settings, found := files.Data[userConfigKey]; found {
			data[userConfigKey] = settings
		}
		files.Data, files.BinaryData = data, nil
		return nil
	})
	if err != nil {
		return err
	}
	return s.ensureSettings(ctx)
}

// ensureSettings makes the immutable ConfigMap of the wanted settings. A pod of an older revision that
// restarts reads the ConfigMap it was made with, whatever spec.config has become.
func (s *scope) ensureSettings(ctx context.Context) error {
	immutable := true
	name := names.SettingsConfigMap(s.cluster.Name, configDigest(s.cluster.Spec.Config))
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return s.ensure(ctx, files, func() error {
		files.Data = map[string]string{userConfigKey: userConfig(s.cluster.Spec.Config)}
		files.BinaryData, files.Immutable = nil, &immutable
		return nil
	})
}

// collectSettings deletes settings that no pod mounts and that the StatefulSet gives to no new pod.
func (s *scope) collectSettings(ctx context.Context) error {
	if s.sts == nil || s.sts.Status.ObservedGeneration < s.sts.Generation {
		return nil
	}
	var all corev1.ConfigMapList
	if err := s.Client.List(ctx, &all, client.InNamespace(s.cluster.Namespace), client.MatchingLabels(names.Labels(s.cluster.Name))); err != nil {
		return fmt.Errorf("listing the ConfigMaps of settings: %w", err)
	}
	wanted := names.SettingsConfigMap(s.cluster.Name, configDigest(s.cluster.Spec.Config))
	var unused []*corev1.ConfigMap
	for i := range all.Items {
		files := &all.Items[i]
		_, holdsSettings := files.Data[userConfigKey]
		isRevision := holdsSettings && files.Immutable != nil && *files.Immutable && files.Name != names.ConfigMap(s.cluster.Name)
		if isRevision && files.Name != wanted && ownedBy(files, s.cluster) && !mountsConfigMap(&s.sts.Spec.Template.Spec, files.Name) {
			unused = append(unused, files)
		}
	}
	if len(unused) == 0 {
		return nil
	}
	// The cache may not have a pod yet that was made a moment ago.
	var pods corev1.PodList
	if err := s.Live.List(ctx, &pods, client.InNamespace(s.cluster.Namespace), client.MatchingLabels{names.LabelInstance: s.cluster.Name}); err != nil {
		return fmt.Errorf("listing the pods that mount settings: %w", err)
	}
	for _, files := range unused {
		if slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return mountsConfigMap(&pod.Spec, files.Name) }) {
			continue
		}
		if err := s.Client.Delete(ctx, files); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting the unused ConfigMap %s: %w", files.Name, err)
		}
	}
	return nil
}

// mountsConfigMap says whether a pod needs a ConfigMap for its configuration files.
func mountsConfigMap(spec *corev1.PodSpec, name string) bool {
	for _, volume := range spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.ConfigMap != nil && source.ConfigMap.Name == name {
				return true
			}
		}
	}
	return false
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
