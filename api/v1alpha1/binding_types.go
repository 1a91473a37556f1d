// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Types of the destination of a binding.
const (
	DestinationQueue    = "queue"
	DestinationExchange = "exchange"
)

// BindingSpec is the wanted state of a binding in the broker.
// +kubebuilder:validation:XValidation:rule="self.vhost == oldSelf.vhost",message="vhost is immutable"
// +kubebuilder:validation:XValidation:rule="self.source == oldSelf.source",message="source is immutable"
// +kubebuilder:validation:XValidation:rule="self.destination == oldSelf.destination",message="destination is immutable"
// +kubebuilder:validation:XValidation:rule="self.destinationType == oldSelf.destinationType",message="destinationType is immutable"
// +kubebuilder:validation:XValidation:rule="self.routingKey == oldSelf.routingKey",message="routingKey is immutable"
// +kubebuilder:validation:XValidation:rule="self.destinationType != 'exchange' || self.destination != 'amq.default'",message="the default exchange has no bindings: destination must be another exchange"
type BindingSpec struct {
	// ClusterRef names the BrokerCluster, or a Secret for a broker that no operator runs. Immutable.
	ClusterRef ClusterReference `json:"clusterRef"`

	// Vhost of the binding. Immutable.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Vhost string `json:"vhost,omitempty"`

	// Source is the exchange that the messages come from. The default exchange, which is empty or amq.default, has
	// no bindings that can be changed. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	// +kubebuilder:validation:XValidation:rule="self != 'amq.default'",message="the default exchange has no bindings: source must be another exchange"
	Source string `json:"source"`

	// Destination is the queue or exchange that the messages go to. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Destination string `json:"destination"`

	// DestinationType is queue or exchange. Immutable.
	// +optional
	// +kubebuilder:default=queue
	// +kubebuilder:validation:Enum=queue;exchange
	DestinationType string `json:"destinationType,omitempty"`

	// RoutingKey that messages are compared with; the type of the source decides how. Immutable.
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	RoutingKey string `json:"routingKey"`

	// Arguments of the binding, for example x-match for an exchange of type headers. The operator refuses a change:
	// delete this object and create another one.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Arguments map[string]apiextensionsv1.JSON `json:"arguments,omitempty"`

	// ReclaimPolicy keeps (Retain) or deletes (Delete) the binding when this object is deleted.
	// +optional
	// +kubebuilder:default=Delete
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`

	// Adoption applies to a binding that exists already: IfMatching adopts it, because equal bindings are one
	// binding, and Never reports a conflict.
	// +optional
	// +kubebuilder:default=IfMatching
	// +kubebuilder:validation:Enum=IfMatching;Never
	Adoption AdoptionPolicy `json:"adoption,omitempty"`
}

// BindingStatus is the observed state.
type BindingStatus struct {
	TopologyStatus `json:",inline"`

	// PropertiesKey is the part of the binding's path in the broker's HTTP API that distinguishes it from other
	// bindings of the same source and destination.
	// +optional
	PropertiesKey string `json:"propertiesKey,omitempty"`
	// ArgumentsDigest is a digest of the arguments with which the binding was created.
	// +optional
	ArgumentsDigest string `json:"argumentsDigest,omitempty"`
}

// Binding is a binding in a BrokerCluster.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pb,categories=posthorn
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source`
// +kubebuilder:printcolumn:name="Destination",type=string,JSONPath=`.spec.destination`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.destinationType`,priority=1
// +kubebuilder:printcolumn:name="Routing Key",type=string,JSONPath=`.spec.routingKey`,priority=1
// +kubebuilder:printcolumn:name="Vhost",type=string,JSONPath=`.spec.vhost`,priority=1
// +kubebuilder:printcolumn:name="Connection",type=string,JSONPath=`.spec.clusterRef.connectionSecret.name`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Binding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec BindingSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status BindingStatus `json:"status,omitempty"`
}

// BindingList is a list of Binding.
// +kubebuilder:object:root=true
type BindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Binding `json:"items"`
}

// ClusterRef returns the reference to the cluster of the binding.
func (b *Binding) ClusterRef() ClusterReference { return b.Spec.ClusterRef }

// Topology returns the part of the status that all topology kinds share.
func (b *Binding) Topology() *TopologyStatus { return &b.Status.TopologyStatus }

// BrokerVhost returns the vhost of the binding.
func (b *Binding) BrokerVhost() string { return b.Spec.Vhost }

// BrokerName describes the binding, which has no name in the broker.
func (b *Binding) BrokerName() string {
	return fmt.Sprintf("the binding of %s %q to exchange %q with routing key %q", b.Spec.DestinationType, b.Spec.Destination, b.Spec.Source, b.Spec.RoutingKey)
}
