// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RestoreSpec restores a backup into a BrokerCluster.
// +kubebuilder:validation:XValidation:rule="!has(self.clusterRef.__namespace__)",message="clusterRef.namespace: leave it out and create this object in the namespace of its BrokerCluster, because the Job uses Secrets of that namespace"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterRef.connectionSecret)",message="clusterRef.connectionSecret: the operator restores into BrokerClusters only; set clusterRef.name, or run posthorn ctl backup for another broker"
// +kubebuilder:validation:XValidation:rule="has(self.backupRef) != has(self.source)",message="set exactly one of backupRef and source"
// +kubebuilder:validation:XValidation:rule="!has(self.asVhost) || (has(self.scope) && has(self.scope.vhost))",message="asVhost needs scope.vhost: name the virtual host of the backup that it gets the objects of"
type RestoreSpec struct {
	// ClusterRef names a BrokerCluster of this namespace.
	ClusterRef ClusterReference `json:"clusterRef"`

	// BackupRef names a completed Backup of this namespace.
	// +optional
	BackupRef *BackupReference `json:"backupRef,omitempty"`

	// Source is a backup in a store that has no Backup object in this namespace.
	// +optional
	Source *RestoreSource `json:"source,omitempty"`

	// Scope limits the restore to a part of the backup; everything when absent.
	// +optional
	Scope *RestoreScope `json:"scope,omitempty"`

	// AsVhost is the virtual host that gets the objects and messages of scope.vhost.
	// +optional
	AsVhost ObjectName `json:"asVhost,omitempty"`

	// Conflict applies to queues that have messages, because the messages of the backup may be in them already.
	// Fail restores no messages. Skip leaves out these queues. Append adds the messages behind those of the queue.
	// +optional
	// +kubebuilder:default=Fail
	// +kubebuilder:validation:Enum=Fail;Skip;Append
	Conflict string `json:"conflict,omitempty"`

	JobSettings `json:",inline"`
}

// Values of RestoreSpec.Conflict.
const (
	ConflictFail   = "Fail"
	ConflictSkip   = "Skip"
	ConflictAppend = "Append"
)

// BackupReference names a Backup of the same namespace.
type BackupReference struct {
	// Name of the Backup.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// RestoreSource is a backup in a store.
type RestoreSource struct {
	// Destination is the store that the backup was written to.
	Destination BackupDestination `json:"destination"`

	// Name of the backup in the store: status.name of its Backup, or one that posthorn ctl backup list shows.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_-][A-Za-z0-9_.-]*$')",message="source.name must have 1 to 128 letters, digits, dashes, underscores and dots, and not begin with a dot"
	Name string `json:"name"`
}

// RestoreScope is a part of a backup.
// +kubebuilder:validation:XValidation:rule="!has(self.queues) || has(self.vhost)",message="scope.queues needs scope.vhost: name the virtual host of the queues"
// +kubebuilder:validation:XValidation:rule="!(has(self.definitionsOnly) && self.definitionsOnly && has(self.messagesOnly) && self.messagesOnly)",message="scope.definitionsOnly and scope.messagesOnly exclude each other: leave out both to restore definitions and messages"
type RestoreScope struct {
	// Vhost limits the restore to this virtual host, and leaves out users.
	// +optional
	Vhost ObjectName `json:"vhost,omitempty"`

	// Queues limits the restore to the definitions and messages of queues with these names.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Queues []ObjectName `json:"queues,omitempty"`

	// DefinitionsOnly restores no messages.
	// +optional
	DefinitionsOnly bool `json:"definitionsOnly,omitempty"`

	// MessagesOnly restores no definitions: the queues must exist.
	// +optional
	MessagesOnly bool `json:"messagesOnly,omitempty"`
}

// RestoreStatus is the observed state.
type RestoreStatus struct {
	JobStatus `json:",inline"`

	// QueuesSkipped is the number of queues that had messages and were left out.
	// +optional
	QueuesSkipped *int64 `json:"queuesSkipped,omitempty"`
}

// Restore restores a backup, or a part of it, into a BrokerCluster, once.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=prs,categories=posthorn
// +kubebuilder:validation:XValidation:rule="self.spec == oldSelf.spec",message="spec: a Restore runs once and cannot change; create another Restore"
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Backup",type=string,JSONPath=`.spec.backupRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.messages`
// +kubebuilder:printcolumn:name="Completed",type=date,JSONPath=`.status.completedAt`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Restore struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec describes the restore. Immutable.
	Spec RestoreSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status RestoreStatus `json:"status,omitempty"`
}

// RestoreList is a list of Restore.
// +kubebuilder:object:root=true
type RestoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Restore `json:"items"`
}
