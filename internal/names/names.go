// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package names holds every name that the operator gives: of children, labels, ports and hosts.
package names

// Ports of a broker pod.
const (
	PortAMQP       = 5672
	PortAMQPS      = 5671
	PortManagement = 15672
	// PortManagementTLS is the HTTP API over TLS.
	PortManagementTLS = 15671
	PortMQTT          = 1883
	PortMQTTS         = 8883
	// PortWebMQTT and PortWebMQTTS are MQTT over WebSocket, without and with TLS.
	PortWebMQTT    = 15675
	PortWebMQTTS   = 15676
	PortPrometheus = 15692
	// PortOperator is the HTTP API for the operator, over TLS with its client certificate.
	PortOperator = 15670
	// PortPrometheusTLS is metrics over TLS.
	PortPrometheusTLS = 15691
	// PortProbes answers /livez and /readyz and nothing else, without TLS, for the kubelet.
	PortProbes  = 15693
	PortCluster = 25672
)

// Labels and annotations.
const (
	LabelName      = "app.kubernetes.io/name"
	LabelInstance  = "app.kubernetes.io/instance"
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// LabelComponent tells the Services of a cluster apart.
	LabelComponent = "app.kubernetes.io/component"
	// LabelZone is put on pods by Kubernetes from their node.
	LabelZone = "topology.kubernetes.io/zone"

	// AnnotationConfig, on the pod template, is a digest of spec.config.
	AnnotationConfig = "posthorn.io/config"
	// AnnotationInputs, on the StatefulSet, is a digest of what the pod template was made from.
	AnnotationInputs = "posthorn.io/template-inputs"
	// AnnotationStored, on the StatefulSet, is a digest of the pod template as it was stored.
	AnnotationStored = "posthorn.io/template-stored"
	// AnnotationDraining, on a pod, is the revision for which the operator drains it, or
	// DrainingForRemoval.
	AnnotationDraining = "posthorn.io/draining"
	// DrainingForRemoval is the value of AnnotationDraining on the pod of a node that is being removed.
	DrainingForRemoval = "removal"
	// AnnotationNodes, on the StatefulSet of a hibernated cluster, is the number of its nodes.
	AnnotationNodes = "posthorn.io/nodes"
	// AnnotationForgotten, on a volume, says that the cluster has forgotten the node it belonged to.
	AnnotationForgotten = "posthorn.io/forgotten"

	// AnnotationApprove, on a BrokerCluster, approves a step of a roll: <revision>/<pod>, or <revision>
	// for all of it. status.rollout.approve has the value for the next step.
	AnnotationApprove = "posthorn.io/approve"

	// AnnotationAcceptUnavailable, on a BrokerCluster, lets the roll replace a pod although queues lose
	// their majority until the new pod is ready: <revision>/<pod>.
	AnnotationAcceptUnavailable = "posthorn.io/accept-unavailable-queues"

	// AnnotationSkipValidation, with the value true on an object, makes the admission policies of config/admission
	// leave its keys and arguments to the broker.
	AnnotationSkipValidation = "posthorn.io/skip-validation"

	// AnnotationImported, on OperatorSecret, says when the definitions of spec.bootstrap were imported.
	AnnotationImported = "posthorn.io/definitions-imported"

	// Finalizer of the broker-side kinds.
	Finalizer = "posthorn.io/broker-object"

	// AnnotationApplied, on Services, names the annotations that come from the spec.
	AnnotationApplied = "posthorn.io/applied-annotations"
	// AnnotationTrustedSince, on Secrets with certificates of the operator's, is when the authorities
	// in them last changed, in RFC 3339.
	AnnotationTrustedSince = "posthorn.io/trusted-since"

	// Product is the value of LabelName on everything that belongs to a broker.
	Product = "posthorn"
	// Manager is the value of LabelManagedBy.
	Manager = "posthorn-operator"
	// ConfigCheck is the value of LabelName on pods that check settings. It differs from Product, so that
	// Services, budgets and network policies do not select them.
	ConfigCheck = "posthorn-config-check"
	// BindingType is the type of Secrets in service-binding form.
	BindingType = "servicebinding.io/rabbitmq"
)

// NodesService is the headless Service that gives each node its name.
func NodesService(cluster string) string { return cluster + "-nodes" }

// ConfigMap holds the configuration file that the operator writes.
func ConfigMap(cluster string) string { return cluster + "-config" }

// digestChars is how much of a digest becomes part of a name.
const digestChars = 12

// SettingsConfigMap holds one revision of the settings of spec.config, named by its digest.
func SettingsConfigMap(cluster, digest string) string {
	return ConfigMap(cluster) + "-" + digest[:min(len(digest), digestChars)]
}

// ConfigCheckPod checks settings with an image; digest is that of both.
func ConfigCheckPod(cluster, digest string) string {
	return cluster + "-config-check-" + digest[:min(len(digest), digestChars)]
}

// DefaultUserSecret holds the default user's credentials.
func DefaultUserSecret(cluster string) string { return cluster + "-default-user" }

// OperatorSecret is the operator's own note of the credentials that the broker takes.
func OperatorSecret(cluster string) string { return cluster + "-operator" }

// OperatorCertificateSecret holds the operator's client certificate. Pods mount its authorities only.
func OperatorCertificateSecret(cluster string) string { return cluster + "-operator-certificate" }

// OperatorCASecret holds the authority that signs OperatorCertificateSecret. No pod mounts it.
func OperatorCASecret(cluster string) string { return cluster + "-operator-ca" }

// OperatorService is the Service by which the operator reaches any ready node.
func OperatorService(cluster string) string { return cluster + "-operator" }

// InternodeSecret holds the certificate that nodes show each other.
func InternodeSecret(cluster string) string { return cluster + "-internode" }

// InternodeCASecret holds the authority that signs InternodeSecret. No pod mounts it.
func InternodeCASecret(cluster string) string { return cluster + "-internode-ca" }

// TLSSecret holds the certificate that clients see; a cert-manager Certificate has the same name.
func TLSSecret(cluster string) string { return cluster + "-tls" }

// TLSCASecret holds the operator's authority for that certificate. No pod mounts it.
func TLSCASecret(cluster string) string { return cluster + "-tls-ca" }

// ClientCA is the ConfigMap with the authorities that clients trust.
func ClientCA(cluster string) string { return cluster + "-ca" }

// Leftovers is the ConfigMap that records what is still to be deleted in the broker.
func Leftovers(cluster string) string { return cluster + "-leftovers" }

// Dashboards is the ConfigMap with the Grafana dashboards.
func Dashboards(cluster string) string { return cluster + "-dashboards" }

// Host is the host name of the client Service.
func Host(namespace, cluster string) string { return cluster + "." + namespace + ".svc" }

// OperatorHost is the host name of the operator's Service.
func OperatorHost(namespace, cluster string) string {
	return OperatorService(cluster) + "." + namespace + ".svc"
}

// NodeHost is the host name of one node.
func NodeHost(namespace, cluster, pod string) string {
	return pod + "." + NodesService(cluster) + "." + namespace + ".svc"
}

// ConfigCheckLabels go on the pods that check a cluster's settings.
func ConfigCheckLabels(cluster string) map[string]string {
	return map[string]string{LabelName: ConfigCheck, LabelInstance: cluster, LabelManagedBy: Manager}
}

// Selector selects a cluster's pods.
func Selector(cluster string) map[string]string {
	return map[string]string{LabelName: Product, LabelInstance: cluster}
}

// Labels go on every child of a cluster.
func Labels(cluster string) map[string]string {
	return map[string]string{LabelName: Product, LabelInstance: cluster, LabelManagedBy: Manager}
}
