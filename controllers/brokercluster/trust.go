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
	// bearWith is for how long nodes are still believed that show a certificate which was replaced: a
	// kubelet takes minutes to give pods a changed Secret.
	bearWith = 10 * time.Minute
	// maxTrusts bounds what is noted.
	maxTrusts = 4
	// maxRoots bounds the authorities of one certificate, in bytes of PEM.
	maxRoots = 128 << 10
)

// reach is by which ports of the HTTP API, or for metrics, nodes can be asked.
type reach struct{ plain, secure bool }

// or is what either of two can be asked by.
func (r reach) or(other reach) reach { return reach{r.plain || other.plain, r.secure || other.secure} }

// listener is the better of those that take passwords.
func (r reach) listener() connect.Listener {
	if r.secure {
		return connect.Secure
	}
	return connect.Plain
}

// ports are those of two that something can be asked by.
func (r reach) ports(plain, secure corev1.ServicePort) []corev1.ServicePort {
	var out []corev1.ServicePort
	if r.plain {
		out = append(out, plain)
	}
	if r.secure {
		out = append(out, secure)
	}
	return out
}

// reachOf a pod's HTTP API.
func reachOf(pod *corev1.Pod) reach { return openOf(pod, managementPlain, managementTLS) }

// openOf says which of two ports a pod has, going by those it was made with.
func openOf(pod *corev1.Pod, plain, secure string) reach {
	var r reach
	for _, container := range pod.Spec.Containers {
		if container.Name != containerName {
			continue
		}
		for _, port := range container.Ports {
			r = r.or(reach{port.Name == plain, port.Name == secure})
		}
	}
	return r
}

// settleReach looks by what the nodes can be asked: the pods that there are, and those to come. Half-way
// through a roll they differ.
func (s *scope) settleReach(ctx context.Context) error {
	pods, err := s.listPods(ctx)
	if err != nil {
		return err
	}
	s.reach = reach{plain: !s.cluster.Spec.TLSOnly(), secure: s.cluster.Spec.TLS != nil}
	s.scraped = s.reach
	s.listener = serviceListener(pods, s.listenerToCome())
	s.scrape = decideScrape(pods, s.reach.secure)
	if s.reach.secure {
		s.mounted = []string{servingSecret(s.cluster)}
	}
	for _, name := range sortedKeys(pods) {
		if ordinal, ours := s.ordinalOf(name); ours && s.sts != nil && s.sts.Spec.Replicas != nil {
			s.condemned = s.condemned || ordinal >= *s.sts.Spec.Replicas
		}
		s.reach, s.scraped = s.reach.or(reachOf(pods[name])), s.scraped.or(scrapedAt(pods[name]))
		if secret := mountedSecret(pods[name]); secret != "" && !slices.Contains(s.mounted, secret) {
			s.mounted = append(s.mounted, secret)
		}
	}
	return nil
}

// mountedSecret is the Secret with the certificate that the pod shows; empty without TLS.
func mountedSecret(pod *corev1.Pod) string {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name != configVolume || volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.Secret != nil && slices.ContainsFunc(source.Secret.Items, func(item corev1.KeyToPath) bool { return item.Path == servingCert }) {
				return source.Secret.Name
			}
		}
	}
	return ""
}

// keepTrust notes, beside the operator's credentials, how the HTTP API is asked, the operator's certificate and by what
// nodes are believed. It does so in a pause too: others replace certificates then, and nothing of the cluster is
// changed by it.
func (s *scope) keepTrust(ctx context.Context) error {
	var note corev1.Secret
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: names.OperatorSecret(s.cluster.Name)}, &note)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading what is noted of the cluster: %w", err)
	}
	var current []connect.Trust
	for _, name := range s.mounted {
		if trust, found, err := s.trustOf(ctx, name); err != nil {
			return err
		} else if found {
			current = append(current, trust)
		}
	}
	before := note.DeepCopy()
	next := decideTrust(connect.NoteOf(&note).Trusts(), current, s.mounted, s.Now())
	switch identity, found, err := s.identity(ctx); {
	case err != nil:
		return err
	case found:
		if err := connect.WriteIdentity(&note, identity); err != nil {
			return err
		}
	case !connect.NoteOf(&note).HasIdentity() && s.listener == connect.Operator:
		// A paused cluster gets no certificate.
		s.listener = s.reach.listener()
	}
	if err := connect.WriteTrust(&note, s.listener, next); err != nil {
		return err
	}
	if sameData(before.Data, note.Data) {
		return nil
	}
	if err := s.Client.Patch(ctx, &note, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("noting by what nodes are believed: %w", err)
	}
	s.Brokers.Forget(s.key())
	return nil
}

func sameData(a, b map[string][]byte) bool {
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

// trustOf reads a Secret that nodes mount; false when it is not there or of no use.
func (s *scope) trustOf(ctx context.Context, name string) (connect.Trust, bool, error) {
	var secret corev1.Secret
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: name}, &secret)
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
	// The authorities in a Secret may be those of clients only.
	roots := slices.Concat(secret.Data[caKey], []byte("\n"), secret.Data[corev1.TLSCertKey])
	if len(roots) > maxRoots {
		roots = secret.Data[corev1.TLSCertKey]
	}
	expected := given.NameFor(names.Host(s.cluster.Namespace, s.cluster.Name))
	return connect.Trust{Secret: name, Name: expected, Roots: string(roots)}, len(roots) <= maxRoots && expected != "", nil
}

// decideTrust says what is believed from now on, the best first:
//
//	noted is                                               | then
//	what a mounted Secret holds now                        | it stays, as not superseded
//	of a mounted Secret that is not there or of no use     | it stays: nodes go on with what they have
//	something else                                         | it is superseded now, and goes after bearWith
func decideTrust(noted, current []connect.Trust, mounted []string, now time.Time) []connect.Trust {
	next := slices.Clone(current)
	for _, old := range noted {
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
		case now.Sub(old.Superseded) > bearWith:
			continue
		}
		next = append(next, old)
	}
	return next[:min(len(next), maxTrusts)]
}
