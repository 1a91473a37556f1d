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
// +kubebuilder:validation:XValidation:rule="has(self.bootstrap) == has(oldSelf.bootstrap) && (!has(self.bootstrap) || self.bootstrap == oldSelf.bootstrap)",message="bootstrap is for new clusters: it is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.storage.storageClassName) == has(oldSelf.storage.storageClassName) && (!has(self.storage.storageClassName) || self.storage.storageClassName == oldSelf.storage.storageClassName)",message="storage.storageClassName is immutable"
// +kubebuilder:validation:XValidation:rule="!has(self.placement.quorumReplicas) || self.placement.quorumReplicas <= self.replicas",message="placement.quorumReplicas cannot be more than replicas"
// +kubebuilder:validation:XValidation:rule="(has(oldSelf.hibernated) && oldSelf.hibernated && has(self.hibernated) && self.hibernated) || (has(self.config) && 'shards' in self.config ? self.config['shards'] : '0') == (has(oldSelf.config) && 'shards' in oldSelf.config ? oldSelf.config['shards'] : '0')",message="config.shards cannot change while nodes run: a node refuses another one with a different number of shards, so they cannot be restarted one by one. Set spec.hibernated first, change config.shards, then take hibernated back"
type BrokerClusterSpec struct {
	// Replicas is the number of core nodes, the voters of the metadata group. It must be odd (an
	// even number survives no more failures than the odd number below it). scaleDown says what
	// lowering it does.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9
	// +kubebuilder:validation:XValidation:rule="self % 2 == 1",message="replicas must be odd"
	Replicas int32 `json:"replicas"`

	// Version of the broker to run; names the image when image is empty. An older version than the
	// one that runs is refused, and so is leaving out a minor version.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`
	Version string `json:"version,omitempty"`

	// Image of the broker. When image and version are both empty the operator's default image is
	// used for a new cluster, and an existing cluster keeps the image it has.
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

	// Resources of the broker's container. Where neither a request nor a limit is named, it requests 100m
	// CPU and 256Mi memory, so that its pod is not BestEffort.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || !('cpu' in self.requests) || !('cpu' in self.limits) || quantity(string(self.requests['cpu'])).compareTo(quantity(string(self.limits['cpu']))) <= 0",message="resources.requests.cpu cannot be more than resources.limits.cpu"
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || !('memory' in self.requests) || !('memory' in self.limits) || quantity(string(self.requests['memory'])).compareTo(quantity(string(self.limits['memory']))) <= 0",message="resources.requests.memory cannot be more than resources.limits.memory"
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// TLS makes the nodes listen on port 5671, and the HTTP API on 15671, by which the operator
	// then asks; absent: they do not.
	// +optional
	TLS *TLSSpec `json:"tls,omitempty"`

	// Config holds broker settings, key = value as in posthorn.conf. Keys that the operator sets
	// itself (cluster.*, the ports, the certificates, the default user) are refused, and so are keys that
	// the broker of the operator's version does not know, unless the object has the annotation
	// posthorn.io/skip-validation: "true". A pod with the wanted image checks the values; what it refuses
	// reaches no node (Ready is False, InvalidConfig). Then the nodes restart one by one, and each keeps
	// its old settings until then. The key shards can change only while the cluster is hibernated.
	// +optional
	// +kubebuilder:validation:MaxProperties=256
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[a-z][a-z0-9_.-]*$'))",message="configuration keys look like queue.max_length: lower case letters, digits, dot, underscore, dash"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !self[k].matches('[\\\\r\\\\n]'))",message="configuration values are one line"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('cluster.') && !k.startsWith('listeners.tcp') && !k.startsWith('listeners.ssl') && !k.startsWith('management.ssl') && !k.startsWith('operator.') && !k.startsWith('mqtt.listeners') && !k.startsWith('web_mqtt.tcp') && !k.startsWith('web_mqtt.ssl') && !(k in ['default_user', 'default_pass', 'management.tcp.port', 'prometheus.tcp.port', 'ssl_options.cacertfile', 'ssl_options.certfile', 'ssl_options.keyfile', 'ssl_options.verify', 'ssl_options.fail_if_no_peer_cert']))",message="cluster.*, default_user, default_pass, listeners.tcp.*, listeners.ssl.*, management.tcp.port, management.ssl.*, operator.*, mqtt.listeners.*, web_mqtt.tcp.*, web_mqtt.ssl.*, prometheus.tcp.port and the certificates of ssl_options are set by the operator (spec.protocols, spec.tls)"
	Config map[string]ConfigValue `json:"config,omitempty"`

	// Protocols that clients may speak: a listener for each, and another with TLS (tls). Absent: a new
	// cluster has the operator's default, and an existing cluster keeps what it has. stream is refused:
	// this version of the broker has none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:XValidation:rule="!self.exists(p, p == 'stream')",message="protocols: this version of the broker has no stream listener"
	Protocols []Protocol `json:"protocols,omitempty"`

	// Bootstrap is what a new cluster begins with. Immutable.
	// +optional
	Bootstrap *BootstrapSpec `json:"bootstrap,omitempty"`

	// Upgrade says how pods are replaced when image, version or settings change.
	// +optional
	// +kubebuilder:default={}
	Upgrade UpgradeSpec `json:"upgrade"`

	// FeatureFlags says which of the broker's feature flags the operator enables.
	// +optional
	// +kubebuilder:default={}
	FeatureFlags FeatureFlagsSpec `json:"featureFlags"`

	// ScaleDown says what happens when replicas is lowered.
	// +optional
	// +kubebuilder:default={}
	ScaleDown ScaleDownSpec `json:"scaleDown"`

	// Placement spreads the nodes.
	// +optional
	// +kubebuilder:default={}
	Placement PlacementSpec `json:"placement"`

	// PodDisruptionBudget of the cluster.
	// +optional
	// +kubebuilder:default={}
	PodDisruptionBudget PodDisruptionBudgetSpec `json:"podDisruptionBudget"`

	// Tenancy says which other namespaces may hold Queues, Policies and Users of this cluster.
	// +optional
	Tenancy *TenancySpec `json:"tenancy,omitempty"`

	// Service that clients connect to.
	// +optional
	// +kubebuilder:default={}
	Service ServiceSpec `json:"service"`

	// Monitoring says what is made for Prometheus and Grafana.
	// +optional
	// +kubebuilder:default={}
	Monitoring MonitoringSpec `json:"monitoring"`

	// NetworkPolicy of the cluster.
	// +optional
	// +kubebuilder:default={}
	NetworkPolicy NetworkPolicySpec `json:"networkPolicy"`

	// PodTemplate is merged over the operator's pod template (strategic merge patch: null removes a
	// field, and an element with $patch: replace or delete changes the list). The escape hatch: what it
	// breaks is yours. Refused are unknown fields, wrong types and changes of what the operator itself
	// relies on: the selecting labels, the broker's image (use image), command, arguments, node name,
	// ports, data and configuration volumes, the service account and the restart policy.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	PodTemplate *runtime.RawExtension `json:"podTemplate,omitempty"`

	// Paused stops the operator from changing anything of this cluster; the status is still kept.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Hibernated stops every node and keeps the volumes. Taking it back starts the same cluster
	// again, with its data.
	// +optional
	Hibernated bool `json:"hibernated,omitempty"`
}

// Protocol that clients speak.
// +kubebuilder:validation:Enum=amqp;mqtt;stream
type Protocol string

// Values of Protocol. ProtocolMQTT is MQTT over TCP and over WebSocket.
const (
	ProtocolAMQP Protocol = "amqp"
	ProtocolMQTT Protocol = "mqtt"
)

// ConfigValue is the value of one broker setting.
// +kubebuilder:validation:MaxLength=1024
type ConfigValue string

// StorageSpec describes the volume of each node.
type StorageSpec struct {
	// Size of each node's volume; at least 64Mi. It can be raised where the storage class allows
	// volumes to grow, and never lowered.
	// +optional
	// +kubebuilder:default="20Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Mi')) >= 0",message="storage.size must be at least 64Mi"
	Size resource.Quantity `json:"size"`

	// StorageClassName of the volumes; the cluster's default class when absent. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`

	// WhenDeleted says what happens to the volumes when the BrokerCluster is deleted.
	// +optional
	// +kubebuilder:default=Retain
	// +kubebuilder:validation:Enum=Retain;Delete
	WhenDeleted string `json:"whenDeleted,omitempty"`

	// WhenScaled says what happens to the volume of a node that is scaled away. The StatefulSet says
	// Delete only while the operator removes a node that holds nothing any more. A volume that is
	// retained cannot be used again: it has to be deleted before the cluster grows to that node's
	// ordinal again. Hibernation keeps the volumes whatever this says.
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

	// QuorumReplicas is the number of members of the quorum queues whose Queue object asks for no
	// number; they get and lose members when it is changed. 0 leaves it to the broker: three, as far
	// as there are nodes, and as many as there are stay. Queues that clients declare are not touched.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9
	QuorumReplicas int32 `json:"quorumReplicas,omitempty"`

	// Rebalance says when queue leaders are spread evenly over the nodes: after nodes were added,
	// removed or replaced, or never by the operator.
	// +optional
	// +kubebuilder:default=OnMembershipChange
	// +kubebuilder:validation:Enum=OnMembershipChange;Never
	Rebalance string `json:"rebalance,omitempty"`
}

// BootstrapSpec is what a new cluster begins with.
type BootstrapSpec struct {
	// DefinitionsSecretRef names a Secret of this namespace with a definitions file, as this broker
	// and RabbitMQ export it. It is imported once, when all nodes are ready for the first time; the
	// Secret may be deleted then.
	// +optional
	DefinitionsSecretRef *SecretKeyReference `json:"definitionsSecretRef,omitempty"`
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

// UpgradeSpec says how pods are replaced.
type UpgradeSpec struct {
	// Mode Supervised lets a node go only after somebody has approved that, with the annotation
	// posthorn.io/approve on this object (status.rollout.approve has the value). Unsupervised asks
	// nobody.
	// +optional
	// +kubebuilder:default=Unsupervised
	// +kubebuilder:validation:Enum=Unsupervised;Supervised
	Mode string `json:"mode,omitempty"`

	// StepTimeout is how long the replacement of one node may take, from the start of its drain until
	// the new pod is ready; 0 is no limit.
	// +optional
	// +kubebuilder:default="30m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="stepTimeout cannot be negative"
	StepTimeout *metav1.Duration `json:"stepTimeout,omitempty"`

	// OnTimeout says what to do after that: Pause stops the roll until somebody approves it or the
	// spec changes, and lets a node that is still being drained serve again. Continue keeps waiting.
	// +optional
	// +kubebuilder:default=Pause
	// +kubebuilder:validation:Enum=Pause;Continue
	OnTimeout string `json:"onTimeout,omitempty"`
}

// FeatureFlagsSpec says which feature flags the operator enables.
type FeatureFlagsSpec struct {
	// Policy EnableStableAfterUpgrade enables every stable feature flag when all nodes run the same
	// version; enabling cannot be undone. Manual leaves them to you. The next minor version is
	// refused while stable flags are disabled.
	// +optional
	// +kubebuilder:default=EnableStableAfterUpgrade
	// +kubebuilder:validation:Enum=EnableStableAfterUpgrade;Manual
	Policy string `json:"policy,omitempty"`

	// Exclude names flags that are not enabled.
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

// ScaleDownSpec says what happens when replicas is lowered.
type ScaleDownSpec struct {
	// Policy Drain removes nodes one at a time, the highest ordinal first: leaders move away, then
	// replicas, then the cluster forgets the node, then its pod goes. Raising replicas again stops
	// it at any point. Deny refuses to lower replicas.
	// +optional
	// +kubebuilder:default=Drain
	// +kubebuilder:validation:Enum=Drain;Deny
	Policy string `json:"policy,omitempty"`
}

// RebalanceOnMembershipChange is the value of PlacementSpec.Rebalance that lets the operator spread leaders.
const RebalanceOnMembershipChange = "OnMembershipChange"

// PodDisruptionBudgetSpec says whether there is one.
type PodDisruptionBudgetSpec struct {
	// Mode Auto keeps a budget that lets at most one node be evicted at a time, and none unless every
	// node says that no queue would lose its majority.
	// +optional
	// +kubebuilder:default=Auto
	// +kubebuilder:validation:Enum=Auto;Off
	Mode string `json:"mode,omitempty"`
}

// TenancySpec opens a cluster to other namespaces.
type TenancySpec struct {
	// AllowedNamespaces selects namespaces by their labels ({} selects all). Absent: none but the
	// cluster's own.
	// +optional
	AllowedNamespaces *metav1.LabelSelector `json:"allowedNamespaces,omitempty"`

	// VhostPrefix is the prefix of the virtual hosts of a namespace: objects of namespace n may name
	// the vhost <vhostPrefix>n and every vhost whose name begins with <vhostPrefix>n followed by a
	// dot (a dot cannot be part of a namespace's name).
	// +optional
	// +kubebuilder:validation:MaxLength=64
	VhostPrefix string `json:"vhostPrefix,omitempty"`

	// UserLimits bound each user of a tenant; 0 is no limit. A User may ask for lower limits only.
	// +optional
	UserLimits *UserLimits `json:"userLimits,omitempty"`
}

// ServiceSpec shapes the client Service.
type ServiceSpec struct {
	// Type of the client Service.
	// +optional
	// +kubebuilder:default=ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`

	// Annotations put on the client Service.
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
	// PhaseBlocked: all nodes are ready, and something of the spec cannot be applied.
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
	// ObservedGeneration is the generation of the spec this status talks about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Phase is the state in one word: Creating, Ready, Rolling, ScalingUp, ScalingDown, Degraded (a node is
	// not ready), Blocked (all nodes are ready, and something of the spec cannot be applied), Paused or
	// Hibernated. It is Ready exactly while the condition Ready is True, but for the last two.
	// +optional
	Phase ClusterPhase `json:"phase,omitempty"`

	// CurrentVersion is the version that every node runs.
	// +optional
	CurrentVersion string `json:"currentVersion,omitempty"`

	// TargetVersion is the version that the spec asks for.
	// +optional
	TargetVersion string `json:"targetVersion,omitempty"`

	// Protocols that clients may speak.
	// +optional
	// +listType=set
	Protocols []Protocol `json:"protocols,omitempty"`

	// Replicas is the number of pods there are.
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

	// Rollout tells what a running replacement of pods waits for; absent when there is none.
	// +optional
	Rollout *RolloutStatus `json:"rollout,omitempty"`

	// FeatureFlags tells how the broker's feature flags stand.
	// +optional
	FeatureFlags *FeatureFlagsStatus `json:"featureFlags,omitempty"`

	// Scaling tells which node is being removed and what that waits for; absent when none is.
	// +optional
	Scaling *ScalingStatus `json:"scaling,omitempty"`

	// BalancedFor is the number of nodes that there were when leaders were last spread evenly; -1 after a roll has begun.
	// +optional
	BalancedFor int32 `json:"balancedFor,omitempty"`

	// Certificates tells when certificates expire.
	// +optional
	Certificates *CertificatesStatus `json:"certificates,omitempty"`

	// Binding names the Secret with the default user's credentials (service binding).
	// +optional
	Binding *BindingReference `json:"binding,omitempty"`

	// Conditions: Ready, Available, Progressing, QuorumSafe, UpgradeBlocked, CertificatesReady,
	// StorageReady, MonitoringReady, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MemberStatus tells about one node.
type MemberStatus struct {
	// Name of the pod, which is the node's name.
	Name string `json:"name"`
	// Zone the pod runs in (label topology.kubernetes.io/zone of its node).
	// +optional
	Zone string `json:"zone,omitempty"`
	// Version the node says it runs.
	// +optional
	Version string `json:"version,omitempty"`
	// State: Running, Draining, Joining or Down.
	State string `json:"state"`
	// QuorumCritical: some queue would lose its majority without this node.
	// +optional
	QuorumCritical bool `json:"quorumCritical,omitempty"`
}

// RolloutStatus tells about a replacement of pods.
type RolloutStatus struct {
	// TargetRevision is the StatefulSet's revision that all pods are to have.
	// +optional
	TargetRevision string `json:"targetRevision,omitempty"`
	// WaitingFor is the pod that is being replaced or waited for.
	// +optional
	WaitingFor string `json:"waitingFor,omitempty"`
	// Reason in one word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Since when it waits for this pod for this reason.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Queues that would lose their majority (at most 16 are named), as vhost/name.
	// +optional
	Queues []string `json:"queues,omitempty"`
	// Step is the pod whose replacement was begun last.
	// +optional
	Step string `json:"step,omitempty"`
	// StepSince is when that was.
	// +optional
	StepSince *metav1.Time `json:"stepSince,omitempty"`
	// TimedOut says that a step took longer than spec.upgrade.stepTimeout, and that the roll stopped.
	// +optional
	TimedOut bool `json:"timedOut,omitempty"`
	// Approve is the value of the annotation posthorn.io/approve that lets the roll continue;
	// without the part from the slash on it approves all of the roll.
	// +optional
	Approve string `json:"approve,omitempty"`
}

// FeatureFlagsStatus tells how the broker's feature flags stand.
type FeatureFlagsStatus struct {
	// Disabled are the stable flags that are not enabled (at most 16 are named).
	// +optional
	Disabled []string `json:"disabled,omitempty"`
	// Enabled is how many flags are enabled.
	Enabled int32 `json:"enabled"`
	// Message says why flags stay disabled.
	// +optional
	Message string `json:"message,omitempty"`
}

// ScalingStatus tells about the removal of a node.
type ScalingStatus struct {
	// Removing is the node that is to go next.
	Removing string `json:"removing"`
	// Reason in one word: what is done, or what it waits for.
	Reason string `json:"reason"`
	// Message says more, for example why the broker refused something.
	// +optional
	Message string `json:"message,omitempty"`
	// Since when it is so.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Queues that it is about (at most 16 are named), as vhost/name.
	// +optional
	Queues []string `json:"queues,omitempty"`
	// Remaining is how many queues still have a replica on the node.
	// +optional
	Remaining int32 `json:"remaining,omitempty"`
}

// CertificatesStatus tells about certificates.
type CertificatesStatus struct {
	// NotAfter is when the first of the cluster's certificates expires.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
	// Internode is when the certificate expires that nodes show each other.
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
