// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TLSSpec adds listeners with TLS for clients, the HTTP API and metrics. Their certificate comes from a
// cert-manager issuer, from a given Secret, or, when neither is set, from a CA that the operator keeps for
// this cluster alone. The nodes load a renewed certificate without a restart.
// +kubebuilder:validation:XValidation:rule="!(has(self.issuerRef) && has(self.secretName))",message="tls.issuerRef and tls.secretName exclude each other"
type TLSSpec struct {
	// IssuerRef names a cert-manager issuer. The operator keeps a Certificate named after the cluster with
	// the suffix "-tls", and cert-manager writes the Secret of the same name.
	// +optional
	IssuerRef *IssuerReference `json:"issuerRef,omitempty"`

	// SecretName is a Secret of type kubernetes.io/tls in this namespace that the operator does not change.
	// It has the keys tls.crt and tls.key, and ca.crt when nodes verify client certificates.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	SecretName string `json:"secretName,omitempty"`

	// DNSNames are host names of the certificate beside the Services' names inside Kubernetes: the names
	// that clients outside connect to. A certificate in a given Secret must have them all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	DNSNames []DNSName `json:"dnsNames,omitempty"`

	// ClientAuth controls client certificates: None does not ask for one, Optional verifies one that a client
	// presents, Required refuses clients without one. The nodes verify it with ca.crt of the Secret.
	// +optional
	// +kubebuilder:default=None
	// +kubebuilder:validation:Enum=None;Optional;Required
	ClientAuth string `json:"clientAuth,omitempty"`

	// DisablePlaintext closes the ports without TLS: of clients (5672 for AMQP), of metrics (15692) and of
	// the HTTP API (15672), which only processes inside the pods can still use.
	// +optional
	DisablePlaintext bool `json:"disablePlaintext,omitempty"`
}

// TLSOnly reports whether clients can only connect over TLS.
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

	// Kind of the issuer: Issuer, ClusterIssuer, or the kind of an external issuer.
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

// MonitoringSpec selects the objects for Prometheus and Grafana.
type MonitoringSpec struct {
	// ServiceMonitor Auto creates the ServiceMonitor (and, with rules, the PrometheusRule) once the
	// Prometheus operator's API is installed. On does the same and sets the condition MonitoringReady to
	// False until then. Off creates neither.
	// +optional
	// +kubebuilder:default=Auto
	// +kubebuilder:validation:Enum=Auto;On;Off
	ServiceMonitor string `json:"serviceMonitor,omitempty"`

	// Rules creates a PrometheusRule with alerts about this cluster.
	// +optional
	// +kubebuilder:default=true
	Rules *bool `json:"rules,omitempty"`

	// Dashboards creates a ConfigMap of Grafana dashboards with the label grafana_dashboard, which Grafana's
	// sidecar selects.
	// +optional
	// +kubebuilder:default=true
	Dashboards *bool `json:"dashboards,omitempty"`

	// QueueMetrics lets Prometheus scrape the metrics of each queue and stream once a minute, which the alert
	// PosthornMessagesOld needs, and adds a dashboard for them. They are up to 7 series for a queue, and 8 more for
	// each replica of a stream.
	// +optional
	QueueMetrics bool `json:"queueMetrics,omitempty"`

	// Labels of the ServiceMonitor, the PrometheusRule and the dashboards, for a Prometheus or Grafana that
	// selects by labels.
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

// WantsRules reports whether the spec asks for alerts.
func (m MonitoringSpec) WantsRules() bool { return m.Rules == nil || *m.Rules }

// WantsDashboards reports whether the spec asks for dashboards.
func (m MonitoringSpec) WantsDashboards() bool { return m.Dashboards == nil || *m.Dashboards }

// NetworkPolicySpec configures the NetworkPolicy of the cluster.
type NetworkPolicySpec struct {
	// Mode Strict keeps a NetworkPolicy. Nodes accept connections from each other, from clients on the client
	// ports, from the operator on the HTTP API, and from Prometheus on the metrics port. They connect only
	// to each other and to DNS. Off keeps no NetworkPolicy.
	// +optional
	// +kubebuilder:default=Off
	// +kubebuilder:validation:Enum=Off;Strict
	Mode string `json:"mode,omitempty"`

	// Clients may connect to the client ports; everybody when empty.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Clients []NetworkPeer `json:"clients,omitempty"`

	// Management may connect to the HTTP API, like the operator; nobody else when empty.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Management []NetworkPeer `json:"management,omitempty"`

	// Monitoring may connect to the metrics port; everybody when empty.
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

// ServingCertificateStatus describes the certificate that clients see.
type ServingCertificateStatus struct {
	// Source of the certificate: Issuer, Secret or Operator.
	Source string `json:"source"`
	// SecretName is the Secret that the nodes mount.
	SecretName string `json:"secretName"`
	// NotAfter is when the certificate expires.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
}

// Values of ServingCertificateStatus.Source.
const (
	SourceIssuer   = "Issuer"
	SourceSecret   = "Secret"
	SourceOperator = "Operator"
)
