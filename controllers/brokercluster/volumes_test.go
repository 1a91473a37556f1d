// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestDecideGrowthFollowsItsTable(t *testing.T) {
	claim := func(phase corev1.PersistentVolumeClaimPhase, asked, there string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{}
		c.Status.Phase = phase
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(asked)}
		if there != "" {
			c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(there)}
		}
		return c
	}
	cases := []struct {
		name  string
		claim *corev1.PersistentVolumeClaim
		want  growthAction
	}{
		{"as wanted", claim(corev1.ClaimBound, "2Gi", "2Gi"), growthNone},
		{"written in another way", claim(corev1.ClaimBound, "2048Mi", "2Gi"), growthNone},
		{"larger", claim(corev1.ClaimBound, "5Gi", "5Gi"), growthNone},
		{"the storage system does not tell", claim(corev1.ClaimBound, "2Gi", ""), growthNone},
		{"asked for", claim(corev1.ClaimBound, "2Gi", "1Gi"), growthWaiting},
		{"too small", claim(corev1.ClaimBound, "1Gi", "1Gi"), growthAsk},
		{"too small by the request, though there is room", claim(corev1.ClaimBound, "1Gi", "4Gi"), growthAsk},
		{"not bound", claim(corev1.ClaimPending, "1Gi", ""), growthNone},
	}
	for _, c := range cases {
		if got := decideGrowth(c.claim, resource.MustParse("2Gi")); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
