// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package superstream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

func superStream(change func(*posthornv1.SuperStreamSpec)) *posthornv1.SuperStream {
	s := &posthornv1.SuperStream{}
	s.Name, s.Spec.Vhost = "invoices", "/"
	change(&s.Spec)
	return s
}

// complete is the state of a super stream in the broker.
func complete(keys ...string) *state {
	out := &state{
		exchange: &broker.Exchange{Name: "invoices", Type: "direct", Durable: true, Arguments: map[string]any{"x-super-stream": true}},
		streams:  map[string]*broker.Queue{},
	}
	for i, key := range keys {
		name := "invoices-" + key
		out.streams[name] = &broker.Queue{
			Name: name, Type: "stream", Durable: true, Members: []string{"c-0", "c-1", "c-2"},
			Arguments: map[string]any{"x-queue-type": "stream", "x-queue-leader-locator": "balanced"},
		}
		out.bindings = append(out.bindings, bound(name, key, i))
	}
	return out
}

func bound(stream, key string, order int) broker.SourceBinding {
	return broker.SourceBinding{
		Binding:     broker.Binding{RoutingKey: key, Arguments: map[string]any{"x-stream-partition-order": float64(order)}, PropertiesKey: key},
		Destination: stream, DestinationType: "queue",
	}
}

func TestPartitionsHaveTheNamesOfRabbitMQ(t *testing.T) {
	names := func(change func(*posthornv1.SuperStreamSpec)) string {
		var out []string
		for _, partition := range superStream(change).BrokerPartitions() {
			out = append(out, partition.Stream+" by "+partition.RoutingKey)
		}
		return strings.Join(out, ", ")
	}
	if got := names(func(s *posthornv1.SuperStreamSpec) { s.Partitions = 3 }); got != "invoices-0 by 0, invoices-1 by 1, invoices-2 by 2" {
		t.Error(got)
	}
	named := func(s *posthornv1.SuperStreamSpec) {
		s.Name, s.RoutingKeys = "bills", []posthornv1.RoutingKey{"emea", "amer"}
	}
	if got := names(named); got != "bills-emea by emea, bills-amer by amer" {
		t.Error(got)
	}
}

func TestCompareNamesEveryDifference(t *testing.T) {
	cases := map[string]struct {
		spec  func(*posthornv1.SuperStreamSpec)
		found func(*state)
		want  string
	}{
		"equal":                    {nil, nil, ""},
		"nothing but the exchange": {nil, func(s *state) { s.streams, s.bindings = nil, nil }, "partitions.invoices-0 partitions.invoices-1 bindings.invoices-0 bindings.invoices-1 |"},
		"no exchange":              {nil, func(s *state) { s.exchange, s.bindings = nil, nil }, "exchange bindings.invoices-0 bindings.invoices-1 |"},
		"no marker, as with the messaging topology operator": {nil, func(s *state) { s.exchange.Arguments = nil }, ""},
		"another exchange": {nil, func(s *state) {
			s.exchange.Type, s.exchange.Durable, s.exchange.AutoDelete, s.exchange.Internal = "topic", false, true, true
			s.exchange.Arguments["alternate-exchange"] = "a"
		}, "| exchange.type exchange.durable exchange.autoDelete exchange.internal exchange.arguments.alternate-exchange"},
		"a classic queue": {nil, func(s *state) {
			s.streams["invoices-1"] = &broker.Queue{Type: "classic", AutoDelete: true, Exclusive: true, Arguments: map[string]any{"x-max-priority": 1.0}}
		}, "| partitions.invoices-1.type partitions.invoices-1.durable partitions.invoices-1.autoDelete partitions.invoices-1.exclusive partitions.invoices-1.arguments.x-max-priority"},
		"another age":       {maxAge, func(s *state) { s.streams["invoices-0"].Arguments["x-max-age"] = "1D" }, "| partitions.invoices-0.arguments.x-max-age partitions.invoices-1.arguments.x-max-age"},
		"another placement": {nil, func(s *state) { delete(s.streams["invoices-0"].Arguments, "x-queue-leader-locator") }, ""},
		"a placement that the spec asks for": {func(s *posthornv1.SuperStreamSpec) {
			s.Arguments = map[string]apiextensionsv1.JSON{"x-queue-leader-locator": {Raw: []byte(`"client-local"`)}}
		}, nil, "| partitions.invoices-0.arguments.x-queue-leader-locator partitions.invoices-1.arguments.x-queue-leader-locator"},
		"declared with another number of members": {func(s *posthornv1.SuperStreamSpec) { s.Replicas = 3 }, func(s *state) { s.streams["invoices-0"].Arguments["x-initial-cluster-size"] = 5.0 }, ""},
		"adoption would remove members":           {func(s *posthornv1.SuperStreamSpec) { s.Replicas = 1 }, func(s *state) { s.streams["invoices-0"].Members = []string{"c-0"} }, "| partitions.invoices-1.replicas"},
		"the order of the partitions": {nil, func(s *state) {
			s.bindings = []broker.SourceBinding{bound("invoices-0", "0", 1), bound("invoices-1", "1", 0)}
		}, "bindings.invoices-0 bindings.invoices-1 |"},
		"another routing key":      {nil, func(s *state) { s.bindings[1].RoutingKey = "2" }, "bindings.invoices-1 |"},
		"a binding without order":  {nil, func(s *state) { s.bindings[0].Arguments = map[string]any{} }, "bindings.invoices-0 |"},
		"a partition of somebody":  {nil, func(s *state) { s.bindings = append(s.bindings, bound("more", "2", 2)) }, "bindings.more |"},
		"a partition bound twice":  {nil, func(s *state) { s.bindings = append(s.bindings, bound("invoices-0", "7", 0)) }, "bindings.invoices-0 |"},
		"one stream without queue": {nil, func(s *state) { delete(s.streams, "invoices-1") }, "partitions.invoices-1 |"},
	}
	for name, c := range cases {
		s := superStream(func(spec *posthornv1.SuperStreamSpec) {
			spec.Partitions = 2
			if c.spec != nil {
				c.spec(spec)
			}
		})
		w := &work{superStream: s, partitions: s.BrokerPartitions(), found: complete("0", "1")}
		if err := w.Check(topology.Tenant{Home: true}); err != nil {
			t.Fatal(err)
		}
		if c.found != nil {
			c.found(w.found)
		}
		difference, err := w.Compare(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.TrimSpace(strings.Join(difference.Mutable, " ") + " | " + strings.Join(difference.Immutable, " "))
		if got == "|" {
			got = ""
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func maxAge(s *posthornv1.SuperStreamSpec) {
	s.Arguments = map[string]apiextensionsv1.JSON{"x-max-age": {Raw: []byte(`"7D"`)}}
}

// TestDifferencesFitIntoACondition has the largest super stream, of which nothing exists but the exchange.
func TestDifferencesFitIntoACondition(t *testing.T) {
	s := superStream(func(spec *posthornv1.SuperStreamSpec) { spec.Partitions = 1000 })
	w := &work{superStream: s, partitions: s.BrokerPartitions(), found: complete()}
	difference, err := w.Compare(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if all := difference.All(); len(all) != maxNames+1 || all[maxNames] != "and 1990 others" {
		t.Errorf("%d: %v", len(all), all)
	}
}

func TestCheckRefusesNamesAndArguments(t *testing.T) {
	argument := func(name string) func(*posthornv1.SuperStreamSpec) {
		return func(s *posthornv1.SuperStreamSpec) {
			s.Partitions, s.Arguments = 1, map[string]apiextensionsv1.JSON{name: {Raw: []byte("3")}}
		}
	}
	cases := map[string]struct {
		spec func(*posthornv1.SuperStreamSpec)
		says string
	}{
		"no partition":    {func(*posthornv1.SuperStreamSpec) {}, "has no partitions"},
		"a reserved name": {func(s *posthornv1.SuperStreamSpec) { s.Name, s.Partitions = "amq.mine", 1 }, "reserved for the broker"},
		"a long routing key": {func(s *posthornv1.SuperStreamSpec) {
			s.RoutingKeys = []posthornv1.RoutingKey{posthornv1.RoutingKey(strings.Repeat("k", 247))}
		}, "has 256 bytes, and at most 255 are allowed"},
		"a type":         {argument("x-queue-type"), "must not have x-queue-type"},
		"members":        {argument("x-initial-cluster-size"), "spec.replicas sets the number"},
		"quorum members": {argument("x-quorum-initial-group-size"), "must not have x-quorum-initial-group-size"},
		"null": {func(s *posthornv1.SuperStreamSpec) {
			s.Partitions, s.Arguments = 1, map[string]apiextensionsv1.JSON{"x-max-age": {Raw: []byte("null")}}
		}, "x-max-age has no value"},
		"valid": {maxAgeOfOne, ""},
	}
	for name, c := range cases {
		s := superStream(c.spec)
		err := (&work{superStream: s, partitions: s.BrokerPartitions()}).Check(topology.Tenant{Home: true})
		if got := fmt.Sprint(err); c.says == "" && err != nil || !strings.Contains(got, c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := superStream(func(s *posthornv1.SuperStreamSpec) { s.Partitions = 1 })
	if err := (&work{superStream: s, partitions: s.BrokerPartitions()}).Check(topology.Tenant{Namespace: "team"}); err == nil {
		t.Error("a tenant may use the vhost /")
	}
}

func maxAgeOfOne(s *posthornv1.SuperStreamSpec) {
	s.Partitions = 1
	maxAge(s)
}

func TestArgumentsOfStreams(t *testing.T) {
	wanted, err := arguments(&posthornv1.SuperStreamSpec{Replicas: 3, Arguments: map[string]apiextensionsv1.JSON{"x-max-age": {Raw: []byte(`"7D"`)}}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"x-queue-type": "stream", "x-queue-leader-locator": "balanced", "x-initial-cluster-size": 3, "x-max-age": "7D"}
	if got := topology.DifferentKeys("", want, wanted); len(got) > 0 {
		t.Errorf("%v differ", got)
	}
}

func TestShortenKeepsShortLists(t *testing.T) {
	names := strings.Fields("a b c d e f g h i j")
	if got := shorten(names); !slices.Equal(got, names) {
		t.Errorf("%v", got)
	}
	if got := shorten(append(slices.Clone(names), "k")); len(got) != maxNames+1 || got[maxNames] != "and 1 others" {
		t.Errorf("%v", got)
	}
}
