// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"posthorn.io/posthorn/internal/names"
)

// nodesComponent labels the headless Service. Prometheus scrapes through it, because it also has the nodes that are not
// ready.
const nodesComponent = "nodes"

// ensureNodesService keeps the headless Service that gives each node its stable name. It publishes addresses of pods that
// are not ready, because nodes must find each other before they are.
func (r *reconciliation) ensureNodesService(ctx context.Context) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: names.NodesService(r.in.cluster.Name)}}
	return r.ensure(ctx, service, func() error {
		if service.UID == "" {
			service.Spec.ClusterIP = corev1.ClusterIPNone
		}
		service.Spec.Type = corev1.ServiceTypeClusterIP
		service.Spec.PublishNotReadyAddresses = true
		service.Spec.Selector = names.Selector(r.in.cluster.Name)
		service.Labels[names.LabelComponent] = nodesComponent
		service.Spec.Ports = mergePorts(service.Spec.Ports, slices.Concat(
			clientPorts(&r.in.cluster.Spec, r.out.protocols), []corev1.ServicePort{port("cluster", names.PortCluster)},
			managementPorts(r.out.access.management), metricsPorts(r.out.access.metrics),
		), false)
		return nil
	})
}

// ensureClientService keeps the Service that clients connect to, which leads to ready nodes only.
func (r *reconciliation) ensureClientService(ctx context.Context) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: r.in.cluster.Name}}
	return r.ensure(ctx, service, func() error {
		wanted := r.in.cluster.Spec.Service
		service.Spec.Type = wanted.Type
		service.Spec.Selector = names.Selector(r.in.cluster.Name)
		service.Spec.Ports = mergePorts(service.Spec.Ports, slices.Concat(
			clientPorts(&r.in.cluster.Spec, r.out.protocols), managementPorts(r.out.access.management), metricsPorts(r.out.access.metrics),
		), wanted.Type != corev1.ServiceTypeClusterIP)
		annotate(&service.ObjectMeta, wanted.Annotations)
		return nil
	})
}

func port(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: number, TargetPort: intstr.FromString(name)}
}

// annotate sets the wanted annotations on a child and deletes those of an earlier spec, whose names the child itself
// records. Annotations of others stay.
func annotate(child *metav1.ObjectMeta, wanted map[string]string) {
	for _, name := range strings.Split(child.Annotations[names.AnnotationApplied], ",") {
		if _, still := wanted[name]; !still {
			delete(child.Annotations, name)
		}
	}
	for name, value := range wanted {
		metav1.SetMetaDataAnnotation(child, name, value)
	}
	if len(wanted) == 0 {
		delete(child.Annotations, names.AnnotationApplied)
		return
	}
	metav1.SetMetaDataAnnotation(child, names.AnnotationApplied, strings.Join(sortedKeys(wanted), ","))
}

// mergePorts keeps the node ports that Kubernetes has assigned if the Service is to have node ports.
func mergePorts(existing, wanted []corev1.ServicePort, nodePorts bool) []corev1.ServicePort {
	if !nodePorts {
		return wanted
	}
	given := map[string]int32{}
	for _, p := range existing {
		given[p.Name] = p.NodePort
	}
	for i := range wanted {
		wanted[i].NodePort = given[wanted[i].Name]
	}
	return wanted
}
