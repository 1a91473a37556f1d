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

// Given describes a certificate that another CA issued.
type Given struct {
	NotBefore, NotAfter time.Time
	names               []string
	addresses           []net.IP
}

// Inspect parses a certificate (the first of a chain, PEM) and checks that the key of any type matches.
func Inspect(pair Pair) (Given, error) {
	parsed, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		// Without the name of the package.
		return Given{}, errors.New(strings.TrimPrefix(err.Error(), "tls: "))
	}
	return Given{NotBefore: parsed.Leaf.NotBefore, NotAfter: parsed.Leaf.NotAfter, names: parsed.Leaf.DNSNames, addresses: parsed.Leaf.IPAddresses}, nil
}

// NameFor returns a name in the certificate: the host if the certificate has it, else its first name with a "*"
// filled in; empty when it has none.
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

// Names reports whether the certificate is valid for a host. A host with a "*" must match exactly.
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

// HoldsCertificate reports whether PEM text has a certificate that can be parsed.
func HoldsCertificate(text []byte) bool { return len(certificates(text)) > 0 }
