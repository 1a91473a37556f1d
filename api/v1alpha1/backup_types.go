// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BackupSpec describes one backup of a BrokerCluster.
// +kubebuilder:validation:XValidation:rule="!has(self.clusterRef.__namespace__)",message="clusterRef.namespace: leave it out and create this object in the namespace of its BrokerCluster, because the Job uses Secrets of that namespace"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterRef.connectionSecret)",message="clusterRef.connectionSecret: the operator makes backups of BrokerClusters only; set clusterRef.name, or run posthorn ctl backup for another broker"
type BackupSpec struct {
	// ClusterRef names a BrokerCluster of this namespace.
	ClusterRef ClusterReference `json:"clusterRef"`

	// Destination is the store that the backup is written to.
	Destination BackupDestination `json:"destination"`

	// Scope limits the backup to a part of the cluster; everything when absent.
	// +optional
	Scope *BackupScope `json:"scope,omitempty"`

	// DeletionPolicy keeps (Retain) or deletes (Delete) the backup in the store when this object is deleted.
	// +optional
	// +kubebuilder:default=Retain
	DeletionPolicy ReclaimPolicy `json:"deletionPolicy,omitempty"`

	JobSettings `json:",inline"`
}

// JobSettings are settings of the Job that runs posthorn ctl.
type JobSettings struct {
	// Timeout limits the run time of the Job, including the time until its pod starts.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('720h')",message="timeout must be from 1s to 720h"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// Resources of the Job's container. Without a request or a limit it requests 100m CPU and 256Mi of memory.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// BackupDestination is a store of backups: an S3-compatible bucket or a volume.
// +kubebuilder:validation:XValidation:rule="has(self.s3) != has(self.volume)",message="set exactly one of s3 and volume"
type BackupDestination struct {
	// An S3-compatible store.
	// +optional
	S3 *S3Destination `json:"s3,omitempty"`

	// Volume is a PersistentVolumeClaim.
	// +optional
	Volume *VolumeDestination `json:"volume,omitempty"`
}

// S3Destination is a bucket of an S3-compatible store, which must support conditional writes (If-None-Match).
// +kubebuilder:validation:XValidation:rule="!has(self.endpoint) || !self.endpoint.startsWith('http://') || (has(self.allowHTTP) && self.allowHTTP)",message="endpoint: http:// sends messages and password hashes unencrypted; use https://, or set allowHTTP: true"
type S3Destination struct {
	// Bucket that exists.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$') && !self.contains('..')",message="bucket must have 3 to 63 lower case letters, digits, dots and dashes, and begin and end with a letter or a digit; put the path into prefix"
	Bucket string `json:"bucket"`

	// Prefix of the names of all objects, such as clusters/orders.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$')",message="prefix must be parts of letters, digits, dots, dashes and underscores, separated by single slashes, such as clusters/orders"
	Prefix string `json:"prefix,omitempty"`

	// Endpoint is the URL of the S3 API; that of AWS for the region when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^https?://[A-Za-z0-9.:-]+/?$') || self.matches('^https?://[[][0-9A-Fa-f:.]+[]](:[0-9]+)?/?$')",message="endpoint must be a URL such as https://s3.example.com, without a path; put the bucket into bucket"
	Endpoint string `json:"endpoint,omitempty"`

	// Region of the bucket; us-east-1 when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]+(-[a-z0-9]+)*$')",message="region must be lower case letters, digits and dashes, such as eu-central-1"
	Region string `json:"region,omitempty"`

	// VirtualHosts puts the bucket into the host name instead of the path.
	// +optional
	VirtualHosts bool `json:"virtualHosts,omitempty"`

	// AllowHTTP permits an endpoint without TLS.
	// +optional
	AllowHTTP bool `json:"allowHTTP,omitempty"`

	// CredentialsSecretRef names a Secret of this namespace with the credentials.
	CredentialsSecretRef S3CredentialsReference `json:"credentialsSecretRef"`
}

// S3CredentialsReference names the keys of a Secret with the credentials of an S3-compatible store.
type S3CredentialsReference struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// AccessKeyIDKey is the key of the Secret with the access key id.
	// +optional
	// +kubebuilder:default="access-key-id"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	AccessKeyIDKey string `json:"accessKeyIDKey,omitempty"`

	// SecretAccessKeyKey is the key of the Secret with the secret access key.
	// +optional
	// +kubebuilder:default="secret-access-key"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretAccessKeyKey string `json:"secretAccessKeyKey,omitempty"`
}

// VolumeDestination is a directory of a PersistentVolumeClaim.
type VolumeDestination struct {
	// ClaimName is the name of a PersistentVolumeClaim of this namespace. The group 10001 must be able to write to it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName"`

	// SubPath is a directory of the volume; its root when empty. The Job creates it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$') && !self.split('/').exists(p, p == '.' || p == '..')",message="subPath must be a relative path without . and .., such as clusters/orders"
	SubPath string `json:"subPath,omitempty"`
}

// ObjectName is the name of a virtual host or queue in the broker.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 255",message="must have at most 255 bytes"
// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]')",message="must not contain control characters"
type ObjectName string

// BackupScope is a part of a cluster.
// +kubebuilder:validation:XValidation:rule="!has(self.queues) || has(self.vhosts)",message="scope.queues needs scope.vhosts: name the virtual hosts of the queues"
// +kubebuilder:validation:XValidation:rule="!has(self.queues) || !has(self.definitionsOnly) || !self.definitionsOnly",message="scope.queues selects messages, which scope.definitionsOnly leaves out: set only one of them"
type BackupScope struct {
	// Vhosts limits the backup to these virtual hosts, and leaves out users.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Vhosts []ObjectName `json:"vhosts,omitempty"`

	// Queues limits the messages to queues with these names. Definitions of all queues are included.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Queues []ObjectName `json:"queues,omitempty"`

	// DefinitionsOnly leaves out all messages.
	// +optional
	DefinitionsOnly bool `json:"definitionsOnly,omitempty"`
}

// JobPhase is the state of a Backup or a Restore in one word.
// +kubebuilder:validation:Enum=Pending;Running;Completed;Failed
type JobPhase string

// Values of JobPhase. A Backup or Restore that is Completed or Failed never runs again.
const (
	JobPending   JobPhase = "Pending"
	JobRunning   JobPhase = "Running"
	JobCompleted JobPhase = "Completed"
	JobFailed    JobPhase = "Failed"
)

// IsFinished reports whether a Job will not run any more.
func (p JobPhase) IsFinished() bool { return p == JobCompleted || p == JobFailed }

// JobStatus is the part of the status that Backup and Restore share.
type JobStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Phase is the state in one word. Ready has the reason.
	// +optional
	Phase JobPhase `json:"phase,omitempty"`

	// Job is the name of the Job while it exists.
	// +optional
	Job string `json:"job,omitempty"`

	// StartedAt is when the Job was created.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// CompletedAt is when the Job succeeded or failed.
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`

	// Messages is the number of messages that were written to the backup or restored from it.
	// +optional
	Messages *int64 `json:"messages,omitempty"`

	// Queues is the number of queues in the backup, or of queues whose messages were restored.
	// +optional
	Queues *int64 `json:"queues,omitempty"`

	// Conditions: Ready is True when it is completed. Stalled is True when it has failed.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BackupStatus is the observed state.
type BackupStatus struct {
	JobStatus `json:",inline"`

	// Name of the backup in its destination.
	// +optional
	Name string `json:"name,omitempty"`

	// Image that wrote the backup.
	// +optional
	Image string `json:"image,omitempty"`

	// RecoveryPoint is the time of the broker's state that the backup has.
	// +optional
	RecoveryPoint *metav1.Time `json:"recoveryPoint,omitempty"`

	// Size of the messages in the backup in bytes.
	// +optional
	Size *int64 `json:"size,omitempty"`

	// Verified is true when the whole backup was read again after it was written.
	// +optional
	Verified bool `json:"verified,omitempty"`

	// QueuesNotIncluded is the number of queues whose messages are not in the backup: queues that were deleted
	// meanwhile, and streams while the feature flag stream_backups is disabled.
	// +optional
	QueuesNotIncluded *int64 `json:"queuesNotIncluded,omitempty"`
}

// Backup writes the definitions and messages of a BrokerCluster to a store, once.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pbk,categories=posthorn
// +kubebuilder:validation:XValidation:rule="self.spec.destination == oldSelf.spec.destination && has(self.spec.scope) == has(oldSelf.spec.scope) && (!has(self.spec.scope) || self.spec.scope == oldSelf.spec.scope)",message="spec: a Backup runs once, and only spec.deletionPolicy can change; create another Backup"
// +kubebuilder:validation:XValidation:rule="self.spec.timeout == oldSelf.spec.timeout && has(self.spec.resources) == has(oldSelf.spec.resources) && (!has(self.spec.resources) || self.spec.resources == oldSelf.spec.resources)",message="spec: a Backup runs once, and only spec.deletionPolicy can change; create another Backup"
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.messages`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Completed",type=date,JSONPath=`.status.completedAt`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Name In Store",type=string,JSONPath=`.status.name`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Backup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec describes the backup. Only deletionPolicy can change.
	Spec BackupSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status BackupStatus `json:"status,omitempty"`
}

// BackupList is a list of Backup.
// +kubebuilder:object:root=true
type BackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Backup `json:"items"`
}
