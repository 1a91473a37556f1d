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

// Keys of the Secret with the operator's note of a cluster (names.OperatorSecret).
const (
	usernameKey = "username"
	passwordKey = "password"
	// listenerKey is the Listener that any ready node is asked at.
	listenerKey = "scheme"
	// trustKey holds a JSON list of Trust.
	trustKey = "trust.json"
	// identityKey holds an Identity as JSON.
	identityKey = "identity.json"
)

// Note is what the operator notes of a cluster: as whom and how its HTTP API is asked.
type Note struct {
	Username, Password string
	// Listener that any ready node is asked at.
	Listener Listener
	// trusts is the JSON list of what nodes are believed by.
	trusts string
	// identity is the JSON form of the operator's Identity.
	identity string
}

// Identity is the operator's client certificate for a cluster, and how it verifies the certificate of the nodes that take it.
type Identity struct {
	// Cert and Key, PEM.
	Cert string `json:"cert"`
	Key  string `json:"key"`
	// Name that the nodes' certificate is for.
	Name string `json:"name"`
	// Roots of the nodes' certificate, PEM.
	Roots string `json:"roots"`
}

// Trust is by what nodes are believed that show the certificate of a Secret.
type Trust struct {
	// Secret that the nodes mount.
	Secret string `json:"secret"`
	// Name that the certificate is for; one that it has, also where that is no name of a Service.
	Name string `json:"name"`
	// Roots, PEM: the authorities that the Secret names, and the certificate's own chain.
	Roots string `json:"roots"`
	// Superseded is when no new pod was given it any more; zero: it is in use.
	Superseded time.Time `json:"superseded,omitzero"`
}

// NoteOf reads a note.
func NoteOf(secret *corev1.Secret) Note {
	note := Note{
		Username: string(secret.Data[usernameKey]), Password: string(secret.Data[passwordKey]),
		trusts: string(secret.Data[trustKey]), identity: string(secret.Data[identityKey]),
	}
	switch listener := Listener(secret.Data[listenerKey]); listener {
	case Secure, Operator:
		note.Listener = listener
	case Plain:
	}
	return note
}

// WriteCredentials notes as whom to ask, and leaves the rest.
func WriteCredentials(secret *corev1.Secret, username, password string) {
	write(secret, usernameKey, username)
	write(secret, passwordKey, password)
}

// WriteTrust notes how to ask, and leaves the rest.
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
		return fmt.Errorf("noting what nodes are believed by: %w", err)
	}
	write(secret, trustKey, string(text))
	return nil
}

// WriteIdentity notes the operator's certificate, and leaves the rest.
func WriteIdentity(secret *corev1.Secret, identity Identity) error {
	text, err := json.Marshal(identity)
	if err != nil {
		return fmt.Errorf("noting the operator's certificate: %w", err)
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

// Trusts that are noted; none where what is noted cannot be read: it is made anew then.
func (n Note) Trusts() []Trust {
	var out []Trust
	if json.Unmarshal([]byte(n.trusts), &out) != nil {
		return nil
	}
	return out
}

// believed are the trusts with their roots read.
func (n Note) believed() ([]broker.Trust, error) {
	var out []broker.Trust
	for _, trust := range n.Trusts() {
		roots := x509.NewCertPool()
		if roots.AppendCertsFromPEM([]byte(trust.Roots)) {
			out = append(out, broker.Trust{Name: trust.Name, Roots: roots})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("it is not noted yet by what the nodes' certificates are believed")
	}
	return out, nil
}

// HasIdentity says whether the operator's certificate is noted.
func (n Note) HasIdentity() bool { return n.identity != "" }

// transport for requests to a listener with TLS.
func (n Note) transport(listener Listener) (*http.Transport, error) {
	if listener == Operator {
		return n.operatorTransport()
	}
	trusts, err := n.believed()
	if err != nil {
		return nil, err
	}
	return broker.NewSecureTransport(trusts), nil
}

func (n Note) operatorTransport() (*http.Transport, error) {
	var identity Identity
	if err := json.Unmarshal([]byte(n.identity), &identity); err != nil {
		return nil, errors.New("the operator's certificate is not noted yet")
	}
	shown, err := tls.X509KeyPair([]byte(identity.Cert), []byte(identity.Key))
	if err != nil {
		return nil, fmt.Errorf("reading the operator's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(identity.Roots)) {
		return nil, errors.New("the authorities of the nodes' certificate cannot be read")
	}
	return broker.NewSecureTransport([]broker.Trust{{Name: identity.Name, Roots: roots, Shown: &shown}}), nil
}
