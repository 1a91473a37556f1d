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

// portDNS is the port of DNS servers.
const portDNS = 53

// ensureNetworkPolicy keeps the NetworkPolicy, or deletes it when the spec does not ask for it.
func (r *reconciliation) ensureNetworkPolicy(ctx context.Context) error {
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: r.in.cluster.Name}}
	if r.in.cluster.Spec.NetworkPolicy.Mode != posthornv1.NetworkPolicyStrict {
		return r.remove(ctx, policy)
	}
	return r.ensure(ctx, policy, func() error {
		policy.Spec = strictPolicy(r.in.cluster, openPorts{
			clients: clientPorts(&r.in.cluster.Spec, r.out.protocols), management: append(managementPorts(r.out.access.management), port(operatorPort, names.PortOperator)), metrics: metricsPorts(r.out.access.metrics),
		}, r.OperatorNamespace)
		return nil
	})
}

// openPorts are the ports that are open to each kind of peer.
type openPorts struct{ clients, management, metrics []corev1.ServicePort }

// strictPolicy allows only the traffic that the cluster needs. It does not restrict the kubelet's probes: traffic from a
// pod's own machine always passes.
func strictPolicy(cluster *posthornv1.BrokerCluster, open openPorts, operatorNamespace string) networkingv1.NetworkPolicySpec {
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
			{From: nodes, Ports: policyPorts(corev1.ProtocolTCP, names.PortCluster)},
			{From: peers(spec.Clients), Ports: policyPorts(corev1.ProtocolTCP, numbers(open.clients)...)},
			{From: peers(spec.Monitoring), Ports: policyPorts(corev1.ProtocolTCP, numbers(open.metrics)...)},
		},
		Egress: []networkingv1.NetworkPolicyEgressRule{
			{To: nodes, Ports: policyPorts(corev1.ProtocolTCP, names.PortCluster)},
			{Ports: append(policyPorts(corev1.ProtocolUDP, portDNS), policyPorts(corev1.ProtocolTCP, portDNS)...)},
		},
	}
	// The Jobs of backups and restores show the operator's certificate.
	out.Ingress = append(out.Ingress, networkingv1.NetworkPolicyIngressRule{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: names.BackupSelector(cluster.Name)}}},
		Ports: policyPorts(corev1.ProtocolTCP, names.PortOperator),
	})
	// A rule without peers would allow everybody.
	if len(management) > 0 {
		out.Ingress = append(out.Ingress, networkingv1.NetworkPolicyIngressRule{
			From: management, Ports: policyPorts(corev1.ProtocolTCP, numbers(open.management)...),
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

func policyPorts(protocol corev1.Protocol, numbers ...int32) []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for _, number := range numbers {
		each := intstr.FromInt32(number)
		out = append(out, networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &each})
	}
	return out
}
