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

// Material is a certificate and the authorities that those who meet it trust, as a Secret holds them.
type Material struct {
	// Trusted authorities, PEM.
	Trusted []byte
	Pair
	// TrustedSince is when Trusted last changed; zero is long ago.
	TrustedSince time.Time
}

// Need is what is to be done about a certificate.
type Need int

// Needs, in rising order of haste.
const (
	// Nothing: it is good for long.
	Nothing Need = iota
	// Renew: it is good, and is to be replaced at leisure.
	Renew
	// Replace: it cannot be used, so another is needed at once.
	Replace
)

// Judge says what a certificate needs, and when it ends (zero when that cannot be told):
//
//	of a trusted authority, with its key, not ended | names all hosts | far from its end | need
//	yes                                             | yes             | yes              | Nothing
//	yes                                             | no              | any              | Renew
//	yes                                             | any             | no               | Renew
//	no                                              | any             | any              | Replace
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

// Advance takes one step towards a new certificate of the authority. A certificate that can still be
// used is replaced by one of another authority only when that has been trusted for leaf.Settle: nodes
// and clients learn of an authority before they meet a certificate of it.
//
//	need    | authority trusted | signed the certificate that is there | trusted since | step
//	Nothing | any               | any                                  | any           | keep all
//	Replace | any               | any                                  | any           | trust it and issue
//	Renew   | no                | no                                   |               | trust it, keep the certificate
//	Renew   | yes               | yes                                  | any           | issue
//	Renew   | yes               | no                                   | < Settle      | keep all
//	Renew   | yes               | no                                   | >= Settle     | issue
//
// Authorities that have ended are trusted no more once a certificate is issued.
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

// NeedsAuthority says whether an authority cannot, or soon can no longer, sign certificates.
func NeedsAuthority(authority Pair, now time.Time) bool {
	end, err := Check(authority.Cert, authority, nil)
	return err != nil || !now.Add(AuthorityRenewBefore).Before(end)
}

// certificates gives the certificates of PEM text that can be read.
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
