// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/pki"
)

// caKey is the key of the CA certificates in a Secret with a certificate.
const caKey = "ca.crt"

// ownCertificate is a certificate that the operator issues.
type ownCertificate struct {
	// secret has the certificate, authority the CA that signs it.
	secret, authority string
	// subject of a new CA.
	subject string
	leaf    pki.Leaf
}

// ensureOwnCertificate keeps a certificate and returns it with its end. It reads the CA only to renew the certificate:
// losing the CA's Secret has no effect before that.
func (r *reconciliation) ensureOwnCertificate(ctx context.Context, c ownCertificate) (pki.Material, time.Time, error) {
	var material pki.Material
	issued := false
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: c.secret}}
	err := r.ensure(ctx, secret, func() error {
		now := r.in.now
		material = materialOf(secret)
		if need, _ := pki.Judge(material, c.leaf, now); need == pki.Nothing {
			return nil
		}
		authority, err := r.ensureAuthority(ctx, c.authority, c.subject, now)
		if err != nil {
			return err
		}
		next, err := pki.Advance(material, authority, c.leaf, now)
		if err != nil {
			return err
		}
		issued = secret.UID != "" && string(next.Cert) != string(material.Cert)
		material = next
		fillCertificate(secret, material)
		return nil
	})
	if err != nil {
		return material, time.Time{}, err
	}
	need, end := pki.Judge(material, c.leaf, r.in.now)
	if need == pki.Replace {
		return material, end, fmt.Errorf("the new certificate in Secret %s is unusable", c.secret)
	}
	if issued {
		r.out.note("CertificateRenewed", "Renew", "Secret %s has a new certificate, valid until %s", c.secret, end.UTC().Format(time.RFC3339))
	}
	return material, end, nil
}

// ensureAuthority reads a CA, or creates one when none is usable.
func (r *reconciliation) ensureAuthority(ctx context.Context, name, subject string, now time.Time) (pki.Pair, error) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
	var authority pki.Pair
	err := r.ensure(ctx, secret, func() error {
		authority = pairOf(secret)
		if !pki.NeedsAuthority(authority, now) {
			return nil
		}
		var err error
		if authority, err = pki.NewAuthority(subject, now); err != nil {
			return err
		}
		if secret.UID == "" {
			secret.Type = corev1.SecretTypeTLS
		}
		secret.Data = map[string][]byte{corev1.TLSCertKey: authority.Cert, corev1.TLSPrivateKeyKey: authority.Key}
		return nil
	})
	return authority, err
}

func pairOf(secret *corev1.Secret) pki.Pair {
	return pki.Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
}

// materialOf reads a certificate from a Secret. A time that cannot be parsed counts as long ago.
func materialOf(secret *corev1.Secret) pki.Material {
	since, err := time.Parse(time.RFC3339, secret.Annotations[names.AnnotationTrustedSince])
	if err != nil {
		since = time.Time{}
	}
	return pki.Material{Trusted: secret.Data[caKey], Pair: pairOf(secret), TrustedSince: since}
}

func fillCertificate(secret *corev1.Secret, m pki.Material) {
	if secret.UID == "" {
		secret.Type = corev1.SecretTypeTLS
	}
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, names.AnnotationTrustedSince, m.TrustedSince.UTC().Format(time.RFC3339))
	secret.Data = map[string][]byte{caKey: m.Trusted, corev1.TLSCertKey: m.Cert, corev1.TLSPrivateKeyKey: m.Key}
}
