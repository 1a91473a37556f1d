// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/pki"
)

func TestPasswordsAreLongDistinctAndSafeInURIs(t *testing.T) {
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

func TestBindingURIEscapesThePassword(t *testing.T) {
	password := "p@ss:/w?rd#%"
	data := map[string][]byte{"mine": []byte("stays"), "mqtt-port": []byte("1883")}
	Bind(data, Endpoint{Host: "c.ns.svc", AMQP: true}, "a b", password)
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
	if string(data["mine"]) != "stays" || data["mqtt-port"] != nil {
		t.Errorf("data %v", data)
	}
}

func TestBindingHasTheEndpoint(t *testing.T) {
	cases := []struct {
		endpoint                                  Endpoint
		uri, port, mqtt, webMQTT, webAMQP, stream string
	}{
		{Endpoint{Host: "c.ns.svc", TLSOnly: true, AMQP: true}, "amqps://u:p@c.ns.svc:5671/%2F", "5671", "", "", "", ""},
		{Endpoint{Host: "c.ns.svc", AMQP: true, WebAMQP: true}, "amqp://u:p@c.ns.svc:5672/%2F", "5672", "", "", "15678", ""},
		{Endpoint{Host: "c.ns.svc", TLSOnly: true, AMQP: true, WebAMQP: true}, "amqps://u:p@c.ns.svc:5671/%2F", "5671", "", "", "15677", ""},
		{Endpoint{Host: "c.ns.svc", AMQP: true, MQTT: true}, "amqp://u:p@c.ns.svc:5672/%2F", "5672", "1883", "15675", "", ""},
		{Endpoint{Host: "c.ns.svc", TLSOnly: true, AMQP: true, MQTT: true}, "amqps://u:p@c.ns.svc:5671/%2F", "5671", "8883", "15676", "", ""},
		{Endpoint{Host: "c.ns.svc", MQTT: true}, "mqtt://u:p@c.ns.svc:1883", "1883", "1883", "15675", "", ""},
		{Endpoint{Host: "c.ns.svc", TLSOnly: true, MQTT: true}, "mqtts://u:p@c.ns.svc:8883", "8883", "8883", "15676", "", ""},
		{Endpoint{Host: "c.ns.svc", AMQP: true, Stream: true}, "amqp://u:p@c.ns.svc:5672/%2F", "5672", "", "", "", "5552"},
		{Endpoint{Host: "c.ns.svc", MQTT: true, Stream: true}, "mqtt://u:p@c.ns.svc:1883", "1883", "1883", "15675", "", "5552"},
		{Endpoint{Host: "c.ns.svc", Stream: true}, "rabbitmq-stream://u:p@c.ns.svc:5552/%2F", "5552", "", "", "", "5552"},
		{Endpoint{Host: "c.ns.svc", TLSOnly: true, Stream: true}, "rabbitmq-stream+tls://u:p@c.ns.svc:5551/%2F", "5551", "", "", "", "5551"},
	}
	for _, c := range cases {
		data := map[string][]byte{}
		Bind(data, c.endpoint, "u", "p")
		for key, want := range map[string]string{"uri": c.uri, "port": c.port, "mqtt-port": c.mqtt, "web-mqtt-port": c.webMQTT, "web-amqp-port": c.webAMQP, "stream-port": c.stream} {
			if got := string(data[key]); got != want {
				t.Errorf("%+v: %s is %q", c.endpoint, key, got)
			}
		}
	}
}

func TestDNSNames(t *testing.T) {
	key := client.ObjectKey{Namespace: "mq", Name: "c"}
	if got := (DNS{}).ClusterURL(key, Plain); got != "http://c.mq.svc:15672" {
		t.Error(got)
	}
	if got := (DNS{}).ClusterURL(key, Secure); got != "https://c.mq.svc:15671" {
		t.Error(got)
	}
	if got := (DNS{}).NodeURL(key, "c-1", Plain); got != "http://c-1.c-nodes.mq.svc:15672" {
		t.Error(got)
	}
	if got := (DNS{}).NodeURL(key, "c-1", Secure); got != "https://c-1.c-nodes.mq.svc:15671" {
		t.Error(got)
	}
	if got := (DNS{}).ClusterURL(key, Operator); got != "https://c-operator.mq.svc:15670" {
		t.Error(got)
	}
	if got := (DNS{}).NodeURL(key, "c-1", Operator); got != "https://c-1.c-nodes.mq.svc:15670" {
		t.Error(got)
	}
}

// secretReader has the access Secret of a cluster.
type secretReader struct {
	client.Reader
	secret *corev1.Secret
}

func (s secretReader) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	into, isSecret := object.(*corev1.Secret)
	if !isSecret {
		return fmt.Errorf("%T", object)
	}
	s.secret.DeepCopyInto(into)
	return nil
}

// only resolves every cluster to one broker with TLS.
type only struct{ url string }

func (o only) ClusterURL(client.ObjectKey, Listener) string      { return o.url }
func (o only) NodeURL(client.ObjectKey, string, Listener) string { return o.url }

func TestNewCAIsTrusted(t *testing.T) {
	now := time.Now()
	var shown tls.Certificate
	issue := func() Trust {
		authority, err := pki.NewAuthority("test", now)
		if err != nil {
			t.Fatal(err)
		}
		leaf := pki.Leaf{Name: "c", Hosts: []string{"c.mq.svc"}, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Lifetime: time.Hour}
		pair, err := pki.Issue(authority, leaf, now)
		if err != nil {
			t.Fatal(err)
		}
		if shown, err = tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
			t.Fatal(err)
		}
		return Trust{Secret: "s", Name: "c.mq.svc", Roots: string(authority.Cert)}
	}
	server := brokertest.Start("admin", "secret")
	t.Cleanup(server.Close)
	server.SetNode("c-0", true)
	server.SetListens(func(string) brokertest.Listens { return brokertest.Listens{Secure: true} })
	key := client.ObjectKey{Namespace: "mq", Name: "c"}
	record := &corev1.Secret{}
	WriteCredentials(record, "admin", "secret")
	connector := &Connector{
		Secrets: secretReader{secret: record}, Now: func() time.Time { return now },
		Resolver: only{server.SecureURL("", func() (*tls.Certificate, error) { return &shown, nil })},
	}
	ask := func() error {
		b, err := connector.Cluster(context.Background(), key)
		if err == nil {
			_, err = b.Overview(context.Background())
		}
		return err
	}
	for round := range 3 {
		if err := WriteTrust(record, Secure, []Trust{issue()}); err != nil {
			t.Fatal(err)
		}
		if round > 0 {
			server.DropConnections()
			if err := ask(); err == nil {
				t.Error("what was noted is read for every question")
			}
		}
		now = now.Add(recordLifetime)
		if err := ask(); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
	}
	if len(connector.secure) != 1 {
		t.Errorf("%d transports", len(connector.secure))
	}
	connector.Drop(key)
	if len(connector.secure)+len(connector.kept) != 0 {
		t.Error("a cluster that is gone is kept")
	}
	if err := WriteTrust(record, Plain, nil); err != nil || len(record.Data) != 2 {
		t.Errorf("%v %v", record.Data, err)
	}
}

// operatorSide has the certificates of the operator and of a node, each with its own CA.
type operatorSide struct {
	t                *testing.T
	operators, nodes pki.Pair
	now              time.Time
}

func (o operatorSide) issue(authority pki.Pair, leaf pki.Leaf) pki.Pair {
	o.t.Helper()
	leaf.Lifetime = time.Hour
	pair, err := pki.Issue(authority, leaf, o.now)
	if err != nil {
		o.t.Fatal(err)
	}
	return pair
}

func (o operatorSide) identity() Identity {
	o.t.Helper()
	pair := o.issue(o.operators, pki.Leaf{Name: "operator", Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return Identity{Cert: string(pair.Cert), Key: string(pair.Key), Name: "c-nodes.mq.svc", Roots: string(o.nodes.Cert)}
}

// listen returns the TLS configuration of a node's listener for the operator.
func (o operatorSide) listen(trusted ...[]byte) (*tls.Config, error) {
	pair := o.issue(o.nodes, pki.Leaf{Name: "c", Hosts: []string{"c-nodes.mq.svc"}, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return brokertest.OperatorTLS(pair.Cert, pair.Key, bytes.Join(trusted, nil))
}

func newAuthority(t *testing.T, name string) pki.Pair {
	t.Helper()
	authority, err := pki.NewAuthority(name, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func TestOperatorAuthenticatesWithItsCertificate(t *testing.T) {
	side := operatorSide{t: t, operators: newAuthority(t, "operators"), nodes: newAuthority(t, "nodes"), now: time.Now()}
	trusted := [][]byte{side.operators.Cert}
	server := brokertest.Start("admin", "secret")
	t.Cleanup(server.Close)
	server.SetNode("c-0", true)
	server.SetListens(func(string) brokertest.Listens { return brokertest.Listens{Operator: true} })
	key := client.ObjectKey{Namespace: "mq", Name: "c"}
	record := &corev1.Secret{}
	// The default user has another password by now.
	WriteCredentials(record, "admin", "outdated")
	now := time.Now()
	connector := &Connector{
		Secrets: secretReader{secret: record}, Now: func() time.Time { return now },
		Resolver: only{server.OperatorURL("", func() (*tls.Config, error) { return side.listen(trusted...) })},
	}
	ask := func() error {
		now = now.Add(recordLifetime)
		b, err := connector.Cluster(context.Background(), key)
		if err == nil {
			_, err = b.Overview(context.Background())
		}
		return err
	}
	if err := WriteTrust(record, Operator, nil); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err == nil || !strings.Contains(err.Error(), "not recorded yet") {
		t.Errorf("without a certificate: %v", err)
	}
	if err := WriteIdentity(record, side.identity()); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Errorf("with its certificate: %v", err)
	}
	if b, err := connector.Cluster(context.Background(), key); err != nil {
		t.Fatal(err)
	} else if _, err := b.QuorumCritical(context.Background()); err != nil {
		t.Errorf("a health check: %v", err)
	}
	for _, call := range server.Calls("/") {
		if !call.Operator {
			t.Errorf("a password was sent: %+v", call)
		}
	}
	as, err := connector.As(context.Background(), key, "admin", "wrong")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := as.Overview(context.Background()); !broker.IsUnauthorized(err) {
		t.Errorf("a wrong password beside the certificate: %v", err)
	}
	if b, err := connector.Cluster(context.Background(), key); err != nil || b.EnterVhost(context.Background(), "/") != nil {
		t.Errorf("the operator has all permissions: %v", err)
	}

	// Its CA is replaced: nodes trust both, then the operator presents a certificate of the new one.
	next := newAuthority(t, "next operators")
	trusted = append(trusted, next.Cert)
	server.DropConnections()
	if err := ask(); err != nil {
		t.Errorf("while both authorities are trusted: %v", err)
	}
	side.operators, trusted = next, [][]byte{next.Cert}
	server.DropConnections()
	if err := ask(); err == nil {
		t.Error("a certificate of the old authority is taken")
	}
	if err := WriteIdentity(record, side.identity()); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Errorf("with a certificate of the new authority: %v", err)
	}
	connector.Drop(key)
	if len(connector.secure)+len(connector.kept) != 0 {
		t.Error("a cluster that is gone is kept")
	}
}
