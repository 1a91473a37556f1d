// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pki is a small certificate authority: it makes authorities and certificates, and says when
// which of them is to be replaced.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

const (
	// AuthorityLifetime of a new authority.
	AuthorityLifetime = 20 * 365 * 24 * time.Hour
	// AuthorityRenewBefore is how long before its end an authority gets a successor.
	AuthorityRenewBefore = 2 * 365 * 24 * time.Hour
	// skew lets clocks that are a little behind accept a new certificate.
	skew = 5 * time.Minute
)

// Pair is a certificate with its key, both PEM; the key is PKCS#8.
type Pair struct {
	Cert []byte
	Key  []byte
}

// NewAuthority makes a self-signed authority.
func NewAuthority(name string, now time.Time) (Pair, error) {
	template, err := newTemplate(name, now, AuthorityLifetime)
	if err != nil {
		return Pair{}, err
	}
	template.IsCA = true
	template.MaxPathLenZero = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generating the authority's key: %w", err)
	}
	return sign(template, template, key, key)
}

// Leaf is what a certificate is to be.
type Leaf struct {
	// Name is its common name.
	Name string
	// Hosts it is for.
	Hosts []string
	// Usages of its key.
	Usages []x509.ExtKeyUsage
	// Lifetime of a new one, which its authority's end may shorten.
	Lifetime time.Duration
	// RenewBefore is how long before its end it is replaced.
	RenewBefore time.Duration
	// Settle is how long an authority is trusted before certificates are signed by it: what everybody
	// needs to learn of it.
	Settle time.Duration
}

// Issue makes a certificate signed by the authority.
func Issue(authority Pair, leaf Leaf, now time.Time) (Pair, error) {
	issuer, issuerKey, err := parse(authority)
	if err != nil {
		return Pair{}, fmt.Errorf("the authority: %w", err)
	}
	template, err := newTemplate(leaf.Name, now, leaf.Lifetime)
	if err != nil {
		return Pair{}, err
	}
	if template.NotAfter.After(issuer.NotAfter) {
		template.NotAfter = issuer.NotAfter
	}
	template.DNSNames = leaf.Hosts
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = leaf.Usages
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generating a key: %w", err)
	}
	return sign(template, issuer, key, issuerKey)
}

// Check says whether the pair is signed by the authority's certificate, fits its key and names the
// hosts, and when it ends. A nil error with an end in the past is possible.
func Check(authorityCert []byte, pair Pair, hosts []string) (time.Time, error) {
	cert, _, err := parse(pair)
	if err != nil {
		return time.Time{}, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorityCert) {
		return time.Time{}, errors.New("the authority's certificate cannot be read")
	}
	options := x509.VerifyOptions{Roots: roots, CurrentTime: cert.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if _, err := cert.Verify(options); err != nil {
		return time.Time{}, fmt.Errorf("the certificate is not the authority's: %w", err)
	}
	for _, host := range hosts {
		if !slices.Contains(cert.DNSNames, host) {
			return time.Time{}, fmt.Errorf("the certificate does not name %s", host)
		}
	}
	return cert.NotAfter, nil
}

func newTemplate(name string, now time.Time, lifetime time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name, Organization: []string{"Posthorn"}},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(lifetime),
		BasicConstraintsValid: true,
	}, nil
}

func sign(template, issuer *x509.Certificate, key *ecdsa.PrivateKey, issuerKey crypto.Signer) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), issuerKey)
	if err != nil {
		return Pair{}, fmt.Errorf("signing: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding the key: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

// parse reads a pair and checks that certificate and key belong together.
func parse(pair Pair) (*x509.Certificate, crypto.Signer, error) {
	block, _ := pem.Decode(pair.Cert)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, nil, errors.New("no certificate in PEM form")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the certificate: %w", err)
	}
	block, _ = pem.Decode(pair.Key)
	if block == nil {
		return nil, nil, errors.New("no key in PEM form")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the key: %w", err)
	}
	key, isECDSA := parsed.(*ecdsa.PrivateKey)
	if !isECDSA || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("certificate and key do not belong together")
	}
	return cert, key, nil
}
