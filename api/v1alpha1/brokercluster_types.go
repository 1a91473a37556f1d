// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// BrokerClusterSpec is the wanted state of a cluster of Posthorn nodes.
// +kubebuilder:validation:XValidation:rule="self.replicas >= oldSelf.replicas || self.scaleDown.policy == 'Drain'",message="replicas cannot be lowered while scaleDown.policy is Deny"
// +kubebuilder:validation:XValidation:rule="quantity(string(self.storage.size)).compareTo(quantity(string(oldSelf.storage.size))) >= 0",message="storage.size cannot be lowered"
// +kubebuilder:validation:XValidation:rule="has(self.bootstrap) == has(oldSelf.bootstrap) && (!has(self.bootstrap) || self.bootstrap == oldSelf.bootstrap)",message="bootstrap applies to new clusters only: it is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.storage.storageClassName) == has(oldSelf.storage.storageClassName) && (!has(self.storage.storageClassName) || self.storage.storageClassName == oldSelf.storage.storageClassName)",message="storage.storageClassName is immutable"
// +kubebuilder:validation:XValidation:rule="!has(self.externalListeners) || !has(self.externalListeners.protocols) || !has(self.protocols) || self.externalListeners.protocols.all(p, p in self.protocols)",message="externalListeners.protocols must be among protocols"
// +kubebuilder:validation:XValidation:rule="!has(self.placement.quorumReplicas) || self.placement.quorumReplicas <= self.replicas",message="placement.quorumReplicas cannot be more than replicas"
type BrokerClusterSpec struct {
	// Replicas is the number of core nodes, the voters of the metadata group. It must be odd: an even
	// number survives no more failures than the odd number below it. scaleDown controls how the operator
	// removes nodes when it is lowered.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9
	// +kubebuilder:validation:XValidation:rule="self % 2 == 1",message="replicas must be odd"
	Replicas int32 `json:"replicas"`

	// Version of the broker. It selects the image when image is empty. The operator refuses a version
	// that is older than the running one, and one that skips a minor version.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`
	Version string `json:"version,omitempty"`

	// Image of the broker. When image and version are both empty, a new cluster gets the operator's
	// default image, and an existing cluster keeps its image.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^\s]+$`
	Image string `json:"image,omitempty"`

	// ImagePullSecrets are Secrets of this namespace used to pull the image.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// Storage of each node.
	// +optional
	// +kubebuilder:default={}
	Storage StorageSpec `json:"storage"`

	// Resources of the broker's container. Without a request or a limit it requests 100m CPU and 256Mi of
	// memory, so that its pod is not BestEffort.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || !('cpu' in self.requests) || !('cpu' in self.limits) || quantity(string(self.requests['cpu'])).compareTo(quantity(string(self.limits['cpu']))) <= 0",message="resources.requests.cpu cannot be more than resources.limits.cpu"
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || !('memory' in self.requests) || !('memory' in self.limits) || quantity(string(self.requests['memory'])).compareTo(quantity(string(self.limits['memory']))) <= 0",message="resources.requests.memory cannot be more than resources.limits.memory"
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// TLS adds listeners with TLS for clients (port 5671 for AMQP), for the HTTP API (15671) and for
	// metrics (15691). The operator does not use them: it has a listener of its own (15670), which
	// every cluster has and which accepts only the operator's client certificate.
	// +optional
	TLS *TLSSpec `json:"tls,omitempty"`

	// Config has broker settings, key = value as in posthorn.conf. Keys that the operator sets itself
	// (cluster.*, the ports, the certificates, the default user) are refused. Keys that the broker of the
	// operator's version does not know are refused too, unless the object has the annotation
	// posthorn.io/skip-validation: "true". A pod with the wanted image checks the values; values that it
	// refuses reach no node (Ready is False, InvalidConfig). Running nodes load changes of the settings
	// that the reference of the configuration marks. For any other change they restart one by one, and each
	// keeps its old settings until then; status.configuration has those keys. The key shards can change while
	// nodes run once the feature flag shards_per_node is enabled.
	// +optional
	// +kubebuilder:validation:MaxProperties=256
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[a-z][a-z0-9_.-]*(/[a-z0-9_.-]+)?$'))",message="configuration keys look like queue.max_length: lower case letters, digits, dot, underscore, dash, and a slash in names of listeners such as mqtt/ssl"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !self[k].matches('[\\\\r\\\\n]'))",message="configuration values are one line"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('cluster.') && !k.startsWith('listeners.tcp') && !k.startsWith('listeners.ssl') && !k.startsWith('management.ssl') && !k.startsWith('operator.') && !k.startsWith('mqtt.listeners') && !k.startsWith('web_mqtt.tcp') && !k.startsWith('web_mqtt.ssl') && !k.startsWith('web_amqp.tcp') && !k.startsWith('web_amqp.ssl') && !k.startsWith('stream.listeners') && !(k in ['default_user', 'default_pass', 'management.tcp.port', 'prometheus.tcp.port', 'ssl_options.cacertfile', 'ssl_options.certfile', 'ssl_options.keyfile', 'ssl_options.verify', 'ssl_options.fail_if_no_peer_cert']))",message="cluster.*, default_user, default_pass, listeners.tcp.*, listeners.ssl.*, management.tcp.port, management.ssl.*, operator.*, mqtt.listeners.*, web_mqtt.tcp.*, web_mqtt.ssl.*, web_amqp.tcp.*, web_amqp.ssl.*, stream.listeners.*, prometheus.tcp.port and the certificates of ssl_options are set by the operator (spec.protocols, spec.tls)"
	Config map[string]ConfigValue `json:"config,omitempty"`

	// Protocols that clients may use. Each has a listener, and another one with TLS when tls is set. When
	// absent, a new cluster has the operator's default, and an existing cluster keeps its protocols. Clients
	// of the stream protocol connect to each node by its name in the headless Service, because publishers
	// need the leader of their stream.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="!self.exists(p, p == 'web-amqp') || self.exists(p, p == 'amqp')",message="protocols: web-amqp needs amqp, because credentials name its port"
	Protocols []Protocol `json:"protocols,omitempty"`

	// Bootstrap is the initial content of a new cluster. Immutable.
	// +optional
	Bootstrap *BootstrapSpec `json:"bootstrap,omitempty"`

	// Upgrade controls how the operator replaces pods when image, version or settings change.
	// +optional
	// +kubebuilder:default={}
	Upgrade UpgradeSpec `json:"upgrade"`

	// FeatureFlags selects the feature flags of the broker that the operator enables.
	// +optional
	// +kubebuilder:default={}
	FeatureFlags FeatureFlagsSpec `json:"featureFlags"`

	// ScaleDown controls how the operator removes nodes when replicas is lowered.
	// +optional
	// +kubebuilder:default={}
	ScaleDown ScaleDownSpec `json:"scaleDown"`

	// Placement controls how nodes and replicas are spread.
	// +optional
	// +kubebuilder:default={}
	Placement PlacementSpec `json:"placement"`

	// PodDisruptionBudget of the cluster.
	// +optional
	// +kubebuilder:default={}
	PodDisruptionBudget PodDisruptionBudgetSpec `json:"podDisruptionBudget"`

	// Tenancy allows other namespaces to have Vhosts, Queues, Users and other objects of this cluster.
	// +optional
	Tenancy *TenancySpec `json:"tenancy,omitempty"`

	// Service that clients connect to.
	// +optional
	// +kubebuilder:default={}
	Service ServiceSpec `json:"service"`

	// ExternalListeners give each node a Service of its own for clients outside Kubernetes.
	// +optional
	ExternalListeners *ExternalListenersSpec `json:"externalListeners,omitempty"`

	// Monitoring selects the objects for Prometheus and Grafana.
	// +optional
	// +kubebuilder:default={}
	Monitoring MonitoringSpec `json:"monitoring"`

	// NetworkPolicy of the cluster.
	// +optional
	// +kubebuilder:default={}
	NetworkPolicy NetworkPolicySpec `json:"networkPolicy"`

	// PodTemplate is merged into the operator's pod template as a strategic merge patch: null removes a
	// field, and an element with $patch: replace or delete changes the list. Use it for fields that this
	// API lacks; the operator does not check that the pods still work. Unknown fields and wrong types are
	// refused, and so are changes to fields that the operator relies on: the labels of its selector, the
	// broker's image (use image), command, arguments, node name, ports, data and configuration volumes,
	// the service account and the restart policy.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	PodTemplate *runtime.RawExtension `json:"podTemplate,omitempty"`

	// Paused stops the operator from changing this cluster; the operator still updates the status.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Hibernated stops every node and keeps the volumes. The same cluster starts again with its data when
	// it is unset.
	// +optional
	Hibernated bool `json:"hibernated,omitempty"`

	// MajorityRecovery lets the remaining nodes continue with their copies after a majority of the nodes lost
	// its volumes (Ready is False, MajorityLost). Messages and definitions that only the lost nodes had are
	// lost, also confirmed messages. The condition MajorityRecovered shows the progress, or why the operator
	// refuses the recovery. It names volumes, so it has no effect on a later loss.
	// +optional
	MajorityRecovery *MajorityRecoverySpec `json:"majorityRecovery,omitempty"`
}

// AcceptedLoss is the only value of MajorityRecoverySpec.AcceptLoss.
const AcceptedLoss = "MessagesOnLostVolumes"

// MajorityRecoverySpec names what was lost, and accepts the loss.
type MajorityRecoverySpec struct {
	// Lost are all nodes whose volumes were lost, each with the volume with which it was last ready
	// (status.members[].lastReady). The operator does nothing if this differs from its own observation.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=9
	Lost []LostNode `json:"lost"`

	// AcceptLoss must be MessagesOnLostVolumes.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == 'MessagesOnLostVolumes'",message="acceptLoss must be MessagesOnLostVolumes, which accepts that messages and definitions that only the lost nodes had are lost, also confirmed messages"
	AcceptLoss string `json:"acceptLoss"`
}

// LostNode is a node that lost its volume.
type LostNode struct {
	// Node is the name of the pod.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?-[0-9]+$')",message="node is the name of a pod, for example c-1"
	Node string `json:"node"`
	// Volume is the PersistentVolume with which the node was last ready.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume"`
}

// Protocol of clients.
// +kubebuilder:validation:Enum=amqp;web-amqp;mqtt;stream
type Protocol string

// Values of Protocol. ProtocolAMQP is AMQP 0.9.1 and 1.0 over TCP, ProtocolWebAMQP is AMQP 1.0 over WebSocket,
// ProtocolMQTT is MQTT over TCP and over WebSocket, and ProtocolStream is the RabbitMQ stream protocol.
const (
	ProtocolAMQP    Protocol = "amqp"
	ProtocolWebAMQP Protocol = "web-amqp"
	ProtocolMQTT    Protocol = "mqtt"
	ProtocolStream  Protocol = "stream"
)

// ConfigValue is the value of one broker setting.
// +kubebuilder:validation:MaxLength=1024
type ConfigValue string

// StorageSpec describes the volume of each node.
type StorageSpec struct {
	// Size of each node's volume; at least 64Mi. It can be raised if the storage class allows volume
	// expansion, and never lowered.
	// +optional
	// +kubebuilder:default="20Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Mi')) >= 0",message="storage.size must be at least 64Mi"
	Size resource.Quantity `json:"size"`

	// StorageClassName of the volumes; the cluster's default class when absent. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`

	// WhenDeleted keeps (Retain) or deletes (Delete) the volumes when the BrokerCluster is deleted.
	// +optional
	// +kubebuilder:default=Retain
	// +kubebuilder:validation:Enum=Retain;Delete
	WhenDeleted string `json:"whenDeleted,omitempty"`

	// WhenScaled keeps (Retain) or deletes (Delete) the volume of a removed node. The StatefulSet has the
	// policy Delete only while the operator removes an empty node. A retained volume cannot be used again:
	// delete it before the cluster grows to that node's ordinal again. Hibernation always keeps the
	// volumes.
	// +optional
	// +kubebuilder:default=Retain
	// +kubebuilder:validation:Enum=Retain;Delete
	WhenScaled string `json:"whenScaled,omitempty"`
}

// PlacementSpec spreads nodes over failure domains.
type PlacementSpec struct {
	// TopologyKey is the node label whose values are the failure domains.
	// +optional
	// +kubebuilder:default="topology.kubernetes.io/zone"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey,omitempty"`

	// QuorumReplicas is the number of members of the quorum queues whose Queue object has none. Existing
	// queues get or lose members when it changes. 0 leaves new queues to the broker, which uses up to three
	// nodes, and keeps the members of existing queues. Queues that clients declare do not change.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9
	QuorumReplicas int32 `json:"quorumReplicas,omitempty"`

	// Rebalance OnMembershipChange spreads queue leaders evenly over the nodes after nodes were added,
	// removed or replaced. With Never the operator does not spread them.
	// +optional
	// +kubebuilder:default=OnMembershipChange
	// +kubebuilder:validation:Enum=OnMembershipChange;Never
	Rebalance string `json:"rebalance,omitempty"`
}

// BootstrapSpec is the initial content of a new cluster.
// +kubebuilder:validation:XValidation:rule="!(has(self.definitionsSecretRef) && has(self.backupRef))",message="bootstrap.definitionsSecretRef and bootstrap.backupRef exclude each other: a backup has definitions"
type BootstrapSpec struct {
	// DefinitionsSecretRef names a Secret of this namespace with a definitions file, as this broker and
	// RabbitMQ export it. The operator imports it once, when all nodes are ready for the first time; you
	// can delete the Secret afterwards.
	// +optional
	DefinitionsSecretRef *SecretKeyReference `json:"definitionsSecretRef,omitempty"`

	// BackupRef names a completed Backup of this namespace. The operator restores it once, with a Restore
	// named after the cluster with the suffix "-bootstrap", when all nodes are ready for the first time. The
	// cluster is not Ready before that.
	// +optional
	BackupRef *BackupReference `json:"backupRef,omitempty"`
}

// SecretKeyReference names a key of a Secret.
type SecretKeyReference struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Key of the Secret.
	// +optional
	// +kubebuilder:default="definitions.json"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// Values of UpgradeSpec and FeatureFlagsSpec.
const (
	UpgradeUnsupervised = "Unsupervised"
	UpgradeSupervised   = "Supervised"

	OnTimeoutPause    = "Pause"
	OnTimeoutContinue = "Continue"

	FeatureFlagsEnableStable = "EnableStableAfterUpgrade"
	FeatureFlagsManual       = "Manual"
)

// UpgradeSpec controls how the operator replaces pods.
type UpgradeSpec struct {
	// Mode Supervised replaces a node only after an approval: the annotation posthorn.io/approve on this
	// object with the value of status.rollout.approve. Unsupervised needs no approval.
	// +optional
	// +kubebuilder:default=Unsupervised
	// +kubebuilder:validation:Enum=Unsupervised;Supervised
	Mode string `json:"mode,omitempty"`

	// StepTimeout limits the time to replace one node, from the start of its drain until the new pod is
	// ready; 0 is no limit.
	// +optional
	// +kubebuilder:default="30m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="stepTimeout cannot be negative"
	StepTimeout *metav1.Duration `json:"stepTimeout,omitempty"`

	// OnTimeout Pause stops the roll after the timeout until it is approved or the spec changes, and ends
	// the drain of a node that has not been replaced. Continue keeps waiting.
	// +optional
	// +kubebuilder:default=Pause
	// +kubebuilder:validation:Enum=Pause;Continue
	OnTimeout string `json:"onTimeout,omitempty"`
}

// FeatureFlagsSpec selects the feature flags that the operator enables.
type FeatureFlagsSpec struct {
	// Policy EnableStableAfterUpgrade enables every stable feature flag when all nodes run the same
	// version, which cannot be undone. With Manual you enable them yourself. The operator refuses the next
	// minor version while stable flags are disabled.
	// +optional
	// +kubebuilder:default=EnableStableAfterUpgrade
	// +kubebuilder:validation:Enum=EnableStableAfterUpgrade;Manual
	Policy string `json:"policy,omitempty"`

	// Exclude lists flags that the operator does not enable.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=255
	Exclude []string `json:"exclude,omitempty"`
}

// Values of ScaleDownSpec.Policy.
const (
	ScaleDownDrain = "Drain"
	ScaleDownDeny  = "Deny"
)

// ScaleDownSpec controls how the operator removes nodes when replicas is lowered.
type ScaleDownSpec struct {
	// Policy Drain removes nodes one at a time, the highest ordinal first: leaders move away, then
	// replicas, then the cluster forgets the node, then its pod is deleted. Raise replicas again to stop a
	// removal at any point. Deny refuses to lower replicas.
	// +optional
	// +kubebuilder:default=Drain
	// +kubebuilder:validation:Enum=Drain;Deny
	Policy string `json:"policy,omitempty"`
}

// RebalanceOnMembershipChange is the value of PlacementSpec.Rebalance that lets the operator spread leaders.
const RebalanceOnMembershipChange = "OnMembershipChange"

// PodDisruptionBudgetSpec configures the PodDisruptionBudget.
type PodDisruptionBudgetSpec struct {
	// Mode Auto keeps a budget that allows the eviction of one node at a time, and of none unless every
	// node reports that no queue would lose its majority. Off keeps no budget.
	// +optional
	// +kubebuilder:default=Auto
	// +kubebuilder:validation:Enum=Auto;Off
	Mode string `json:"mode,omitempty"`
}

// TenancySpec opens a cluster to other namespaces.
type TenancySpec struct {
	// AllowedNamespaces selects namespaces by their labels ({} selects all). When absent, only the
	// cluster's own namespace is allowed.
	// +optional
	AllowedNamespaces *metav1.LabelSelector `json:"allowedNamespaces,omitempty"`

	// VhostPrefix is the prefix of the virtual hosts of a namespace. Objects of namespace n may use the
	// vhost <vhostPrefix>n and every vhost whose name begins with <vhostPrefix>n followed by a dot (the
	// name of a namespace cannot contain a dot).
	// +optional
	// +kubebuilder:validation:MaxLength=64
	VhostPrefix string `json:"vhostPrefix,omitempty"`

	// UserLimits apply to each user of another namespace; 0 is no limit. A User can only have lower limits.
	// +optional
	UserLimits *UserLimits `json:"userLimits,omitempty"`

	// VhostLimits apply to each virtual host of another namespace; an absent limit is no limit. A Vhost can only
	// have lower limits.
	// +optional
	VhostLimits *VhostLimits `json:"vhostLimits,omitempty"`
}

// ServiceSpec configures the client Service.
type ServiceSpec struct {
	// Type of the client Service.
	// +optional
	// +kubebuilder:default=ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`

	// Annotations of the client Service.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ClusterPhase is the cluster's state in one word.
type ClusterPhase string

// Phases of a cluster.
const (
	PhaseCreating    ClusterPhase = "Creating"
	PhaseReady       ClusterPhase = "Ready"
	PhaseRolling     ClusterPhase = "Rolling"
	PhaseScalingDown ClusterPhase = "ScalingDown"
	PhaseScalingUp   ClusterPhase = "ScalingUp"
	PhasePaused      ClusterPhase = "Paused"
	PhaseHibernated  ClusterPhase = "Hibernated"
	// PhaseDegraded: a node that ran is not ready.
	PhaseDegraded ClusterPhase = "Degraded"
	// PhaseBlocked: all nodes are ready, and a part of the spec cannot be applied.
	PhaseBlocked ClusterPhase = "Blocked"
)

// States of a member.
const (
	MemberRunning  = "Running"
	MemberDraining = "Draining"
	MemberJoining  = "Joining"
	MemberDown     = "Down"
)

// BrokerClusterStatus is the observed state.
type BrokerClusterStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Phase is the state in one word: Creating, Ready, Rolling, ScalingUp, ScalingDown, Degraded (a node is
	// not ready), Blocked (all nodes are ready, and a part of the spec cannot be applied), Paused or
	// Hibernated. Except for the last two, it is Ready exactly while the condition Ready is True.
	// +optional
	Phase ClusterPhase `json:"phase,omitempty"`

	// CurrentVersion is the version of every node when the cluster was last complete.
	// +optional
	CurrentVersion string `json:"currentVersion,omitempty"`

	// TargetVersion is the version that the spec asks for.
	// +optional
	TargetVersion string `json:"targetVersion,omitempty"`

	// Protocols that clients may speak.
	// +optional
	// +listType=set
	Protocols []Protocol `json:"protocols,omitempty"`

	// Replicas is the number of existing pods.
	// +optional
	Replicas int32 `json:"replicas"`

	// ReadyReplicas is the number of pods that are ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`

	// Selector of the pods, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`

	// Members are the nodes, in ordinal order.
	// +optional
	// +listType=map
	// +listMapKey=name
	Members []MemberStatus `json:"members,omitempty"`

	// Rollout is the progress of a replacement of pods; absent when none is in progress.
	// +optional
	Rollout *RolloutStatus `json:"rollout,omitempty"`

	// Configuration lists settings that not all nodes have yet; absent when all have all.
	// +optional
	Configuration *ConfigurationStatus `json:"configuration,omitempty"`

	// FeatureFlags is the state of the broker's feature flags.
	// +optional
	FeatureFlags *FeatureFlagsStatus `json:"featureFlags,omitempty"`

	// Scaling is the progress of the removal of a node; absent when no node is being removed.
	// +optional
	Scaling *ScalingStatus `json:"scaling,omitempty"`

	// BalancedFor is the number of nodes over which leaders were last spread evenly; -1 after a roll has begun.
	// +optional
	BalancedFor int32 `json:"balancedFor,omitempty"`

	// MajorityRecovery is the last recovery of a lost majority that began (spec.majorityRecovery).
	// +optional
	MajorityRecovery *MajorityRecoveryStatus `json:"majorityRecovery,omitempty"`

	// Certificates has the expiry of the cluster's certificates.
	// +optional
	Certificates *CertificatesStatus `json:"certificates,omitempty"`

	// Binding names the Secret with the default user's credentials (service binding).
	// +optional
	Binding *BindingReference `json:"binding,omitempty"`

	// Conditions: Ready, Stalled, Available, Progressing, QuorumSafe, QueuesLost, MajorityRecovered,
	// UpgradeBlocked, CertificatesReady, StorageReady, MonitoringReady, ExternalReady, Spread, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MemberStatus is the state of one node.
type MemberStatus struct {
	// Name of the pod, which is the node's name.
	Name string `json:"name"`
	// Zone the pod runs in (label topology.kubernetes.io/zone of its node).
	// +optional
	Zone string `json:"zone,omitempty"`
	// Version that the node reports.
	// +optional
	Version string `json:"version,omitempty"`
	// State: Running, Draining, Joining or Down.
	State string `json:"state"`
	// QuorumCritical is true when a queue would lose its majority without this node.
	// +optional
	QuorumCritical bool `json:"quorumCritical,omitempty"`
	// Machine is the Kubernetes node on which the pod runs. While the pod is not scheduled, it is the one on
	// which the previous pod ran.
	// +optional
	Machine string `json:"machine,omitempty"`
	// Message is why the node is not ready; empty while it is ready.
	// +optional
	Message string `json:"message,omitempty"`
	// External are the addresses of the node for clients outside Kubernetes (spec.externalListeners).
	// +optional
	External []ExternalAddress `json:"external,omitempty"`
	// LastReady is where the node was last ready. The operator forgets it when the cluster is hibernated.
	// +optional
	LastReady *MemberPlacement `json:"lastReady,omitempty"`
}

// MemberPlacement is the place of a node and of its data.
type MemberPlacement struct {
	// Volume is the PersistentVolume with the node's data.
	Volume string `json:"volume"`
	// Machine is the Kubernetes node on which the pod ran.
	// +optional
	Machine string `json:"machine,omitempty"`
}

// RolloutStatus is the progress of a replacement of pods.
type RolloutStatus struct {
	// TargetRevision is the revision of the StatefulSet that all pods get.
	// +optional
	TargetRevision string `json:"targetRevision,omitempty"`
	// WaitingFor is the pod that is being replaced or that the roll waits for.
	// +optional
	WaitingFor string `json:"waitingFor,omitempty"`
	// Reason in one word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Since is when the roll began to wait for this pod for this reason.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Queues that would lose their majority, as vhost/name; at most 16.
	// +optional
	Queues []string `json:"queues,omitempty"`
	// Step is the pod whose replacement began last.
	// +optional
	Step string `json:"step,omitempty"`
	// StepSince is when that replacement began.
	// +optional
	StepSince *metav1.Time `json:"stepSince,omitempty"`
	// TimedOut is true when a step took longer than spec.upgrade.stepTimeout and the roll stopped.
	// +optional
	TimedOut bool `json:"timedOut,omitempty"`
	// Approve is the value of the annotation posthorn.io/approve that lets the roll continue. Without the
	// slash and the pod's name it approves the whole roll. For the restart of one node it begins with the UID of
	// the pod, so that it approves no later restart.
	// +optional
	Approve string `json:"approve,omitempty"`
}

// FeatureFlagsStatus is the state of the broker's feature flags.
type FeatureFlagsStatus struct {
	// Disabled are the stable flags that are not enabled; at most 16.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	Disabled []string `json:"disabled,omitempty"`
	// Enabled is the number of enabled flags.
	Enabled int32 `json:"enabled"`
	// Message is why flags are not enabled.
	// +optional
	Message string `json:"message,omitempty"`
}

// ScalingStatus is the progress of the removal of a node.
type ScalingStatus struct {
	// Removing is the node that is being removed.
	Removing string `json:"removing"`
	// Reason is the present action, or the cause of the wait, in one word.
	Reason string `json:"reason"`
	// Message has details, for example why the broker refused a request.
	// +optional
	Message string `json:"message,omitempty"`
	// Since is when the reason began to apply.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Queues that the removal waits for, as vhost/name; at most 16.
	// +optional
	Queues []string `json:"queues,omitempty"`
	// Remaining is the number of queues that still have a replica on the node.
	// +optional
	Remaining int32 `json:"remaining,omitempty"`
}

// States of a recovery of a lost majority.
const (
	MajorityRecovering = "Recovering"
	MajorityRecovered  = "Recovered"
)

// MajorityRecoveryStatus is the progress of a recovery of a lost majority.
type MajorityRecoveryStatus struct {
	// State is Recovering or Recovered. A recovery with the state Recovered is not repeated.
	// +kubebuilder:validation:Enum=Recovering;Recovered
	State string `json:"state"`
	// Lost are the nodes and volumes that spec.majorityRecovery named.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=9
	Lost []LostNode `json:"lost"`
	// Accepted is true after the broker has carried out a step.
	// +optional
	Accepted bool `json:"accepted,omitempty"`
	// MetadataNode is the node whose copy of the metadata continues; empty when the metadata had a leader.
	// +optional
	MetadataNode string `json:"metadataNode,omitempty"`
	// Removed are the lost nodes that the cluster has removed. New nodes of these names can join.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=9
	Removed []string `json:"removed,omitempty"`
	// LastProgress is when a step last changed something.
	// +optional
	LastProgress *metav1.Time `json:"lastProgress,omitempty"`
}

// CertificatesStatus has the expiry of the cluster's certificates.
type CertificatesStatus struct {
	// NotAfter is when the first of the cluster's certificates expires.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
	// Internode is when the certificate between nodes expires.
	// +optional
	Internode *metav1.Time `json:"internode,omitempty"`
	// Serving is the certificate that clients see; absent without spec.tls.
	// +optional
	Serving *ServingCertificateStatus `json:"serving,omitempty"`
}

// BindingReference names a Secret in service-binding form.
type BindingReference struct {
	// Name of the Secret.
	Name string `json:"name"`
}

// BrokerCluster is a cluster of Posthorn nodes.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=bc,categories=posthorn
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Wanted",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.currentVersion`
// +kubebuilder:printcolumn:name="Waiting for",type=string,JSONPath=`.status.rollout.waitingFor`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="the name becomes part of host names: at most 40 lower case letters, digits and dashes, beginning with a letter"
// +kubebuilder:validation:XValidation:rule="(has(oldSelf.spec.hibernated) && oldSelf.spec.hibernated && has(self.spec.hibernated) && self.spec.hibernated) || (has(self.spec.config) && 'shards' in self.spec.config ? self.spec.config['shards'] : 'auto') == (has(oldSelf.spec.config) && 'shards' in oldSelf.spec.config ? oldSelf.spec.config['shards'] : 'auto') || (has(self.status) && has(self.status.featureFlags) && (!has(self.status.featureFlags.disabled) || (size(self.status.featureFlags.disabled) < 16 && !('shards_per_node' in self.status.featureFlags.disabled))))",message="config.shards cannot change while nodes run and the feature flag shards_per_node is not enabled (status.featureFlags): a node then refuses another one with a different number of shards. Enable the flag, or set spec.hibernated first, change config.shards, then unset hibernated"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.majorityRecovery) || self.spec.majorityRecovery.lost.all(l, l.node.startsWith(self.metadata.name + '-'))",message="majorityRecovery.lost names pods of this cluster: the name of the cluster, a dash and a number"
type BrokerCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec BrokerClusterSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status BrokerClusterStatus `json:"status,omitempty"`
}

// BrokerClusterList is a list of BrokerCluster.
// +kubebuilder:object:root=true
type BrokerClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BrokerCluster `json:"items"`
}
