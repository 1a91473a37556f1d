// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokertest

import (
	"crypto/tls"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
)

// SetListens lets nodes be asked by what listens says, and nobody by anything else. Without it they are
// asked without TLS.
func (s *Server) SetListens(listens func(node string) (plain, secure bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listens = listens
}

// open says whether a node, or for the Service any that runs, takes a request.
func (s *Server) open(node string, secure bool) bool {
	if s.listens == nil {
		return !secure
	}
	takes := func(name string) bool {
		plain, overTLS := s.listens(name)
		return secure && overTLS || !secure && plain
	}
	if node != "" {
		return takes(node)
	}
	for name, n := range s.nodes {
		if n.running && takes(name) {
			return true
		}
	}
	return false
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

// SecureURL is where a node (empty: the client Service) listens with TLS. certificate gives what it shows
// to each new connection.
func (s *Server) SecureURL(node string, certificate func() (*tls.Certificate, error)) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secure == nil {
		s.secure = map[string]*httptest.Server{}
	}
	listener := s.secure[node]
	if listener == nil {
		listener = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
		listener.TLS = &tls.Config{
			// A configuration for each client, so that none of them resumes what another certificate began.
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				shown, err := certificate()
				if err != nil {
					return nil, err
				}
				return &tls.Config{Certificates: []tls.Certificate{*shown}, MinVersion: tls.VersionTLS12}, nil
			},
		}
		listener.Config.ErrorLog = log.New(io.Discard, "", 0)
		listener.StartTLS()
		s.secure[node] = listener
	}
	if node == "" {
		return listener.URL
	}
	return listener.URL + nodePrefix + node
}
