// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Material is a certificate and the CA certificates that its peers trust, as stored in a Secret.
type Material struct {
	// Trusted CA certificates, PEM.
	Trusted []byte
	Pair
	// TrustedSince is when Trusted last changed; zero is long ago.
	TrustedSince time.Time
}

// Need is the next action for a certificate.
type Need int

// Needs, in rising order of urgency.
const (
	// Nothing: the certificate is valid for long.
	Nothing Need = iota
	// Renew: the certificate is valid, and its replacement is not urgent.
	Renew
	// Replace: the certificate is unusable and has to be replaced at once.
	Replace
)

// Judge decides the need of a certificate and returns its end (zero when unknown):
//
//	signed by a trusted CA, matches its key, not expired | has all hosts | far from its end | need
//	yes                                                  | yes           | yes              | Nothing
//	yes                                                  | no            | any              | Renew
//	yes                                                  | any           | no               | Renew
//	no                                                   | any           | any              | Replace
func Judge(m Material, leaf Leaf, now time.Time) (Need, time.Time) {
	end, err := Check(m.Trusted, m.Pair, nil)
	if err != nil || !now.Before(end) {
		return Replace, time.Time{}
	}
	if _, err := Check(m.Trusted, m.Pair, leaf.Hosts); err != nil || !now.Add(leaf.RenewBefore).Before(end) {
		return Renew, end
	}
	return Nothing, end
}

// Advance takes one step towards a new certificate of the CA. A usable certificate is replaced by one of another CA
// only when that CA has been trusted for leaf.Settle: nodes and clients learn of a CA before they see a certificate
// of it.
//
//	need    | CA trusted | signed the present certificate | trusted since | step
//	Nothing | any        | any                            | any           | keep all
//	Replace | any        | any                            | any           | trust the CA and issue
//	Renew   | no         | no                             |               | trust the CA, keep the certificate
//	Renew   | yes        | yes                            | any           | issue
//	Renew   | yes        | no                             | < Settle      | keep all
//	Renew   | yes        | no                             | >= Settle     | issue
//
// Issuing a certificate removes expired CA certificates.
func Advance(m Material, authority Pair, leaf Leaf, now time.Time) (Material, error) {
	need, _ := Judge(m, leaf, now)
	trusted := hasCertificate(m.Trusted, authority.Cert)
	_, stranger := Check(authority.Cert, m.Pair, nil)
	settled := stranger == nil || !now.Before(m.TrustedSince.Add(leaf.Settle))
	if need == Nothing || (need == Renew && trusted && !settled) {
		return m, nil
	}
	if need == Renew && !trusted {
		m.Trusted = append(bytes.Clone(m.Trusted), authority.Cert...)
		m.TrustedSince = now
		return m, nil
	}
	issued, err := Issue(authority, leaf, now)
	if err != nil {
		return m, fmt.Errorf("issuing a certificate: %w", err)
	}
	kept := unexpired(m.Trusted, now)
	if !hasCertificate(kept, authority.Cert) {
		kept = append(kept, authority.Cert...)
	}
	if !bytes.Equal(kept, m.Trusted) {
		m.Trusted, m.TrustedSince = kept, now
	}
	m.Pair = issued
	return m, nil
}

// NeedsAuthority reports whether a CA cannot sign certificates now or soon.
func NeedsAuthority(authority Pair, now time.Time) bool {
	end, err := Check(authority.Cert, authority, nil)
	return err != nil || !now.Add(AuthorityRenewBefore).Before(end)
}

// certificates returns the certificates in PEM text that can be parsed.
func certificates(text []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return out
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, cert)
		}
	}
}

func hasCertificate(text, one []byte) bool {
	wanted := certificates(one)
	for _, cert := range certificates(text) {
		if len(wanted) > 0 && cert.Equal(wanted[0]) {
			return true
		}
	}
	return false
}

func unexpired(text []byte, now time.Time) []byte {
	var out []byte
	for _, cert := range certificates(text) {
		if now.Before(cert.NotAfter) {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
		}
	}
	return out
}
