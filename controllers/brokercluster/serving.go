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
	// servingDir is where pods mount the certificate that clients see.
	servingDir = configDir + "/tls"

	servingLifetime    = 365 * 24 * time.Hour
	servingRenewBefore = 120 * 24 * time.Hour
	// servingSettle is how long clients have to fetch a new CA certificate before a node shows a certificate of it.
	servingSettle = 30 * 24 * time.Hour
	// expiryWarning is how long before its end the status warns about a certificate that the operator does not renew.
	expiryWarning = 14 * 24 * time.Hour
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

// finding is a result with the reason and the message of a condition.
type finding struct {
	// usable: nodes can start with the checked object.
	usable  bool
	reason  string
	message string
}

// servingCertificate is the certificate that clients see.
type servingCertificate struct {
	// checked: this reconciliation has checked the certificate, or found that the spec asks for none.
	checked        bool
	source, secret string
	end            time.Time
	// name in the certificate, the client Service's if possible; empty when the certificate is unusable.
	name string
	// authorities are the CA certificates that clients are to trust; empty when the Secret has none.
	authorities []byte
	finding
}

// readServingSecret reads the Secret that spec.tls.secretName refers to.
func (r *reconciliation) readServingSecret(ctx context.Context) error {
	spec := r.in.cluster.Spec.TLS
	if spec == nil || spec.SecretName == "" {
		return nil
	}
	var err error
	r.in.servingSecret, err = r.readSecret(ctx, spec.SecretName)
	return err
}

// readSecret returns nil when the Secret does not exist.
func (r *reconciliation) readSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	var secret corev1.Secret
	err := r.Client.Get(ctx, r.in.keyOf(name), &secret)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Secret %s: %w", name, err)
	}
	return &secret, nil
}

// ensureServing creates or checks the certificate that clients see.
func (r *reconciliation) ensureServing(ctx context.Context) error {
	if spec := r.in.cluster.Spec.TLS; spec == nil || spec.IssuerRef == nil {
		if err := r.removeCertificate(ctx); err != nil {
			return err
		}
	}
	var err error
	switch spec := r.in.cluster.Spec.TLS; {
	case spec == nil:
		r.seen.serving.checked = true
		return nil
	case spec.SecretName != "":
		r.seen.serving = checkGivenCertificate(&r.in, r.in.servingSecret, posthornv1.SourceSecret, spec.SecretName)
	case spec.IssuerRef != nil:
		r.seen.serving, err = r.issuedCertificate(ctx)
	default:
		r.seen.serving, err = r.ownServing(ctx)
	}
	if err != nil {
		return err
	}
	r.seen.serving.checked = true
	return r.ensureClientCA(ctx)
}

// servingSecret is the Secret that the pods mount.
func servingSecret(cluster *posthornv1.BrokerCluster) string {
	if name := cluster.Spec.TLS.SecretName; name != "" {
		return name
	}
	return names.TLSSecret(cluster.Name)
}

// mountedBy returns the clusters whose nodes mount a Secret that the operator does not own.
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

// ownServing keeps a certificate for clients, signed by a CA that the operator keeps for it. The CA of the nodes must not
// sign it: its certificates identify nodes.
func (r *reconciliation) ownServing(ctx context.Context) (servingCertificate, error) {
	namespace, cluster := r.in.cluster.Namespace, r.in.cluster.Name
	material, end, err := r.ensureOwnCertificate(ctx, ownCertificate{
		secret: names.TLSSecret(cluster), authority: names.TLSCASecret(cluster), subject: namespace + "/" + cluster + " clients",
		leaf: pki.Leaf{
			Name: cluster, Hosts: servingHosts(r.in.cluster), Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			Lifetime: servingLifetime, RenewBefore: servingRenewBefore, Settle: servingSettle,
		},
	})
	return servingCertificate{
		source: posthornv1.SourceOperator, secret: names.TLSSecret(cluster), end: end, authorities: material.Trusted,
		name:    names.Host(namespace, cluster),
		finding: finding{usable: err == nil, reason: reasonValid},
	}, err
}

// servingHosts returns the host names that clients use.
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
	return append(out, externalHosts(cluster)...)
}

// checkGivenCertificate checks the certificate in a Secret that the operator does not own; secret is nil when it does not
// exist.
func checkGivenCertificate(in *inputs, secret *corev1.Secret, source, name string) servingCertificate {
	found := servingCertificate{source: source, secret: name}
	if secret == nil {
		found.finding = finding{reason: reasonSecretNotFound, message: fmt.Sprintf("Secret %s does not exist", name)}
		return found
	}
	found.authorities = secret.Data[caKey]
	if !pki.HoldsCertificate(found.authorities) {
		found.authorities = nil
	}
	given, err := pki.Inspect(pairOf(secret))
	if err != nil {
		found.finding = finding{reason: reasonInvalidCertificate, message: fmt.Sprintf("Secret %s: %v", name, err)}
		return found
	}
	found.end, found.name = given.NotAfter, given.NameFor(names.Host(in.cluster.Namespace, in.cluster.Name))
	found.finding = judgeGiven(given, found.authorities != nil, in.cluster, in.now)
	if found.message != "" {
		found.message = fmt.Sprintf("Secret %s: %s", name, found.message)
	}
	return found
}

// judgeGiven judges a certificate that the operator does not issue. The first row that applies decides:
//
//	it has expired                                            | not usable | Expired
//	it is not valid yet                                       | not usable | NotYetValid
//	client certificates are verified and no CA is given       | not usable | InvalidCertificate
//	it has no host name                                       | not usable | InvalidCertificate
//	it lacks one of dnsNames or of the external host names    | not usable | InvalidCertificate
//	it expires within two weeks                               | usable     | ExpiresSoon
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
	for _, name := range externalHosts(cluster) {
		if !given.Names(name) {
			missing = append(missing, name)
		}
	}
	host := names.Host(cluster.Namespace, cluster.Name)
	switch {
	case !now.Before(given.NotAfter):
		return finding{reason: reasonExpired, message: "the certificate expired on " + given.NotAfter.UTC().Format(time.RFC3339)}
	case now.Before(given.NotBefore):
		return finding{reason: reasonNotYetValid, message: "the certificate is not valid before " + given.NotBefore.UTC().Format(time.RFC3339)}
	case !authorities && clientAuthOf(spec) != posthornv1.ClientAuthNone:
		return finding{reason: reasonInvalidCertificate, message: "key " + caKey + " has no certificate, and spec.tls.clientAuth needs one to verify clients"}
	case given.NameFor(host) == "":
		return finding{reason: reasonInvalidCertificate, message: "the certificate has no host name: clients that verify it cannot connect"}
	case len(missing) > 0:
		return finding{reason: reasonInvalidCertificate, message: "the certificate does not name " + strings.Join(missing, ", ")}
	case !now.Add(expiryWarning).Before(given.NotAfter):
		return finding{usable: true, reason: reasonExpiresSoon, message: "the certificate expires on " + given.NotAfter.UTC().Format(time.RFC3339)}
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

// ensureClientCA keeps a ConfigMap with the CA certificates that clients are to trust. Clients mount it instead of a Secret
// that also has a private key.
func (r *reconciliation) ensureClientCA(ctx context.Context) error {
	if len(r.seen.serving.authorities) == 0 {
		return nil
	}
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.ClientCA(r.in.cluster.Name)}}
	return r.ensure(ctx, bundle, func() error {
		bundle.Data = map[string]string{caKey: string(r.seen.serving.authorities)}
		bundle.BinaryData = nil
		return nil
	})
}

// certificatesFinding summarises both certificates for the condition CertificatesReady.
func certificatesFinding(in *inputs, seen *observed) finding {
	switch {
	case seen.internodeEnd.IsZero():
		return finding{reason: reasonNotIssued, message: "the inter-node certificate could not be issued"}
	case in.cluster.Spec.TLS == nil:
		return finding{usable: true, reason: reasonValid, message: "the inter-node certificate is valid"}
	case !seen.serving.checked:
		return finding{reason: reasonNotIssued, message: "the certificate for clients was not checked yet"}
	}
	found := seen.serving.finding
	if found.message == "" {
		found.message = "the certificates of nodes and clients are valid"
	}
	return found
}

// certificatesStatus returns the status of both certificates.
func certificatesStatus(in *inputs, seen *observed) *posthornv1.CertificatesStatus {
	internode := metav1.NewTime(seen.internodeEnd)
	out := &posthornv1.CertificatesStatus{NotAfter: &internode, Internode: &internode}
	if known := in.cluster.Status.Certificates; !seen.serving.checked && known != nil {
		out.Serving = known.Serving
	}
	if seen.serving.checked && seen.serving.source != "" {
		out.Serving = &posthornv1.ServingCertificateStatus{Source: seen.serving.source, SecretName: seen.serving.secret}
		if !seen.serving.end.IsZero() {
			end := metav1.NewTime(seen.serving.end)
			out.Serving.NotAfter = &end
		}
	}
	if out.Serving != nil && out.Serving.NotAfter != nil && out.Serving.NotAfter.Before(&internode) {
		out.NotAfter = out.Serving.NotAfter
	}
	return out
}
