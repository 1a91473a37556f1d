// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types that several kinds use.
const (
	// ConditionReady sums up the object: what was asked for is so.
	ConditionReady = "Ready"
	// ConditionStalled is present, and True, only while nothing but a change of the
	// object or of its surroundings can help (kstatus reads it as a failure).
	ConditionStalled = "Stalled"
	// ConditionSynced says whether the broker holds what the spec says.
	ConditionSynced = "Synced"
	// ConditionConflict says whether something else owns the name in the broker.
	ConditionConflict = "Conflict"
)

// Condition types of BrokerCluster.
const (
	// ConditionAvailable: a majority of the core nodes is ready.
	ConditionAvailable = "Available"
	// ConditionProgressing: pods are being made or replaced.
	ConditionProgressing = "Progressing"
	// ConditionQuorumSafe: any one node may go without a queue losing its majority.
	ConditionQuorumSafe = "QuorumSafe"
	// ConditionUpgradeBlocked: a roll is wanted and waits for something.
	ConditionUpgradeBlocked = "UpgradeBlocked"
	// ConditionCertificatesReady: the certificates of nodes and clients are there and valid.
	ConditionCertificatesReady = "CertificatesReady"
	// ConditionMonitoringReady: what spec.monitoring asks for is made.
	ConditionMonitoringReady = "MonitoringReady"
	// ConditionStorageReady: every node's volume is bound.
	ConditionStorageReady = "StorageReady"
	// ConditionQueuesLost is present, and True, only while queues exist whose only copy was on a lost disk.
	ConditionQueuesLost = "QueuesLost"
	// ConditionSpread: no two nodes run on one machine.
	ConditionSpread = "Spread"
	// ConditionPaused: the operator changes nothing because spec.paused is set.
	ConditionPaused = "Paused"
)

// Condition types of single topology kinds.
const (
	// ConditionReplicasPlaced (Queue): the queue has as many members as asked for.
	ConditionReplicasPlaced = "ReplicasPlaced"
	// ConditionCredentialsSynced (User): the broker takes the password in the Secret, and no other.
	ConditionCredentialsSynced = "CredentialsSynced"
	// ConditionPermissionsSynced (User): permissions, topic permissions and limits are as the spec says, and the
	// limits as far as the cluster allows them.
	ConditionPermissionsSynced = "PermissionsSynced"
	// ConditionLimitsCapped (User): the cluster allows lower limits than the spec asks for.
	ConditionLimitsCapped = "LimitsCapped"
)

// ClusterReference names the BrokerCluster an object lives in.
type ClusterReference struct {
	// Name of the BrokerCluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Namespace of the BrokerCluster; the object's own namespace when empty. Another
	// namespace works only where spec.tenancy.allowedNamespaces of the cluster selects this one.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// ReclaimPolicy says what happens to the broker's object when the Kubernetes object is deleted.
// +kubebuilder:validation:Enum=Retain;Delete
type ReclaimPolicy string

// Values of ReclaimPolicy and QueueReclaimPolicy.
const (
	ReclaimRetain        = "Retain"
	ReclaimDelete        = "Delete"
	ReclaimDeleteIfEmpty = "DeleteIfEmpty"
)

// AdoptionPolicy says what to do about an object that is in the broker already and that this
// resource did not make. Which values a kind takes is on its field.
type AdoptionPolicy string

// Values of AdoptionPolicy.
const (
	// AdoptIfMatching takes an object over when it is exactly as the spec says.
	AdoptIfMatching AdoptionPolicy = "IfMatching"
	// AdoptNever reports a conflict.
	AdoptNever AdoptionPolicy = "Never"
	// AdoptTakeover takes the object over and changes it to what the spec says. Refused from
	// another namespace than the cluster's.
	AdoptTakeover AdoptionPolicy = "Takeover"
)

// TopologyStatus is what the status of every broker-side kind begins with.
type TopologyStatus struct {
	// ObservedGeneration is the generation of the spec that this status talks about. Written on
	// every attempt, also a failed one.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Claim records that this resource owns the object in the broker: cluster and name. It is
	// written before the object is made, so that a crash between the two is not taken for
	// somebody else's object.
	// +optional
	Claim string `json:"claim,omitempty"`

	// LastSyncTime is when the operator last made, adopted or changed the object in the broker.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`

	// Conditions: Ready, Synced, Conflict, and the kind's own.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
