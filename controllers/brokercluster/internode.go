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

// internodeDir is where pods mount the inter-node certificate.
const internodeDir = configDir + "/internode"

// The inter-node certificate has a long lifetime: brokers that read it only at their start may run for years.
const (
	internodeLifetime    = 10 * 365 * 24 * time.Hour
	internodeRenewBefore = 365 * 24 * time.Hour
	// internodeSettle is longer than a kubelet needs to update a mounted Secret.
	internodeSettle = time.Hour
)

// ensureInternode keeps the certificate that nodes show each other, signed by a CA of the cluster.
func (r *reconciliation) ensureInternode(ctx context.Context) error {
	_, end, err := r.ensureOwnCertificate(ctx, internodeCertificate(r.in.cluster.Namespace, r.in.cluster.Name))
	r.seen.internodeEnd = end
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

// internodeHosts returns the host names of the certificate.
func internodeHosts(namespace, cluster string) []string {
	nodes := internodeName(namespace, cluster)
	return []string{"*." + nodes, nodes, "*." + nodes + ".cluster.local", "localhost"}
}

// internodeName returns the name that the certificate of every node has.
func internodeName(namespace, cluster string) string {
	return names.NodesService(cluster) + "." + namespace + ".svc"
}
