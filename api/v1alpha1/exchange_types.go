// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ExchangeSpec is the wanted state of an exchange in the broker.
// +kubebuilder:validation:XValidation:rule="has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",message="name is immutable"
// +kubebuilder:validation:XValidation:rule="self.vhost == oldSelf.vhost",message="vhost is immutable"
// +kubebuilder:validation:XValidation:rule="self.type == oldSelf.type",message="type is immutable"
// +kubebuilder:validation:XValidation:rule="self.durable == oldSelf.durable",message="durable is immutable"
// +kubebuilder:validation:XValidation:rule="self.autoDelete == oldSelf.autoDelete",message="autoDelete is immutable"
// +kubebuilder:validation:XValidation:rule="self.internal == oldSelf.internal",message="internal is immutable"
type ExchangeSpec struct {
	// ClusterRef names the BrokerCluster, or a Secret for a broker that no operator runs. Immutable.
	ClusterRef ClusterReference `json:"clusterRef"`

	// Vhost of the exchange. Immutable.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Vhost string `json:"vhost,omitempty"`

	// Name of the exchange in the broker; metadata.name when empty. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('amq.')",message="names that begin with amq. are reserved for the broker"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]')",message="must not contain control characters"
	Name string `json:"name,omitempty"`

	// Type of the exchange. Immutable.
	// +optional
	// +kubebuilder:default=direct
	// +kubebuilder:validation:Enum=direct;fanout;topic;headers;x-consistent-hash;x-local-random;x-modulus-hash;x-random;x-delayed-message
	Type string `json:"type,omitempty"`

	// Durable exchanges survive a restart of the cluster. Immutable.
	// +optional
	// +kubebuilder:default=true
	Durable *bool `json:"durable,omitempty"`

	// AutoDelete makes the broker delete the exchange with its last binding. The operator then declares it
	// again. Immutable.
	// +optional
	// +kubebuilder:default=false
	AutoDelete bool `json:"autoDelete"`

	// Internal exchanges refuse messages of clients, and take only messages of other exchanges. Immutable.
	// +optional
	// +kubebuilder:default=false
	Internal bool `json:"internal"`

	// Arguments of the declaration, for example alternate-exchange. The broker cannot change the arguments of an
	// exchange: to change them, delete the exchange and declare it again.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Arguments map[string]apiextensionsv1.JSON `json:"arguments,omitempty"`

	// ReclaimPolicy keeps (Retain) or deletes (Delete) the exchange and its bindings when this object is deleted.
	// +optional
	// +kubebuilder:default=Retain
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`

	// Adoption applies to an existing exchange of this name: IfMatching adopts an exchange with the same
	// properties, Takeover adopts any, and Never reports a conflict.
	// +optional
	// +kubebuilder:default=IfMatching
	// +kubebuilder:validation:Enum=IfMatching;Never;Takeover
	Adoption AdoptionPolicy `json:"adoption,omitempty"`
}

// ExchangeStatus is the observed state.
type ExchangeStatus struct {
	TopologyStatus `json:",inline"`

	// EffectivePolicy is the policy that applies to the exchange.
	// +optional
	EffectivePolicy string `json:"effectivePolicy,omitempty"`
}

// Exchange is an exchange in a BrokerCluster.
// +kubebuilder:validation:XValidation:rule="(has(self.spec.name) && size(self.spec.name) > 0) || !self.metadata.name.startsWith('amq.')",message="names that begin with amq. are reserved for the broker: set spec.name"
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=px,categories=posthorn
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Vhost",type=string,JSONPath=`.spec.vhost`,priority=1
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.status.effectivePolicy`,priority=1
// +kubebuilder:printcolumn:name="Connection",type=string,JSONPath=`.spec.clusterRef.connectionSecret.name`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Exchange struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec ExchangeSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status ExchangeStatus `json:"status,omitempty"`
}

// ExchangeList is a list of Exchange.
// +kubebuilder:object:root=true
type ExchangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Exchange `json:"items"`
}

// ClusterRef returns the reference to the cluster of the exchange.
func (x *Exchange) ClusterRef() ClusterReference { return x.Spec.ClusterRef }

// Topology returns the part of the status that all topology kinds share.
func (x *Exchange) Topology() *TopologyStatus { return &x.Status.TopologyStatus }

// BrokerVhost returns the vhost of the exchange.
func (x *Exchange) BrokerVhost() string { return x.Spec.Vhost }

// IsDurable reports whether the exchange survives a restart of the cluster.
func (x *Exchange) IsDurable() bool { return x.Spec.Durable == nil || *x.Spec.Durable }

// BrokerName returns the exchange's name in the broker.
func (x *Exchange) BrokerName() string {
	if x.Spec.Name != "" {
		return x.Spec.Name
	}
	return x.Name
}
