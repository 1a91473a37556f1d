// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// mqttByDefault enables MQTT beside AMQP in new clusters whose spec has no protocols.
const mqttByDefault = false

// DefaultProtocols returns the protocols of new clusters whose spec has none.
func DefaultProtocols() []posthornv1.Protocol {
	if mqttByDefault {
		return []posthornv1.Protocol{posthornv1.ProtocolAMQP, posthornv1.ProtocolMQTT}
	}
	return []posthornv1.Protocol{posthornv1.ProtocolAMQP}
}

// listener is an address for the clients of a protocol.
type listener struct {
	protocol posthornv1.Protocol
	// name of the port of pods and Services.
	name   string
	number int32
	secure bool
	// setting is the environment variable that enables the listener; empty when posthorn.conf does.
	setting string
}

// listeners of all protocols, in the order of the ports of Services.
var listeners = []listener{
	{posthornv1.ProtocolAMQP, "amqp", names.PortAMQP, false, ""},
	{posthornv1.ProtocolAMQP, "amqps", names.PortAMQPS, true, "POSTHORN_LISTENERS_SSL_DEFAULT"},
	{posthornv1.ProtocolWebAMQP, "web-amqp", names.PortWebAMQP, false, "POSTHORN_WEB__AMQP_TCP_PORT"},
	{posthornv1.ProtocolWebAMQP, "web-amqp-tls", names.PortWebAMQPS, true, "POSTHORN_WEB__AMQP_SSL_PORT"},
	{posthornv1.ProtocolMQTT, "mqtt", names.PortMQTT, false, "POSTHORN_MQTT_LISTENERS_TCP_DEFAULT"},
	{posthornv1.ProtocolMQTT, "mqtts", names.PortMQTTS, true, "POSTHORN_MQTT_LISTENERS_SSL_DEFAULT"},
	{posthornv1.ProtocolMQTT, "web-mqtt", names.PortWebMQTT, false, "POSTHORN_WEB__MQTT_TCP_PORT"},
	{posthornv1.ProtocolMQTT, "web-mqtt-tls", names.PortWebMQTTS, true, "POSTHORN_WEB__MQTT_SSL_PORT"},
	{posthornv1.ProtocolStream, "stream", names.PortStream, false, "POSTHORN_STREAM_LISTENERS_TCP_DEFAULT"},
	{posthornv1.ProtocolStream, "streams", names.PortStreams, true, "POSTHORN_STREAM_LISTENERS_SSL_DEFAULT"},
}

// listenersOf returns the listeners of protocols: those with TLS when the cluster has TLS, and those without unless it
// accepts TLS only.
func listenersOf(protocols []posthornv1.Protocol, tls, tlsOnly bool) []listener {
	var out []listener
	for _, each := range listeners {
		open := each.secure && tls || !each.secure && !tlsOnly
		if open && slices.Contains(protocols, each.protocol) {
			out = append(out, each)
		}
	}
	return out
}

// protocolsOf returns the protocols of the spec; else those of the status or of the StatefulSet's pods, so that an operator
// with another default restarts nothing; else the default.
func protocolsOf(cluster *posthornv1.BrokerCluster, sts *appsv1.StatefulSet, fallback []posthornv1.Protocol) []posthornv1.Protocol {
	for _, known := range [][]posthornv1.Protocol{cluster.Spec.Protocols, cluster.Status.Protocols} {
		if len(known) > 0 {
			return slices.Sorted(slices.Values(known))
		}
	}
	var present []posthornv1.Protocol
	if sts != nil {
		if container := brokerOf(&sts.Spec.Template); container != nil {
			present = protocolsIn(container)
		}
	}
	if len(present) > 0 {
		return present
	}
	return fallback
}

// protocolsIn returns the protocols of a broker's container, which follow from its ports.
func protocolsIn(container *corev1.Container) []posthornv1.Protocol {
	var out []posthornv1.Protocol
	for _, each := range listeners {
		has := slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == each.name })
		if has && !slices.Contains(out, each.protocol) {
			out = append(out, each.protocol)
		}
	}
	return out
}

// protocolsForDigest returns the protocols in the digest of the pod template's inputs: none for AMQP alone, as in versions
// that had no other protocol.
func protocolsForDigest(protocols []posthornv1.Protocol) []posthornv1.Protocol {
	if slices.Equal(protocols, []posthornv1.Protocol{posthornv1.ProtocolAMQP}) {
		return nil
	}
	return protocols
}

// addListeners adds the listeners of the protocols to the broker. Their settings are environment variables: a pod has the
// settings if, and only if, it has the files that they need.
func addListeners(container *corev1.Container, protocols []posthornv1.Protocol, tls *tlsInputs) {
	if protocols == nil {
		protocols = []posthornv1.Protocol{posthornv1.ProtocolAMQP}
	}
	wanted := listenersOf(protocols, tls != nil, tls != nil && tls.DisablePlaintext)
	for _, each := range wanted {
		if each.setting != "" {
			container.Env = append(container.Env, corev1.EnvVar{Name: each.setting, Value: strconv.Itoa(int(each.number))})
		}
		if each.name != plainAMQP {
			container.Ports = append(container.Ports, corev1.ContainerPort{Name: each.name, ContainerPort: each.number, Protocol: corev1.ProtocolTCP})
		}
	}
	if !slices.ContainsFunc(wanted, func(l listener) bool { return l.name == plainAMQP }) {
		container.Env = append(container.Env, corev1.EnvVar{Name: "POSTHORN_LISTENERS_TCP", Value: "none"})
		container.Ports = withoutPort(container.Ports, plainAMQP)
	}
}

// plainAMQP names the port that every pod template starts with.
const plainAMQP = "amqp"

// clientPorts returns the ports for clients.
func clientPorts(spec *posthornv1.BrokerClusterSpec, protocols []posthornv1.Protocol) []corev1.ServicePort {
	var out []corev1.ServicePort
	for _, each := range listenersOf(protocols, spec.TLS != nil, spec.TLSOnly()) {
		out = append(out, port(each.name, each.number))
	}
	return out
}
