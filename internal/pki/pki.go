// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pki is a small certificate authority (CA): it issues CA certificates and leaf certificates, and decides
// when to replace them.
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
	// AuthorityLifetime of a new CA.
	AuthorityLifetime = 20 * 365 * 24 * time.Hour
	// AuthorityRenewBefore is how long before its end a CA gets a successor.
	AuthorityRenewBefore = 2 * 365 * 24 * time.Hour
	// skew is how far a clock may be behind and still accept a new certificate.
	skew = 5 * time.Minute
)

// Pair is a certificate with its key, both PEM; the key is PKCS#8.
type Pair struct {
	Cert []byte
	Key  []byte
}

// NewAuthority creates a self-signed CA.
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
		return Pair{}, fmt.Errorf("generating the CA's key: %w", err)
	}
	return sign(template, template, key, key)
}

// Leaf describes a certificate to issue.
type Leaf struct {
	// Name is the common name.
	Name string
	// Hosts are the host names.
	Hosts []string
	// Usages of the key.
	Usages []x509.ExtKeyUsage
	// Lifetime of a new certificate, which the end of the CA may shorten.
	Lifetime time.Duration
	// RenewBefore is how long before its end the certificate is replaced.
	RenewBefore time.Duration
	// Settle is how long a CA must have been trusted before it signs certificates, so that all peers have learnt of
	// it.
	Settle time.Duration
}

// Issue creates a certificate signed by the CA.
func Issue(authority Pair, leaf Leaf, now time.Time) (Pair, error) {
	issuer, issuerKey, err := parse(authority)
	if err != nil {
		return Pair{}, fmt.Errorf("the CA: %w", err)
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

// Check verifies that the CA signed the pair, that certificate and key match and that the hosts are in it, and
// returns the end. A nil error with an end in the past is possible.
func Check(authorityCert []byte, pair Pair, hosts []string) (time.Time, error) {
	cert, _, err := parse(pair)
	if err != nil {
		return time.Time{}, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorityCert) {
		return time.Time{}, errors.New("the CA certificate cannot be parsed")
	}
	options := x509.VerifyOptions{Roots: roots, CurrentTime: cert.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if _, err := cert.Verify(options); err != nil {
		return time.Time{}, fmt.Errorf("the certificate is not signed by the CA: %w", err)
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
		return nil, fmt.Errorf("generating a serial number: %w", err)
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

// parse parses a pair and checks that certificate and key match.
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
		return nil, nil, errors.New("certificate and key do not match")
	}
	return cert, key, nil
}
