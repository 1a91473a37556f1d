// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

const (
	amqp    = posthornv1.ProtocolAMQP
	webAMQP = posthornv1.ProtocolWebAMQP
	mqtt    = posthornv1.ProtocolMQTT
	stream  = posthornv1.ProtocolStream
)

func protocols(all ...posthornv1.Protocol) []posthornv1.Protocol { return all }

// TestListenersReachThePodAndTheServices compares the broker's settings, the ports of its container and those of the
// Services: they agree for every set of protocols.
func TestListenersReachThePodAndTheServices(t *testing.T) {
	tls, only := &posthornv1.TLSSpec{}, &posthornv1.TLSSpec{DisablePlaintext: true}
	cases := map[string]struct {
		protocols []posthornv1.Protocol
		tls       *posthornv1.TLSSpec
		ports     string
		settings  string
	}{
		"AMQP":                 {protocols(amqp), nil, "amqp", ""},
		"AMQP, TLS":            {protocols(amqp), tls, "amqp amqps", "LISTENERS_SSL_DEFAULT=5671"},
		"AMQP, TLS only":       {protocols(amqp), only, "amqps", "LISTENERS_SSL_DEFAULT=5671 LISTENERS_TCP=none"},
		"WebSocket":            {protocols(amqp, webAMQP), nil, "amqp web-amqp", "WEB__AMQP_TCP_PORT=15678"},
		"WebSocket, TLS":       {protocols(amqp, webAMQP), tls, "amqp amqps web-amqp web-amqp-tls", "LISTENERS_SSL_DEFAULT=5671 WEB__AMQP_SSL_PORT=15677 WEB__AMQP_TCP_PORT=15678"},
		"WebSocket, TLS only":  {protocols(amqp, webAMQP), only, "amqps web-amqp-tls", "LISTENERS_SSL_DEFAULT=5671 LISTENERS_TCP=none WEB__AMQP_SSL_PORT=15677"},
		"both":                 {protocols(amqp, mqtt), nil, "amqp mqtt web-mqtt", "MQTT_LISTENERS_TCP_DEFAULT=1883 WEB__MQTT_TCP_PORT=15675"},
		"both, TLS":            {protocols(amqp, mqtt), tls, "amqp amqps mqtt mqtts web-mqtt web-mqtt-tls", "LISTENERS_SSL_DEFAULT=5671 MQTT_LISTENERS_SSL_DEFAULT=8883 MQTT_LISTENERS_TCP_DEFAULT=1883 WEB__MQTT_SSL_PORT=15676 WEB__MQTT_TCP_PORT=15675"},
		"both, TLS only":       {protocols(amqp, mqtt), only, "amqps mqtts web-mqtt-tls", "LISTENERS_SSL_DEFAULT=5671 LISTENERS_TCP=none MQTT_LISTENERS_SSL_DEFAULT=8883 WEB__MQTT_SSL_PORT=15676"},
		"streams":              {protocols(amqp, stream), nil, "amqp stream", "STREAM_LISTENERS_TCP_DEFAULT=5552"},
		"streams, TLS":         {protocols(amqp, stream), tls, "amqp amqps stream streams", "LISTENERS_SSL_DEFAULT=5671 STREAM_LISTENERS_SSL_DEFAULT=5551 STREAM_LISTENERS_TCP_DEFAULT=5552"},
		"streams, TLS only":    {protocols(amqp, stream), only, "amqps streams", "LISTENERS_SSL_DEFAULT=5671 LISTENERS_TCP=none STREAM_LISTENERS_SSL_DEFAULT=5551"},
		"streams alone":        {protocols(stream), nil, "stream", "LISTENERS_TCP=none STREAM_LISTENERS_TCP_DEFAULT=5552"},
		"MQTT alone":           {protocols(mqtt), nil, "mqtt web-mqtt", "LISTENERS_TCP=none MQTT_LISTENERS_TCP_DEFAULT=1883 WEB__MQTT_TCP_PORT=15675"},
		"MQTT alone, TLS only": {protocols(mqtt), only, "mqtts web-mqtt-tls", "LISTENERS_TCP=none MQTT_LISTENERS_SSL_DEFAULT=8883 WEB__MQTT_SSL_PORT=15676"},
	}
	others := map[string]bool{"management": true, "management-tls": true, "prometheus": true, "prometheus-tls": true, "cluster": true, "probes": true, "operator": true}
	for name, c := range cases {
		cluster := testCluster()
		cluster.Spec.TLS = c.tls
		template, err := buildTemplate(cluster, inputsOf(cluster, "i", c.protocols))
		if err != nil {
			t.Fatal(err)
		}
		var inPod, inService []string
		numbers := map[string]int32{}
		for _, port := range template.Spec.Containers[0].Ports {
			if !others[port.Name] {
				inPod = append(inPod, port.Name)
				numbers[port.Name] = port.ContainerPort
			}
		}
		for _, port := range clientPorts(&cluster.Spec, c.protocols) {
			inService = append(inService, port.Name)
			if numbers[port.Name] != port.Port || port.TargetPort.StrVal != port.Name {
				t.Errorf("%s: port %v of the Services, %d of the pod", name, port, numbers[port.Name])
			}
		}
		slices.Sort(inPod)
		slices.Sort(inService)
		if strings.Join(inPod, " ") != c.ports || strings.Join(inService, " ") != c.ports {
			t.Errorf("%s: pod %v, Services %v", name, inPod, inService)
		}
		var settings []string
		all := env(template)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			short := strings.TrimPrefix(key, "POSTHORN_")
			if strings.Contains(short, "LISTENERS") || strings.Contains(short, "WEB__") {
				settings = append(settings, short+"="+all[key])
			}
		}
		if got := strings.Join(settings, " "); got != c.settings {
			t.Errorf("%s: settings %s", name, got)
		}
	}
}

// made is the StatefulSet of a cluster with these protocols.
func made(t *testing.T, tls *posthornv1.TLSSpec, spoken ...posthornv1.Protocol) *appsv1.StatefulSet {
	t.Helper()
	cluster := testCluster()
	cluster.Spec.TLS = tls
	template, err := buildTemplate(cluster, inputsOf(cluster, "i", spoken))
	if err != nil {
		t.Fatal(err)
	}
	return newStatefulSet(cluster, template, "")
}

// TestDefaultProtocolsRollNoExistingCluster: a cluster whose spec has no protocols keeps the ones it has.
func TestDefaultProtocolsRollNoExistingCluster(t *testing.T) {
	only := &posthornv1.TLSSpec{DisablePlaintext: true}
	cases := map[string]struct {
		spec     []posthornv1.Protocol
		known    []posthornv1.Protocol
		sts      *appsv1.StatefulSet
		fallback []posthornv1.Protocol
		want     []posthornv1.Protocol
	}{
		"a new one":                          {nil, nil, nil, protocols(amqp, mqtt), protocols(amqp, mqtt)},
		"a new one, the other default":       {nil, nil, nil, protocols(amqp), protocols(amqp)},
		"the spec says":                      {protocols(mqtt, amqp), nil, nil, protocols(amqp), protocols(amqp, mqtt)},
		"the spec says something else":       {protocols(mqtt), nil, made(t, nil, amqp), protocols(amqp), protocols(mqtt)},
		"made with AMQP":                     {nil, nil, made(t, nil, amqp), protocols(amqp, mqtt), protocols(amqp)},
		"made with AMQP, TLS only":           {nil, nil, made(t, only, amqp), protocols(amqp, mqtt), protocols(amqp)},
		"made with both":                     {nil, nil, made(t, nil, amqp, mqtt), protocols(amqp), protocols(amqp, mqtt)},
		"made with both, TLS only":           {nil, nil, made(t, only, amqp, mqtt), protocols(amqp), protocols(amqp, mqtt)},
		"made with streams, TLS only":        {nil, nil, made(t, only, amqp, stream), protocols(amqp), protocols(amqp, stream)},
		"known, and the StatefulSet is gone": {nil, protocols(mqtt), nil, protocols(amqp), protocols(mqtt)},
		"known, and somebody changed ports":  {nil, protocols(amqp), made(t, nil, mqtt), protocols(amqp), protocols(amqp)},
		"known, and the spec says otherwise": {protocols(mqtt), protocols(amqp), made(t, nil, amqp), protocols(amqp), protocols(mqtt)},
		"somebody broke the StatefulSet":     {nil, nil, &appsv1.StatefulSet{}, protocols(amqp), protocols(amqp)},
	}
	for name, c := range cases {
		cluster := testCluster()
		cluster.Spec.Protocols, cluster.Status.Protocols = c.spec, c.known
		if got := protocolsOf(cluster, c.sts, c.fallback); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, spoken := range [][]posthornv1.Protocol{protocols(amqp), protocols(amqp, mqtt)} {
		cluster := testCluster()
		before, err := inputsOf(cluster, "i", spoken).digest()
		if err != nil {
			t.Fatal(err)
		}
		for _, fallback := range [][]posthornv1.Protocol{protocols(amqp), protocols(amqp, mqtt)} {
			now := protocolsOf(cluster, made(t, nil, spoken...), fallback)
			if after, err := inputsOf(cluster, "i", now).digest(); err != nil || after != before {
				t.Errorf("made with %v, default %v: rolled (%v)", spoken, fallback, err)
			}
		}
	}
}

func TestDefaultProtocolsAreAMQP(t *testing.T) {
	got := DefaultProtocols()
	if !slices.Contains(got, amqp) || slices.Contains(got, mqtt) != mqttByDefault {
		t.Errorf("%v", got)
	}
}
