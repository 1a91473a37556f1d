// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/names"
)

func connection(changes map[string]string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{
		"uri": []byte("https://mq.example.org:15671"), "username": []byte("u"), "password": []byte("hunter2"),
	}}
	for key, value := range changes {
		secret.Data[key] = []byte(value)
	}
	return secret
}

func TestConnectionSecretsWithInvalidValuesAreRefused(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"uri", "", "key uri must have"},
		{"uri", "ftp://mq.example.org", "key uri must be a URI"},
		{"uri", "https://", "key uri must be a URI"},
		{"uri", "https://u:hunter2@mq.example.org", "without credentials"},
		{"uri", "https://mq.example.org?a=b", "key uri must be a URI"},
		{"uri", "https://mq.example.org/#a", "key uri must be a URI"},
		{"uri", "https://mq.example.org\n", "key uri must be a URI"},
		{"uri", "https://mq example", "key uri must be a URI"},
		{"uri", "https://" + strings.Repeat("m", maxURI), "key uri must have 1 to 2048 bytes"},
		{"username", "", "key username must have"},
		{"username", strings.Repeat("u", 256), "key username must have"},
		{"password", "", "key password must have"},
		{"password", strings.Repeat("p", 1025), "key password must have"},
		{"ca.crt", "no certificate", "key ca.crt must have PEM certificates"},
		{"amqp", "https://mq.example.org", "key amqp must be a URI"},
		{"amqp", "amqp://u:hunter2@mq.example.org", "key amqp must be a URI"},
	} {
		got := ExternalOf(connection(map[string]string{c.key: c.value})).Problem
		if got == nil || !strings.Contains(got.Error(), c.want) || strings.Contains(got.Error(), "hunter2") {
			t.Errorf("%s=%.40q: %v", c.key, c.value, got)
		}
	}
	for _, annotation := range []string{"", "in (", "a b"} {
		secret := connection(nil)
		secret.Annotations = map[string]string{names.AnnotationAllowedNamespaces: annotation}
		if got := ExternalOf(secret); got.Problem == nil || got.Tenancy != nil {
			t.Errorf("%q: %v %v", annotation, got.Problem, got.Tenancy)
		}
	}
}

func TestAddressesOfConnectionSecrets(t *testing.T) {
	for given, want := range map[string]string{
		"https://mq.example.org:15671":   "https://mq.example.org:15671",
		"https://mq.example.org/broker/": "https://mq.example.org/broker",
		"http://[2001:db8::1]:15672":     "http://[2001:db8::1]:15672",
		// As in the Secrets of the messaging topology operator.
		"mq.example.org:15672": "http://mq.example.org:15672",
	} {
		got := ExternalOf(connection(map[string]string{"uri": given}))
		if got.Problem != nil || got.Access.URL != want {
			t.Errorf("%s: %s %v", given, got.Access.URL, got.Problem)
		}
	}
}

func TestBindingOfAnExternalBrokerHasTheAddressOfItsSecret(t *testing.T) {
	for amqp, want := range map[string]string{
		"":                                  "",
		"amqps://mq.example.org":            "mq.example.org 5671 amqps://a:p%40@mq.example.org/%2F",
		"amqp://mq.example.org:30672":       "mq.example.org 30672 amqp://a:p%40@mq.example.org:30672/%2F",
		"amqp://mq.example.org:30672/%2Fv1": "mq.example.org 30672 amqp://a:p%40@mq.example.org:30672/%2Fv1",
	} {
		external := ExternalOf(connection(map[string]string{"amqp": amqp}))
		if external.Problem != nil {
			t.Fatal(external.Problem)
		}
		data := map[string][]byte{"mine": []byte("stays"), "host": []byte("of a BrokerCluster"), "stream-port": []byte("5552")}
		BindExternal(data, &external, "a", "p@")
		got := strings.TrimSpace(strings.Join([]string{string(data["host"]), string(data["port"]), string(data["uri"])}, " "))
		if got != want || string(data["username"]) != "a" || string(data["password"]) != "p@" || string(data["mine"]) != "stays" || data["stream-port"] != nil {
			t.Errorf("%q: %q, %v", amqp, got, data)
		}
	}
}

// changing is a reader whose Secret changes while it is read, and before the caller has the answer.
type changing struct {
	client.Reader
	reads  int
	during func()
}

func (c *changing) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	secret, is := object.(*corev1.Secret)
	if !is {
		return nil
	}
	c.reads++
	*secret = *connection(map[string]string{"password": strings.Repeat("p", c.reads)})
	if c.reads == 1 {
		c.during()
	}
	return nil
}

func TestASecretThatChangesWhileItIsReadIsReadAgain(t *testing.T) {
	key := KeyOfSecret(client.ObjectKey{Namespace: "ns", Name: "s"})
	reader := &changing{}
	c := &Connector{Secrets: reader, Now: time.Now}
	reader.during = func() { c.Forget(key) }
	for want := 1; want <= 2; want++ {
		got, err := c.External(context.Background(), key)
		if err != nil || len(got.Access.Password) != want {
			t.Errorf("read %d: %q %v", want, got.Access.Password, err)
		}
	}
	if _, err := c.External(context.Background(), key); err != nil || reader.reads != 2 {
		t.Errorf("%d reads, %v: a Secret that did not change is read once", reader.reads, err)
	}
}

func TestTheTransportOfAnExternalBrokerLastsUntilItsAddressOrCAChanges(t *testing.T) {
	key := KeyOfSecret(client.ObjectKey{Namespace: "ns", Name: "s"})
	c := &Connector{Now: time.Now}
	first, err := c.externalTransport(key, ExternalOf(connection(nil)))
	if err != nil {
		t.Fatal(err)
	}
	if same, _ := c.externalTransport(key, ExternalOf(connection(map[string]string{"password": "other"}))); same != first {
		t.Error("another password needs no other connections")
	}
	if other, _ := c.externalTransport(key, ExternalOf(connection(map[string]string{"uri": "https://other.example.org"}))); other == first {
		t.Error("another address needs other connections")
	}
	c.Drop(key)
	if len(c.outside) != 0 {
		t.Error("the transport of a deleted Secret stays")
	}
}

// noReads fails a test that reads a Secret.
type noReads struct {
	client.Reader
	t *testing.T
}

func (r noReads) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	r.t.Errorf("read %s", key)
	return nil
}

func TestRefusedExternalBrokersGetNoRequestAndTheirSecretsAreNotRead(t *testing.T) {
	connector := &Connector{Secrets: noReads{t: t}, RefuseExternal: true, Now: time.Now}
	key := KeyOfSecret(client.ObjectKey{Namespace: "ns", Name: "s"})
	external, err := connector.External(t.Context(), key)
	if err != nil || external.Problem == nil || !strings.Contains(external.Problem.Error(), "connection Secret ns/s: the operator does not manage external brokers here") {
		t.Error(external.Problem, err)
	}
	if client, err := connector.Cluster(t.Context(), key); client != nil || err == nil {
		t.Error(client, err)
	}
}
