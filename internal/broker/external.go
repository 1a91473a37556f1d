// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	// retryPause is how long requests to an external broker fail at once after one that did not reach it. Without the
	// pause, the objects of one unreachable broker would occupy all workers until their timeouts.
	retryPause = 5 * time.Second
	// maxHeader bounds the header of an answer, in bytes.
	maxHeader = 64 << 10
)

// ExternalTransport sends requests to a broker that the operator does not run.
type ExternalTransport struct {
	transport *http.Transport
	now       func() time.Time

	mu sync.Mutex
	// failure is the error of the last request that did not reach the broker, and until the end of the pause after it.
	failure error
	until   time.Time
}

// NewExternalTransport returns a transport for HTTP, and for HTTPS with one trust. A trust without roots has those of
// the operating system.
func NewExternalTransport(trust Trust) *ExternalTransport {
	transport := NewSecureTransport([]Trust{trust})
	dial := again((&net.Dialer{Timeout: dialTimeout, Control: refuseLinkLocal}).DialContext)
	transport.DialContext = dial
	transport.DialTLSContext = secure(dial, []Trust{trust})
	transport.MaxResponseHeaderBytes = maxHeader
	return &ExternalTransport{transport: transport, now: time.Now}
}

// refuseLinkLocal refuses link-local addresses, at which clouds serve the credentials of their machines. The author of a
// connection Secret chooses the address, and the error goes into a status that the author can read.
func refuseLinkLocal(_, address string, _ syscall.RawConn) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("parsing the address: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
		return errors.New("link-local and multicast addresses are not allowed for external brokers")
	}
	return nil
}

// RoundTrip implements http.RoundTripper.
func (t *ExternalTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	t.mu.Lock()
	failure := t.failure
	if failure != nil && !t.now().Before(t.until) {
		failure, t.failure = nil, nil
	}
	t.mu.Unlock()
	if failure != nil {
		return nil, failure
	}
	response, err := t.transport.RoundTrip(request)
	// A caller that gives up says nothing about the broker.
	if err != nil && !errors.Is(err, context.Canceled) {
		t.mu.Lock()
		t.failure, t.until = err, t.now().Add(retryPause)
		t.mu.Unlock()
	}
	return response, err
}

// CloseIdleConnections closes connections that no request uses.
func (t *ExternalTransport) CloseIdleConnections() { t.transport.CloseIdleConnections() }
