// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"net/url"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestPasswordsAreLongUnlikeAndSafeInURIs(t *testing.T) {
	seen := map[string]bool{}
	for i := 0; i < 200; i++ {
		password, err := Password(32)
		if err != nil || len(password) != 32 || seen[password] {
			t.Fatalf("%q %v", password, err)
		}
		if url.QueryEscape(password) != password {
			t.Fatalf("%q needs escaping", password)
		}
		seen[password] = true
	}
}

func TestBindingURIHoldsAnyPassword(t *testing.T) {
	password := "p@ss:/w?rd#%"
	data := Binding("c.ns.svc", false, "a b", password)
	parsed, err := url.Parse(string(data["uri"]))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := parsed.User.Password()
	if got != password || parsed.User.Username() != "a b" || parsed.Host != "c.ns.svc:5672" || parsed.Scheme != "amqp" || !strings.HasSuffix(parsed.String(), ":5672/%2F") {
		t.Errorf("uri %s", data["uri"])
	}
	if string(data["password"]) != password || string(data["type"]) != "rabbitmq" || string(data["provider"]) != "posthorn" {
		t.Errorf("data %v", data)
	}
}

func TestBindingOfAClusterThatTakesOnlyTLS(t *testing.T) {
	data := Binding("c.ns.svc", true, "u", "p")
	if string(data["uri"]) != "amqps://u:p@c.ns.svc:5671/%2F" || string(data["port"]) != "5671" {
		t.Errorf("data %s %s", data["uri"], data["port"])
	}
}

func TestDNSNames(t *testing.T) {
	key := client.ObjectKey{Namespace: "mq", Name: "c"}
	if got := (DNS{}).ClusterURL(key); got != "http://c.mq.svc:15672" {
		t.Error(got)
	}
	if got := (DNS{}).NodeURL(key, "c-1"); !strings.HasPrefix(got, "http://c-1.c-nodes.mq.svc:15672") {
		t.Error(got)
	}
}
