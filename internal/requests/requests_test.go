// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAddKeepsRequestsAndLimits(t *testing.T) {
	defaults := Defaults{CPU: "100m", Memory: "256Mi"}
	given := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	got := defaults.Add(given)
	if cpu := got.Requests[corev1.ResourceCPU]; cpu.String() != "2" {
		t.Errorf("the request for CPU became %s", cpu.String())
	}
	if _, requested := got.Requests[corev1.ResourceMemory]; requested {
		t.Error("a limit got a request beside it")
	}
	if len(given.Requests) != 1 {
		t.Error("the given resources were changed")
	}
	empty := defaults.Add(corev1.ResourceRequirements{})
	cpu, memory := empty.Requests[corev1.ResourceCPU], empty.Requests[corev1.ResourceMemory]
	if cpu.String() != "100m" || memory.String() != "256Mi" {
		t.Errorf("the defaults are %s and %s", cpu.String(), memory.String())
	}
}
