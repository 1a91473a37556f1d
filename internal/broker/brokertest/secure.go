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

// Listens is by what a node can be asked.
type Listens struct {
	Plain, Secure bool
	// Operator: with the operator's certificate.
	Operator bool
}

// SetListens lets nodes be asked by what listens says, and nobody by anything else. Without it they are
// asked without TLS.
func (s *Server) SetListens(listens func(node string) Listens) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listens = listens
}

// open says whether a node, or for a Service any that runs, takes a request.
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

// fromOperator says that the client has the operator's certificate, which TLS has verified, and gives no password.
func fromOperator(r *http.Request) bool {
	_, _, password := r.BasicAuth()
	return !password && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].Subject.CommonName == operatorName
}

// DropConnections ends connections with TLS that wait for another request: the next one is made anew.
func (s *Server) DropConnections() {
	for _, listener := range s.secureListeners() {
		listener.CloseClientConnections()
	}
}

// secureListeners are those there are. They wait for their handlers, which want the lock.
func (s *Server) secureListeners() []*httptest.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.secure))
}

// doorway is a listener with TLS of a node; without a node it is a Service's.
type doorway struct {
	node     string
	operator bool
}

// SecureURL is where a node (empty: the client Service) listens with TLS. certificate gives what it shows
// to each new connection.
func (s *Server) SecureURL(node string, certificate func() (*tls.Certificate, error)) string {
	return s.listenTLS(doorway{node: node}, func() (*tls.Config, error) {
		shown, err := certificate()
		if err != nil {
			return nil, err
		}
		return &tls.Config{Certificates: []tls.Certificate{*shown}, MinVersion: tls.VersionTLS12}, nil
	})
}

// OperatorURL is where a node (empty: the operator's Service) takes the operator's certificate. config gives
// the TLS of each new connection; it must verify client certificates.
func (s *Server) OperatorURL(node string, config func() (*tls.Config, error)) string {
	return s.listenTLS(doorway{node: node, operator: true}, config)
}

// OperatorTLS is the TLS of a listener for the operator: the node's certificate, and the authorities of the operator's.
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
		// A configuration for each client, so that none of them resumes what another certificate began.
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
