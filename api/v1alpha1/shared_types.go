// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types that several kinds use.
const (
	// ConditionReady summarises the object: the actual state is the wanted state.
	ConditionReady = "Ready"
	// ConditionStalled is present, and True, only while a change of the object or of its environment is needed
	// (kstatus reads it as a failure).
	ConditionStalled = "Stalled"
	// ConditionSynced: the object in the broker is as the spec says.
	ConditionSynced = "Synced"
	// ConditionConflict: another owner has the name in the broker.
	ConditionConflict = "Conflict"
)

// Condition types of BrokerCluster.
const (
	// ConditionAvailable: a majority of the core nodes is ready.
	ConditionAvailable = "Available"
	// ConditionProgressing: pods are being created or replaced.
	ConditionProgressing = "Progressing"
	// ConditionQuorumSafe: no queue loses its majority when any one node stops.
	ConditionQuorumSafe = "QuorumSafe"
	// ConditionUpgradeBlocked: a roll cannot continue by itself.
	ConditionUpgradeBlocked = "UpgradeBlocked"
	// ConditionCertificatesReady: the certificates of nodes and clients exist and are valid.
	ConditionCertificatesReady = "CertificatesReady"
	// ConditionMonitoringReady: the objects of spec.monitoring exist.
	ConditionMonitoringReady = "MonitoringReady"
	// ConditionExternalReady is present only with spec.externalListeners: every node has an external address.
	ConditionExternalReady = "ExternalReady"
	// ConditionStorageReady: every node's volume is bound.
	ConditionStorageReady = "StorageReady"
	// ConditionQueuesLost is present, and True, only while queues exist whose only copy was on a lost disk.
	ConditionQueuesLost = "QueuesLost"
	// ConditionMajorityRecovered is present only while the spec asks for the recovery of a lost majority.
	ConditionMajorityRecovered = "MajorityRecovered"
	// ConditionSpread: every node runs on a machine of its own.
	ConditionSpread = "Spread"
	// ConditionPaused: the operator changes nothing because spec.paused is true.
	ConditionPaused = "Paused"
)

// Condition types of single topology kinds.
const (
	// ConditionReplicasPlaced (Queue): the queue has the wanted number of members.
	ConditionReplicasPlaced = "ReplicasPlaced"
	// ConditionCredentialsSynced (User): the broker accepts the password in the Secret, and no other.
	ConditionCredentialsSynced = "CredentialsSynced"
	// ConditionPermissionsSynced (User): permissions and topic permissions are as the spec says, and the limits as
	// far as the cluster allows them.
	ConditionPermissionsSynced = "PermissionsSynced"
	// ConditionLimitsCapped (User, Vhost): the cluster allows lower limits than the spec asks for.
	ConditionLimitsCapped = "LimitsCapped"
)

// ClusterReference names the broker of an object: a BrokerCluster, or a broker that no operator runs.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="clusterRef is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.connectionSecret)",message="set exactly one of name and connectionSecret"
type ClusterReference struct {
	// Name of the BrokerCluster. Set either this or connectionSecret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`

	// ConnectionSecret names a Secret with the address and credentials of a broker that no operator runs. Set
	// either this or name.
	// +optional
	ConnectionSecret *ConnectionSecretReference `json:"connectionSecret,omitempty"`

	// Namespace of the BrokerCluster or of the Secret; the object's own namespace when empty. Another namespace
	// requires that spec.tenancy.allowedNamespaces of the cluster, or the annotation posthorn.io/allowed-namespaces
	// of the Secret, selects the object's namespace.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// ConnectionSecretReference names a Secret with these keys: uri of the HTTP API, username, password, and optionally
// ca.crt with the CA certificates that verify the broker, and amqp with its AMQP URI for clients.
type ConnectionSecretReference struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ReclaimPolicy keeps or deletes the object in the broker when the Kubernetes object is deleted.
// +kubebuilder:validation:Enum=Retain;Delete
type ReclaimPolicy string

// Values of ReclaimPolicy and QueueReclaimPolicy.
const (
	ReclaimRetain        = "Retain"
	ReclaimDelete        = "Delete"
	ReclaimDeleteIfEmpty = "DeleteIfEmpty"
)

// AdoptionPolicy applies to an object that exists in the broker and that this resource did not create. The field of
// each kind lists its values.
type AdoptionPolicy string

// Values of AdoptionPolicy.
const (
	// AdoptIfMatching adopts an object that is exactly as the spec says.
	AdoptIfMatching AdoptionPolicy = "IfMatching"
	// AdoptNever reports a conflict.
	AdoptNever AdoptionPolicy = "Never"
	// AdoptTakeover adopts the object and changes it to the spec. It is refused outside the cluster's namespace.
	AdoptTakeover AdoptionPolicy = "Takeover"
)

// TopologyStatus is the part of the status that all topology kinds share.
type TopologyStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes. The operator writes it after
	// every reconciliation, also a failed one.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Claim records that this resource owns the object in the broker: cluster and name. The operator writes it
	// before it creates the object, so that after a crash in between it still recognises the object as its own.
	// +optional
	Claim string `json:"claim,omitempty"`

	// LastSyncTime is when the operator last created, adopted or changed the object in the broker.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`

	// Conditions: Ready, Synced, Conflict, and the kind's own.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
