// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"slices"
	"testing"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

func TestDifferencesNameEveryProperty(t *testing.T) {
	x := &posthornv1.Exchange{}
	x.Spec.Type, x.Spec.Internal = "topic", true
	arguments := map[string]any{"a": 1, "b": "x"}
	found := broker.Exchange{Type: "topic", Durable: true, Internal: true, Arguments: map[string]any{"a": 1.0, "b": "x"}}
	if got := differences(x, arguments, &found); len(got) > 0 {
		t.Errorf("an equal exchange differs in %v", got)
	}
	found = broker.Exchange{Type: "fanout", AutoDelete: true, Arguments: map[string]any{"a": 2.0, "c": true}}
	want := []string{"type", "durable", "autoDelete", "internal", "arguments.a", "arguments.b", "arguments.c"}
	if got := differences(x, arguments, &found); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestReservedNamesAreRefused(t *testing.T) {
	for name, refused := range map[string]bool{"amq.mine": true, "amq.topic": true, "amqp": false, "events": false} {
		x := &posthornv1.Exchange{}
		x.Name, x.Spec.Vhost = name, "/"
		if err := (&work{exchange: x}).Check(topology.Tenant{Home: true}); (err != nil) != refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
