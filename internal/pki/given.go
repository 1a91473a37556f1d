// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"time"
)

// Given is what a certificate that somebody else made tells about itself.
type Given struct {
	NotBefore, NotAfter time.Time
	names               []string
	addresses           []net.IP
}

// Inspect reads a certificate (the first of a chain, PEM) and checks that the key fits, whatever kind
// of key it is.
func Inspect(pair Pair) (Given, error) {
	parsed, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		// The package's words, without its name.
		return Given{}, errors.New(strings.TrimPrefix(err.Error(), "tls: "))
	}
	return Given{NotBefore: parsed.Leaf.NotBefore, NotAfter: parsed.Leaf.NotAfter, names: parsed.Leaf.DNSNames, addresses: parsed.Leaf.IPAddresses}, nil
}

// NameFor is a name that the certificate is for: the host where it names that, else the first that it
// names, a "*" in it filled in; empty when it names nothing.
func (g Given) NameFor(host string) string {
	switch {
	case g.Names(host):
		return host
	case len(g.names) > 0:
		return strings.Replace(g.names[0], "*", "posthorn", 1)
	case len(g.addresses) > 0:
		return g.addresses[0].String()
	}
	return ""
}

// Names says whether the certificate is for a host. A host with a "*" must be named exactly so.
func (g Given) Names(host string) bool {
	for _, name := range g.names {
		if strings.EqualFold(name, host) {
			return true
		}
		// RFC 6125, 6.4.3: the wildcard stands for exactly one label, the leftmost.
		rest, isWildcard := strings.CutPrefix(name, "*.")
		if _, parent, found := strings.Cut(host, "."); isWildcard && found && strings.EqualFold(rest, parent) {
			return true
		}
	}
	return false
}

// HoldsCertificate says whether PEM text holds a certificate that can be read.
func HoldsCertificate(text []byte) bool { return len(certificates(text)) > 0 }
