// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/url"
	"strconv"

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

// Binding gives the data of a Secret in service-binding form. tlsOnly is for clusters that take no
// plain connections.
func Binding(host string, tlsOnly bool, username, password string) map[string][]byte {
	scheme, port := "amqp", strconv.Itoa(names.PortAMQP)
	if tlsOnly {
		scheme, port = "amqps", strconv.Itoa(names.PortAMQPS)
	}
	uri := url.URL{
		Scheme: scheme,
		User:   url.UserPassword(username, password),
		Host:   net.JoinHostPort(host, port),
		// The vhost /, escaped: clients disagree about what a bare slash means.
		Path:    "//",
		RawPath: "/%2F",
	}
	return map[string][]byte{
		"type":     []byte("rabbitmq"),
		"provider": []byte("posthorn"),
		"host":     []byte(host),
		"port":     []byte(port),
		"username": []byte(username),
		"password": []byte(password),
		"uri":      []byte(uri.String()),
	}
}
