// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/requests"
)

const (
	configDir     = "/etc/posthorn"
	dataDir       = "/var/lib/posthorn"
	containerName = "posthorn"
	dataVolume    = "data"
	configVolume  = "config"
	// userConfigPath is the path of the settings of spec.config, below configDir.
	userConfigPath = "conf.d/" + userConfigKey

	// brokerUser is the user and group of the broker's image.
	brokerUser = int64(10001)
	// secretFileMode lets the group (fsGroup) read, and nobody else.
	secretFileMode = int32(0o440)
	// stopSeconds is how long a node may take to hand over its leaders when it is stopped.
	stopSeconds = int64(120)
	// probesPort names the port that answers /livez and /readyz alone.
	probesPort = "probes"
)

// defaultRequests are those of the broker's container where the spec names none.
var defaultRequests = requests.Defaults{CPU: "100m", Memory: "256Mi"}

// templateInputs are the parts of the spec that the pod template depends on. The template is rebuilt only when their digest
// changes, so that a new version of the operator alone changes no StatefulSet. New fields must be omitempty and stay zero
// for a spec that does not use them.
type templateInputs struct {
	Image       string                        `json:"image"`
	PullSecrets []corev1.LocalObjectReference `json:"pullSecrets,omitempty"`
	Resources   corev1.ResourceRequirements   `json:"resources"`
	Config      string                        `json:"config"`
	TopologyKey string                        `json:"topologyKey"`
	Override    json.RawMessage               `json:"override,omitempty"`
	TLS         *tlsInputs                    `json:"tls,omitempty"`
	// Protocols; nil stands for AMQP alone.
	Protocols []posthornv1.Protocol `json:"protocols,omitempty"`
	// RestartedAt is the value of AnnotationRestartedAt; empty before the first restart.
	RestartedAt string `json:"restartedAt,omitempty"`
}

func inputsOf(cluster *posthornv1.BrokerCluster, image string, protocols []posthornv1.Protocol) templateInputs {
	inputs := templateInputs{
		Image:       image,
		PullSecrets: cluster.Spec.ImagePullSecrets,
		Resources:   cluster.Spec.Resources,
		Config:      configDigest(cluster.Spec.Config),
		TopologyKey: cluster.Spec.Placement.TopologyKey,
		TLS:         tlsInputsOf(cluster),
		Protocols:   protocolsForDigest(protocols),
	}
	if cluster.Spec.PodTemplate != nil {
		inputs.Override = cluster.Spec.PodTemplate.Raw
	}
	return inputs
}

func (i templateInputs) digest() (string, error) {
	data, err := json.Marshal(i)
	if err != nil {
		return "", fmt.Errorf("encoding the pod template's inputs: %w", err)
	}
	return digest(data), nil
}

// buildTemplate returns the pod template.
func buildTemplate(cluster *posthornv1.BrokerCluster, inputs templateInputs) (corev1.PodTemplateSpec, error) {
	no, yes := false, true
	user, stop := brokerUser, stopSeconds
	onRootMismatch := corev1.FSGroupChangeOnRootMismatch
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      names.Labels(cluster.Name),
			Annotations: map[string]string{names.AnnotationConfig: inputs.Config},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName:            cluster.Name,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			ImagePullSecrets:              inputs.PullSecrets,
			TerminationGracePeriodSeconds: &stop,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
				FSGroup: &user, FSGroupChangePolicy: &onRootMismatch,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				spread(cluster.Name, inputs.TopologyKey), spread(cluster.Name, corev1.LabelHostname),
			},
			Containers: []corev1.Container{brokerContainer(cluster, inputs)},
			Volumes:    []corev1.Volume{configFiles(cluster.Name, inputs.Config)},
		},
	}
	addListeners(&template.Spec.Containers[0], inputs.Protocols, inputs.TLS)
	addOperatorListener(&template, cluster.Name)
	addServing(&template, inputs.TLS)
	if inputs.RestartedAt != "" {
		template.Annotations[names.AnnotationRestartedAt] = inputs.RestartedAt
	}
	return override(template, inputs.Override)
}

func spread(cluster, key string) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{
		MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: names.Selector(cluster)},
	}
}

func brokerContainer(cluster *posthornv1.BrokerCluster, inputs templateInputs) corev1.Container {
	no, yes := false, true
	return corev1.Container{
		Name:            containerName,
		Image:           inputs.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"/posthorn"},
		Args:            []string{"serve", "--config", configDir + "/" + mainConfigKey, "--data-dir", dataDir},
		Env: []corev1.EnvVar{
			{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}},
			{Name: "POSTHORN_CLUSTER_NODE", Value: "$(POD_NAME)"},
			{Name: "POSTHORN_CLUSTER_ADVERTISED__HOST", Value: names.NodeHost(cluster.Namespace, cluster.Name, "$(POD_NAME)")},
			// Empty where Kubernetes does not set the label on pods: replicas are then spread over nodes only.
			{Name: "POSTHORN_CLUSTER_ZONE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
				APIVersion: "v1", FieldPath: "metadata.labels['" + names.LabelZone + "']",
			}}},
			// In the environment like the probes that use the port: pods of an older template read the ConfigMap too.
			{Name: "POSTHORN_PROBES_TCP_PORT", Value: strconv.Itoa(names.PortProbes)},
		},
		Ports: []corev1.ContainerPort{
			{Name: plainAMQP, ContainerPort: names.PortAMQP, Protocol: corev1.ProtocolTCP},
			{Name: managementPlain, ContainerPort: names.PortManagement, Protocol: corev1.ProtocolTCP},
			{Name: metricsPlain, ContainerPort: names.PortPrometheus, Protocol: corev1.ProtocolTCP},
			{Name: "cluster", ContainerPort: names.PortCluster, Protocol: corev1.ProtocolTCP},
			{Name: probesPort, ContainerPort: names.PortProbes, Protocol: corev1.ProtocolTCP},
		},
		Resources: defaultRequests.Add(inputs.Resources),
		// A roll waits for the probes of each node: they run often, and tolerate many failures.
		StartupProbe:   probe("/livez", 1, 300),
		LivenessProbe:  probe("/livez", 10, 6),
		ReadinessProbe: probe("/readyz", 1, 6),
		VolumeMounts: []corev1.VolumeMount{
			{Name: configVolume, MountPath: configDir, ReadOnly: true},
			{Name: dataVolume, MountPath: dataDir},
		},
		// The broker's last log lines, for example about an unknown setting, go to the status.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

// probe uses the listener for probes alone, which clients of the HTTP API cannot fill.
func probe(path string, period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Port: intstr.FromString(probesPort), Scheme: corev1.URISchemeHTTP,
		}},
		PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 3, SuccessThreshold: 1,
	}
}

// configFiles returns a volume with the files of both ConfigMaps and of the Secrets. settings is the digest of spec.config.
func configFiles(cluster, settings string) corev1.Volume {
	mode, optional := secretFileMode, true
	secret := func(name string, items ...corev1.KeyToPath) corev1.VolumeProjection {
		return corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: items,
		}}
	}
	return corev1.Volume{Name: configVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: names.ConfigMap(cluster)},
				Items:                []corev1.KeyToPath{{Key: mainConfigKey, Path: mainConfigKey}},
			}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: names.SettingsConfigMap(cluster, settings)},
				Items:                []corev1.KeyToPath{{Key: userConfigKey, Path: userConfigPath}},
			}},
			// It does not exist before the first change of a live setting.
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: names.LiveConfigMap(cluster)},
				Items:                []corev1.KeyToPath{{Key: liveConfigKey, Path: "conf.d/" + liveConfigKey}}, Optional: &optional,
			}},
			secret(names.DefaultUserSecret(cluster), corev1.KeyToPath{Key: defaultUserKey, Path: "conf.d/10-default-user.conf"}),
			secret(names.InternodeSecret(cluster),
				corev1.KeyToPath{Key: caKey, Path: "internode/" + caKey},
				corev1.KeyToPath{Key: corev1.TLSCertKey, Path: "internode/" + corev1.TLSCertKey},
				corev1.KeyToPath{Key: corev1.TLSPrivateKeyKey, Path: "internode/" + corev1.TLSPrivateKeyKey}),
		},
	}}}
}

// override merges spec.podTemplate into the operator's template.
func override(template corev1.PodTemplateSpec, patch json.RawMessage) (corev1.PodTemplateSpec, error) {
	if len(patch) == 0 {
		return template, nil
	}
	base, err := json.Marshal(template)
	if err != nil {
		return template, fmt.Errorf("encoding the pod template: %w", err)
	}
	merged, err := strategicpatch.StrategicMergePatch(base, patch, corev1.PodTemplateSpec{})
	if err != nil {
		return template, newTerminalError("InvalidPodTemplate", "spec.podTemplate cannot be merged: %w", err)
	}
	var out corev1.PodTemplateSpec
	if err := yaml.UnmarshalStrict(merged, &out); err != nil {
		return template, newTerminalError("InvalidPodTemplate", "spec.podTemplate is not a pod template: %w", err)
	}
	return out, checkOverride(&template, &out)
}
