// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokertest

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
)

// Listens are the listeners of a node.
type Listens struct {
	Plain, Secure bool
	// Operator accepts the operator's certificate.
	Operator bool
}

// SetListens sets the listeners of each node. Without it every node has only the listener without TLS.
func (s *Server) SetListens(listens func(node string) Listens) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listens = listens
}

// open reports whether the node accepts a request; for a Service, whether any running node does.
func (s *Server) open(r *request) bool {
	takes := func(name string) bool {
		listens := Listens{Plain: true}
		if s.listens != nil {
			listens = s.listens(name)
		}
		switch {
		case r.TLS == nil:
			return listens.Plain
		case len(r.TLS.PeerCertificates) > 0:
			return listens.Operator
		}
		return listens.Secure
	}
	if r.node != "" || s.listens == nil {
		return takes(r.node)
	}
	for name, n := range s.nodes {
		if n.running && takes(name) {
			return true
		}
	}
	return false
}

// operatorName is the common name of the operator's certificate.
const operatorName = "operator"

// fromOperator reports whether the client has the operator's certificate, which TLS has verified, and sends no
// password.
func fromOperator(r *http.Request) bool {
	_, _, password := r.BasicAuth()
	return !password && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].Subject.CommonName == operatorName
}

// DropConnections closes idle connections with TLS, so that the next request opens a new one.
func (s *Server) DropConnections() {
	for _, listener := range s.secureListeners() {
		listener.CloseClientConnections()
	}
}

// secureListeners returns the listeners with TLS. Their handlers need the lock, and closing a listener waits for its
// handlers.
func (s *Server) secureListeners() []*httptest.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.secure))
}

// doorway identifies a listener with TLS of a node, or of a Service when it has no node.
type doorway struct {
	node     string
	operator bool
}

// SecureURL returns the URL of a node's listener with TLS, or of the client Service when node is empty. certificate
// returns the certificate for each new connection.
func (s *Server) SecureURL(node string, certificate func() (*tls.Certificate, error)) string {
	return s.listenTLS(doorway{node: node}, func() (*tls.Config, error) {
		shown, err := certificate()
		if err != nil {
			return nil, err
		}
		return &tls.Config{Certificates: []tls.Certificate{*shown}, MinVersion: tls.VersionTLS12}, nil
	})
}

// OperatorURL returns the URL of a node's listener for the operator's certificate, or of the operator's Service when
// node is empty. config returns the TLS configuration of each new connection, which must verify client certificates.
func (s *Server) OperatorURL(node string, config func() (*tls.Config, error)) string {
	return s.listenTLS(doorway{node: node, operator: true}, config)
}

// OperatorTLS returns the TLS configuration of a listener for the operator, with the node's certificate and the CA
// certificates of the operator's.
func OperatorTLS(cert, key, authorities []byte) (*tls.Config, error) {
	shown, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("reading the node's certificate: %w", err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(authorities)
	return &tls.Config{
		Certificates: []tls.Certificate{shown}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	}, nil
}

func (s *Server) listenTLS(at doorway, config func() (*tls.Config, error)) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secure == nil {
		s.secure = map[doorway]*httptest.Server{}
	}
	listener := s.secure[at]
	if listener == nil {
		listener = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
		// A configuration for each client prevents the resumption of a session with another certificate.
		listener.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return config() }}
		listener.Config.ErrorLog = log.New(io.Discard, "", 0)
		listener.StartTLS()
		s.secure[at] = listener
	}
	if at.node == "" {
		return listener.URL
	}
	return listener.URL + nodePrefix + at.node
}
