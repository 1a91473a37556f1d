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

// mqttByDefault says whether new clusters whose spec names no protocols take MQTT beside AMQP.
const mqttByDefault = false

// DefaultProtocols of new clusters whose spec names none.
func DefaultProtocols() []posthornv1.Protocol {
	if mqttByDefault {
		return []posthornv1.Protocol{posthornv1.ProtocolAMQP, posthornv1.ProtocolMQTT}
	}
	return []posthornv1.Protocol{posthornv1.ProtocolAMQP}
}

// listener is where clients of a protocol connect.
type listener struct {
	protocol posthornv1.Protocol
	// name of the port of pods and Services.
	name   string
	number int32
	secure bool
	// setting is the environment variable that makes the broker listen; empty: posthorn.conf does.
	setting string
}

// listeners that there can be, in the order of the ports of Services.
var listeners = []listener{
	{posthornv1.ProtocolAMQP, "amqp", names.PortAMQP, false, ""},
	{posthornv1.ProtocolAMQP, "amqps", names.PortAMQPS, true, "POSTHORN_LISTENERS_SSL_DEFAULT"},
	{posthornv1.ProtocolMQTT, "mqtt", names.PortMQTT, false, "POSTHORN_MQTT_LISTENERS_TCP_DEFAULT"},
	{posthornv1.ProtocolMQTT, "mqtts", names.PortMQTTS, true, "POSTHORN_MQTT_LISTENERS_SSL_DEFAULT"},
	{posthornv1.ProtocolMQTT, "web-mqtt", names.PortWebMQTT, false, "POSTHORN_WEB__MQTT_TCP_PORT"},
	{posthornv1.ProtocolMQTT, "web-mqtt-tls", names.PortWebMQTTS, true, "POSTHORN_WEB__MQTT_SSL_PORT"},
}

// listenersOf a cluster: those of its protocols, with TLS where it has that, without where it is not
// closed.
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

// protocolsOf settles what clients may speak: what the spec says; else what the status knows of, or the
// cluster's pods are made for, so that a new version of the operator with another default restarts
// nothing; else the default.
func protocolsOf(cluster *posthornv1.BrokerCluster, sts *appsv1.StatefulSet, fallback []posthornv1.Protocol) []posthornv1.Protocol {
	for _, known := range [][]posthornv1.Protocol{cluster.Spec.Protocols, cluster.Status.Protocols} {
		if len(known) > 0 {
			return slices.Sorted(slices.Values(known))
		}
	}
	var spoken []posthornv1.Protocol
	if sts != nil {
		if container := brokerOf(&sts.Spec.Template); container != nil {
			spoken = spokenBy(container)
		}
	}
	if len(spoken) > 0 {
		return spoken
	}
	return fallback
}

// spokenBy a broker's container, going by its ports.
func spokenBy(container *corev1.Container) []posthornv1.Protocol {
	var out []posthornv1.Protocol
	for _, each := range listeners {
		has := slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == each.name })
		if has && !slices.Contains(out, each.protocol) {
			out = append(out, each.protocol)
		}
	}
	return out
}

// noteworthy is what goes into the digest of the pod template's inputs: nothing for AMQP alone, as it
// was before there were others.
func noteworthy(protocols []posthornv1.Protocol) []posthornv1.Protocol {
	if slices.Equal(protocols, []posthornv1.Protocol{posthornv1.ProtocolAMQP}) {
		return nil
	}
	return protocols
}

// addListeners lets the broker listen for the clients of the protocols. Settings go into the
// environment: so a pod has the settings if, and only if, it has the files that they need.
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

// plainAMQP names the port that every pod template has to begin with.
const plainAMQP = "amqp"

// clientPorts are the ports that clients use, by name.
func clientPorts(spec *posthornv1.BrokerClusterSpec, protocols []posthornv1.Protocol) []corev1.ServicePort {
	var out []corev1.ServicePort
	for _, each := range listenersOf(protocols, spec.TLS != nil, spec.TLSOnly()) {
		out = append(out, port(each.name, each.number))
	}
	return out
}
