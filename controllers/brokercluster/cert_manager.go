// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// +kubebuilder:rbac:groups=cert-manager.io,resources=certificates,verbs=get;create;update;delete

// certificateKind is cert-manager's Certificate. Its Go types would add many modules for this one object.
var certificateKind = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}

// issuedCertificate keeps the Certificate and checks the Secret that cert-manager writes for it.
func (r *reconciliation) issuedCertificate(ctx context.Context) (servingCertificate, error) {
	name := names.TLSSecret(r.in.cluster.Name)
	missing := servingCertificate{source: posthornv1.SourceIssuer, secret: name, finding: finding{
		reason: reasonCertManagerMissing, message: "spec.tls.issuerRef needs cert-manager, whose API cert-manager.io/v1 is not installed",
	}}
	object, err := r.ensureOptional(ctx, certificateKind, name, certificateSpec(r.in.cluster), nil)
	if err != nil {
		return missing, err
	}
	if object == nil {
		return missing, nil
	}
	secret, err := r.readSecret(ctx, name)
	if err != nil {
		return missing, err
	}
	found := checkGivenCertificate(&r.in, secret, posthornv1.SourceIssuer, name)
	if ready, why := certificateReady(object); !ready && !found.usable {
		found.finding = finding{reason: reasonIssuing, message: why}
	}
	return found, nil
}

func certificateSpec(cluster *posthornv1.BrokerCluster) map[string]any {
	issuer := cluster.Spec.TLS.IssuerRef
	hosts := []any{}
	for _, host := range servingHosts(cluster) {
		hosts = append(hosts, host)
	}
	return map[string]any{
		"secretName": names.TLSSecret(cluster.Name),
		"dnsNames":   hosts,
		"issuerRef":  map[string]any{"name": issuer.Name, "kind": issuer.Kind, "group": issuer.Group},
		"usages":     []any{"digital signature", "key encipherment", "server auth"},
		"privateKey": map[string]any{"algorithm": "ECDSA", "size": int64(256), "rotationPolicy": "Always"},
	}
}

// certificateReady reads the condition Ready of a Certificate.
func certificateReady(object *unstructured.Unstructured) (bool, string) {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return false, fmt.Sprintf("Certificate %s: its conditions cannot be read", object.GetName())
	}
	for _, each := range conditions {
		condition, isMap := each.(map[string]any)
		if !isMap || condition["type"] != "Ready" {
			continue
		}
		return condition["status"] == "True", fmt.Sprintf("Certificate %s: %v: %v", object.GetName(), condition["reason"], condition["message"])
	}
	return false, fmt.Sprintf("Certificate %s: cert-manager has not processed it yet", object.GetName())
}

// removeCertificate deletes the Certificate when the spec no longer names an issuer. The status tells whether one exists, so
// that clusters without cert-manager do not query its API.
func (r *reconciliation) removeCertificate(ctx context.Context) error {
	known := r.in.cluster.Status.Certificates
	if known == nil || known.Serving == nil || known.Serving.Source != posthornv1.SourceIssuer {
		return nil
	}
	return r.removeOptional(ctx, certificateKind, names.TLSSecret(r.in.cluster.Name))
}
