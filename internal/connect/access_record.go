// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"

	"posthorn.io/posthorn/internal/broker"
)

// Keys of the operator's access Secret of a cluster (names.OperatorSecret).
const (
	usernameKey = "username"
	passwordKey = "password"
	// listenerKey is the Listener through which the operator reaches any ready node.
	listenerKey = "scheme"
	// trustKey has a JSON list of Trust.
	trustKey = "trust.json"
	// identityKey has an Identity as JSON.
	identityKey = "identity.json"
)

// AccessRecord is the content of the operator's access Secret of a cluster: its credentials, and how to reach and
// verify the nodes.
type AccessRecord struct {
	Username, Password string
	// Listener through which the operator reaches any ready node.
	Listener Listener
	// trusts is the JSON list of the trusts that verify nodes.
	trusts string
	// identity is the JSON form of the operator's Identity.
	identity string
}

// Identity is the operator's client certificate for a cluster, and the verification of the nodes that accept it.
type Identity struct {
	// Cert and Key, PEM.
	Cert string `json:"cert"`
	Key  string `json:"key"`
	// Name in the nodes' certificate.
	Name string `json:"name"`
	// Roots are the CA certificates of the nodes' certificate, PEM.
	Roots string `json:"roots"`
}

// Trust verifies nodes that show the certificate of a Secret.
type Trust struct {
	// Secret that the nodes mount.
	Secret string `json:"secret"`
	// Name in the certificate; one of its names, even if it is not the name of a Service.
	Name string `json:"name"`
	// Roots are the CA certificates in the Secret and the certificate's own chain, PEM.
	Roots string `json:"roots"`
	// Superseded is when new pods stopped using the certificate; zero while they use it.
	Superseded time.Time `json:"superseded,omitzero"`
}

// AccessRecordOf reads an access Secret.
func AccessRecordOf(secret *corev1.Secret) AccessRecord {
	record := AccessRecord{
		Username: string(secret.Data[usernameKey]), Password: string(secret.Data[passwordKey]),
		trusts: string(secret.Data[trustKey]), identity: string(secret.Data[identityKey]),
	}
	switch listener := Listener(secret.Data[listenerKey]); listener {
	case Secure, Operator:
		record.Listener = listener
	case Plain:
	}
	return record
}

// WriteCredentials writes the credentials and keeps the rest.
func WriteCredentials(secret *corev1.Secret, username, password string) {
	write(secret, usernameKey, username)
	write(secret, passwordKey, password)
}

// WriteTrust writes the listener and the trusts and keeps the rest.
func WriteTrust(secret *corev1.Secret, listener Listener, trusts []Trust) error {
	delete(secret.Data, listenerKey)
	delete(secret.Data, trustKey)
	if listener != Plain {
		write(secret, listenerKey, string(listener))
	}
	if len(trusts) == 0 {
		return nil
	}
	text, err := json.Marshal(trusts)
	if err != nil {
		return fmt.Errorf("encoding the trusts: %w", err)
	}
	write(secret, trustKey, string(text))
	return nil
}

// WriteIdentity writes the operator's certificate and keeps the rest.
func WriteIdentity(secret *corev1.Secret, identity Identity) error {
	text, err := json.Marshal(identity)
	if err != nil {
		return fmt.Errorf("encoding the operator's certificate: %w", err)
	}
	write(secret, identityKey, string(text))
	return nil
}

func write(secret *corev1.Secret, key, value string) {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[key] = []byte(value)
}

// Trusts returns the recorded trusts; none when the record cannot be decoded, because the operator then writes a new
// one.
func (r AccessRecord) Trusts() []Trust {
	var out []Trust
	if json.Unmarshal([]byte(r.trusts), &out) != nil {
		return nil
	}
	return out
}

// parsedTrusts returns the trusts with their CA certificates parsed.
func (r AccessRecord) parsedTrusts() ([]broker.Trust, error) {
	var out []broker.Trust
	for _, trust := range r.Trusts() {
		roots := x509.NewCertPool()
		if roots.AppendCertsFromPEM([]byte(trust.Roots)) {
			out = append(out, broker.Trust{Name: trust.Name, Roots: roots})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no CA certificate is recorded yet that could verify the nodes; wait for the reconciliation of the BrokerCluster")
	}
	return out, nil
}

// HasIdentity reports whether the record has the operator's certificate.
func (r AccessRecord) HasIdentity() bool { return r.identity != "" }

// transport for requests to a listener with TLS.
func (r AccessRecord) transport(listener Listener) (*http.Transport, error) {
	if listener == Operator {
		return r.operatorTransport()
	}
	trusts, err := r.parsedTrusts()
	if err != nil {
		return nil, err
	}
	return broker.NewSecureTransport(trusts), nil
}

func (r AccessRecord) operatorTransport() (*http.Transport, error) {
	var identity Identity
	if err := json.Unmarshal([]byte(r.identity), &identity); err != nil {
		return nil, errors.New("the operator's certificate is not recorded yet; wait for the reconciliation of the BrokerCluster")
	}
	shown, err := tls.X509KeyPair([]byte(identity.Cert), []byte(identity.Key))
	if err != nil {
		return nil, fmt.Errorf("reading the operator's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(identity.Roots)) {
		return nil, errors.New("the CA certificates of the nodes' certificate cannot be parsed")
	}
	return broker.NewSecureTransport([]broker.Trust{{Name: identity.Name, Roots: roots, Shown: &shown}}), nil
}
