// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

func bindingOf(arguments map[string]string) *posthornv1.Binding {
	b := &posthornv1.Binding{}
	b.Spec.Vhost, b.Spec.Source, b.Spec.Destination, b.Spec.DestinationType, b.Spec.RoutingKey = "/", "s", "d", "queue", "k"
	for name, json := range arguments {
		if b.Spec.Arguments == nil {
			b.Spec.Arguments = map[string]apiextensionsv1.JSON{}
		}
		b.Spec.Arguments[name] = apiextensionsv1.JSON{Raw: []byte(json)}
	}
	return b
}

func TestIdentityDistinguishesEveryProperty(t *testing.T) {
	seen := map[string]string{}
	for name, modify := range map[string]func(*posthornv1.Binding){
		"plain":       func(*posthornv1.Binding) {},
		"vhost":       func(b *posthornv1.Binding) { b.Spec.Vhost = "other" },
		"source":      func(b *posthornv1.Binding) { b.Spec.Source = "other" },
		"destination": func(b *posthornv1.Binding) { b.Spec.Destination = "other" },
		"type":        func(b *posthornv1.Binding) { b.Spec.DestinationType = "exchange" },
		"key":         func(b *posthornv1.Binding) { b.Spec.RoutingKey = "k/" },
		"arguments":   func(b *posthornv1.Binding) { b.Spec.Arguments = bindingOf(map[string]string{"a": "1"}).Spec.Arguments },
		"string": func(b *posthornv1.Binding) {
			b.Spec.Arguments = bindingOf(map[string]string{"a": `"1"`}).Spec.Arguments
		},
	} {
		b := bindingOf(nil)
		modify(b)
		identity := Kind{}.Identity(b)
		if other, taken := seen[identity]; taken {
			t.Errorf("%s and %s have the identity %s", name, other, identity)
		}
		seen[identity] = name
	}
	spaced, dense := bindingOf(map[string]string{"a": `{"x": [1, 2]}`, "b": "1"}), bindingOf(map[string]string{"b": "1", "a": `{"x":[1,2]}`})
	if (Kind{}).Identity(spaced) != (Kind{}).Identity(dense) {
		t.Error("the spelling of arguments changes the identity")
	}
}

func TestIdentityOfAnOwnedBindingKeepsItsArguments(t *testing.T) {
	b := bindingOf(map[string]string{"a": "1"})
	before := Kind{}.Identity(b)
	w := &work{binding: b}
	if err := w.Check(topology.Tenant{Home: true}); err != nil {
		t.Fatal(err)
	}
	b.Status.Claim = "c"
	b.Spec.Arguments["a"] = apiextensionsv1.JSON{Raw: []byte("2")}
	if after := (Kind{}).Identity(b); after != before {
		t.Errorf("%s became %s", before, after)
	}
	if err := w.Check(topology.Tenant{Home: true}); err == nil {
		t.Error("other arguments are accepted")
	}
	b.Status.Claim = ""
	if err := w.Check(topology.Tenant{Home: true}); err != nil {
		t.Errorf("a binding that was never created keeps its arguments: %v", err)
	}
}

// TestReadyObjectsWakeTheirBindings compares the keys of objects that become ready with those of bindings that wait for them.
func TestReadyObjectsWakeTheirBindings(t *testing.T) {
	q, x, s := &posthornv1.Queue{}, &posthornv1.Exchange{}, &posthornv1.SuperStream{}
	q.Name, x.Name, s.Name = "orders", "events", "invoices"
	q.Spec.Vhost, x.Spec.Vhost, s.Spec.Vhost, s.Spec.Partitions = "/", "/", "/", 2
	want := func(kind string, names ...string) []string {
		var out []string
		for _, name := range names {
			out = append(out, endKey(bindingOf(nil), "/", kind, name))
		}
		return out
	}
	for name, c := range map[string]struct {
		object client.Object
		want   []string
	}{
		"queue":        {q, want("queue", "orders")},
		"exchange":     {x, want("exchange", "events")},
		"super stream": {s, append(want("exchange", "invoices"), want("queue", "invoices-0", "invoices-1")...)},
		"policy":       {&posthornv1.Policy{}, nil},
	} {
		if got := endsOf(c.object); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
