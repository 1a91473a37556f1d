// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/user"
	"posthorn.io/posthorn/internal/topology"
)

// TestConditionsAreOneLine uses a webhook that refuses the binding Secret with a reason of several lines.
func TestConditionsAreOneLine(t *testing.T) {
	b := newBench(t, topology.Kind[*posthornv1.User](user.Kind{}), userApp())
	watching, is := b.api.(client.WithWatch)
	if !is {
		t.Fatalf("%T does not watch", b.api)
	}
	b.r.Client = interceptor.NewClient(watching, interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return errors.New("a webhook denied the request:\n\n  first cause\r\n  second cause")
		},
	})
	if _, err := b.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: b.key}); err == nil {
		t.Fatal("no error")
	}
	for _, condition := range b.object().Status.Conditions {
		if strings.ContainsAny(condition.Message, "\r\n") {
			t.Errorf("%s: %q", condition.Type, condition.Message)
		}
		if condition.Type == posthornv1.ConditionReady && !strings.HasSuffix(condition.Message, "request:; first cause; second cause") {
			t.Errorf("%q", condition.Message)
		}
	}
}
