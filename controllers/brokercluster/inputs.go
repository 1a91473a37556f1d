// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// inputs is what a reconciliation starts from. Nothing changes it afterwards.
type inputs struct {
	options
	// cluster as it was read. Its status is what the previous reconciliation wrote.
	cluster *posthornv1.BrokerCluster
	// servingSecret is the Secret that spec.tls.secretName refers to; nil when it does not exist.
	servingSecret *corev1.Secret
	// now is the time at which the reconciliation started.
	now time.Time
}

// options of the operator.
type options struct {
	// ImageRepository names the image of a version.
	ImageRepository string
	// DefaultImage runs where the spec has neither image nor version.
	DefaultImage string
	// DefaultProtocols of new clusters whose spec has none.
	DefaultProtocols []posthornv1.Protocol
	// OperatorNamespace is the namespace of the operator's pods; empty when it runs outside Kubernetes.
	OperatorNamespace string
}

// key of the cluster.
func (in *inputs) key() client.ObjectKey { return client.ObjectKeyFromObject(in.cluster) }

// keyOf returns the key of an object in the cluster's namespace.
func (in *inputs) keyOf(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: in.cluster.Namespace, Name: name}
}

// podName returns the name of the pod with an ordinal.
func (in *inputs) podName(ordinal int32) string {
	return in.cluster.Name + "-" + strconv.Itoa(int(ordinal))
}

// ordinalOf returns the ordinal of a pod; false when the name is not one of the cluster's pods.
func (in *inputs) ordinalOf(pod string) (int32, bool) {
	digits, found := strings.CutPrefix(pod, in.cluster.Name+"-")
	ordinal, err := strconv.ParseInt(digits, 10, 32)
	if !found || err != nil || in.podName(int32(ordinal)) != pod {
		return 0, false
	}
	return int32(ordinal), true
}

// ordinalOfClaim returns the ordinal of a data volume; false when the name is not one of the cluster's volumes.
func (in *inputs) ordinalOfClaim(claim string) (int32, bool) {
	return in.ordinalOf(strings.TrimPrefix(claim, dataVolume+"-"))
}
