// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Policy scopes.
const (
	PolicyScopeUser     = "User"
	PolicyScopeOperator = "Operator"
)

// PolicySpec is the wanted state of a policy in the broker.
// +kubebuilder:validation:XValidation:rule="has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",message="name is immutable"
// +kubebuilder:validation:XValidation:rule="self.vhost == oldSelf.vhost",message="vhost is immutable"
// +kubebuilder:validation:XValidation:rule="self.scope == oldSelf.scope",message="scope is immutable"
// +kubebuilder:validation:XValidation:rule="self.scope != 'Operator' || self.applyTo in ['queues', 'classic_queues', 'quorum_queues', 'streams']",message="an operator policy applies to queues, classic_queues, quorum_queues or streams"
type PolicySpec struct {
	// ClusterRef names the BrokerCluster, or a Secret for a broker that no operator runs. Immutable.
	ClusterRef ClusterReference `json:"clusterRef"`

	// Vhost of the policy. Immutable.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Vhost string `json:"vhost,omitempty"`

	// Name of the policy in the broker; metadata.name when empty. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]')",message="must not contain control characters"
	Name string `json:"name,omitempty"`

	// Scope of the policy. Operator policies limit user policies and declarations, and are allowed only in
	// the cluster's namespace. Immutable.
	// +optional
	// +kubebuilder:default=User
	// +kubebuilder:validation:Enum=User;Operator
	Scope string `json:"scope,omitempty"`

	// Pattern is a regular expression that matches names of queues or exchanges.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.contains('(?') || self.matches('\\\\\\\\[0-9A-Za-z]|[*+?}][+]|[{][0-9,]{4}') || ''.matches(self) in [true, false]",message="must be a regular expression"
	Pattern string `json:"pattern"`

	// ApplyTo is the kind of object that the policy applies to.
	// +optional
	// +kubebuilder:default=queues
	// +kubebuilder:validation:Enum=queues;classic_queues;quorum_queues;streams;exchanges;all
	ApplyTo string `json:"applyTo,omitempty"`

	// Priority decides between policies that match the same object: the highest applies.
	// +optional
	Priority int32 `json:"priority"`

	// Definition has the policy's settings, for example max-length. Unknown keys and values of a wrong type
	// are refused, unless the object has the annotation posthorn.io/skip-validation: "true".
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	Definition map[string]apiextensionsv1.JSON `json:"definition"`

	// ReclaimPolicy keeps (Retain) or deletes (Delete) the policy in the broker when this object is deleted.
	// +optional
	// +kubebuilder:default=Delete
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`

	// Adoption applies to an existing policy of this name: IfMatching adopts an equal policy, Takeover adopts
	// and changes any, and Never reports a conflict.
	// +optional
	// +kubebuilder:default=IfMatching
	// +kubebuilder:validation:Enum=IfMatching;Never;Takeover
	Adoption AdoptionPolicy `json:"adoption,omitempty"`
}

// PolicyStatus is the observed state.
type PolicyStatus struct {
	TopologyStatus `json:",inline"`

	// MatchedQueues is the number of queues that the policy applies to.
	// +optional
	// +kubebuilder:default=0
	MatchedQueues int32 `json:"matchedQueues"`
	// ShadowedBy are other policies that apply to queues that this one matches; at most 16.
	// +optional
	ShadowedBy []string `json:"shadowedBy,omitempty"`
}

// Policy is a policy in a BrokerCluster.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pp,categories=posthorn
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Pattern",type=string,JSONPath=`.spec.pattern`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Queues",type=integer,JSONPath=`.status.matchedQueues`
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`,priority=1
// +kubebuilder:printcolumn:name="Vhost",type=string,JSONPath=`.spec.vhost`,priority=1
// +kubebuilder:printcolumn:name="Connection",type=string,JSONPath=`.spec.clusterRef.connectionSecret.name`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Policy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec PolicySpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// PolicyList is a list of Policy.
// +kubebuilder:object:root=true
type PolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Policy `json:"items"`
}

// ClusterRef returns the reference to the cluster of the policy.
func (p *Policy) ClusterRef() ClusterReference { return p.Spec.ClusterRef }

// Topology returns the part of the status that all topology kinds share.
func (p *Policy) Topology() *TopologyStatus { return &p.Status.TopologyStatus }

// BrokerVhost returns the vhost of the policy.
func (p *Policy) BrokerVhost() string { return p.Spec.Vhost }

// BrokerName returns the policy's name in the broker.
func (p *Policy) BrokerName() string {
	if p.Spec.Name != "" {
		return p.Spec.Name
	}
	return p.Name
}
