// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthorn.io/posthorn/internal/broker"
)

// status returns the HTTP status of a failed request; 0 of a successful one.
func status(err error) int {
	var api *broker.APIError
	if errors.As(err, &api) {
		return api.Status
	}
	if err != nil {
		return -1
	}
	return 0
}

// TestTopologyRequests runs the operator's requests about vhosts, exchanges, bindings and permissions.
func TestTopologyRequests(t *testing.T) {
	_, client := connect(t)
	useTopology(t, client)
}

// TestTopologyRequestsToABroker runs the same requests against a real broker, so that the fake one cannot differ from it
// unnoticed. $POSTHORN is the program.
func TestTopologyRequestsToABroker(t *testing.T) {
	program := os.Getenv("POSTHORN")
	if program == "" {
		t.Skip("set POSTHORN to a broker")
	}
	useTopology(t, broker.New(broker.Access{URL: startNode(t, program), Username: "guest", Password: "guest"}, broker.NewTransport()))
}

// startNode starts a broker of one node, and returns the URL of its HTTP API.
func startNode(t *testing.T, program string, options ...string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	command := exec.Command(program, "serve", "--data-dir", filepath.Join(dir, "data"), "--ready-file", ready, "--set", "listeners.tcp.default=127.0.0.1:0",
		"--set", "mqtt.listeners.tcp.default=127.0.0.1:0", "--set", "management.tcp.port="+address, "--set", "prometheus.tcp.port=none", "--set", "probes.tcp.port=none")
	command.Args = append(command.Args, options...)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = command.Wait(); close(ended) }()
	t.Cleanup(func() { _ = command.Process.Kill(); <-ended })
	deadline := time.Now().Add(time.Minute)
	for {
		if data, err := os.ReadFile(ready); err == nil && json.Valid(data) {
			return "http://" + address
		}
		select {
		case <-ended:
			t.Fatal("the broker ended")
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("the broker does not become ready")
		}
	}
}

func useTopology(t *testing.T, client broker.Client) {
	t.Helper()
	ctx := context.Background()
	is := func(what string, err error, want int, words string) {
		t.Helper()
		if status(err) != want || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want status %d with %q", what, err, want, words)
		}
	}
	same := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v, want %#v", what, got, want)
		}
	}
	const vhost, user = "a/b %2F", "app"
	useVhost(t, client, vhost, is, same)

	declaration := broker.ExchangeDeclaration{Type: "topic", Durable: true, Arguments: map[string]any{"alternate-exchange": "amq.fanout"}}
	is("declare", client.DeclareExchange(ctx, vhost, "events", declaration), 0, "")
	is("declare again", client.DeclareExchange(ctx, vhost, "events", declaration), 0, "")
	other := declaration
	other.Type = "fanout"
	is("declare another type", client.DeclareExchange(ctx, vhost, "events", other), 400, "inequivalent arg 'type' for exchange 'events' in vhost '"+vhost+"'")
	other.Type = "queue"
	is("declare an unknown type", client.DeclareExchange(ctx, vhost, "wrong", other), 400, "unknown exchange type 'queue'")
	is("declare a reserved name", client.DeclareExchange(ctx, vhost, "amq.mine", declaration), 401, "reserved prefix")
	is("declare in no vhost", client.DeclareExchange(ctx, "none", "events", declaration), 404, "vhost_not_found")
	exchange, err := client.GetExchange(ctx, vhost, "events")
	is("get", err, 0, "")
	same("exchange", exchange, broker.Exchange{Name: "events", Vhost: vhost, Type: "topic", Durable: true, Arguments: declaration.Arguments})
	_, err = client.GetExchange(ctx, vhost, "none")
	is("get no exchange", err, 404, "")
	is("delete a system exchange", client.DeleteExchange(ctx, vhost, "amq.topic"), 401, "deletion of system exchange 'amq.topic' in vhost '"+vhost+"' not allowed")

	useBindings(t, client, vhost, is, same)
	useStreams(t, client, vhost, is, same)
	is("delete", client.DeleteExchange(ctx, vhost, "events"), 0, "")
	is("delete again", client.DeleteExchange(ctx, vhost, "events"), 404, "")

	usePermissions(t, client, vhost, user, is, same)
	is("delete the vhost", client.DeleteVhost(ctx, vhost), 0, "")
	is("delete the vhost again", client.DeleteVhost(ctx, vhost), 404, "")
	permissions, err := client.ListPermissions(ctx, user)
	is("permissions", err, 0, "")
	same("permissions", permissions, []broker.Permission{})
	is("delete the user", client.DeleteUser(ctx, user), 0, "")
}

type (
	isFunc   func(what string, err error, want int, words string)
	sameFunc func(what string, got, want any)
)

func useVhost(t *testing.T, client broker.Client, vhost string, is isFunc, same sameFunc) {
	t.Helper()
	ctx := context.Background()
	_, err := client.GetVhost(ctx, vhost)
	is("no vhost", err, 404, "")
	is("limit of no vhost", client.SetVhostLimits(ctx, vhost, broker.Limits{broker.MaxQueues: 1}), 404, "Not Found")
	is("wrong type", client.PutVhost(ctx, vhost, broker.VhostSettings{DefaultQueueType: "mirrored"}), 400, "Unsupported default queue type: 'mirrored'")
	is("create", client.PutVhost(ctx, vhost, broker.VhostSettings{DefaultQueueType: "quorum", Tags: []string{"a", "b"}, Tracing: true}), 0, "")
	is("limits", client.SetVhostLimits(ctx, vhost, broker.Limits{broker.MaxQueues: 7, broker.MaxConnections: 0}), 0, "")
	found, err := client.GetVhost(ctx, vhost)
	is("get", err, 0, "")
	want := broker.Vhost{
		Name: vhost, DefaultQueueType: "quorum", Tags: broker.Tags{"a", "b"}, Tracing: true, Limits: map[string]int64{"max-queues": 7, "max-connections": 0},
	}
	same("vhost", found, want)
	// Omitted settings stay, and empty ones change.
	is("change", client.PutVhost(ctx, vhost, broker.VhostSettings{}), 0, "")
	is("remove a limit", client.SetVhostLimits(ctx, vhost, broker.Limits{broker.MaxQueues: 7}), 0, "")
	found, err = client.GetVhost(ctx, vhost)
	is("get again", err, 0, "")
	want.Tags, want.Tracing, want.Limits = broker.Tags{}, false, map[string]int64{"max-queues": 7}
	same("changed vhost", found, want)
	same("limits", found.CurrentLimits(), broker.Limits{broker.MaxQueues: 7})
	all := broker.Limits{broker.MaxConnections: 3, broker.MaxChannels: 4, broker.MaxMessageRate: 5, broker.MaxByteRate: 1 << 40, broker.MaxStoredBytes: 1 << 41}
	is("set all limits", client.SetVhostLimits(ctx, vhost, all), 0, "")
	found, err = client.GetVhost(ctx, vhost)
	is("get with all limits", err, 0, "")
	same("all limits", found.CurrentLimits(), all)
	is("remove all limits", client.SetVhostLimits(ctx, vhost, nil), 0, "")
	count, err := client.CountQueues(ctx, vhost)
	is("count", err, 0, "")
	same("queues", count, int64(0))
	for _, name := range []string{"q", "r"} {
		is("queue", client.DeclareQueue(ctx, vhost, name, broker.QueueDeclaration{Durable: true, Arguments: map[string]any{"x-queue-type": "classic"}}), 0, "")
	}
	count, err = client.CountQueues(ctx, vhost)
	is("count", err, 0, "")
	same("queues", count, int64(2))
}

func useBindings(t *testing.T, client broker.Client, vhost string, is isFunc, same sameFunc) {
	t.Helper()
	ctx := context.Background()
	toQueue := broker.BindingEnds{Vhost: vhost, Source: "events", Destination: "q"}
	toExchange := broker.BindingEnds{Vhost: vhost, Source: "events", Destination: "amq.fanout", ToExchange: true}
	for key, want := range map[string]string{"": "~", "a.b-c_d": "a.b-c_d", "t~1": "t%7E1", "a/b *": "a%2Fb%20%2A", "..": ".."} {
		for _, ends := range []broker.BindingEnds{toQueue, toExchange} {
			is("bind "+key, client.Bind(ctx, ends, key, nil), 0, "")
			is("bind again "+key, client.Bind(ctx, ends, key, nil), 0, "")
			list, err := client.ListBindings(ctx, ends)
			is("list", err, 0, "")
			same("bindings with "+key, list, []broker.Binding{{RoutingKey: key, Arguments: map[string]any{}, PropertiesKey: want}})
			is("unbind "+key, client.Unbind(ctx, ends, want), 0, "")
			is("unbind again "+key, client.Unbind(ctx, ends, want), 404, "")
		}
	}
	arguments := map[string]any{"x": "y", "n": 1.0, "b": true}
	is("bind with arguments", client.Bind(ctx, toQueue, "k", arguments), 0, "")
	list, err := client.ListBindings(ctx, toQueue)
	is("list", err, 0, "")
	if len(list) != 1 || !reflect.DeepEqual(list[0].Arguments, arguments) {
		t.Fatalf("bindings %+v", list)
	}
	is("unbind with arguments", client.Unbind(ctx, toQueue, list[0].PropertiesKey), 0, "")
	is("bind no exchange", client.Bind(ctx, broker.BindingEnds{Vhost: vhost, Source: "none", Destination: "q"}, "", nil), 404, "no exchange 'none' in vhost '"+vhost+"'")
	is("bind no queue", client.Bind(ctx, broker.BindingEnds{Vhost: vhost, Source: "events", Destination: "none"}, "", nil), 404, "no queue 'none' in vhost '"+vhost+"'")
	is("bind to no exchange", client.Bind(ctx, broker.BindingEnds{Vhost: vhost, Source: "events", Destination: "none", ToExchange: true}, "", nil), 404, "no exchange 'none'")
	is("bind in no vhost", client.Bind(ctx, broker.BindingEnds{Vhost: "none", Source: "events", Destination: "q"}, "", nil), 404, "vhost_not_found")
	is("bind the default exchange", client.Bind(ctx, broker.BindingEnds{Vhost: vhost, Source: "amq.default", Destination: "q"}, "", nil), 401, "operation not permitted on the default exchange")
	list, err = client.ListBindings(ctx, broker.BindingEnds{Vhost: vhost, Source: "none", Destination: "none"})
	is("list of no exchange", err, 0, "")
	same("bindings", list, []broker.Binding{})
	_, err = client.ListBindings(ctx, broker.BindingEnds{Vhost: "none", Source: "events", Destination: "q"})
	is("list of no vhost", err, 404, "")
}

// useStreams makes a super stream of two partitions, as a SuperStream does.
func useStreams(t *testing.T, client broker.Client, vhost string, is isFunc, same sameFunc) {
	t.Helper()
	ctx := context.Background()
	list, err := client.BindingsFrom(ctx, vhost, "invoices")
	is("bindings of no exchange", err, 0, "")
	same("bindings of no exchange", list, []broker.SourceBinding{})
	_, err = client.BindingsFrom(ctx, "none", "invoices")
	is("bindings in no vhost", err, 404, "")
	exchange := broker.ExchangeDeclaration{Type: "direct", Durable: true, Arguments: map[string]any{"x-super-stream": true}}
	is("exchange", client.DeclareExchange(ctx, vhost, "invoices", exchange), 0, "")
	want := []broker.SourceBinding{}
	list, err = client.BindingsFrom(ctx, vhost, "invoices")
	is("no bindings", err, 0, "")
	same("no bindings", list, want)
	arguments := map[string]any{
		"x-queue-type": "stream", "x-queue-leader-locator": "balanced", "x-max-age": "7D", "x-max-length-bytes": 1e9,
		"x-stream-max-segment-size-bytes": 1e6, "x-stream-filter-size-bytes": 16.0, "x-initial-cluster-size": 1.0,
	}
	declaration := broker.QueueDeclaration{Durable: true, Arguments: arguments}
	for i, name := range []string{"invoices-0", "invoices-1"} {
		is("declare", client.DeclareQueue(ctx, vhost, name, declaration), 0, "")
		is("declare again", client.DeclareQueue(ctx, vhost, name, declaration), 0, "")
		found, err := client.GetQueue(ctx, vhost, name)
		is("get", err, 0, "")
		same("type", found.Type, "stream")
		same("durable", found.Durable, true)
		same("arguments", found.Arguments, arguments)
		ends := broker.BindingEnds{Vhost: vhost, Source: "invoices", Destination: name}
		order := map[string]any{"x-stream-partition-order": i}
		is("bind", client.Bind(ctx, ends, strconv.Itoa(i), order), 0, "")
		is("bind again", client.Bind(ctx, ends, strconv.Itoa(i), order), 0, "")
		bindings, err := client.ListBindings(ctx, ends)
		is("list", err, 0, "")
		if len(bindings) != 1 {
			t.Fatalf("bindings %+v", bindings)
		}
		same("order", bindings[0].Arguments, map[string]any{"x-stream-partition-order": float64(i)})
		want = append(want, broker.SourceBinding{Binding: bindings[0], Destination: name, DestinationType: "queue"})
	}
	list, err = client.BindingsFrom(ctx, vhost, "invoices")
	is("bindings", err, 0, "")
	slices.SortFunc(list, func(a, b broker.SourceBinding) int { return strings.Compare(a.Destination, b.Destination) })
	same("bindings", list, want)
	other := broker.QueueDeclaration{Durable: true, Arguments: map[string]any{"x-queue-type": "stream"}}
	is("declare other arguments", client.DeclareQueue(ctx, vhost, "invoices-0", other), 400, "inequivalent arg 'x-")
	is("delete the exchange", client.DeleteExchange(ctx, vhost, "invoices"), 0, "")
	for _, name := range []string{"invoices-0", "invoices-1"} {
		is("delete", client.DeleteQueue(ctx, vhost, name, false), 0, "")
		_, err := client.GetQueue(ctx, vhost, name)
		is("get a deleted one", err, 404, "")
	}
}

func usePermissions(t *testing.T, client broker.Client, vhost, user string, is isFunc, same sameFunc) {
	t.Helper()
	ctx := context.Background()
	permission := broker.Permission{User: user, Vhost: vhost, Configure: "", Write: "^w", Read: "^r"}
	topic := broker.TopicPermission{User: user, Vhost: vhost, Exchange: "amq.topic", Write: "^w", Read: "^r"}
	is("permission of no user", client.PutPermission(ctx, permission), 400, "vhost_or_user_not_found")
	is("topic permission of no user", client.PutTopicPermission(ctx, topic), 400, "vhost_or_user_not_found")
	is("user", client.PutUser(ctx, user, "a-password", nil), 0, "")
	_, err := client.GetPermission(ctx, vhost, user)
	is("no permission", err, 404, "")
	is("delete no permission", client.DeletePermission(ctx, vhost, user), 404, "")
	is("delete no topic permission", client.DeleteTopicPermission(ctx, vhost, user, "amq.topic"), 404, "")
	is("permission", client.PutPermission(ctx, permission), 0, "")
	found, err := client.GetPermission(ctx, vhost, user)
	is("get permission", err, 0, "")
	same("permission", found, permission)
	second := topic
	second.Exchange = "events"
	is("topic permission", client.PutTopicPermission(ctx, topic), 0, "")
	is("second topic permission", client.PutTopicPermission(ctx, second), 0, "")
	is("delete one", client.DeleteTopicPermission(ctx, vhost, user, "events"), 0, "")
	topics, err := client.ListTopicPermissions(ctx, user)
	is("list topic permissions", err, 0, "")
	same("topic permissions", topics, []broker.TopicPermission{topic})
	is("permission in no vhost", client.PutPermission(ctx, broker.Permission{User: user, Vhost: "none"}), 400, "vhost_or_user_not_found")
}
