// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// UserSpec is the wanted state of a user in the broker.
// +kubebuilder:validation:XValidation:rule="!has(self.credentials.certificate) || !has(self.username) || self.username == self.credentials.certificate.commonName",message="the username of a user with a certificate is its commonName: leave username out"
// +kubebuilder:validation:XValidation:rule="has(self.credentials.certificate) == has(oldSelf.credentials.certificate) && (!has(self.credentials.certificate) || self.credentials.certificate.commonName == oldSelf.credentials.certificate.commonName)",message="credentials.certificate is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.username) == has(oldSelf.username) && (!has(self.username) || self.username == oldSelf.username)",message="username is immutable"
type UserSpec struct {
	// ClusterRef names the BrokerCluster, or a Secret for a broker that no operator runs. Immutable.
	ClusterRef ClusterReference `json:"clusterRef"`

	// Username in the broker. When empty, it is the certificate's commonName or else <namespace>-<name> of
	// this object. Outside the cluster's namespace it must begin with this namespace and a dash, and must
	// not begin with a longer namespace that may use the cluster and a dash. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.@:+-]+$`
	Username string `json:"username,omitempty"`

	// Credentials of the user: a password or a client certificate.
	// +optional
	// +kubebuilder:default={generate: {}}
	Credentials CredentialsSpec `json:"credentials"`

	// Tags give access to the management API. Outside the cluster's namespace only management and
	// policymaker are allowed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	Tags []UserTag `json:"tags,omitempty"`

	// Permissions of the user, one entry for each vhost. The operator revokes permissions that are not
	// listed, except permissions that a Permission object sets.
	// +optional
	// +listType=map
	// +listMapKey=vhost
	// +kubebuilder:validation:MaxItems=128
	Permissions []UserPermission `json:"permissions,omitempty"`

	// TopicPermissions of the user, one entry for each vhost and exchange.
	// +optional
	// +listType=map
	// +listMapKey=vhost
	// +listMapKey=exchange
	// +kubebuilder:validation:MaxItems=128
	TopicPermissions []UserTopicPermission `json:"topicPermissions,omitempty"`

	// Limits of the user. Outside the cluster's namespace spec.tenancy.userLimits of the cluster caps them;
	// status.limits has the effective limits.
	// +optional
	// +kubebuilder:default={}
	Limits UserLimits `json:"limits"`

	// ReclaimPolicy keeps (Retain) or deletes (Delete) the user in the broker when this object is deleted.
	// +optional
	// +kubebuilder:default=Delete
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`

	// Adoption applies to an existing user of this name: Never reports a conflict, Takeover gives it the
	// password, tags and permissions of this object, which is allowed only in the cluster's namespace.
	// +optional
	// +kubebuilder:default=Never
	// +kubebuilder:validation:Enum=Never;Takeover
	Adoption AdoptionPolicy `json:"adoption,omitempty"`
}

// UserTag is a tag of a user.
// +kubebuilder:validation:Enum=administrator;monitoring;policymaker;management;impersonator
type UserTag string

// CredentialsSpec selects how the user authenticates: exactly one field is set.
// +kubebuilder:validation:XValidation:rule="(has(self.secretRef) ? 1 : 0) + (has(self.generate) ? 1 : 0) + (has(self.certificate) ? 1 : 0) == 1",message="set exactly one of secretRef, generate and certificate"
type CredentialsSpec struct {
	// SecretRef names a Secret of this namespace whose key password is the password.
	// +optional
	SecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`

	// Generate creates a password once and keeps it in the binding Secret; change it there to rotate it.
	// +optional
	Generate *GenerateSpec `json:"generate,omitempty"`

	// Certificate is for a user that authenticates with a client certificate (SASL EXTERNAL) and has no
	// password. Immutable.
	// +optional
	Certificate *CertificateCredentials `json:"certificate,omitempty"`
}

// CertificateCredentials describe the client certificate of a user.
type CertificateCredentials struct {
	// CommonName of the certificate's subject; it is the username.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.@:+-]+$`
	CommonName string `json:"commonName"`
}

// GenerateSpec describes a generated password.
type GenerateSpec struct {
	// Length of the password in characters.
	// +optional
	// +kubebuilder:default=32
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=128
	Length int32 `json:"length,omitempty"`
}

// UserPermission of a user in a vhost: regular expressions over names; empty grants nothing.
type UserPermission struct {
	// Vhost of the permission.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Vhost string `json:"vhost"`
	// Configure matches exchanges and queues that the user may declare and delete.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.contains('(?') || self.matches('\\\\\\\\[0-9A-Za-z]|[*+?}][+]|[{][0-9,]{4}') || ''.matches(self) in [true, false]",message="must be a regular expression"
	Configure string `json:"configure"`
	// Write matches exchanges and queues that the user may publish or bind to.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.contains('(?') || self.matches('\\\\\\\\[0-9A-Za-z]|[*+?}][+]|[{][0-9,]{4}') || ''.matches(self) in [true, false]",message="must be a regular expression"
	Write string `json:"write"`
	// Read matches exchanges and queues that the user may consume or bind from.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.contains('(?') || self.matches('\\\\\\\\[0-9A-Za-z]|[*+?}][+]|[{][0-9,]{4}') || ''.matches(self) in [true, false]",message="must be a regular expression"
	Read string `json:"read"`
}

// UserTopicPermission of a user for a topic exchange: regular expressions over routing keys.
type UserTopicPermission struct {
	// Vhost of the permission.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Vhost string `json:"vhost"`
	// Exchange of the permission.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Exchange string `json:"exchange"`
	// Write matches routing keys with which the user may publish.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.contains('(?') || self.matches('\\\\\\\\[0-9A-Za-z]|[*+?}][+]|[{][0-9,]{4}') || ''.matches(self) in [true, false]",message="must be a regular expression"
	Write string `json:"write"`
	// Read matches routing keys with which the user may bind.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.contains('(?') || self.matches('\\\\\\\\[0-9A-Za-z]|[*+?}][+]|[{][0-9,]{4}') || ''.matches(self) in [true, false]",message="must be a regular expression"
	Read string `json:"read"`
}

// UserLimits of a user; 0 is no limit.
type UserLimits struct {
	// Connections that the user may have open.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Connections int32 `json:"connections,omitempty"`
	// Channels that the user may have open.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Channels int32 `json:"channels,omitempty"`
	// MessageRate is the number of messages that the user may publish per second. The broker slows publishers down
	// and refuses nothing. It needs the feature flag quotas.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MessageRate int64 `json:"messageRate,omitempty"`
	// ByteRate is the number of bytes of messages that the user may publish per second, as for messageRate.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ByteRate int64 `json:"byteRate,omitempty"`
}

// UserStatus is the observed state.
type UserStatus struct {
	TopologyStatus `json:",inline"`

	// Username in the broker.
	// +optional
	Username string `json:"username,omitempty"`
	// Binding names the Secret with host, port, username, password and uri (service binding).
	// +optional
	Binding *BindingReference `json:"binding,omitempty"`
	// Limits that apply: the lower of spec.limits and of the cluster's spec.tenancy.userLimits.
	// +optional
	Limits *UserLimits `json:"limits,omitempty"`
	// CredentialVersion is the version of the Secret whose password the broker has.
	// +optional
	CredentialVersion string `json:"credentialVersion,omitempty"`
}

// User is a user of a BrokerCluster.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pu,categories=posthorn
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Username",type=string,JSONPath=`.status.username`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Binding",type=string,JSONPath=`.status.binding.name`
// +kubebuilder:printcolumn:name="Connection",type=string,JSONPath=`.spec.clusterRef.connectionSecret.name`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type User struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec UserSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status UserStatus `json:"status,omitempty"`
}

// UserList is a list of User.
// +kubebuilder:object:root=true
type UserList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []User `json:"items"`
}

// ClusterRef returns the reference to the cluster of the user.
func (u *User) ClusterRef() ClusterReference { return u.Spec.ClusterRef }

// Topology returns the part of the status that all topology kinds share.
func (u *User) Topology() *TopologyStatus { return &u.Status.TopologyStatus }

// BrokerVhosts returns the vhosts in which the user has permissions.
func (u *User) BrokerVhosts() []string {
	var out []string
	for i := range u.Spec.Permissions {
		out = append(out, u.Spec.Permissions[i].Vhost)
	}
	for i := range u.Spec.TopicPermissions {
		out = append(out, u.Spec.TopicPermissions[i].Vhost)
	}
	return out
}

// BrokerName returns the user's name in the broker.
func (u *User) BrokerName() string {
	if u.Spec.Username != "" {
		return u.Spec.Username
	}
	if certificate := u.Spec.Credentials.Certificate; certificate != nil {
		return certificate.CommonName
	}
	return u.Namespace + "-" + u.Name
}

// BindingName returns the name of the Secret in service-binding form.
func (u *User) BindingName() string { return u.Name + "-binding" }
