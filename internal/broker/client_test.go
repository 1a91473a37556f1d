// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
)

func connect(t *testing.T) (*brokertest.Server, *broker.HTTPClient) {
	t.Helper()
	server := brokertest.Start("admin", "secret")
	t.Cleanup(server.Close)
	return server, broker.New(broker.Access{URL: server.URL(), Username: "admin", Password: "secret"}, broker.NewTransport())
}

func TestQueueRoundTripWithHostileNames(t *testing.T) {
	server, client := connect(t)
	ctx := context.Background()
	server.AddVhost("a/b %2F")
	for _, name := range []string{"plain", "with/slash", "per%cent", "two words", "ünïcode", "..", "a?b#c"} {
		declaration := broker.QueueDeclaration{Durable: true, Arguments: map[string]any{"x-queue-type": "quorum"}}
		if err := client.DeclareQueue(ctx, "a/b %2F", name, declaration); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		got, err := client.GetQueue(ctx, "a/b %2F", name)
		if err != nil || got.Name != name || got.Type != "quorum" || !got.Durable {
			t.Fatalf("%q: got %+v, %v", name, got, err)
		}
	}
	if list, err := client.ListQueues(ctx, "a/b %2F"); err != nil || len(list) != 7 {
		t.Fatalf("list: %d queues, %v", len(list), err)
	}
}

func TestErrorsHaveTypes(t *testing.T) {
	server, client := connect(t)
	ctx := context.Background()
	_, err := client.GetQueue(ctx, "/", "absent")
	if !broker.IsNotFound(err) || !broker.IsTerminal(err) {
		t.Errorf("absent queue: %v", err)
	}
	err = client.PutPolicy(ctx, broker.UserPolicies, "/", "p", broker.Policy{Pattern: ".*", ApplyTo: "queues", Definition: map[string]any{"nonsense": 1}})
	if !broker.IsTerminal(err) || !strings.Contains(err.Error(), "not recognised policy settings") {
		t.Errorf("bad policy: %v", err)
	}
	stranger := broker.New(broker.Access{URL: server.URL(), Username: "admin", Password: "wrong"}, broker.NewTransport())
	_, err = stranger.Overview(ctx)
	if !broker.IsUnauthorized(err) || broker.IsTerminal(err) {
		t.Errorf("wrong password: %v", err)
	}
	server.SetDown(true)
	_, err = client.Overview(ctx)
	if err == nil || broker.IsTerminal(err) || broker.IsNotFound(err) {
		t.Errorf("broker down: %v", err)
	}
	server.Close()
	_, err = client.Overview(ctx)
	if err == nil || broker.IsTerminal(err) || strings.Contains(err.Error(), "secret") {
		t.Errorf("broker gone: %v", err)
	}
}

func TestRefusedObjectsAreNotRefusedCredentials(t *testing.T) {
	server, client := connect(t)
	err := client.DeclareExchange(context.Background(), "/", "amq.mine", broker.ExchangeDeclaration{Type: "direct", Durable: true})
	if broker.IsUnauthorized(err) || !broker.IsTerminal(err) {
		t.Errorf("reserved name: %v", err)
	}
	server.Close()
	for reason, isAboutObject := range map[string]bool{
		"exchange name 'amq.x' contains reserved prefix 'amq.*'":                  true,
		"operation not permitted on the default exchange":                         true,
		"deletion of system exchange 'amq.topic' in vhost '/' not allowed":        true,
		"Not administrator user":                                                  false,
		"Not management user":                                                     false,
		"User not authorised to access virtual host":                              false,
		"User not authorised to access object":                                    false,
		"configure access to queue 'q' in vhost '/' refused for user 'default_u'": false,
		"": false,
	} {
		err := &broker.APIError{Status: http.StatusUnauthorized, Code: "not_authorised", Reason: reason}
		if broker.IsTerminal(err) != isAboutObject || broker.IsUnauthorized(err) == isAboutObject {
			t.Errorf("%q: terminal %t, unauthorized %t", reason, broker.IsTerminal(err), broker.IsUnauthorized(err))
		}
	}
	if err := (&broker.APIError{Status: http.StatusUnauthorized, Code: "not_authorized", Reason: "Login failed"}); broker.IsTerminal(err) || !broker.IsUnauthorized(err) {
		t.Errorf("%v", err)
	}
}

func TestQuorumCriticalDistinguishesAnswersFromOutages(t *testing.T) {
	server, _ := connect(t)
	ctx := context.Background()
	server.SetNode("c-0", true)
	node := broker.New(broker.Access{URL: server.NodeURL("c-0"), Username: "admin", Password: "secret"}, broker.NewTransport())
	if got, err := node.QuorumCritical(ctx); err != nil || got.Critical {
		t.Fatalf("healthy node: %+v %v", got, err)
	}
	want := []broker.QueueRef{{Name: "q", Vhost: "/", Type: "quorum"}}
	server.SetCritical("c-0", want...)
	if got, err := node.QuorumCritical(ctx); err != nil || !got.Critical || !reflect.DeepEqual(got.Queues, want) {
		t.Fatalf("critical node: %+v %v", got, err)
	}
	server.SetNode("c-0", false)
	if got, err := node.QuorumCritical(ctx); err == nil {
		t.Fatalf("a 503 without the check's answer was taken for an answer: %+v", got)
	}
}

func TestUnexpectedAnswersAreErrors(t *testing.T) {
	cases := map[string]http.HandlerFunc{
		"not JSON":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"wrong shape": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"nodes":1}`) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"ok without status": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `[]`) },
	}
	for name, handler := range cases {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(handler)
			defer server.Close()
			client := broker.New(broker.Access{URL: server.URL}, broker.NewTransport())
			if _, err := client.QuorumCritical(context.Background()); err == nil {
				t.Error("QuorumCritical took it for an answer")
			}
			if _, err := client.GetQueue(context.Background(), "/", "q"); err == nil && name != "wrong shape" {
				t.Error("GetQueue took it for an answer")
			}
		})
	}
}

func TestReasonsAreOneLine(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":"bad_request","reason":"first line,\n\n  second\tline\r\n"}`)
	}))
	defer server.Close()
	_, err := broker.New(broker.Access{URL: server.URL}, broker.NewTransport()).Overview(context.Background())
	if err == nil || !strings.Contains(err.Error(), "first line, second line") || strings.ContainsAny(err.Error(), "\r\n\t") {
		t.Errorf("%q", err)
	}
}

func TestLongReasonsAreCut(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":"bad_request","reason":"`+strings.Repeat("é", 20000)+`"}`)
	}))
	defer server.Close()
	_, err := broker.New(broker.Access{URL: server.URL}, broker.NewTransport()).Overview(context.Background())
	var api *broker.APIError
	if !errors.As(err, &api) || len(api.Reason) > 1024 || len(api.Reason) < 1000 {
		t.Fatalf("got %v", err)
	}
}

func TestUsersPermissionsAndLimitsRoundTrip(t *testing.T) {
	server, client := connect(t)
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(client.PutUser(ctx, "u", "first", []string{"management", "policymaker"}))
	user, err := client.GetUser(ctx, "u")
	must(err)
	if user.CheckPassword("first") != broker.PasswordSame || user.CheckPassword("other") != broker.PasswordDiffers {
		t.Error("password check")
	}
	if !reflect.DeepEqual(user.Tags, broker.Tags{"management", "policymaker"}) {
		t.Errorf("tags %v", user.Tags)
	}
	must(client.PutPermission(ctx, broker.Permission{User: "u", Vhost: "/", Configure: "", Write: ".*", Read: "^a"}))
	permissions, err := client.ListPermissions(ctx, "u")
	must(err)
	if len(permissions) != 1 || permissions[0] != (broker.Permission{User: "u", Vhost: "/", Write: ".*", Read: "^a"}) {
		t.Errorf("permissions %+v", permissions)
	}
	must(client.PutTopicPermission(ctx, broker.TopicPermission{User: "u", Vhost: "/", Exchange: "amq.topic", Write: "^w", Read: "^r"}))
	topics, err := client.ListTopicPermissions(ctx, "u")
	must(err)
	if len(topics) != 1 || topics[0].Exchange != "amq.topic" {
		t.Errorf("topics %+v", topics)
	}
	must(client.SetUserLimits(ctx, "u", broker.Limits{broker.MaxConnections: 5}))
	limits, err := client.UserLimits(ctx, "u")
	must(err)
	if !maps.Equal(limits, broker.Limits{broker.MaxConnections: 5}) || server.Limit("u", "max-connections") != 5 {
		t.Errorf("limits %+v", limits)
	}
	must(client.SetUserLimits(ctx, "u", broker.Limits{}))
	must(client.DeleteTopicPermissions(ctx, "/", "u"))
	must(client.DeletePermission(ctx, "/", "u"))
	must(client.DeleteUser(ctx, "u"))
	if _, err := client.GetUser(ctx, "u"); !broker.IsNotFound(err) {
		t.Errorf("deleted user: %v", err)
	}
}

func TestUnknownHashingAlgorithmIsUnknown(t *testing.T) {
	for _, user := range []broker.User{{}, {PasswordHash: "!!"}, {PasswordHash: "AAAAAAAAAA=="}, {PasswordHash: "AAAAAAAAAAA=", HashingAlgorithm: "argon2"}} {
		if user.CheckPassword("x") != broker.PasswordUnknown {
			t.Errorf("%+v was compared", user)
		}
	}
}

func TestTagsDecodeFromString(t *testing.T) {
	var tags broker.Tags
	if err := tags.UnmarshalJSON([]byte(`"a, b"`)); err != nil || !reflect.DeepEqual(tags, broker.Tags{"a", "b"}) {
		t.Errorf("%v %v", tags, err)
	}
	if err := tags.UnmarshalJSON([]byte(`7`)); err == nil {
		t.Error("a number was taken for tags")
	}
}

func TestRecoveryOfAMajorityHasSteps(t *testing.T) {
	server, _ := connect(t)
	ctx := context.Background()
	server.SetNode("c-0", true)
	server.SetNode("c-1", false)
	refused := []broker.RecoveredQueue{{Vhost: "/", Name: "q", Result: broker.QueueRefused, Reason: "node 'c-2' does not answer"}}
	server.LoseMajority(refused)
	node := broker.New(broker.Access{URL: server.NodeURL("c-0"), Username: "admin", Password: "secret"}, broker.NewTransport())
	for _, want := range []broker.RecoveryStep{
		{Step: broker.RecoveryMetadata, Node: "c-0"}, {Step: broker.RecoveryForgotten},
	} {
		if got, err := node.RecoverMajority(ctx, []string{"c-1"}); err != nil || !reflect.DeepEqual(got, want) || got.IsDone() {
			t.Fatalf("got %+v %v, want %+v", got, err, want)
		}
	}
	if _, err := node.RecoverMajority(ctx, []string{"c-1"}); !broker.IsNotFound(err) {
		t.Errorf("a removed node: %v", err)
	}
	if got, err := node.RecoverMajority(ctx, nil); err != nil || !reflect.DeepEqual(got.Queues, refused) || got.IsDone() {
		t.Errorf("queues: %+v %v", got, err)
	}
	if got, err := node.RecoverMajority(ctx, nil); err != nil || !got.IsDone() {
		t.Errorf("the end: %+v %v", got, err)
	}
	if _, err := node.RecoverMajority(ctx, []string{"c-0"}); !broker.IsTerminal(err) || broker.IsNotFound(err) {
		t.Errorf("a node that runs: %v", err)
	}
}
