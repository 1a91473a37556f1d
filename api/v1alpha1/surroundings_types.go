// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TLSSpec makes the nodes listen for AMQP over TLS on port 5671, for HTTP on 15671, and give metrics on
// 15691. The certificate comes from a
// cert-manager issuer, from a given Secret, or, when neither is named, from an authority that the
// operator keeps for this cluster alone. A renewed certificate is taken up without a restart.
// +kubebuilder:validation:XValidation:rule="!(has(self.issuerRef) && has(self.secretName))",message="tls.issuerRef and tls.secretName exclude each other"
type TLSSpec struct {
	// IssuerRef names a cert-manager issuer. The operator keeps a Certificate of the cluster's name
	// with "-tls" behind it, and cert-manager writes the Secret of the same name.
	// +optional
	IssuerRef *IssuerReference `json:"issuerRef,omitempty"`

	// SecretName is a Secret of type kubernetes.io/tls in this namespace that somebody else keeps:
	// keys tls.crt and tls.key, and ca.crt where client certificates are checked.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	SecretName string `json:"secretName,omitempty"`

	// DNSNames the certificate is for, beside the Services' names inside Kubernetes: what clients
	// outside connect to. A given Secret's certificate must name them all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	DNSNames []DNSName `json:"dnsNames,omitempty"`

	// ClientAuth says whether clients show certificates: None does not ask, Optional checks one that
	// is shown, Required refuses clients that show none. They are checked against ca.crt of the Secret.
	// +optional
	// +kubebuilder:default=None
	// +kubebuilder:validation:Enum=None;Optional;Required
	ClientAuth string `json:"clientAuth,omitempty"`

	// DisablePlaintext closes port 5672, port 15692 of metrics, and port 15672 but for what runs inside
	// the pods.
	// +optional
	DisablePlaintext bool `json:"disablePlaintext,omitempty"`
}

// TLSOnly says whether clients can only connect over TLS.
func (s *BrokerClusterSpec) TLSOnly() bool { return s.TLS != nil && s.TLS.DisablePlaintext }

// Values of TLSSpec.ClientAuth.
const (
	ClientAuthNone     = "None"
	ClientAuthOptional = "Optional"
	ClientAuthRequired = "Required"
)

// DNSName is a host name; its first label may be "*".
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:Pattern=`^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
type DNSName string

// IssuerReference names a cert-manager issuer.
type IssuerReference struct {
	// Name of the issuer.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Kind of the issuer: Issuer, ClusterIssuer, or that of an issuer outside cert-manager.
	// +optional
	// +kubebuilder:default=Issuer
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`

	// Group of the issuer's API.
	// +optional
	// +kubebuilder:default="cert-manager.io"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
}

// MonitoringSpec says what is made for Prometheus and Grafana.
type MonitoringSpec struct {
	// ServiceMonitor: Auto makes the ServiceMonitor (and, with rules, the PrometheusRule) when the
	// Prometheus operator's API is installed, and as soon as it is; On says so in the condition
	// MonitoringReady while it is not; Off makes neither.
	// +optional
	// +kubebuilder:default=Auto
	// +kubebuilder:validation:Enum=Auto;On;Off
	ServiceMonitor string `json:"serviceMonitor,omitempty"`

	// Rules makes a PrometheusRule with alerts about this cluster.
	// +optional
	// +kubebuilder:default=true
	Rules *bool `json:"rules,omitempty"`

	// Dashboards makes a ConfigMap of Grafana dashboards with the label grafana_dashboard, which
	// Grafana's sidecar looks for.
	// +optional
	// +kubebuilder:default=true
	Dashboards *bool `json:"dashboards,omitempty"`

	// Labels put on the ServiceMonitor, the PrometheusRule and the dashboards, for a Prometheus or
	// Grafana that selects by labels.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Labels map[string]string `json:"labels,omitempty"`
}

// Values of MonitoringSpec.ServiceMonitor.
const (
	MonitorAuto = "Auto"
	MonitorOn   = "On"
	MonitorOff  = "Off"
)

// WantsRules says whether alerts are wanted.
func (m MonitoringSpec) WantsRules() bool { return m.Rules == nil || *m.Rules }

// WantsDashboards says whether dashboards are wanted.
func (m MonitoringSpec) WantsDashboards() bool { return m.Dashboards == nil || *m.Dashboards }

// NetworkPolicySpec says whether the network policy of the cluster is the operator's.
type NetworkPolicySpec struct {
	// Mode Strict keeps a NetworkPolicy: nodes take connections of each other, of clients on the
	// client ports, of the operator on the HTTP API, and of scrapers on the metrics port, and open
	// none but to each other and to DNS. Off keeps none.
	// +optional
	// +kubebuilder:default=Off
	// +kubebuilder:validation:Enum=Off;Strict
	Mode string `json:"mode,omitempty"`

	// Clients that may connect to the client ports; everybody when empty.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Clients []NetworkPeer `json:"clients,omitempty"`

	// Management says who beside the operator may connect to the HTTP API; nobody when empty.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Management []NetworkPeer `json:"management,omitempty"`

	// Monitoring says who may connect to the metrics port; everybody when empty.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Monitoring []NetworkPeer `json:"monitoring,omitempty"`
}

// Values of NetworkPolicySpec.Mode.
const (
	NetworkPolicyOff    = "Off"
	NetworkPolicyStrict = "Strict"
)

// NetworkPeer selects pods.
// +kubebuilder:validation:XValidation:rule="has(self.podSelector) || has(self.namespaceSelector)",message="a peer has a podSelector, a namespaceSelector or both"
type NetworkPeer struct {
	// PodSelector selects pods of the selected namespaces; all when absent.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// NamespaceSelector selects namespaces; the cluster's own when absent.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
}

// ServingCertificateStatus tells about the certificate that clients see.
type ServingCertificateStatus struct {
	// Source is where it comes from: Issuer, Secret or Operator.
	Source string `json:"source"`
	// SecretName is the Secret that the nodes mount.
	SecretName string `json:"secretName"`
	// NotAfter is when it expires.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
}

// Values of ServingCertificateStatus.Source.
const (
	SourceIssuer   = "Issuer"
	SourceSecret   = "Secret"
	SourceOperator = "Operator"
)
