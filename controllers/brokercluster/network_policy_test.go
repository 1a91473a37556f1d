// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// admitted returns the peers that a policy admits to a port, and whether a rule admits everybody.
func admitted(policy networkingv1.NetworkPolicySpec, number int32) (peers []networkingv1.NetworkPolicyPeer, anybody bool) {
	for _, rule := range policy.Ingress {
		for _, port := range rule.Ports {
			if port.Port.IntVal == number {
				peers = append(peers, rule.From...)
				anybody = anybody || len(rule.From) == 0
			}
		}
	}
	return peers, anybody
}

// speak sets the protocols of a cluster.
func speak(protocols ...posthornv1.Protocol) func(*posthornv1.BrokerClusterSpec) {
	return func(s *posthornv1.BrokerClusterSpec) { s.Protocols = protocols }
}

func TestStrictPolicyAdmitsOnlyNamedPeers(t *testing.T) {
	cluster := testCluster()
	app := posthornv1.NetworkPeer{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "yes"}}}
	cases := map[string]struct {
		change    func(*posthornv1.BrokerClusterSpec)
		operator  string
		open      portSet
		port      int32
		peers     int
		anybody   bool
		firstPeer *metav1.LabelSelector
	}{
		"nodes portSet each other":         {nil, "op", portSet{plain: true}, names.PortCluster, 1, false, nil},
		"clients":                          {nil, "op", portSet{plain: true}, names.PortAMQP, 0, true, nil},
		"no TLS, no port":                  {nil, "op", portSet{plain: true}, names.PortAMQPS, 0, false, nil},
		"TLS":                              {func(s *posthornv1.BrokerClusterSpec) { s.TLS = &posthornv1.TLSSpec{} }, "op", portSet{true, true}, names.PortAMQPS, 0, true, nil},
		"only TLS":                         {func(s *posthornv1.BrokerClusterSpec) { s.TLS = &posthornv1.TLSSpec{DisablePlaintext: true} }, "op", portSet{secure: true}, names.PortAMQP, 0, false, nil},
		"named clients":                    {func(s *posthornv1.BrokerClusterSpec) { s.NetworkPolicy.Clients = []posthornv1.NetworkPeer{app} }, "op", portSet{plain: true}, names.PortAMQP, 1, false, app.NamespaceSelector},
		"the operator":                     {nil, "op", portSet{plain: true}, names.PortManagement, 1, false, &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "op"}}},
		"an operator elsewhere":            {nil, "", portSet{plain: true}, names.PortManagement, 0, false, nil},
		"the operator and others":          {func(s *posthornv1.BrokerClusterSpec) { s.NetworkPolicy.Management = []posthornv1.NetworkPeer{app} }, "op", portSet{plain: true}, names.PortManagement, 2, false, app.NamespaceSelector},
		"Jobs of backups, no operator":     {nil, "", portSet{plain: true}, names.PortOperator, 1, false, nil},
		"the HTTP API, no TLS":             {nil, "op", portSet{plain: true}, names.PortManagementTLS, 0, false, nil},
		"the HTTP API, TLS":                {func(s *posthornv1.BrokerClusterSpec) { s.TLS = &posthornv1.TLSSpec{} }, "op", portSet{true, true}, names.PortManagementTLS, 1, false, nil},
		"the HTTP API, only TLS":           {nil, "op", portSet{secure: true}, names.PortManagement, 0, false, nil},
		"MQTT, not asked for":              {nil, "op", portSet{plain: true}, names.PortMQTT, 0, false, nil},
		"MQTT":                             {speak("amqp", "mqtt"), "op", portSet{plain: true}, names.PortMQTT, 0, true, nil},
		"MQTT over WebSocket":              {speak("mqtt"), "op", portSet{plain: true}, names.PortWebMQTT, 0, true, nil},
		"AMQP over WebSocket":              {speak("amqp", "web-amqp"), "op", portSet{plain: true}, names.PortWebAMQP, 0, true, nil},
		"no AMQP over WebSocket":           {speak("amqp"), "op", portSet{plain: true}, names.PortWebAMQP, 0, false, nil},
		"streams":                          {speak("amqp", "stream"), "op", portSet{plain: true}, names.PortStream, 0, true, nil},
		"no streams":                       {speak("amqp"), "op", portSet{plain: true}, names.PortStream, 0, false, nil},
		"streams with TLS, there is none":  {speak("stream"), "op", portSet{plain: true}, names.PortStreams, 0, false, nil},
		"MQTT with TLS, there is none":     {speak("mqtt"), "op", portSet{plain: true}, names.PortMQTTS, 0, false, nil},
		"no AMQP":                          {speak("mqtt"), "op", portSet{plain: true}, names.PortAMQP, 0, false, nil},
		"scrapers":                         {nil, "op", portSet{plain: true}, names.PortPrometheus, 0, true, nil},
		"named scrapers":                   {func(s *posthornv1.BrokerClusterSpec) { s.NetworkPolicy.Monitoring = []posthornv1.NetworkPeer{app} }, "op", portSet{plain: true}, names.PortPrometheus, 1, false, app.NamespaceSelector},
		"scrapers, no TLS":                 {nil, "op", portSet{plain: true}, names.PortPrometheusTLS, 0, false, nil},
		"scrapers, TLS":                    {nil, "op", portSet{true, true}, names.PortPrometheusTLS, 0, true, nil},
		"scrapers, only TLS":               {nil, "op", portSet{secure: true}, names.PortPrometheus, 0, false, nil},
		"what has no business in a broker": {nil, "op", portSet{plain: true}, 22, 0, false, nil},
	}
	for name, c := range cases {
		cluster := cluster.DeepCopy()
		protocols := []posthornv1.Protocol{posthornv1.ProtocolAMQP}
		if c.change != nil {
			c.change(&cluster.Spec)
			protocols = protocolsOf(cluster, nil, protocols)
		}
		policy := strictPolicy(cluster, openPorts{
			clients: clientPorts(&cluster.Spec, protocols), management: managementPorts(c.open), metrics: metricsPorts(c.open),
		}, c.operator)
		peers, anybody := admitted(policy, c.port)
		if len(peers) != c.peers || anybody != c.anybody {
			t.Errorf("%s: %v, anybody %v", name, peers, anybody)
			continue
		}
		if c.firstPeer != nil && peers[0].NamespaceSelector.String() != c.firstPeer.String() {
			t.Errorf("%s: %v", name, peers[0])
		}
		if len(policy.PolicyTypes) != 2 || len(policy.Egress) != 2 {
			t.Errorf("%s: %+v", name, policy)
		}
		for _, rule := range policy.Egress {
			if len(rule.Ports) == 0 {
				t.Errorf("%s: a node may connect to any port", name)
			}
		}
	}
}
