// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"crypto/x509"
	"time"

	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/pki"
)

// internodeDir is where pods find the certificate.
const internodeDir = configDir + "/internode"

// The inter-node certificate lives long: brokers that read it only when they start may run for years.
const (
	internodeLifetime    = 10 * 365 * 24 * time.Hour
	internodeRenewBefore = 365 * 24 * time.Hour
	// internodeSettle is more than a kubelet needs to bring a changed Secret into its pods.
	internodeSettle = time.Hour
)

// ensureInternode keeps the certificate that nodes show each other, signed by an authority of the
// cluster's own.
func (s *scope) ensureInternode(ctx context.Context) error {
	_, end, err := s.ensureOwnCertificate(ctx, internodeCertificate(s.cluster.Namespace, s.cluster.Name))
	s.certificateEnd = end
	return err
}

func internodeCertificate(namespace, cluster string) ownCertificate {
	return ownCertificate{
		secret: names.InternodeSecret(cluster), authority: names.InternodeCASecret(cluster), subject: namespace + "/" + cluster,
		leaf: pki.Leaf{
			Name: cluster, Hosts: internodeHosts(namespace, cluster),
			Usages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			Lifetime: internodeLifetime, RenewBefore: internodeRenewBefore, Settle: internodeSettle,
		},
	}
}

// internodeHosts are the names that the certificate is for.
func internodeHosts(namespace, cluster string) []string {
	nodes := internodeName(namespace, cluster)
	return []string{"*." + nodes, nodes, "*." + nodes + ".cluster.local", "localhost"}
}

// internodeName is the name that the certificate of every node has.
func internodeName(namespace, cluster string) string {
	return names.NodesService(cluster) + "." + namespace + ".svc"
}
