// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SuperStreamSpec is the wanted state of a super stream in the broker: an exchange and a stream for each partition.
// +kubebuilder:validation:XValidation:rule="has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",message="name is immutable"
// +kubebuilder:validation:XValidation:rule="self.vhost == oldSelf.vhost",message="vhost is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.partitions) != has(self.routingKeys)",message="set exactly one of partitions and routingKeys"
// +kubebuilder:validation:XValidation:rule="has(self.partitions) == has(oldSelf.partitions) && (!has(self.partitions) || self.partitions == oldSelf.partitions)",message="partitions is immutable: with another number, messages of the same key would go to another partition; create another SuperStream and move the clients to it"
// +kubebuilder:validation:XValidation:rule="has(self.routingKeys) == has(oldSelf.routingKeys) && (!has(self.routingKeys) || self.routingKeys.map(k, k) == oldSelf.routingKeys.map(k, k))",message="routingKeys is immutable, also its order: the partitions of a super stream cannot change; create another SuperStream and move the clients to it"
// +kubebuilder:validation:XValidation:rule="!has(self.name) || !has(self.routingKeys) || self.routingKeys.all(k, size(bytes(self.name)) + size(bytes(k)) < 255)",message="name and routing key, joined by a dash, are the name of a stream and must have at most 255 bytes"
// +kubebuilder:validation:XValidation:rule="!has(self.name) || !has(self.partitions) || size(bytes(self.name)) + size(string(self.partitions - 1)) < 255",message="name and number of a partition, joined by a dash, are the name of a stream and must have at most 255 bytes"
type SuperStreamSpec struct {
	// ClusterRef names the BrokerCluster, or a Secret for a broker that no operator runs. Immutable.
	ClusterRef ClusterReference `json:"clusterRef"`

	// Vhost of the super stream. Immutable.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
	Vhost string `json:"vhost,omitempty"`

	// Name of the super stream in the broker, which is the name of its exchange; metadata.name when empty.
	// Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 253",message="must have at most 253 bytes"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('amq.')",message="names that begin with amq. are reserved for the broker"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]')",message="must not contain control characters"
	Name string `json:"name,omitempty"`

	// Partitions is the number of partitions. Their streams are <name>-0, <name>-1 and so on, their routing
	// keys the numbers. Set either this or routingKeys. Immutable.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Partitions int32 `json:"partitions,omitempty"`

	// RoutingKeys has the routing key of each partition, in the order of the partitions. Their streams are
	// <name>-<routing key>. Immutable.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	RoutingKeys []RoutingKey `json:"routingKeys,omitempty"`

	// Replicas is the number of members of each stream; 0 leaves it to the broker. When it changes, the streams
	// get or lose members one at a time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9
	Replicas int32 `json:"replicas,omitempty"`

	// Arguments of the declaration of each stream, for example x-max-age. x-queue-leader-locator is balanced
	// when absent. x-queue-type and x-initial-cluster-size are refused. The broker cannot change the arguments
	// of a stream; a Policy with applyTo: streams can change its retention.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Arguments map[string]apiextensionsv1.JSON `json:"arguments,omitempty"`

	// ReclaimPolicy keeps (Retain) or deletes (Delete) the exchange, the streams and their messages when this
	// object is deleted.
	// +optional
	// +kubebuilder:default=Retain
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`

	// Adoption applies to an existing exchange or stream of these names: IfMatching adopts a super stream with
	// the same partitions and properties, Takeover adopts any, and Never reports a conflict.
	// +optional
	// +kubebuilder:default=IfMatching
	// +kubebuilder:validation:Enum=IfMatching;Never;Takeover
	Adoption AdoptionPolicy `json:"adoption,omitempty"`
}

// RoutingKey of a partition.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]')",message="must not contain control characters"
type RoutingKey string

// SuperStreamStatus is the observed state.
type SuperStreamStatus struct {
	TopologyStatus `json:",inline"`

	// Partitions is the number of partitions.
	// +optional
	// +kubebuilder:default=0
	Partitions int32 `json:"partitions"`
	// UsablePartitions is the number of partitions that clients could use when the operator last queried them.
	// +optional
	// +kubebuilder:default=0
	UsablePartitions int32 `json:"usablePartitions"`
	// Messages in all partitions when the operator last queried them.
	// +optional
	// +kubebuilder:default=0
	Messages int64 `json:"messages"`
}

// SuperStream is a super stream in a BrokerCluster: a stream that is divided into partitions.
// +kubebuilder:validation:XValidation:rule="(has(self.spec.name) && size(self.spec.name) > 0) || !self.metadata.name.startsWith('amq.')",message="names that begin with amq. are reserved for the broker: set spec.name"
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pss,categories=posthorn
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Partitions",type=integer,JSONPath=`.status.partitions`
// +kubebuilder:printcolumn:name="Usable",type=integer,JSONPath=`.status.usablePartitions`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.messages`
// +kubebuilder:printcolumn:name="Vhost",type=string,JSONPath=`.spec.vhost`,priority=1
// +kubebuilder:printcolumn:name="Connection",type=string,JSONPath=`.spec.clusterRef.connectionSecret.name`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SuperStream struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec SuperStreamSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status SuperStreamStatus `json:"status,omitempty"`
}

// SuperStreamList is a list of SuperStream.
// +kubebuilder:object:root=true
type SuperStreamList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SuperStream `json:"items"`
}

// ClusterRef returns the reference to the cluster of the super stream.
func (s *SuperStream) ClusterRef() ClusterReference { return s.Spec.ClusterRef }

// Topology returns the part of the status that all topology kinds share.
func (s *SuperStream) Topology() *TopologyStatus { return &s.Status.TopologyStatus }

// BrokerVhost returns the vhost of the super stream.
func (s *SuperStream) BrokerVhost() string { return s.Spec.Vhost }

// BrokerName returns the name of the super stream and of its exchange in the broker.
func (s *SuperStream) BrokerName() string {
	if s.Spec.Name != "" {
		return s.Spec.Name
	}
	return s.Name
}

// Partition of a super stream.
type Partition struct {
	// Stream is the name of the stream in the broker.
	Stream string
	// RoutingKey of the binding between the exchange and the stream.
	RoutingKey string
}

// BrokerPartitions returns the partitions in their order.
func (s *SuperStream) BrokerPartitions() []Partition {
	var out []Partition
	for _, key := range s.Spec.RoutingKeys {
		out = append(out, Partition{s.BrokerName() + "-" + string(key), string(key)})
	}
	if len(out) > 0 {
		return out
	}
	for i := range int(s.Spec.Partitions) {
		key := strconv.Itoa(i)
		out = append(out, Partition{s.BrokerName() + "-" + key, key})
	}
	return out
}
