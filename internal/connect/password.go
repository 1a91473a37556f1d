// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// letters of generated passwords: 64 of them, so that a random byte maps to one evenly; all may
// stand unescaped in a URI.
const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// Password makes a random password of n characters, six bits of entropy each.
func Password(n int) (string, error) {
	raw := make([]byte, n)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("reading random bytes: %w", err)
	}
	for i, b := range raw {
		raw[i] = letters[int(b)%len(letters)]
	}
	return string(raw), nil
}

// Endpoint is where clients connect to a cluster.
type Endpoint struct {
	Host string
	// TLSOnly: without TLS nobody is let in.
	TLSOnly bool
	// AMQP and MQTT say what is spoken.
	AMQP, MQTT bool
}

// EndpointOf a cluster's client Service.
func EndpointOf(cluster *posthornv1.BrokerCluster, protocols []posthornv1.Protocol) Endpoint {
	speaks := func(p posthornv1.Protocol) bool { return slices.Contains(protocols, p) }
	return Endpoint{
		Host: names.Host(cluster.Namespace, cluster.Name), TLSOnly: cluster.Spec.TLSOnly(),
		// A cluster that has not said yet what it speaks will hardly leave out AMQP.
		AMQP: len(protocols) == 0 || speaks(posthornv1.ProtocolAMQP), MQTT: speaks(posthornv1.ProtocolMQTT),
	}
}

// port of a protocol, without TLS or with it.
func (e Endpoint) port(plain, secure int) string {
	if e.TLSOnly {
		return strconv.Itoa(secure)
	}
	return strconv.Itoa(plain)
}

// uri of the endpoint and its port; MQTT's where AMQP is not spoken.
func (e Endpoint) uri(username, password string) (string, string) {
	uri := url.URL{Scheme: "amqp", User: url.UserPassword(username, password)}
	port := e.port(names.PortAMQP, names.PortAMQPS)
	if e.AMQP {
		// The vhost /, escaped: clients disagree about what a bare slash means.
		uri.Path, uri.RawPath = "//", "/%2F"
	} else {
		uri.Scheme, port = "mqtt", e.port(names.PortMQTT, names.PortMQTTS)
	}
	if e.TLSOnly {
		uri.Scheme += "s"
	}
	uri.Host = net.JoinHostPort(e.Host, port)
	return uri.String(), port
}

// Bind fills the data of a Secret in service-binding form, and leaves other keys alone.
func Bind(data map[string][]byte, e Endpoint, username, password string) {
	uri, port := e.uri(username, password)
	for key, value := range map[string]string{
		"type": "rabbitmq", "provider": "posthorn", "host": e.Host, "port": port,
		"username": username, "password": password, "uri": uri,
	} {
		data[key] = []byte(value)
	}
	// Under the names that RabbitMQ's operator gives them.
	for key, port := range map[string]string{
		"mqtt-port": e.port(names.PortMQTT, names.PortMQTTS), "web-mqtt-port": e.port(names.PortWebMQTT, names.PortWebMQTTS),
	} {
		delete(data, key)
		if e.MQTT {
			data[key] = []byte(port)
		}
	}
}
