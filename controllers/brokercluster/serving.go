// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/pki"
)

const (
	// servingDir is where pods find the certificate that clients see.
	servingDir = configDir + "/tls"

	servingLifetime    = 365 * 24 * time.Hour
	servingRenewBefore = 120 * 24 * time.Hour
	// servingSettle is how long clients have to fetch a new authority before they meet it.
	servingSettle = 30 * 24 * time.Hour
	// endsSoon is when a certificate that others keep is warned of.
	endsSoon = 14 * 24 * time.Hour
)

// Reasons of CertificatesReady.
const (
	reasonValid              = "Valid"
	reasonNotIssued          = "NotIssued"
	reasonExpiresSoon        = "ExpiresSoon"
	reasonNameMissing        = "NameMissing"
	reasonExpired            = "Expired"
	reasonNotYetValid        = "NotYetValid"
	reasonInvalidCertificate = "InvalidCertificate"
	reasonSecretNotFound     = "SecretNotFound"
	reasonCertManagerMissing = "CertManagerMissing"
	reasonIssuing            = "Issuing"
)

// finding is a judgement with the words for a condition.
type finding struct {
	// usable: nodes can start with it.
	usable  bool
	reason  string
	message string
}

// serving is what is known of the certificate that clients see.
type serving struct {
	// looked: this attempt came as far as looking at it, or found that none is wanted.
	looked         bool
	source, secret string
	end            time.Time
	// name that the certificate has, the client Service's where it has that; empty when it is of no use.
	name string
	// authorities that clients are to trust; empty when the Secret does not tell.
	authorities []byte
	finding
}

// ensureServing keeps or checks the certificate that clients see.
func (s *scope) ensureServing(ctx context.Context) error {
	if spec := s.cluster.Spec.TLS; spec == nil || spec.IssuerRef == nil {
		if err := s.removeCertificate(ctx); err != nil {
			return err
		}
	}
	var err error
	switch spec := s.cluster.Spec.TLS; {
	case spec == nil:
		s.serving.looked = true
		return nil
	case spec.SecretName != "":
		s.serving, err = s.givenCertificate(ctx, posthornv1.SourceSecret, spec.SecretName)
	case spec.IssuerRef != nil:
		s.serving, err = s.issuedCertificate(ctx)
	default:
		s.serving, err = s.ownServing(ctx)
	}
	if err != nil {
		return err
	}
	s.serving.looked = true
	return s.ensureClientCA(ctx)
}

// servingSecret is the Secret that the pods mount.
func servingSecret(cluster *posthornv1.BrokerCluster) string {
	if name := cluster.Spec.TLS.SecretName; name != "" {
		return name
	}
	return names.TLSSecret(cluster.Name)
}

// mountedBy gives the clusters whose nodes mount a Secret that somebody else keeps.
func (r *Reconciler) mountedBy(ctx context.Context, secret client.Object) []reconcile.Request {
	var list posthornv1.BrokerClusterList
	if err := r.Client.List(ctx, &list, client.InNamespace(secret.GetNamespace())); err != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if cluster := &list.Items[i]; cluster.Spec.TLS != nil && servingSecret(cluster) == secret.GetName() {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)})
		}
	}
	return out
}

// ownServing keeps a certificate of the operator's own authority for this cluster's clients. It is not
// the authority of the nodes: whoever that one signs for is taken for a node.
func (s *scope) ownServing(ctx context.Context) (serving, error) {
	namespace, cluster := s.cluster.Namespace, s.cluster.Name
	material, end, err := s.ensureOwnCertificate(ctx, ownCertificate{
		secret: names.TLSSecret(cluster), authority: names.TLSCASecret(cluster), subject: namespace + "/" + cluster + " clients",
		leaf: pki.Leaf{
			Name: cluster, Hosts: servingHosts(s.cluster), Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			Lifetime: servingLifetime, RenewBefore: servingRenewBefore, Settle: servingSettle,
		},
	})
	return serving{
		source: posthornv1.SourceOperator, secret: names.TLSSecret(cluster), end: end, authorities: material.Trusted,
		name:    names.Host(namespace, cluster),
		finding: finding{usable: err == nil, reason: reasonValid},
	}, err
}

// servingHosts are the names that clients use.
func servingHosts(cluster *posthornv1.BrokerCluster) []string {
	host := names.Host(cluster.Namespace, cluster.Name)
	nodes := names.NodesService(cluster.Name) + "." + cluster.Namespace + ".svc"
	out := []string{
		host, cluster.Name, cluster.Name + "." + cluster.Namespace, host + ".cluster.local",
		"*." + nodes, "*." + nodes + ".cluster.local", "localhost",
	}
	for _, name := range cluster.Spec.TLS.DNSNames {
		out = append(out, string(name))
	}
	return out
}

// givenCertificate checks a Secret that somebody else keeps.
func (s *scope) givenCertificate(ctx context.Context, source, name string) (serving, error) {
	found := serving{source: source, secret: name}
	var secret corev1.Secret
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: name}, &secret)
	if apierrors.IsNotFound(err) {
		found.finding = finding{reason: reasonSecretNotFound, message: fmt.Sprintf("there is no Secret %s", name)}
		return found, nil
	}
	if err != nil {
		return found, fmt.Errorf("reading the Secret %s: %w", name, err)
	}
	found.authorities = secret.Data[caKey]
	if !pki.HoldsCertificate(found.authorities) {
		found.authorities = nil
	}
	given, err := pki.Inspect(pairOf(&secret))
	if err != nil {
		found.finding = finding{reason: reasonInvalidCertificate, message: fmt.Sprintf("Secret %s: %v", name, err)}
		return found, nil
	}
	found.end, found.name = given.NotAfter, given.NameFor(names.Host(s.cluster.Namespace, s.cluster.Name))
	found.finding = judgeGiven(given, found.authorities != nil, s.cluster, s.Now())
	if found.message != "" {
		found.message = fmt.Sprintf("Secret %s: %s", name, found.message)
	}
	return found, nil
}

// judgeGiven says what is to be thought of a certificate that somebody else keeps; the first line that
// fits counts:
//
//	it has ended                                              | not usable | Expired
//	it has not begun                                          | not usable | NotYetValid
//	client certificates are checked and there is no authority | not usable | InvalidCertificate
//	it names nothing                                          | not usable | InvalidCertificate
//	it lacks one of spec.tls.dnsNames                         | not usable | InvalidCertificate
//	it ends within two weeks                                  | usable     | ExpiresSoon
//	it lacks the client Service's name                        | usable     | NameMissing
//	otherwise                                                 | usable     | Valid
func judgeGiven(given pki.Given, authorities bool, cluster *posthornv1.BrokerCluster, now time.Time) finding {
	spec := cluster.Spec.TLS
	var missing []string
	for _, name := range spec.DNSNames {
		if !given.Names(string(name)) {
			missing = append(missing, string(name))
		}
	}
	host := names.Host(cluster.Namespace, cluster.Name)
	switch {
	case !now.Before(given.NotAfter):
		return finding{reason: reasonExpired, message: "the certificate ended on " + given.NotAfter.UTC().Format(time.RFC3339)}
	case now.Before(given.NotBefore):
		return finding{reason: reasonNotYetValid, message: "the certificate begins on " + given.NotBefore.UTC().Format(time.RFC3339)}
	case !authorities && clientAuthOf(spec) != posthornv1.ClientAuthNone:
		return finding{reason: reasonInvalidCertificate, message: "key " + caKey + " holds no certificate, and spec.tls.clientAuth needs one to check clients with"}
	case given.NameFor(host) == "":
		return finding{reason: reasonInvalidCertificate, message: "the certificate names no host: nobody who verifies it can connect"}
	case len(missing) > 0:
		return finding{reason: reasonInvalidCertificate, message: "the certificate does not name " + strings.Join(missing, ", ")}
	case !now.Add(endsSoon).Before(given.NotAfter):
		return finding{usable: true, reason: reasonExpiresSoon, message: "the certificate ends on " + given.NotAfter.UTC().Format(time.RFC3339)}
	case !given.Names(host):
		return finding{usable: true, reason: reasonNameMissing, message: "the certificate does not name " + host + ": clients inside Kubernetes will refuse it"}
	}
	return finding{usable: true, reason: reasonValid}
}

func clientAuthOf(spec *posthornv1.TLSSpec) string {
	if spec.ClientAuth == "" {
		return posthornv1.ClientAuthNone
	}
	return spec.ClientAuth
}

// ensureClientCA keeps a ConfigMap with the authorities that clients are to trust: who mounts it need
// not be given a Secret with a key in it.
func (s *scope) ensureClientCA(ctx context.Context) error {
	if len(s.serving.authorities) == 0 {
		return nil
	}
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.ClientCA(s.cluster.Name)}}
	return s.ensure(ctx, bundle, func() error {
		bundle.Data = map[string]string{caKey: string(s.serving.authorities)}
		bundle.BinaryData = nil
		return nil
	})
}

// certificatesFinding sums up both certificates for the condition CertificatesReady.
func (s *scope) certificatesFinding() finding {
	switch {
	case s.certificateEnd.IsZero():
		return finding{reason: reasonNotIssued, message: "the inter-node certificate could not be made"}
	case s.cluster.Spec.TLS == nil:
		return finding{usable: true, reason: reasonValid, message: "the inter-node certificate is valid"}
	case !s.serving.looked:
		return finding{reason: reasonNotIssued, message: "the certificate for clients was not looked at yet"}
	}
	found := s.serving.finding
	if found.message == "" {
		found.message = "the certificates of nodes and clients are valid"
	}
	return found
}

// certificatesStatus is the status of both certificates.
func (s *scope) certificatesStatus() *posthornv1.CertificatesStatus {
	internode := metav1.NewTime(s.certificateEnd)
	out := &posthornv1.CertificatesStatus{NotAfter: &internode, Internode: &internode}
	if known := s.cluster.Status.Certificates; !s.serving.looked && known != nil {
		out.Serving = known.Serving
	}
	if s.serving.looked && s.serving.source != "" {
		out.Serving = &posthornv1.ServingCertificateStatus{Source: s.serving.source, SecretName: s.serving.secret}
		if !s.serving.end.IsZero() {
			end := metav1.NewTime(s.serving.end)
			out.Serving.NotAfter = &end
		}
	}
	if out.Serving != nil && out.Serving.NotAfter != nil && out.Serving.NotAfter.Before(&internode) {
		out.NotAfter = out.Serving.NotAfter
	}
	return out
}
