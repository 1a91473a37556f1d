// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TopicPermissionSpec is the wanted state of a user's topic permission in a virtual host.
// +kubebuilder:validation:XValidation:rule="self.vhost == oldSelf.vhost",message="vhost is immutable"
// +kubebuilder:validation:XValidation:rule="self.exchange == oldSelf.exchange",message="exchange is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.user) != has(self.userRef)",message="set exactly one of user and userRef"
// +kubebuilder:validation:XValidation:rule="has(self.user) == has(oldSelf.user) && (!has(self.user) || self.user == oldSelf.user)",message="user is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.userRef) == has(oldSelf.userRef) && (!has(self.userRef) || self.userRef.name == oldSelf.userRef.name)",message="userRef is immutable"
type TopicPermissionSpec struct {
	// ClusterRef names the BrokerCluster, or a Secret for a broker that no operator runs. Immutable.
	ClusterRef ClusterReference `json:"clusterRef"`

	// Vhost of the permission. Immutable.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Vhost string `json:"vhost,omitempty"`

	// User is the user's name in the broker. Outside the cluster's namespace it must begin with this namespace and a
	// dash. Set either user or userRef. Immutable.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]')",message="must not contain control characters"
	User string `json:"user,omitempty"`

	// UserRef names a User of this namespace. The operator waits until that user is Ready. Immutable.
	// +optional
	UserRef *UserReference `json:"userRef,omitempty"`

	// Exchange of type topic to which the permission applies. It need not exist. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	// +kubebuilder:validation:XValidation:rule="self != 'amq.default'",message="the default exchange has no topics: name an exchange of type topic"
	Exchange string `json:"exchange"`

	// Write is a regular expression that matches routing keys with which the user may publish; empty grants nothing.
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.contains('(?') || self.matches('\\\\\\\\[0-9A-Za-z]|[*+?}][+]|[{][0-9,]{4}') || ''.matches(self) in [true, false]",message="must be a regular expression"
	Write string `json:"write"`

	// Read is a regular expression that matches routing keys with which the user may bind; empty grants nothing.
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.contains('(?') || self.matches('\\\\\\\\[0-9A-Za-z]|[*+?}][+]|[{][0-9,]{4}') || ''.matches(self) in [true, false]",message="must be a regular expression"
	Read string `json:"read"`

	// ReclaimPolicy keeps (Retain) or revokes (Delete) the topic permission when this object is deleted.
	// +optional
	// +kubebuilder:default=Delete
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`

	// Adoption applies to a topic permission of the user for the exchange that exists already: IfMatching adopts an equal one, Takeover adopts and changes
	// any, and Never reports a conflict.
	// +optional
	// +kubebuilder:default=IfMatching
	// +kubebuilder:validation:Enum=IfMatching;Never;Takeover
	Adoption AdoptionPolicy `json:"adoption,omitempty"`
}

// TopicPermissionStatus is the observed state.
type TopicPermissionStatus struct {
	TopologyStatus `json:",inline"`

	// User that the permission applies to.
	// +optional
	User string `json:"user,omitempty"`
}

// TopicPermission is the permission of a user for the routing keys of an exchange of a BrokerCluster.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ptp,categories=posthorn
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.status.user`
// +kubebuilder:printcolumn:name="Vhost",type=string,JSONPath=`.spec.vhost`
// +kubebuilder:printcolumn:name="Exchange",type=string,JSONPath=`.spec.exchange`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Write",type=string,JSONPath=`.spec.write`,priority=1
// +kubebuilder:printcolumn:name="Read",type=string,JSONPath=`.spec.read`,priority=1
// +kubebuilder:printcolumn:name="Connection",type=string,JSONPath=`.spec.clusterRef.connectionSecret.name`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TopicPermission struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec TopicPermissionSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status TopicPermissionStatus `json:"status,omitempty"`
}

// TopicPermissionList is a list of TopicPermission.
// +kubebuilder:object:root=true
type TopicPermissionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TopicPermission `json:"items"`
}

// ClusterRef returns the reference to the cluster of the permission.
func (p *TopicPermission) ClusterRef() ClusterReference { return p.Spec.ClusterRef }

// Topology returns the part of the status that all topology kinds share.
func (p *TopicPermission) Topology() *TopologyStatus { return &p.Status.TopologyStatus }

// BrokerVhost returns the vhost of the permission.
func (p *TopicPermission) BrokerVhost() string { return p.Spec.Vhost }

// BrokerUser returns the name of the user in the broker; empty until userRef is resolved.
func (p *TopicPermission) BrokerUser() string {
	if p.Spec.User != "" {
		return p.Spec.User
	}
	return p.Status.User
}

// UserName returns the name of the User in spec.userRef; empty when spec.user names the user.
func (p *TopicPermission) UserName() string {
	if p.Spec.UserRef == nil {
		return ""
	}
	return p.Spec.UserRef.Name
}

// SetBrokerUser records the name of the user in spec.userRef.
func (p *TopicPermission) SetBrokerUser(name string) { p.Status.User = name }

// BrokerName describes the permission, which has no name in the broker.
func (p *TopicPermission) BrokerName() string {
	return fmt.Sprintf("the topic permission of user %q for exchange %q in vhost %q", p.BrokerUser(), p.Spec.Exchange, p.Spec.Vhost)
}
