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

const (
	// caKey of the inter-node Secrets is the authority's certificate.
	caKey = "ca.crt"
	// internodeDir is where pods find the certificate.
	internodeDir = configDir + "/internode"
)

// ensureInternode keeps the certificate that nodes show each other, signed by an authority of the
// cluster's own. While the certificate is good the authority is not even read: losing its Secret
// disturbs nobody before the certificate is due.
func (s *scope) ensureInternode(ctx context.Context) error {
	hosts := internodeHosts(s.cluster.Namespace, s.cluster.Name)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: names.InternodeSecret(s.cluster.Name)}}
	return s.ensure(ctx, secret, func() error {
		now := s.Now()
		current := pki.Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
		end, err := pki.Check(secret.Data[caKey], current, hosts)
		if err == nil && now.Add(pki.RenewBefore).Before(end) {
			s.certificateEnd = end
			return nil
		}
		authority, err := s.ensureAuthority(ctx, now)
		if err != nil {
			return err
		}
		issued, err := pki.Issue(authority, s.cluster.Name, hosts, now)
		if err != nil {
			return fmt.Errorf("issuing the inter-node certificate: %w", err)
		}
		if s.certificateEnd, err = pki.Check(authority.Cert, issued, hosts); err != nil {
			return fmt.Errorf("checking the new inter-node certificate: %w", err)
		}
		if secret.UID == "" {
			secret.Type = corev1.SecretTypeTLS
		}
		secret.Data = map[string][]byte{
			caKey: authority.Cert, corev1.TLSCertKey: issued.Cert, corev1.TLSPrivateKeyKey: issued.Key,
		}
		return nil
	})
}

// ensureAuthority reads the authority or makes one.
func (s *scope) ensureAuthority(ctx context.Context, now time.Time) (pki.Pair, error) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: names.InternodeCASecret(s.cluster.Name)}}
	var authority pki.Pair
	err := s.ensure(ctx, secret, func() error {
		authority = pki.Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
		end, err := pki.Check(authority.Cert, authority, nil)
		if err == nil && now.Add(pki.RenewBefore).Before(end) {
			return nil
		}
		if authority, err = pki.NewAuthority(s.cluster.Namespace+"/"+s.cluster.Name, now); err != nil {
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

// internodeHosts are the names that the certificate is for.
func internodeHosts(namespace, cluster string) []string {
	nodes := names.NodesService(cluster) + "." + namespace + ".svc"
	return []string{"*." + nodes, nodes, "*." + nodes + ".cluster.local", "localhost"}
}
