// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/exchange"
	"posthorn.io/posthorn/internal/topology"
)

func TestObjectWaitsForItsVhostObject(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{{Type: kind, Status: status, Reason: "Test"}}
	}
	for name, c := range map[string]struct {
		vhost *posthornv1.Vhost
		waits bool
	}{
		"no object":          {nil, false},
		"of another vhost":   {&posthornv1.Vhost{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, false},
		"new":                {&posthornv1.Vhost{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, true},
		"being deleted":      {&posthornv1.Vhost{ObjectMeta: metav1.ObjectMeta{Name: "shop", Finalizers: []string{"x/y"}}}, false},
		"ready, and drifted": {&posthornv1.Vhost{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Status: posthornv1.VhostStatus{TopologyStatus: posthornv1.TopologyStatus{Conditions: condition("Ready", "True")}}}, true},
		"refused":            {&posthornv1.Vhost{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Status: posthornv1.VhostStatus{TopologyStatus: posthornv1.TopologyStatus{Conditions: condition("Stalled", "True")}}}, false},
	} {
		x := &posthornv1.Exchange{ObjectMeta: metav1.ObjectMeta{Namespace: "mq", Name: "events"}}
		x.Spec.ClusterRef.Name, x.Spec.Vhost, x.Spec.Type = "c", "shop", "direct"
		b := newBench(t, topology.Kind[*posthornv1.Exchange](exchange.Kind{}), x)
		if c.vhost != nil {
			c.vhost.Namespace, c.vhost.Spec.ClusterRef.Name = "mq", "c"
			if err := b.api.Create(t.Context(), c.vhost); err != nil {
				t.Fatal(err)
			}
			if name == "being deleted" {
				if err := b.api.Delete(t.Context(), c.vhost); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.reconcile()
		conditions := b.object().Status.Conditions
		found := meta.FindStatusCondition(conditions, "Ready")
		stalled := meta.IsStatusConditionTrue(conditions, "Stalled")
		if found.Reason != topology.ReasonVhostNotFound || stalled == c.waits || strings.Contains(found.Message, "waits for Vhost mq/shop") != c.waits {
			t.Errorf("%s: %+v, stalled %v", name, found, stalled)
		}
	}
}
