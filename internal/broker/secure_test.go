// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/pki"
)

// authority is a CA that issues certificates, and the trust in it.
type authority struct {
	t    *testing.T
	pair pki.Pair
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	pair, err := pki.NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return authority{t, pair}
}

func (a authority) certificate(lifetime time.Duration, hosts ...string) *tls.Certificate {
	a.t.Helper()
	leaf := pki.Leaf{Name: "test", Hosts: hosts, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Lifetime: lifetime}
	pair, err := pki.Issue(a.pair, leaf, time.Now())
	if err != nil {
		a.t.Fatal(err)
	}
	shown, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &shown
}

func (a authority) trust(name string) broker.Trust {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.pair.Cert)
	return broker.Trust{Name: name, Roots: roots}
}

func TestNodesAreTrustedByTheirCertificate(t *testing.T) {
	mine, other := newAuthority(t), newAuthority(t)
	var shown *tls.Certificate
	server := brokertest.Start("admin", "secret")
	t.Cleanup(server.Close)
	server.SetNode("c-0", true)
	server.SetListens(func(string) brokertest.Listens { return brokertest.Listens{Secure: true} })
	url := server.SecureURL("", func() (*tls.Certificate, error) { return shown, nil })
	good := mine.certificate(time.Hour, "c.mq.svc", "mq.example.com")
	self := x509.NewCertPool()
	self.AddCert(good.Leaf)
	cases := map[string]struct {
		shown  *tls.Certificate
		trusts []broker.Trust
		words  string
	}{
		"its CA and its name":       {good, []broker.Trust{mine.trust("c.mq.svc")}, ""},
		"another of its names":      {good, []broker.Trust{mine.trust("mq.example.com")}, ""},
		"the certificate itself":    {good, []broker.Trust{{Name: "c.mq.svc", Roots: self}}, ""},
		"the second of two":         {good, []broker.Trust{other.trust("c.mq.svc"), mine.trust("c.mq.svc")}, ""},
		"a name that it lacks":      {good, []broker.Trust{mine.trust("d.mq.svc")}, "d.mq.svc"},
		"another CA":                {good, []broker.Trust{other.trust("c.mq.svc")}, "unknown authority"},
		"another CA, the same name": {other.certificate(time.Hour, "c.mq.svc"), []broker.Trust{mine.trust("c.mq.svc")}, "unknown authority"},
		"expired":                   {mine.certificate(-time.Minute, "c.mq.svc"), []broker.Trust{mine.trust("c.mq.svc")}, "expired"},
		"nothing is trusted":        {good, nil, "no CA certificate is known"},
	}
	for name, c := range cases {
		shown = c.shown
		before := len(server.Calls("/"))
		client := broker.New(broker.Access{URL: url, Username: "admin", Password: "secret"}, broker.NewSecureTransport(c.trusts))
		_, err := client.Overview(context.Background())
		if c.words == "" && err != nil || c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v", name, err)
		}
		if broker.IsUntrusted(err) != (c.words != "" && len(c.trusts) > 0) {
			t.Errorf("%s: %v", name, err)
		}
		if c.words != "" && len(server.Calls("/")) != before {
			t.Errorf("%s: the password was sent to an untrusted node", name)
		}
	}
}
