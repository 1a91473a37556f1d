// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;update;delete

// portDNS is where names are asked for.
const portDNS = 53

// ensureNetworkPolicy keeps a NetworkPolicy, or none at all.
func (s *scope) ensureNetworkPolicy(ctx context.Context) error {
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: s.cluster.Name}}
	if s.cluster.Spec.NetworkPolicy.Mode != posthornv1.NetworkPolicyStrict {
		return s.remove(ctx, policy)
	}
	return s.ensure(ctx, policy, func() error {
		policy.Spec = strictPolicy(s.cluster, openTo{
			clients: clientPorts(&s.cluster.Spec, s.protocols), management: append(managementPorts(s.reach), port(operatorPort, names.PortOperator)), metrics: metricsPorts(s.scraped),
		}, s.OperatorNamespace)
		return nil
	})
}

// openTo is which ports are there for whom.
type openTo struct{ clients, management, metrics []corev1.ServicePort }

// strictPolicy lets through what the cluster needs and nothing else. The kubelet's probes are not
// under it: what comes from a pod's own node always passes.
func strictPolicy(cluster *posthornv1.BrokerCluster, open openTo, operatorNamespace string) networkingv1.NetworkPolicySpec {
	spec := cluster.Spec.NetworkPolicy
	nodes := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: names.Selector(cluster.Name)}}}
	management := peers(spec.Management)
	if operatorNamespace != "" {
		management = append(management, networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: operatorNamespace}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{names.LabelName: names.Manager}},
		})
	}
	out := networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: names.Selector(cluster.Name)},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{
			{From: nodes, Ports: openPorts(corev1.ProtocolTCP, names.PortCluster)},
			{From: peers(spec.Clients), Ports: openPorts(corev1.ProtocolTCP, numbers(open.clients)...)},
			{From: peers(spec.Monitoring), Ports: openPorts(corev1.ProtocolTCP, numbers(open.metrics)...)},
		},
		Egress: []networkingv1.NetworkPolicyEgressRule{
			{To: nodes, Ports: openPorts(corev1.ProtocolTCP, names.PortCluster)},
			{Ports: append(openPorts(corev1.ProtocolUDP, portDNS), openPorts(corev1.ProtocolTCP, portDNS)...)},
		},
	}
	// A rule without peers would let everybody in.
	if len(management) > 0 {
		out.Ingress = append(out.Ingress, networkingv1.NetworkPolicyIngressRule{
			From: management, Ports: openPorts(corev1.ProtocolTCP, numbers(open.management)...),
		})
	}
	return out
}

func numbers(ports []corev1.ServicePort) []int32 {
	var out []int32
	for _, each := range ports {
		out = append(out, each.Port)
	}
	return out
}

func peers(list []posthornv1.NetworkPeer) []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for _, peer := range list {
		out = append(out, networkingv1.NetworkPolicyPeer{PodSelector: peer.PodSelector, NamespaceSelector: peer.NamespaceSelector})
	}
	return out
}

func openPorts(protocol corev1.Protocol, numbers ...int32) []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for _, number := range numbers {
		each := intstr.FromInt32(number)
		out = append(out, networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &each})
	}
	return out
}
