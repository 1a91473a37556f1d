// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
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
