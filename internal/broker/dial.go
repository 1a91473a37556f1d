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
	// dialAttempts is how often a connection is tried. Behind a Service each attempt may meet another
	// node, so one node that is off the network does not make the cluster look unreachable.
	dialAttempts = 3
	// shakeTimeout bounds one TLS handshake.
	shakeTimeout = 3 * time.Second
	// idleTimeout is short, so that connections do not stick to a pod that is gone.
	idleTimeout = 20 * time.Second
	// idlePerHost bounds idle connections to one host.
	idlePerHost = 16
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// NewTransport makes a transport to be shared by clients.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext:           again((&net.Dialer{Timeout: dialTimeout}).DialContext),
		MaxIdleConnsPerHost:   idlePerHost,
		IdleConnTimeout:       idleTimeout,
		ResponseHeaderTimeout: requestTimeout,
	}
}

// Trust is by what the certificate of a node is believed.
type Trust struct {
	// Name that the certificate must be for.
	Name string
	// Roots that it must come from, directly or by others.
	Roots *x509.CertPool
	// Shown is the client certificate for a node that asks for one; nil: none.
	Shown *tls.Certificate
}

// NewSecureTransport makes a transport for HTTPS. A node is believed by the first trust that fits its
// certificate: while certificates are being replaced nodes show different ones.
func NewSecureTransport(trusts []Trust) *http.Transport {
	transport := NewTransport()
	transport.DialTLSContext = secure(transport.DialContext, trusts)
	return transport
}

// secure dials and agrees on TLS. Another connection is made for each trust that does not fit.
func secure(dial dialer, trusts []Trust) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		failure := errors.New("it is not known by what the node's certificate is to be believed")
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
		return fmt.Errorf("agreeing on TLS: %w", err)
	}
	return nil
}

// again dials anew after a timeout. Nothing was sent then, so it is safe for every request. Other
// errors come at once and mean the same the next time.
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
