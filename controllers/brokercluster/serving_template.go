// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// tlsInputs are the parts of spec.tls that the pod template depends on: the name of the Secret and not its content, because
// the broker reloads changed files by itself.
type tlsInputs struct {
	Secret           string `json:"secret"`
	ClientAuth       string `json:"clientAuth"`
	DisablePlaintext bool   `json:"disablePlaintext,omitempty"`
}

func tlsInputsOf(cluster *posthornv1.BrokerCluster) *tlsInputs {
	spec := cluster.Spec.TLS
	if spec == nil {
		return nil
	}
	return &tlsInputs{Secret: servingSecret(cluster), ClientAuth: clientAuthOf(spec), DisablePlaintext: spec.DisablePlaintext}
}

const (
	// managementPlain and managementTLS name the ports of the HTTP API without and with TLS.
	managementPlain = "management"
	managementTLS   = "management-tls"
	// servingCert is the path of the certificate below configDir.
	servingCert = "tls/" + corev1.TLSCertKey
)

// addServing adds the certificate for clients and the listeners with TLS of the HTTP API and of metrics. The settings are
// environment variables and not in the ConfigMap: a pod has them if, and only if, it has the files, also during a roll.
func addServing(template *corev1.PodTemplateSpec, tls *tlsInputs) {
	if tls == nil {
		return
	}
	container := &template.Spec.Containers[0]
	set := func(name, value string) {
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
	}
	set("POSTHORN_SSL__OPTIONS_CERTFILE", servingDir+"/"+corev1.TLSCertKey)
	set("POSTHORN_SSL__OPTIONS_KEYFILE", servingDir+"/"+corev1.TLSPrivateKeyKey)
	items := []corev1.KeyToPath{
		{Key: corev1.TLSCertKey, Path: servingCert},
		{Key: corev1.TLSPrivateKeyKey, Path: "tls/" + corev1.TLSPrivateKeyKey},
	}
	if tls.ClientAuth == posthornv1.ClientAuthNone {
		set("POSTHORN_SSL__OPTIONS_VERIFY", "verify_none")
	} else {
		items = append(items, corev1.KeyToPath{Key: caKey, Path: "tls/" + caKey})
		set("POSTHORN_SSL__OPTIONS_CACERTFILE", servingDir+"/"+caKey)
		set("POSTHORN_SSL__OPTIONS_VERIFY", "verify_peer")
		set("POSTHORN_SSL__OPTIONS_FAIL__IF__NO__PEER__CERT", strconv.FormatBool(tls.ClientAuth == posthornv1.ClientAuthRequired))
	}
	if tls.DisablePlaintext {
		// Commands inside the pod (posthorn ctl) still use it.
		set("POSTHORN_MANAGEMENT_TCP_PORT", "localhost:"+strconv.Itoa(names.PortManagement))
		set("POSTHORN_PROMETHEUS_TCP_PORT", "none")
		container.Ports = withoutPort(withoutPort(container.Ports, managementPlain), metricsPlain)
	}
	set("POSTHORN_MANAGEMENT_SSL_PORT", strconv.Itoa(names.PortManagementTLS))
	set("POSTHORN_PROMETHEUS_SSL_PORT", strconv.Itoa(names.PortPrometheusTLS))
	container.Ports = append(container.Ports,
		corev1.ContainerPort{Name: managementTLS, ContainerPort: names.PortManagementTLS, Protocol: corev1.ProtocolTCP},
		corev1.ContainerPort{Name: metricsTLS, ContainerPort: names.PortPrometheusTLS, Protocol: corev1.ProtocolTCP})
	files := template.Spec.Volumes[0].Projected
	files.Sources = append(files.Sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: tls.Secret}, Items: items,
	}})
}

func withoutPort(ports []corev1.ContainerPort, name string) []corev1.ContainerPort {
	var out []corev1.ContainerPort
	for _, port := range ports {
		if port.Name != name {
			out = append(out, port)
		}
	}
	return out
}

// managementPorts returns the ports of the HTTP API. One that the spec no longer asks for stays while pods have it, through
// which the operator reaches them.
func managementPorts(open portSet) []corev1.ServicePort {
	return open.openPorts(port(managementPlain, names.PortManagement), port(managementTLS, names.PortManagementTLS))
}
