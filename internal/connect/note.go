// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"posthorn.io/posthorn/internal/broker"
)

// Keys of the Secret with the operator's note of a cluster (names.OperatorSecret).
const (
	usernameKey = "username"
	passwordKey = "password"
	// schemeKey is by what the Service is asked: schemeTLS, or without TLS.
	schemeKey = "scheme"
	schemeTLS = "https"
	// trustKey holds a JSON list of Trust.
	trustKey = "trust.json"
)

// Note is what the operator notes of a cluster: as whom and how its HTTP API is asked.
type Note struct {
	Username, Password string
	// Secure: the Service is asked over TLS.
	Secure bool
	// trusts is the JSON list of what nodes are believed by.
	trusts string
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
	return Note{
		Username: string(secret.Data[usernameKey]), Password: string(secret.Data[passwordKey]),
		Secure: string(secret.Data[schemeKey]) == schemeTLS, trusts: string(secret.Data[trustKey]),
	}
}

// WriteCredentials notes as whom to ask, and leaves the rest.
func WriteCredentials(secret *corev1.Secret, username, password string) {
	write(secret, usernameKey, username)
	write(secret, passwordKey, password)
}

// WriteTrust notes how to ask, and leaves the rest.
func WriteTrust(secret *corev1.Secret, secure bool, trusts []Trust) error {
	delete(secret.Data, schemeKey)
	delete(secret.Data, trustKey)
	if secure {
		write(secret, schemeKey, schemeTLS)
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
