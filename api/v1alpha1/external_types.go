// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

// ExternalListenersSpec gives each node a Service of its own for clients outside Kubernetes. Clients of the stream
// protocol need it: they connect to the node that leads their stream.
// +kubebuilder:validation:XValidation:rule="self.type != 'LoadBalancer' || !has(self.hostTemplate) || self.hostTemplate.contains('{node}') || self.hostTemplate.contains('{ordinal}')",message="externalListeners.hostTemplate must contain {node} or {ordinal}: load balancers of all nodes have the same ports, so each node needs a host name of its own"
// +kubebuilder:validation:XValidation:rule="self.type == 'LoadBalancer' || !has(self.loadBalancerClass)",message="externalListeners.loadBalancerClass needs externalListeners.type: LoadBalancer"
// +kubebuilder:validation:XValidation:rule="self.type == 'LoadBalancer' || !has(self.loadBalancerSourceRanges)",message="externalListeners.loadBalancerSourceRanges needs externalListeners.type: LoadBalancer"
// +kubebuilder:validation:XValidation:rule="has(self.loadBalancerClass) == has(oldSelf.loadBalancerClass) && (!has(self.loadBalancerClass) || self.loadBalancerClass == oldSelf.loadBalancerClass)",message="externalListeners.loadBalancerClass is immutable: remove externalListeners, which deletes the Services, and add it again"
type ExternalListenersSpec struct {
	// Type of the Services. LoadBalancer: each node has a load balancer with the ports of its listeners. NodePort:
	// each node has ports of the Kubernetes node on which its pod runs.
	// +optional
	// +kubebuilder:default=LoadBalancer
	// +kubebuilder:validation:Enum=LoadBalancer;NodePort
	Type corev1.ServiceType `json:"type,omitempty"`

	// Protocols that the Services offer; all of the cluster's protocols when absent.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	Protocols []Protocol `json:"protocols,omitempty"`

	// HostTemplate is the host name of each node for clients, for example {node}.mq.example.com. {node} stands
	// for the name of the pod, {ordinal} for its number, {cluster} and {namespace} for those of this object. When
	// absent, it is the address of the load balancer, or of the Kubernetes node. With spec.tls, the names
	// are in the certificate; a certificate in a given Secret must have them.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9.-]|\{(node|ordinal|cluster|namespace)\})+$`
	HostTemplate string `json:"hostTemplate,omitempty"`

	// Annotations of the Services. The values may have the placeholders of hostTemplate, for example
	// external-dns.alpha.kubernetes.io/hostname: "{node}.mq.example.com".
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Annotations map[string]string `json:"annotations,omitempty"`

	// Advertise makes each node name its external address to clients of the stream protocol, inside and outside
	// Kubernetes. False: it names its address inside Kubernetes.
	// +optional
	// +kubebuilder:default=true
	Advertise *bool `json:"advertise,omitempty"`

	// ExternalTrafficPolicy of the Services. Local keeps the addresses of clients; Cluster also accepts connections
	// to Kubernetes nodes on which the pod does not run.
	// +optional
	// +kubebuilder:default=Cluster
	// +kubebuilder:validation:Enum=Cluster;Local
	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy `json:"externalTrafficPolicy,omitempty"`

	// LoadBalancerClass of the Services. Immutable.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`

	// LoadBalancerSourceRanges are the networks of clients that the load balancers accept; all when absent.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(r, isCIDR(r))",message="externalListeners.loadBalancerSourceRanges are networks such as 10.0.0.0/8"
	LoadBalancerSourceRanges []SourceRange `json:"loadBalancerSourceRanges,omitempty"`
}

// SourceRange is a network such as 10.0.0.0/8.
// +kubebuilder:validation:MaxLength=64
type SourceRange string

// Advertises reports whether nodes name their external addresses to clients.
func (s *ExternalListenersSpec) Advertises() bool { return s.Advertise == nil || *s.Advertise }

// ExternalAddress is the address of a node for clients outside Kubernetes.
type ExternalAddress struct {
	// Listener is the name of the port, for example amqp, or streams for the stream protocol with TLS.
	Listener string `json:"listener"`
	// Host name or IP address.
	Host string `json:"host"`
	// Port number.
	Port int32 `json:"port"`
}

// ConfigurationStatus lists settings that not all nodes have yet.
type ConfigurationStatus struct {
	// PendingRestart are the keys of spec.config that nodes get only by a restart; at most 32.
	// +optional
	PendingRestart []string `json:"pendingRestart,omitempty"`
	// PendingReload are the keys that running nodes have not loaded yet; at most 32.
	// +optional
	PendingReload []string `json:"pendingReload,omitempty"`
	// Message is why a node did not load them.
	// +optional
	Message string `json:"message,omitempty"`
}
