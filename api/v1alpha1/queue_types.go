// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Queue types.
const (
	QueueTypeQuorum  = "quorum"
	QueueTypeClassic = "classic"
	QueueTypeStream  = "stream"
)

// Values of OnImmutableChange.
const (
	ImmutableFail            = "Fail"
	ImmutableRecreateIfEmpty = "RecreateIfEmpty"
)

// QueueSpec is the wanted state of a queue in the broker.
// +kubebuilder:validation:XValidation:rule="has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",message="name is immutable"
// +kubebuilder:validation:XValidation:rule="self.vhost == oldSelf.vhost",message="vhost is immutable"
// +kubebuilder:validation:XValidation:rule="self.type == oldSelf.type",message="type is immutable"
// +kubebuilder:validation:XValidation:rule="self.type != 'classic' || !has(self.replicas) || self.replicas == 0",message="a classic queue has one replica: leave replicas out"
type QueueSpec struct {
	// ClusterRef names the BrokerCluster, or a Secret for a broker that no operator runs. Immutable.
	ClusterRef ClusterReference `json:"clusterRef"`

	// Vhost of the queue. Immutable.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Vhost string `json:"vhost,omitempty"`

	// Name of the queue in the broker; metadata.name when empty. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('amq.')",message="names that begin with amq. are reserved for the broker"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]')",message="must not contain control characters"
	Name string `json:"name,omitempty"`

	// Type of the queue. Immutable.
	// +optional
	// +kubebuilder:default=quorum
	// +kubebuilder:validation:Enum=quorum;classic;stream
	Type string `json:"type,omitempty"`

	// Replicas is the number of members of a quorum queue or stream; 0 leaves it to the cluster
	// (placement.quorumReplicas for a quorum queue, else the broker). When it changes, the queue gets or loses
	// members one at a time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9
	Replicas int32 `json:"replicas,omitempty"`

	// Arguments of the declaration, for example x-delivery-limit, or x-max-age of a stream. x-queue-type and the arguments for the
	// number of replicas are refused: use type and replicas. Values of a wrong type are refused too, unless
	// the object has the annotation posthorn.io/skip-validation: "true".
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Arguments map[string]apiextensionsv1.JSON `json:"arguments,omitempty"`

	// ReclaimPolicy keeps (Retain) or deletes (Delete, DeleteIfEmpty) the queue and its messages when this
	// object is deleted.
	// +optional
	// +kubebuilder:default=Retain
	// +kubebuilder:validation:Enum=Retain;Delete;DeleteIfEmpty
	ReclaimPolicy string `json:"reclaimPolicy,omitempty"`

	// Adoption applies to an existing queue of this name: IfMatching adopts a queue with the same properties,
	// Takeover adopts any, and Never reports a conflict.
	// +optional
	// +kubebuilder:default=IfMatching
	// +kubebuilder:validation:Enum=IfMatching;Never;Takeover
	Adoption AdoptionPolicy `json:"adoption,omitempty"`

	// OnImmutableChange applies when an immutable property of the queue in the broker differs: Fail reports
	// it, RecreateIfEmpty deletes the queue and declares it again if it is empty.
	// +optional
	// +kubebuilder:default=Fail
	// +kubebuilder:validation:Enum=Fail;RecreateIfEmpty
	OnImmutableChange string `json:"onImmutableChange,omitempty"`
}

// QueueStatus is the observed state.
type QueueStatus struct {
	TopologyStatus `json:",inline"`

	// Leader is the node (pod) of the queue's leader.
	// +optional
	Leader string `json:"leader,omitempty"`
	// Members are the nodes with a replica.
	// +optional
	Members []string `json:"members,omitempty"`
	// OnlineMembers are the members that are up.
	// +optional
	OnlineMembers []string `json:"onlineMembers,omitempty"`
	// EffectivePolicy is the policy that applies to the queue.
	// +optional
	EffectivePolicy string `json:"effectivePolicy,omitempty"`
	// EffectiveOperatorPolicy is the operator policy that applies to the queue.
	// +optional
	EffectiveOperatorPolicy string `json:"effectiveOperatorPolicy,omitempty"`
	// Messages in the queue when the operator last queried it.
	// +optional
	// +kubebuilder:default=0
	Messages int64 `json:"messages"`
}

// Queue is a queue in a BrokerCluster.
// +kubebuilder:validation:XValidation:rule="(has(self.spec.name) && size(self.spec.name) > 0) || !self.metadata.name.startsWith('amq.')",message="names that begin with amq. are reserved for the broker: set spec.name"
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pq,categories=posthorn
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Leader",type=string,JSONPath=`.status.leader`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.messages`
// +kubebuilder:printcolumn:name="Vhost",type=string,JSONPath=`.spec.vhost`,priority=1
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.status.effectivePolicy`,priority=1
// +kubebuilder:printcolumn:name="Connection",type=string,JSONPath=`.spec.clusterRef.connectionSecret.name`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Queue struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec QueueSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status QueueStatus `json:"status,omitempty"`
}

// QueueList is a list of Queue.
// +kubebuilder:object:root=true
type QueueList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Queue `json:"items"`
}

// ClusterRef returns the reference to the cluster of the queue.
func (q *Queue) ClusterRef() ClusterReference { return q.Spec.ClusterRef }

// Topology returns the part of the status that all topology kinds share.
func (q *Queue) Topology() *TopologyStatus { return &q.Status.TopologyStatus }

// BrokerVhost returns the vhost of the queue.
func (q *Queue) BrokerVhost() string { return q.Spec.Vhost }

// WantedMembers returns the wanted number of members in a cluster; 0 leaves it to the broker.
func (q *Queue) WantedMembers(cluster *BrokerClusterSpec) int32 {
	if q.Spec.Replicas == 0 && q.Spec.Type == QueueTypeQuorum {
		return cluster.Placement.QuorumReplicas
	}
	return q.Spec.Replicas
}

// BrokerName returns the queue's name in the broker.
func (q *Queue) BrokerName() string {
	if q.Spec.Name != "" {
		return q.Spec.Name
	}
	return q.Name
}
