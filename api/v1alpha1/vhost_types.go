// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VhostSpec is the wanted state of a virtual host in the broker.
// +kubebuilder:validation:XValidation:rule="has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",message="name is immutable"
type VhostSpec struct {
	// ClusterRef names the BrokerCluster, or a Secret for a broker that no operator runs. Immutable.
	ClusterRef ClusterReference `json:"clusterRef"`

	// Name of the virtual host in the broker; metadata.name when empty. Outside the cluster's namespace it must
	// be <vhostPrefix><namespace>, or begin with that and a dot. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]')",message="must not contain control characters"
	Name string `json:"name,omitempty"`

	// DefaultQueueType is the type of queues that clients declare without x-queue-type. When empty, the broker
	// decides, and a type that is set in the broker stays.
	// +optional
	// +kubebuilder:validation:Enum=quorum;classic;stream
	DefaultQueueType string `json:"defaultQueueType,omitempty"`

	// Limits of the virtual host.
	// +optional
	// +kubebuilder:default={}
	Limits VhostLimits `json:"limits"`

	// Tags of the virtual host. They have no effect in the broker.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^[^,\s]([^,]*[^,\s])?$`
	Tags []string `json:"tags,omitempty"`

	// Tracing copies every message of the virtual host to the exchange amq.rabbitmq.trace, which costs
	// throughput.
	// +optional
	Tracing bool `json:"tracing,omitempty"`

	// ReclaimPolicy keeps (Retain) or deletes the virtual host when this object is deleted. Delete also deletes
	// all its queues, with their messages, and everything else in it. DeleteIfEmpty deletes it only if it has no
	// queues; it waits for the objects of this virtual host that are being deleted too.
	// +optional
	// +kubebuilder:default=Retain
	// +kubebuilder:validation:Enum=Retain;Delete;DeleteIfEmpty
	ReclaimPolicy string `json:"reclaimPolicy,omitempty"`

	// Adoption applies to an existing virtual host of this name: IfMatching adopts one with the same properties,
	// Takeover adopts and changes any, and Never reports a conflict.
	// +optional
	// +kubebuilder:default=IfMatching
	// +kubebuilder:validation:Enum=IfMatching;Never;Takeover
	Adoption AdoptionPolicy `json:"adoption,omitempty"`
}

// VhostLimits of a virtual host. An absent limit is no limit; 0 allows none.
type VhostLimits struct {
	// MaxConnections is the number of client connections that may be open.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxConnections *int32 `json:"maxConnections,omitempty"`
	// MaxQueues is the number of queues that may exist.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxQueues *int32 `json:"maxQueues,omitempty"`
	// MaxChannels is the number of channels and AMQP 1.0 sessions that may be open. It needs the feature flag quotas.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxChannels *int32 `json:"maxChannels,omitempty"`
	// MaxMessageRate is the number of messages that clients may publish per second. The broker slows publishers
	// down and refuses nothing. It needs the feature flag quotas.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxMessageRate *int64 `json:"maxMessageRate,omitempty"`
	// MaxByteRate is the number of bytes of messages that clients may publish per second, as for maxMessageRate.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxByteRate *int64 `json:"maxByteRate,omitempty"`
	// MaxStoredBytes is the number of bytes of messages that the queues may store. The broker blocks publishers at
	// this limit until consumers have made room. It needs the feature flag quotas.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxStoredBytes *int64 `json:"maxStoredBytes,omitempty"`
}

// VhostStatus is the observed state.
type VhostStatus struct {
	TopologyStatus `json:",inline"`

	// Queues in the virtual host when the operator last queried it.
	// +optional
	// +kubebuilder:default=0
	Queues int64 `json:"queues"`

	// Limits that the operator keeps in the broker: those of the spec, or lower ones of the cluster's tenancy.
	// +optional
	Limits *VhostLimits `json:"limits,omitempty"`
}

// Vhost is a virtual host of a BrokerCluster.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pvh,categories=posthorn
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Vhost",type=string,JSONPath=`.spec.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Queues",type=integer,JSONPath=`.status.queues`
// +kubebuilder:printcolumn:name="Default Type",type=string,JSONPath=`.spec.defaultQueueType`,priority=1
// +kubebuilder:printcolumn:name="Connection",type=string,JSONPath=`.spec.clusterRef.connectionSecret.name`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Vhost struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec VhostSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status VhostStatus `json:"status,omitempty"`
}

// VhostList is a list of Vhost.
// +kubebuilder:object:root=true
type VhostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Vhost `json:"items"`
}

// ClusterRef returns the reference to the cluster of the virtual host.
func (v *Vhost) ClusterRef() ClusterReference { return v.Spec.ClusterRef }

// Topology returns the part of the status that all topology kinds share.
func (v *Vhost) Topology() *TopologyStatus { return &v.Status.TopologyStatus }

// BrokerName returns the name of the virtual host in the broker.
func (v *Vhost) BrokerName() string {
	if v.Spec.Name != "" {
		return v.Spec.Name
	}
	return v.Name
}
