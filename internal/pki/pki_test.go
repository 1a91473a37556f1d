// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"testing"
	"time"
)

var hosts = []string{"*.c-nodes.ns.svc", "localhost"}

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// wanted is the certificate of the tests.
var wanted = Leaf{
	Name: "c", Hosts: hosts, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	Lifetime: 10 * year, RenewBefore: year, Settle: time.Hour,
}

func issue(t *testing.T, now time.Time) (authority, leaf Pair) {
	t.Helper()
	authority, err := NewAuthority("c", now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err = Issue(authority, wanted, now)
	if err != nil {
		t.Fatal(err)
	}
	return authority, leaf
}

func TestNameForPrefersTheHost(t *testing.T) {
	cases := map[string]struct {
		given Given
		want  string
	}{
		"the host":        {Given{names: []string{"x.example.com", "c.mq.svc"}}, "c.mq.svc"},
		"by a wildcard":   {Given{names: []string{"*.mq.svc"}}, "c.mq.svc"},
		"another":         {Given{names: []string{"x.example.com", "y.example.com"}}, "x.example.com"},
		"another's place": {Given{names: []string{"*.example.com"}}, "posthorn.example.com"},
		"an address":      {Given{addresses: []net.IP{net.IPv4(10, 0, 0, 1)}}, "10.0.0.1"},
		"none":            {Given{}, ""},
	}
	for name, c := range cases {
		if got := c.given.NameFor("c.mq.svc"); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestMutualHandshake(t *testing.T) {
	authority, leaf := issue(t, time.Now())
	pair, err := tls.X509KeyPair(leaf.Cert, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.Cert)
	server, client := net.Pipe()
	done := make(chan error, 1)
	go func() {
		conn := tls.Server(server, &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13})
		_, err := io.WriteString(conn, "x")
		done <- err
	}()
	conn := tls.Client(client, &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: "c-1.c-nodes.ns.svc", MinVersion: tls.VersionTLS13})
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestCheckNamesTheDefect(t *testing.T) {
	now := time.Now()
	authority, leaf := issue(t, now)
	stranger, foreign := issue(t, now)
	if end, err := Check(authority.Cert, leaf, hosts); err != nil || end.Before(now.Add(wanted.Lifetime-time.Hour)) {
		t.Errorf("good pair: %v %v", end, err)
	}
	bad := map[string]struct {
		authority []byte
		pair      Pair
		hosts     []string
	}{
		"other CA": {stranger.Cert, leaf, hosts},
		"other key":       {authority.Cert, Pair{leaf.Cert, foreign.Key}, hosts},
		"other host":      {authority.Cert, leaf, []string{"*.d-nodes.ns.svc"}},
		"empty":           {authority.Cert, Pair{}, hosts},
		"garbage":         {authority.Cert, Pair{[]byte("x"), []byte("y")}, hosts},
		"no CA":    {nil, leaf, hosts},
	}
	for name, c := range bad {
		if _, err := Check(c.authority, c.pair, c.hosts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCertificateNeverOutlivesItsCA(t *testing.T) {
	now := time.Now()
	authority, err := NewAuthority("c", now.Add(wanted.Lifetime-AuthorityLifetime+time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := Issue(authority, wanted, now.Add(2*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	end, err := Check(authority.Cert, leaf, hosts)
	if err != nil || end.After(now.Add(wanted.Lifetime+time.Hour+time.Minute)) {
		t.Errorf("ends %v, %v", end, err)
	}
}
