// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

func externalCluster(spec posthornv1.ExternalListenersSpec) *posthornv1.BrokerCluster {
	return &posthornv1.BrokerCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "c"},
		Spec:       posthornv1.BrokerClusterSpec{Replicas: 3, ExternalListeners: &spec},
	}
}

func TestExternalAddresses(t *testing.T) {
	stream := []corev1.ServicePort{{Name: "stream", Port: 5552, NodePort: 31000}}
	balanced := func(ingress ...corev1.LoadBalancerIngress) *corev1.Service {
		return &corev1.Service{
			Spec:   corev1.ServiceSpec{Ports: stream},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}},
		}
	}
	pod := &corev1.Pod{Status: corev1.PodStatus{HostIP: "2001:db8::7"}}
	const templated = "{node}.{namespace}.example"
	for name, c := range map[string]struct {
		spec    posthornv1.ExternalListenersSpec
		service *corev1.Service
		pod     *corev1.Pod
		want    string
	}{
		"load balancer without an address":   {posthornv1.ExternalListenersSpec{Type: "LoadBalancer"}, balanced(), pod, ""},
		"load balancer with an IP address":   {posthornv1.ExternalListenersSpec{Type: "LoadBalancer"}, balanced(corev1.LoadBalancerIngress{IP: "192.0.2.1"}), nil, "192.0.2.1:5552"},
		"load balancer with a name":          {posthornv1.ExternalListenersSpec{Type: "LoadBalancer"}, balanced(corev1.LoadBalancerIngress{IP: "192.0.2.1", Hostname: "lb.example"}), nil, "lb.example:5552"},
		"load balancer with a template":      {posthornv1.ExternalListenersSpec{Type: "LoadBalancer", HostTemplate: templated}, balanced(), nil, "c-1.mq.example:5552"},
		"node port of a pod on a machine":    {posthornv1.ExternalListenersSpec{Type: "NodePort"}, balanced(), pod, "[2001:db8::7]:31000"},
		"node port of a pod without machine": {posthornv1.ExternalListenersSpec{Type: "NodePort"}, balanced(), &corev1.Pod{}, ""},
		"node port without a pod":            {posthornv1.ExternalListenersSpec{Type: "NodePort"}, balanced(), nil, ""},
		"node port with a template":          {posthornv1.ExternalListenersSpec{Type: "NodePort", HostTemplate: templated}, balanced(), nil, "c-1.mq.example:31000"},
	} {
		cluster := externalCluster(c.spec)
		addresses := externalAddresses(cluster, c.service, c.pod, 1)
		settings := advertisedSettings(&c.spec, map[string][]posthornv1.ExternalAddress{"c-1": addresses})
		if got := settings["advertised_nodes.c-1.stream"]; got != c.want || (c.want == "") != (len(settings) == 0) {
			t.Errorf("%s: %v, want %q", name, settings, c.want)
		}
	}
	no := false
	off := posthornv1.ExternalListenersSpec{Advertise: &no}
	if got := advertisedSettings(&off, map[string][]posthornv1.ExternalAddress{"c-1": {{Listener: "stream", Host: "h", Port: 1}}}); len(got) > 0 {
		t.Error(got)
	}
}

func TestEveryListenerHasTheBrokersName(t *testing.T) {
	var known []string
	for _, each := range listeners {
		known = append(known, each.name)
	}
	slices.Sort(known)
	if named := slices.Sorted(maps.Keys(brokerListeners)); !slices.Equal(known, named) {
		t.Errorf("%v, want %v", named, known)
	}
}

func TestExternalPortsAreThoseOfTheChosenProtocols(t *testing.T) {
	protocols := []posthornv1.Protocol{posthornv1.ProtocolAMQP, posthornv1.ProtocolStream}
	cluster := externalCluster(posthornv1.ExternalListenersSpec{Protocols: protocols[1:]})
	if got := externalPorts(&cluster.Spec, protocols); len(got) != 1 || got[0].Name != "stream" {
		t.Error(got)
	}
	cluster.Spec.TLS = &posthornv1.TLSSpec{DisablePlaintext: true}
	if got := externalPorts(&cluster.Spec, protocols); len(got) != 1 || got[0].Name != "streams" {
		t.Error(got)
	}
	cluster.Spec.ExternalListeners.Protocols = nil
	if got := externalPorts(&cluster.Spec, protocols); len(got) != 2 {
		t.Error(got)
	}
}

func TestCertificatesNameTheExternalHostOfEachNode(t *testing.T) {
	cluster := externalCluster(posthornv1.ExternalListenersSpec{HostTemplate: "b{ordinal}.{cluster}.example"})
	cluster.Spec.TLS = &posthornv1.TLSSpec{}
	for _, host := range []string{"b0.c.example", "b2.c.example"} {
		if !slices.Contains(servingHosts(cluster), host) {
			t.Error(servingHosts(cluster))
		}
	}
	cluster.Spec.ExternalListeners.HostTemplate = "one.example"
	if got := externalHosts(cluster); !slices.Equal(got, []string{"one.example"}) {
		t.Error(got)
	}
}
