// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/pki"
)

const (
	// supersededGrace is how long the operator still trusts a certificate after its replacement: a kubelet takes
	// minutes to update a mounted Secret.
	supersededGrace = 10 * time.Minute
	// maxTrusts bounds the number of recorded trusts.
	maxTrusts = 4
	// maxRoots bounds the CA certificates of one trust, in bytes of PEM.
	maxRoots = 128 << 10
)

// recordTrust records, in the operator's access Secret, the listener of the HTTP API, the operator's
// certificate and the CA certificates that verify the nodes. A paused cluster gets this too: other controllers still
// replace certificates, and the record changes nothing in the cluster.
func (r *reconciliation) recordTrust(ctx context.Context) error {
	var secret corev1.Secret
	err := r.Client.Get(ctx, r.in.keyOf(names.OperatorSecret(r.in.cluster.Name)), &secret)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the operator's access Secret: %w", err)
	}
	var current []connect.Trust
	for _, name := range r.out.access.mounted {
		if trust, found, err := r.readTrust(ctx, name); err != nil {
			return err
		} else if found {
			current = append(current, trust)
		}
	}
	before := secret.DeepCopy()
	next := decideTrust(connect.AccessRecordOf(&secret).Trusts(), current, r.out.access.mounted, r.in.now)
	switch identity, found, err := r.readIdentity(ctx); {
	case err != nil:
		return err
	case found:
		if err := connect.WriteIdentity(&secret, identity); err != nil {
			return err
		}
	case !connect.AccessRecordOf(&secret).HasIdentity() && r.out.access.listener == connect.Operator:
		// A paused cluster gets no certificate.
		r.out.access.listener = r.out.access.management.listener()
	}
	if err := connect.WriteTrust(&secret, r.out.access.listener, next); err != nil {
		return err
	}
	if hasSameData(before.Data, secret.Data) {
		return nil
	}
	if err := r.Client.Patch(ctx, &secret, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("recording the CA certificates that verify the nodes: %w", err)
	}
	r.Brokers.Forget(r.in.key())
	return nil
}

func hasSameData(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if other, found := b[key]; !found || !bytes.Equal(value, other) {
			return false
		}
	}
	return true
}

// readTrust reads a Secret that nodes mount; false when it does not exist or has no usable certificate.
func (r *reconciliation) readTrust(ctx context.Context, name string) (connect.Trust, bool, error) {
	var secret corev1.Secret
	err := r.Client.Get(ctx, r.in.keyOf(name), &secret)
	if apierrors.IsNotFound(err) {
		return connect.Trust{}, false, nil
	}
	if err != nil {
		return connect.Trust{}, false, fmt.Errorf("reading the Secret %s: %w", name, err)
	}
	given, err := pki.Inspect(pairOf(&secret))
	if err != nil {
		return connect.Trust{}, false, nil //nolint:nilerr // serving.go reports an invalid certificate as a finding.
	}
	// The CA certificates in a Secret may be those of clients only.
	roots := slices.Concat(secret.Data[caKey], []byte("\n"), secret.Data[corev1.TLSCertKey])
	if len(roots) > maxRoots {
		roots = secret.Data[corev1.TLSCertKey]
	}
	expected := given.NameFor(names.Host(r.in.cluster.Namespace, r.in.cluster.Name))
	return connect.Trust{Secret: name, Name: expected, Roots: string(roots)}, len(roots) <= maxRoots && expected != "", nil
}

// decideTrust returns the trusts that the operator accepts from now on, the best first:
//
//	a recorded trust                                   | then
//	is the present content of a mounted Secret         | it stays, not superseded
//	is of a mounted Secret that is missing or unusable | it stays: nodes keep the certificate that they have loaded
//	is any other                                       | it is superseded now, and goes after supersededGrace
func decideTrust(recorded, current []connect.Trust, mounted []string, now time.Time) []connect.Trust {
	next := slices.Clone(current)
	for _, old := range recorded {
		same := func(t connect.Trust) bool {
			return t.Secret == old.Secret && t.Name == old.Name && t.Roots == old.Roots
		}
		readable := slices.ContainsFunc(current, func(t connect.Trust) bool { return t.Secret == old.Secret })
		switch {
		case slices.ContainsFunc(current, same):
			continue
		case slices.Contains(mounted, old.Secret) && !readable:
		case old.Superseded.IsZero():
			old.Superseded = now.UTC().Truncate(time.Second)
		case now.Sub(old.Superseded) > supersededGrace:
			continue
		}
		next = append(next, old)
	}
	return next[:min(len(next), maxTrusts)]
}
