// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// externalComponent labels the Services of single nodes for clients outside Kubernetes.
const externalComponent = "external"

// Reasons of ExternalReady.
const (
	reasonAddressesKnown = "AddressesKnown"
	reasonNoAddress      = "NoAddress"
	reasonNotAdvertised  = "NotAdvertised"
)

// +kubebuilder:rbac:groups=core,resources=services,verbs=delete

// ensureExternalServices keeps the Service of each node for clients outside Kubernetes, and deletes those that the spec no
// longer asks for.
func (r *reconciliation) ensureExternalServices(ctx context.Context) error {
	wanted := map[string]bool{}
	if spec := r.in.cluster.Spec.ExternalListeners; spec != nil {
		r.seen.external = map[string][]posthornv1.ExternalAddress{}
		for ordinal := range r.out.nodes(&r.in) {
			pod := r.in.podName(ordinal)
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: names.ExternalService(pod)}}
			err := r.ensure(ctx, service, func() error {
				applyExternalService(service, r.in.cluster, ordinal, r.out.protocols)
				return nil
			})
			if err != nil {
				return refused(err, "applying the Service "+service.Name)
			}
			wanted[service.Name] = true
			if addresses := externalAddresses(r.in.cluster, service, r.seen.pods[pod], ordinal); len(addresses) > 0 {
				r.seen.external[pod] = addresses
			}
		}
	}
	var present corev1.ServiceList
	labels := names.Labels(r.in.cluster.Name)
	labels[names.LabelComponent] = externalComponent
	if err := r.Client.List(ctx, &present, client.InNamespace(r.in.cluster.Namespace), client.MatchingLabels(labels)); err != nil {
		return fmt.Errorf("listing the Services of nodes: %w", err)
	}
	for i := range present.Items {
		if service := &present.Items[i]; !wanted[service.Name] && service.DeletionTimestamp == nil {
			if err := r.remove(ctx, service); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyExternalService sets the fields of the Service of one node.
func applyExternalService(service *corev1.Service, cluster *posthornv1.BrokerCluster, ordinal int32, protocols []posthornv1.Protocol) {
	spec := cluster.Spec.ExternalListeners
	service.Labels[names.LabelComponent] = externalComponent
	service.Spec.Type = spec.Type
	service.Spec.ExternalTrafficPolicy = spec.ExternalTrafficPolicy
	if service.UID == "" {
		service.Spec.LoadBalancerClass = spec.LoadBalancerClass
	}
	service.Spec.LoadBalancerSourceRanges = nil
	for _, network := range spec.LoadBalancerSourceRanges {
		service.Spec.LoadBalancerSourceRanges = append(service.Spec.LoadBalancerSourceRanges, string(network))
	}
	service.Spec.Selector = names.Selector(cluster.Name)
	service.Spec.Selector[appsv1.StatefulSetPodNameLabel] = podNameOf(cluster, ordinal)
	service.Spec.Ports = mergePorts(service.Spec.Ports, externalPorts(&cluster.Spec, protocols), true)
	annotations := make(map[string]string, len(spec.Annotations))
	for name, value := range spec.Annotations {
		annotations[name] = expand(value, cluster, ordinal)
	}
	annotate(&service.ObjectMeta, annotations)
}

func podNameOf(cluster *posthornv1.BrokerCluster, ordinal int32) string {
	return cluster.Name + "-" + strconv.Itoa(int(ordinal))
}

// externalPorts returns the client ports of the protocols that external listeners offer.
func externalPorts(spec *posthornv1.BrokerClusterSpec, protocols []posthornv1.Protocol) []corev1.ServicePort {
	if chosen := spec.ExternalListeners.Protocols; len(chosen) > 0 {
		protocols = slices.DeleteFunc(slices.Clone(protocols), func(p posthornv1.Protocol) bool { return !slices.Contains(chosen, p) })
	}
	return clientPorts(spec, protocols)
}

// expand replaces the placeholders of a template.
func expand(template string, cluster *posthornv1.BrokerCluster, ordinal int32) string {
	return strings.NewReplacer(
		"{node}", podNameOf(cluster, ordinal), "{ordinal}", strconv.Itoa(int(ordinal)),
		"{cluster}", cluster.Name, "{namespace}", cluster.Namespace,
	).Replace(template)
}

// externalHosts returns the host names of the nodes for clients outside Kubernetes, which certificates need.
func externalHosts(cluster *posthornv1.BrokerCluster) []string {
	spec := cluster.Spec.ExternalListeners
	if spec == nil || spec.HostTemplate == "" {
		return nil
	}
	var out []string
	for ordinal := range cluster.Spec.Replicas {
		if host := expand(spec.HostTemplate, cluster, ordinal); !slices.Contains(out, host) {
			out = append(out, host)
		}
	}
	return out
}

// externalAddresses returns the addresses of a node for clients outside Kubernetes; none while they are unknown. pod is nil
// when it does not exist.
func externalAddresses(cluster *posthornv1.BrokerCluster, service *corev1.Service, pod *corev1.Pod, ordinal int32) []posthornv1.ExternalAddress {
	spec := cluster.Spec.ExternalListeners
	host := expand(spec.HostTemplate, cluster, ordinal)
	isNodePort := spec.Type == corev1.ServiceTypeNodePort
	switch ingress := service.Status.LoadBalancer.Ingress; {
	case host != "":
	case isNodePort && pod != nil:
		host = pod.Status.HostIP
	case !isNodePort && len(ingress) > 0 && ingress[0].Hostname != "":
		host = ingress[0].Hostname
	case !isNodePort && len(ingress) > 0:
		host = ingress[0].IP
	}
	if host == "" {
		return nil
	}
	var out []posthornv1.ExternalAddress
	for _, port := range service.Spec.Ports {
		number := port.Port
		if isNodePort {
			number = port.NodePort
		}
		if number != 0 {
			out = append(out, posthornv1.ExternalAddress{Listener: port.Name, Host: host, Port: number})
		}
	}
	return out
}

// advertisedPrefix begins the keys with which one file of settings names addresses of single nodes.
const advertisedPrefix = "advertised_nodes."

// brokerListeners are the broker's names of listeners, by the names of their ports.
var brokerListeners = map[string]string{
	"amqp": "amqp", "amqps": "amqp/ssl",
	"web-amqp": "http/web-amqp", "web-amqp-tls": "https/web-amqp",
	"mqtt": "mqtt", "mqtts": "mqtt/ssl",
	"web-mqtt": "http/web-mqtt", "web-mqtt-tls": "https/web-mqtt",
	"stream": "stream", "streams": "stream/ssl",
}

// advertisedSettings returns the settings by which each node names its external addresses to clients.
func advertisedSettings(spec *posthornv1.ExternalListenersSpec, external map[string][]posthornv1.ExternalAddress) map[string]string {
	out := map[string]string{}
	if spec == nil || !spec.Advertises() {
		return out
	}
	for pod, addresses := range external {
		for _, address := range addresses {
			key := advertisedPrefix + pod + "." + brokerListeners[address.Listener]
			out[key] = net.JoinHostPort(address.Host, strconv.Itoa(int(address.Port)))
		}
	}
	return out
}

// externalOf returns the addresses of each node for clients outside Kubernetes: those of the previous reconciliation when
// this one has read none.
func externalOf(in *inputs, seen *observed) map[string][]posthornv1.ExternalAddress {
	if in.cluster.Spec.ExternalListeners == nil || seen.external != nil {
		return seen.external
	}
	out := map[string][]posthornv1.ExternalAddress{}
	for _, member := range in.cluster.Status.Members {
		out[member.Name] = member.External
	}
	return out
}

// setExternalReady reports whether every node has an address for clients outside Kubernetes.
func (out *decided) setExternalReady(in *inputs, seen *observed) {
	if in.cluster.Spec.ExternalListeners == nil {
		meta.RemoveStatusCondition(&out.status.Conditions, posthornv1.ConditionExternalReady)
		return
	}
	if seen.external == nil {
		return
	}
	var missing []string
	for ordinal := range out.nodes(in) {
		if pod := in.podName(ordinal); len(seen.external[pod]) == 0 {
			missing = append(missing, pod)
		}
	}
	if len(missing) == 0 && seen.notAdvertised {
		out.setCondition(in, posthornv1.ConditionExternalReady, metav1.ConditionFalse, reasonNotAdvertised,
			"clients of streams cannot find the nodes: this version of the broker does not take the addresses of single nodes (advertised_nodes). Upgrade it, or set externalListeners.advertise to false")
		return
	}
	if len(missing) == 0 {
		out.setCondition(in, posthornv1.ConditionExternalReady, metav1.ConditionTrue, reasonAddressesKnown, "every node has an address for clients outside Kubernetes")
		return
	}
	cause := "its load balancer has no address yet: without a controller for Services of type LoadBalancer it gets none"
	if in.cluster.Spec.ExternalListeners.Type == corev1.ServiceTypeNodePort {
		cause = "its pod is not scheduled yet"
	}
	out.setCondition(in, posthornv1.ConditionExternalReady, metav1.ConditionFalse, reasonNoAddress, "no external address of "+strings.Join(missing, ", ")+": "+cause)
}
