// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 1500 * time.Millisecond
	// dialAttempts is the number of attempts to connect. Behind a Service each attempt may reach another node, so
	// that one node without a network does not make the cluster unreachable.
	dialAttempts = 3
	// shakeTimeout bounds one TLS handshake.
	shakeTimeout = 3 * time.Second
	// idleTimeout is short, so that connections do not outlive the pod.
	idleTimeout = 20 * time.Second
	// idlePerHost bounds idle connections to one host.
	idlePerHost = 16
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// NewTransport returns a transport that clients share.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext:           again((&net.Dialer{Timeout: dialTimeout}).DialContext),
		MaxIdleConnsPerHost:   idlePerHost,
		IdleConnTimeout:       idleTimeout,
		ResponseHeaderTimeout: requestTimeout,
	}
}

// Trust verifies the certificate of a node.
type Trust struct {
	// Name that the certificate must have.
	Name string
	// Roots are the CA certificates that must have signed it, directly or through others.
	Roots *x509.CertPool
	// Shown is the client certificate for a node that asks for one; nil for none.
	Shown *tls.Certificate
}

// NewSecureTransport returns a transport for HTTPS. It accepts a node whose certificate passes any of the trusts:
// while certificates are replaced, nodes have different ones.
func NewSecureTransport(trusts []Trust) *http.Transport {
	transport := NewTransport()
	transport.DialTLSContext = secure(transport.DialContext, trusts)
	return transport
}

// secure dials and performs the TLS handshake. It opens another connection for each further trust.
func secure(dial dialer, trusts []Trust) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		failure := errors.New("no CA certificate is known that could verify the node's certificate")
		for _, trust := range trusts {
			plain, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			config := &tls.Config{ServerName: trust.Name, RootCAs: trust.Roots, MinVersion: tls.VersionTLS12}
			if trust.Shown != nil {
				config.Certificates = []tls.Certificate{*trust.Shown}
			}
			conn := tls.Client(plain, config)
			if failure = shake(ctx, conn); failure == nil {
				return conn, nil
			}
			_ = plain.Close()
			if !IsUntrusted(failure) {
				return nil, failure
			}
		}
		return nil, failure
	}
}

func shake(ctx context.Context, conn *tls.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, shakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return nil
}

// again dials again after a timeout. No request was sent yet, so this is safe for every request. Other errors are
// immediate and would repeat.
func again(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		for attempt := 0; attempt < dialAttempts; attempt++ {
			conn, err = dial(ctx, network, address)
			var timeout net.Error
			if err == nil || ctx.Err() != nil || !errors.As(err, &timeout) || !timeout.Timeout() {
				return conn, err
			}
		}
		return nil, err
	}
}
