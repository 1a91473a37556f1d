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

// nodesComponent marks the headless Service. Metrics are scraped through it: it also has the nodes that
// are not ready.
const nodesComponent = "nodes"

// ensureNodesService keeps the headless Service that gives each node its stable name. Nodes must
// find each other before they are ready, so it publishes addresses that are not.
func (s *scope) ensureNodesService(ctx context.Context) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: names.NodesService(s.cluster.Name)}}
	return s.ensure(ctx, service, func() error {
		if service.UID == "" {
			service.Spec.ClusterIP = corev1.ClusterIPNone
		}
		service.Spec.Type = corev1.ServiceTypeClusterIP
		service.Spec.PublishNotReadyAddresses = true
		service.Spec.Selector = names.Selector(s.cluster.Name)
		service.Labels[names.LabelComponent] = nodesComponent
		service.Spec.Ports = mergePorts(service.Spec.Ports, slices.Concat(
			clientPorts(&s.cluster.Spec, s.protocols), []corev1.ServicePort{port("cluster", names.PortCluster)},
			managementPorts(s.reach), metricsPorts(s.scraped),
		), false)
		return nil
	})
}

// ensureClientService keeps the Service that clients connect to: ready nodes only.
func (s *scope) ensureClientService(ctx context.Context) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: s.cluster.Name}}
	return s.ensure(ctx, service, func() error {
		wanted := s.cluster.Spec.Service
		service.Spec.Type = wanted.Type
		service.Spec.Selector = names.Selector(s.cluster.Name)
		service.Spec.Ports = mergePorts(service.Spec.Ports, slices.Concat(
			clientPorts(&s.cluster.Spec, s.protocols), managementPorts(s.reach), metricsPorts(s.scraped),
		), wanted.Type != corev1.ServiceTypeClusterIP)
		annotate(&service.ObjectMeta, wanted.Annotations)
		return nil
	})
}

func port(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: number, TargetPort: intstr.FromString(name)}
}

// annotate puts the wanted annotations on a child, and takes those away that an earlier spec had put
// there. Which they are is noted on the child itself; those of others stay.
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

// mergePorts keeps the node ports that Kubernetes has given when the Service is to have any.
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
