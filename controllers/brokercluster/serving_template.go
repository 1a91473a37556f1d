// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// tlsInputs is what the pod template takes from spec.tls. Only which Secret it is, not what is in it:
// the broker takes up changed files by itself.
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
	// servingCert is where the certificate is below configDir.
	servingCert = "tls/" + corev1.TLSCertKey
)

// addServing gives the broker a certificate, and the HTTP API with it. Settings go into the environment
// and not into the ConfigMap: so a pod has the settings if, and only if, it has the files, also half-way
// through a roll.
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
		// What is run inside the pod (posthorn ctl) still finds it.
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

// managementPorts are the ports of the HTTP API. One that is not wanted any more stays as long as there
// are pods that have it: the operator asks them by it.
func managementPorts(r reach) []corev1.ServicePort {
	return r.ports(port(managementPlain, names.PortManagement), port(managementTLS, names.PortManagementTLS))
}
