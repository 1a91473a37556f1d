// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package requests sets the resource requests of pods whose owner names none.
package requests

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Defaults are the requests of a container. Both are quantities of Kubernetes.
type Defaults struct {
	CPU, Memory string
}

// Add returns the resources with a request for each resource that has neither a request nor a limit. A pod without requests
// is BestEffort, which the kernel kills and the kubelet evicts first. Kubernetes uses a limit as the request when there is no
// other.
func (d Defaults) Add(resources corev1.ResourceRequirements) corev1.ResourceRequirements {
	out := *resources.DeepCopy()
	for name, quantity := range map[corev1.ResourceName]string{
		corev1.ResourceCPU: d.CPU, corev1.ResourceMemory: d.Memory,
	} {
		_, limited := out.Limits[name]
		if _, requested := out.Requests[name]; requested || limited {
			continue
		}
		if out.Requests == nil {
			out.Requests = corev1.ResourceList{}
		}
		out.Requests[name] = resource.MustParse(quantity)
	}
	return out
}
