// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package names has all names that the operator chooses: of children, labels, ports and hosts.
package names

import "strings"

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
	PortWebMQTT  = 15675
	PortWebMQTTS = 15676
	// PortWebAMQP and PortWebAMQPS are AMQP 1.0 over WebSocket, without and with TLS.
	PortWebAMQP  = 15678
	PortWebAMQPS = 15677
	// PortStream and PortStreams are the stream protocol, without and with TLS.
	PortStream     = 5552
	PortStreams    = 5551
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
	// LabelComponent distinguishes the Services of a cluster.
	LabelComponent = "app.kubernetes.io/component"
	// LabelZone is set on pods by Kubernetes from their machine.
	LabelZone = "topology.kubernetes.io/zone"

	// AnnotationConfig, on the pod template, is a digest of spec.config.
	AnnotationConfig = "posthorn.io/config"
	// AnnotationLive, on LiveConfigMap, is the digest of the spec.config whose live settings it has, and
	// AnnotationLiveBase the digest of the settings that the pod template mounts beside it. On a pod,
	// AnnotationLive is a digest of the ConfigMap's content: the change of the pod makes the kubelet update its files.
	AnnotationLive     = "posthorn.io/live-config"
	AnnotationLiveBase = "posthorn.io/live-config-base"
	// AnnotationInputs, on the StatefulSet, is a digest of the inputs of the pod template.
	AnnotationInputs = "posthorn.io/template-inputs"
	// AnnotationStored, on the StatefulSet, is a digest of the pod template as it was stored.
	AnnotationStored = "posthorn.io/template-stored"
	// AnnotationDraining, on a pod, is the revision for which the operator drains its node, or DrainingForRemoval.
	AnnotationDraining = "posthorn.io/draining"
	// DrainingForRemoval is the value of AnnotationDraining on the pod of a node that is being removed.
	DrainingForRemoval = "removal"
	// AnnotationNodes, on the StatefulSet of a hibernated cluster, is the number of its nodes.
	AnnotationNodes = "posthorn.io/nodes"
	// AnnotationForgotten, on a volume, names the node that the cluster has forgotten.
	AnnotationForgotten = "posthorn.io/forgotten"

	// AnnotationApprove, on a BrokerCluster, approves a step of a roll (<revision>/<pod>) or the whole roll
	// (<revision>). status.rollout.approve has the value for the next step.
	AnnotationApprove = "posthorn.io/approve"

	// AnnotationAcceptUnavailable, on a BrokerCluster, allows the roll to replace a pod although queues lose their
	// majority until the new pod is ready: <revision>/<pod>.
	AnnotationAcceptUnavailable = "posthorn.io/accept-unavailable-queues"

	// AnnotationRestartedAt, on a BrokerCluster, restarts every node, one by one, when its value changes. By convention
	// the value is a time. The pod template has the value of the last restart under the same name.
	AnnotationRestartedAt = "posthorn.io/restarted-at"

	// AnnotationRestart, with the value true on a pod of a cluster, makes the roll replace that pod. The new pod does
	// not have it.
	AnnotationRestart = "posthorn.io/restart"

	// AnnotationSkipValidation, with the value true on an object, makes the admission policies of config/admission
	// skip its keys and arguments, which the broker then checks alone.
	AnnotationSkipValidation = "posthorn.io/skip-validation"

	// AnnotationAllowedNamespaces, on a connection Secret, selects the namespaces whose objects may use it, and
	// AnnotationVhostPrefix is the prefix of their vhosts, as in spec.tenancy of a BrokerCluster.
	AnnotationAllowedNamespaces = "posthorn.io/allowed-namespaces"
	AnnotationVhostPrefix       = "posthorn.io/vhost-prefix"

	// AnnotationImported, on OperatorSecret, is when the definitions of spec.bootstrap were imported.
	AnnotationImported = "posthorn.io/definitions-imported"

	// Finalizer of the topology kinds.
	Finalizer = "posthorn.io/broker-object"

	// BackupFinalizer, on a Backup with deletionPolicy Delete, delays its deletion until the store has deleted the backup.
	BackupFinalizer = "posthorn.io/backup"
	// AnnotationAbandon, with the value true on a Backup that is being deleted, deletes it although the store has not
	// deleted the backup.
	AnnotationAbandon = "posthorn.io/abandon-backup"
	// LabelScheduledBackup, on a Backup, is the UID of the ScheduledBackup that created it.
	LabelScheduledBackup = "posthorn.io/scheduled-backup"
	// AnnotationScheduledBackup, on a Backup, is the name of the ScheduledBackup that created it, and
	// AnnotationScheduledTime the time of the schedule, in RFC 3339.
	AnnotationScheduledBackup = "posthorn.io/scheduled-backup"
	AnnotationScheduledTime   = "posthorn.io/scheduled-time"

	// AnnotationApplied, on Services, lists the annotations that come from the spec.
	AnnotationApplied = "posthorn.io/applied-annotations"
	// AnnotationTrustedSince, on Secrets with certificates of the operator, is when their CA certificates last
	// changed, in RFC 3339.
	AnnotationTrustedSince = "posthorn.io/trusted-since"

	// Product is the value of LabelName on all objects of a broker.
	Product = "posthorn"
	// Manager is the value of LabelManagedBy.
	Manager = "posthorn-operator"
	// ConfigCheck is the value of LabelName on pods that check settings. It differs from Product, so that
	// Services, budgets and network policies do not select them.
	ConfigCheck = "posthorn-config-check"
	// BackupJob is the value of LabelName on the Jobs of backups and restores and on their pods. Network policies admit
	// them to PortOperator.
	BackupJob = "posthorn-backup"
	// BindingType is the type of Secrets in service-binding form.
	BindingType = "servicebinding.io/rabbitmq"
)

// NodesService is the headless Service that gives each node its name.
func NodesService(cluster string) string { return cluster + "-nodes" }

// ConfigMap has the configuration file of the operator's settings.
func ConfigMap(cluster string) string { return cluster + "-config" }

// digestChars is the number of digest characters in a name.
const digestChars = 12

// SettingsConfigMap has one revision of the settings of spec.config; its digest is part of the name.
func SettingsConfigMap(cluster, digest string) string {
	return ConfigMap(cluster) + "-" + digest[:min(len(digest), digestChars)]
}

// LiveConfigMap has the settings that running nodes load without a restart.
func LiveConfigMap(cluster string) string { return cluster + "-live-config" }

// ExternalService is the Service of one node for clients outside Kubernetes.
func ExternalService(pod string) string { return pod + "-external" }

// ConfigCheckPod checks settings with an image; digest is the digest of both.
func ConfigCheckPod(cluster, digest string) string {
	return cluster + "-config-check-" + digest[:min(len(digest), digestChars)]
}

// BootstrapRestore is the Restore of spec.bootstrap.backupRef.
func BootstrapRestore(cluster string) string { return cluster + "-bootstrap" }

// maxJobPrefix is the number of characters of an object's name in the name of its Job, which is also a label.
const maxJobPrefix = 40

// JobOf is the Job that does some work for an object.
func JobOf(name, uid, work string) string {
	prefix := strings.Trim(strings.ReplaceAll(name[:min(len(name), maxJobPrefix)], ".", "-"), "-")
	return prefix + "-" + shortUID(uid) + "-" + work
}

// maxBackupPrefix is the number of characters of a Backup's name in the name of its backup, which has at most 128.
const maxBackupPrefix = 100

// StoredBackup is the name of the backup of a Backup in its store. Another Backup with the same name has another UID.
func StoredBackup(name, uid string) string {
	return name[:min(len(name), maxBackupPrefix)] + "-" + shortUID(uid)
}

// shortUIDChars is the number of characters of a UID in a name.
const shortUIDChars = 8

func shortUID(uid string) string { return uid[:min(len(uid), shortUIDChars)] }

// BackupLabels returns the labels of the Jobs of backups and restores of a cluster, and of their pods.
func BackupLabels(cluster, work string) map[string]string {
	return map[string]string{LabelName: BackupJob, LabelInstance: cluster, LabelManagedBy: Manager, LabelComponent: work}
}

// BackupSelector returns the labels that select the pods that back up or restore a cluster.
func BackupSelector(cluster string) map[string]string {
	return map[string]string{LabelName: BackupJob, LabelInstance: cluster}
}

// DefaultUserSecret has the default user's credentials for applications.
func DefaultUserSecret(cluster string) string { return cluster + "-default-user" }

// OperatorSecret is the operator's access Secret: the credentials that the broker accepts, and how to reach and
// verify the nodes.
func OperatorSecret(cluster string) string { return cluster + "-operator" }

// OperatorCertificateSecret has the operator's client certificate. Pods mount only its CA certificates.
func OperatorCertificateSecret(cluster string) string { return cluster + "-operator-certificate" }

// OperatorCASecret has the CA that signs OperatorCertificateSecret. No pod mounts it.
func OperatorCASecret(cluster string) string { return cluster + "-operator-ca" }

// OperatorService is the Service through which the operator reaches any ready node.
func OperatorService(cluster string) string { return cluster + "-operator" }

// InternodeSecret has the certificate that nodes show each other.
func InternodeSecret(cluster string) string { return cluster + "-internode" }

// InternodeCASecret has the CA that signs InternodeSecret. No pod mounts it.
func InternodeCASecret(cluster string) string { return cluster + "-internode-ca" }

// TLSSecret has the certificate that clients see; a cert-manager Certificate has the same name.
func TLSSecret(cluster string) string { return cluster + "-tls" }

// TLSCASecret has the operator's CA for that certificate. No pod mounts it.
func TLSCASecret(cluster string) string { return cluster + "-tls-ca" }

// ClientCA is the ConfigMap with the CA certificates that clients trust.
func ClientCA(cluster string) string { return cluster + "-ca" }

// Leftovers is the ConfigMap with the objects that are still to be deleted in the broker.
func Leftovers(cluster string) string { return cluster + "-leftovers" }

// Dashboards is the ConfigMap with the Grafana dashboards.
func Dashboards(cluster string) string { return cluster + "-dashboards" }

// Host returns the host name of the client Service.
func Host(namespace, cluster string) string { return cluster + "." + namespace + ".svc" }

// OperatorHost returns the host name of the operator's Service.
func OperatorHost(namespace, cluster string) string {
	return OperatorService(cluster) + "." + namespace + ".svc"
}

// NodeHost returns the host name of one node.
func NodeHost(namespace, cluster, pod string) string {
	return pod + "." + NodesService(cluster) + "." + namespace + ".svc"
}

// ConfigCheckLabels returns the labels of the pods that check a cluster's settings.
func ConfigCheckLabels(cluster string) map[string]string {
	return map[string]string{LabelName: ConfigCheck, LabelInstance: cluster, LabelManagedBy: Manager}
}

// Selector returns the labels that select a cluster's pods.
func Selector(cluster string) map[string]string {
	return map[string]string{LabelName: Product, LabelInstance: cluster}
}

// Labels returns the labels of every child of a cluster.
func Labels(cluster string) map[string]string {
	return map[string]string{LabelName: Product, LabelInstance: cluster, LabelManagedBy: Manager}
}
