// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"posthorn.io/posthorn/internal/connect"
)

// access is how nodes are reached. During a roll, existing and new pods differ in it.
type access struct {
	// management and metrics are the ports of the HTTP API and of metrics that some pod has or will have.
	management, metrics portSet
	// scrape are the ports at which Prometheus scrapes the nodes.
	scrape portSet
	// listener at which the operator reaches any ready node.
	listener connect.Listener
	// mounted are the Secrets with the certificates that nodes show, the one of the spec first.
	mounted []string
}

// decideAccess combines the existing pods with those that are created next.
func decideAccess(in *inputs, seen *observed) access {
	wanted := portSet{plain: !in.cluster.Spec.TLSOnly(), secure: in.cluster.Spec.TLS != nil}
	out := access{
		management: wanted, metrics: wanted, scrape: decideScrape(seen.pods, wanted.secure),
		listener: serviceListener(seen.pods, nextListener(seen)),
	}
	if wanted.secure {
		out.mounted = []string{servingSecret(in.cluster)}
	}
	for _, name := range sortedKeys(seen.pods) {
		pod := seen.pods[name]
		out.management, out.metrics = out.management.union(managementPortsOf(pod)), out.metrics.union(metricsPortsOf(pod))
		if secret := mountedSecret(pod); secret != "" && !slices.Contains(out.mounted, secret) {
			out.mounted = append(out.mounted, secret)
		}
	}
	return out
}

// portSet says which of two ports is open: the one without TLS and the one with TLS.
type portSet struct{ plain, secure bool }

func (p portSet) union(other portSet) portSet {
	return portSet{p.plain || other.plain, p.secure || other.secure}
}

// listener returns the better of the listeners that take passwords.
func (p portSet) listener() connect.Listener {
	if p.secure {
		return connect.Secure
	}
	return connect.Plain
}

// openPorts returns those of two ports that are open.
func (p portSet) openPorts(plain, secure corev1.ServicePort) []corev1.ServicePort {
	var out []corev1.ServicePort
	if p.plain {
		out = append(out, plain)
	}
	if p.secure {
		out = append(out, secure)
	}
	return out
}

// managementPortsOf returns the ports of a pod's HTTP API.
func managementPortsOf(pod *corev1.Pod) portSet {
	return portSetOf(pod, managementPlain, managementTLS)
}

// portSetOf says which of two named ports a pod was created with.
func portSetOf(pod *corev1.Pod, plain, secure string) portSet {
	var out portSet
	for _, container := range pod.Spec.Containers {
		if container.Name != containerName {
			continue
		}
		for _, port := range container.Ports {
			out = out.union(portSet{port.Name == plain, port.Name == secure})
		}
	}
	return out
}

// mountedSecret returns the name of the Secret with the certificate that a pod shows; empty without TLS.
func mountedSecret(pod *corev1.Pod) string {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name != configVolume || volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.Secret != nil && slices.ContainsFunc(source.Secret.Items, func(item corev1.KeyToPath) bool { return item.Path == servingCert }) {
				return source.Secret.Name
			}
		}
	}
	return ""
}
