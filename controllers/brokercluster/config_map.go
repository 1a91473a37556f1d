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

// ensureConfigMap keeps the file with the operator's own settings, which all revisions share: its list of peers follows
// the size of the cluster, and a node reads the list only until it has joined. Each revision has a ConfigMap of its own
// for the settings of spec.config.
func (r *reconciliation) ensureConfigMap(ctx context.Context) error {
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.ConfigMap(r.in.cluster.Name)}}
	err := r.ensure(ctx, files, func() error {
		data := map[string]string{mainConfigKey: mainConfig(r.in.cluster, r.out.nodes(&r.in))}
		// Pods of an earlier operator version mount their settings from here.
		if settings, found := files.Data[userConfigKey]; found {
			data[userConfigKey] = settings
		}
		files.Data, files.BinaryData = data, nil
		return nil
	})
	if err != nil {
		return err
	}
	return r.ensureSettings(ctx)
}

// ensureSettings creates the immutable ConfigMap of the wanted settings. A pod of an older revision that restarts reads the
// ConfigMap of its revision, even if spec.config has changed.
func (r *reconciliation) ensureSettings(ctx context.Context) error {
	immutable := true
	name := names.SettingsConfigMap(r.in.cluster.Name, configDigest(r.in.cluster.Spec.Config))
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return r.ensure(ctx, files, func() error {
		files.Data = map[string]string{userConfigKey: userConfig(r.in.cluster.Spec.Config)}
		files.BinaryData, files.Immutable = nil, &immutable
		return nil
	})
}

// collectSettings deletes ConfigMaps of settings that neither a pod nor the StatefulSet's template mounts.
func (r *reconciliation) collectSettings(ctx context.Context) error {
	if r.seen.sts == nil || r.seen.sts.Status.ObservedGeneration < r.seen.sts.Generation {
		return nil
	}
	var all corev1.ConfigMapList
	if err := r.Client.List(ctx, &all, client.InNamespace(r.in.cluster.Namespace), client.MatchingLabels(names.Labels(r.in.cluster.Name))); err != nil {
		return fmt.Errorf("listing the ConfigMaps of settings: %w", err)
	}
	wanted := names.SettingsConfigMap(r.in.cluster.Name, configDigest(r.in.cluster.Spec.Config))
	var unused []*corev1.ConfigMap
	for i := range all.Items {
		files := &all.Items[i]
		_, holdsSettings := files.Data[userConfigKey]
		isRevision := holdsSettings && files.Immutable != nil && *files.Immutable && files.Name != names.ConfigMap(r.in.cluster.Name)
		if isRevision && files.Name != wanted && isOwnedBy(files, r.in.cluster) && !mountsConfigMap(&r.seen.sts.Spec.Template.Spec, files.Name) {
			unused = append(unused, files)
		}
	}
	if len(unused) == 0 {
		return nil
	}
	// The cache may not have a pod yet that was created a moment ago.
	var pods corev1.PodList
	if err := r.Live.List(ctx, &pods, client.InNamespace(r.in.cluster.Namespace), client.MatchingLabels{names.LabelInstance: r.in.cluster.Name}); err != nil {
		return fmt.Errorf("listing the pods that mount settings: %w", err)
	}
	for _, files := range unused {
		if slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return mountsConfigMap(&pod.Spec, files.Name) }) {
			continue
		}
		if err := r.Client.Delete(ctx, files); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting the unused ConfigMap %s: %w", files.Name, err)
		}
	}
	return nil
}

// mountsConfigMap reports whether a pod has a ConfigMap among its configuration files.
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

// mainConfig returns the operator's own settings. The initial voters are exactly cluster.peers; a node whose peers already
// form a cluster joins it. A node that is to be removed stays a peer until it is gone.
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

// userConfig returns spec.config as a configuration file, in key order.
func userConfig(config map[string]posthornv1.ConfigValue) string {
	var b strings.Builder
	for _, key := range sortedKeys(config) {
		fmt.Fprintf(&b, "%s = %s\n", key, config[key])
	}
	return b.String()
}

// configDigest changes only when spec.config changes. The operator's own settings may differ between versions of the
// operator without a restart of the pods.
func configDigest(config map[string]posthornv1.ConfigValue) string {
	return digest([]byte(userConfig(config)))
}

// digest returns a hash that is short enough for an annotation and long enough not to collide.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
