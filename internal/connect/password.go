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

// letters of generated passwords: 64, so that a random byte maps to them evenly. None needs an escape in a URI.
const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// Password returns a random password of n characters, with six bits of entropy each.
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

// Endpoint is the address for clients of a cluster.
type Endpoint struct {
	Host string
	// TLSOnly: clients can only connect over TLS.
	TLSOnly bool
	// AMQP, WebAMQP, MQTT and Stream: the cluster accepts the protocol.
	AMQP, WebAMQP, MQTT, Stream bool
}

// BindExternal fills the data of a Secret in service-binding form for an external broker, and keeps other keys. The
// address for clients is that of the key amqp in the connection Secret; without it the data has none.
func BindExternal(data map[string][]byte, external *External, username, password string) {
	values := map[string]string{"type": "rabbitmq", "provider": "posthorn", "username": username, "password": password}
	if external.AMQP != nil {
		uri := *external.AMQP
		uri.User = url.UserPassword(username, password)
		port := uri.Port()
		switch {
		case port != "":
		case uri.Scheme == "amqps":
			port = strconv.Itoa(names.PortAMQPS)
		default:
			port = strconv.Itoa(names.PortAMQP)
		}
		if uri.Path == "" {
			uri.Path, uri.RawPath = "//", "/%2F"
		}
		values["host"], values["port"], values["uri"] = uri.Hostname(), port, uri.String()
	}
	for _, key := range []string{"host", "port", "uri", "web-amqp-port", "mqtt-port", "web-mqtt-port", "stream-port"} {
		delete(data, key)
	}
	for key, value := range values {
		data[key] = []byte(value)
	}
}

// EndpointOf returns the endpoint of a cluster's client Service.
func EndpointOf(cluster *posthornv1.BrokerCluster, protocols []posthornv1.Protocol) Endpoint {
	speaks := func(p posthornv1.Protocol) bool { return slices.Contains(protocols, p) }
	return Endpoint{
		Host: names.Host(cluster.Namespace, cluster.Name), TLSOnly: cluster.Spec.TLSOnly(),
		// The status has no protocols before the first reconciliation; AMQP is the likely one.
		AMQP: len(protocols) == 0 || speaks(posthornv1.ProtocolAMQP), WebAMQP: speaks(posthornv1.ProtocolWebAMQP),
		MQTT: speaks(posthornv1.ProtocolMQTT), Stream: speaks(posthornv1.ProtocolStream),
	}
}

// port returns the port of a protocol, without TLS or with it.
func (e Endpoint) port(plain, secure int) string {
	if e.TLSOnly {
		return strconv.Itoa(secure)
	}
	return strconv.Itoa(plain)
}

// uri returns the URI of the endpoint and its port. It is that of the first protocol of AMQP, MQTT and streams that the
// cluster accepts.
func (e Endpoint) uri(username, password string) (string, string) {
	uri := url.URL{User: url.UserPassword(username, password)}
	var port, secure string
	switch {
	case e.AMQP:
		uri.Scheme, secure, port = "amqp", "s", e.port(names.PortAMQP, names.PortAMQPS)
	case e.MQTT:
		uri.Scheme, secure, port = "mqtt", "s", e.port(names.PortMQTT, names.PortMQTTS)
	default:
		uri.Scheme, secure, port = "rabbitmq-stream", "+tls", e.port(names.PortStream, names.PortStreams)
	}
	if e.AMQP || !e.MQTT {
		// The vhost / is escaped, because clients interpret a bare slash differently.
		uri.Path, uri.RawPath = "//", "/%2F"
	}
	if e.TLSOnly {
		uri.Scheme += secure
	}
	uri.Host = net.JoinHostPort(e.Host, port)
	return uri.String(), port
}

// Bind fills the data of a Secret in service-binding form and keeps other keys.
func Bind(data map[string][]byte, e Endpoint, username, password string) {
	uri, port := e.uri(username, password)
	for key, value := range map[string]string{
		"type": "rabbitmq", "provider": "posthorn", "host": e.Host, "port": port,
		"username": username, "password": password, "uri": uri,
	} {
		data[key] = []byte(value)
	}
	// Names of the keys in RabbitMQ's cluster operator.
	for _, each := range []struct {
		key           string
		open          bool
		plain, secure int
	}{
		{"web-amqp-port", e.WebAMQP, names.PortWebAMQP, names.PortWebAMQPS},
		{"mqtt-port", e.MQTT, names.PortMQTT, names.PortMQTTS},
		{"web-mqtt-port", e.MQTT, names.PortWebMQTT, names.PortWebMQTTS},
		{"stream-port", e.Stream, names.PortStream, names.PortStreams},
	} {
		delete(data, each.key)
		if each.open {
			data[each.key] = []byte(e.port(each.plain, each.secure))
		}
	}
}
