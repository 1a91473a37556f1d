// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// Keys of a connection Secret, beside usernameKey and passwordKey.
const (
	uriKey  = "uri"
	caKey   = "ca.crt"
	amqpKey = "amqp"
)

// Limits of the values in a connection Secret, in bytes.
const (
	maxURI      = 2048
	maxUsername = 255
	maxPassword = 1024
	maxCA       = 256 << 10
)

// secretPrefix begins the name in the key of an external broker. No BrokerCluster has a colon in its name, so the key
// differs from every key of a BrokerCluster.
const secretPrefix = "secret:"

// KeyOfSecret returns the key of the broker that a connection Secret describes.
func KeyOfSecret(secret client.ObjectKey) client.ObjectKey {
	return client.ObjectKey{Namespace: secret.Namespace, Name: secretPrefix + secret.Name}
}

// SecretOf returns the connection Secret of a broker's key; false for the key of a BrokerCluster.
func SecretOf(key client.ObjectKey) (client.ObjectKey, bool) {
	name, is := strings.CutPrefix(key.Name, secretPrefix)
	return client.ObjectKey{Namespace: key.Namespace, Name: name}, is
}

// External is a broker that no operator runs, as its connection Secret describes it.
type External struct {
	// Access to the HTTP API.
	Access broker.Access
	// ca has CA certificates, PEM; empty for those of the operating system.
	ca string
	// AMQP is the URI for AMQP clients without credentials; nil when the Secret has none.
	AMQP *url.URL
	// Tenancy has the rights of other namespaces.
	Tenancy *posthornv1.TenancySpec
	// Problem is why the Secret is unusable; nil when it is usable.
	Problem error
}

// ExternalOf reads a connection Secret.
func ExternalOf(secret *corev1.Secret) External {
	out := External{Access: broker.Access{
		Username: string(secret.Data[usernameKey]), Password: string(secret.Data[passwordKey]), External: true,
	}}
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, value := range []struct {
		key     string
		longest int
	}{{uriKey, maxURI}, {usernameKey, maxUsername}, {passwordKey, maxPassword}} {
		if size := len(secret.Data[value.key]); size == 0 || size > value.longest {
			refuse("key %s must have 1 to %d bytes", value.key, value.longest)
		}
	}
	address := string(secret.Data[uriKey])
	if address != "" && !strings.Contains(address, "://") {
		// The messaging topology operator accepts an address without a scheme.
		address = "http://" + address
	}
	if parsed, err := addressOf(uriKey, address, "http", "https"); err != nil {
		problems = append(problems, err)
	} else {
		out.Access.URL = parsed.String()
	}
	if out.ca = string(secret.Data[caKey]); out.ca != "" && (len(out.ca) > maxCA || !x509.NewCertPool().AppendCertsFromPEM([]byte(out.ca))) {
		refuse("key %s must have PEM certificates of at most %d bytes", caKey, maxCA)
	}
	if text := string(secret.Data[amqpKey]); text != "" {
		var err error
		if out.AMQP, err = addressOf(amqpKey, text, "amqp", "amqps"); err != nil {
			problems = append(problems, err)
		}
	}
	var err error
	if out.Tenancy, err = tenancyOf(secret); err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		out.Problem = fmt.Errorf("the connection Secret %s/%s is invalid: %w", secret.Namespace, secret.Name, errors.Join(problems...))
	}
	return out
}

// addressOf parses a URI of a connection Secret. Its errors do not repeat the URI, which may have a password.
func addressOf(key, text string, schemes ...string) (*url.URL, error) {
	parsed, err := url.Parse(strings.TrimSuffix(text, "/"))
	if err == nil && len(text) <= maxURI && parsed.Hostname() != "" && !strings.ContainsFunc(text, unicode.IsSpace) {
		for _, scheme := range schemes {
			if parsed.Scheme == scheme && parsed.User == nil && parsed.RawQuery == "" && parsed.Fragment == "" {
				return parsed, nil
			}
		}
	}
	return nil, fmt.Errorf("key %s must be a URI of the form %s://HOST:PORT without credentials", key, strings.Join(schemes, ":// or "))
}

// tenancyOf returns the rights that the annotations of a connection Secret give to other namespaces; nil for none.
func tenancyOf(secret *corev1.Secret) (*posthornv1.TenancySpec, error) {
	prefix := secret.Annotations[names.AnnotationVhostPrefix]
	text, given := secret.Annotations[names.AnnotationAllowedNamespaces]
	if !given {
		return nil, nil // The Secret is for its own namespace only.
	}
	selector, err := metav1.ParseToLabelSelector(text)
	if err != nil || text == "" {
		return nil, fmt.Errorf("annotation %s must be a label selector such as messaging=yes", names.AnnotationAllowedNamespaces)
	}
	return &posthornv1.TenancySpec{AllowedNamespaces: selector, VhostPrefix: prefix}, nil
}

// keptExternal is a connection Secret that was read.
type keptExternal struct {
	External
	read time.Time
}

// External returns the broker of a connection Secret.
func (c *Connector) External(ctx context.Context, key client.ObjectKey) (External, error) {
	if c.RefuseExternal {
		name, _ := SecretOf(key)
		return External{Problem: fmt.Errorf("connection Secret %s: the operator does not manage external brokers here (--external-brokers=false)", name)}, nil
	}
	c.mu.Lock()
	known, found := c.externals[key]
	forgotten := c.forgotten
	c.mu.Unlock()
	if found && c.Now().Sub(known.read) < recordLifetime {
		return known.External, nil
	}
	name, _ := SecretOf(key)
	var secret corev1.Secret
	if err := c.Secrets.Get(ctx, name, &secret); err != nil {
		if apierrors.IsNotFound(err) {
			c.Drop(key)
		}
		return External{}, fmt.Errorf("reading the connection Secret %s: %w", name, err)
	}
	external := ExternalOf(&secret)
	c.mu.Lock()
	defer c.mu.Unlock()
	// A Secret that was read before Forget may be older than the change that caused it.
	if c.forgotten == forgotten {
		if c.externals == nil {
			c.externals = map[client.ObjectKey]keptExternal{}
		}
		c.externals[key] = keptExternal{External: external, read: c.Now()}
	}
	return external, nil
}

// externalClient returns a client of an external broker.
func (c *Connector) externalClient(ctx context.Context, key client.ObjectKey) (broker.Client, error) {
	external, err := c.External(ctx, key)
	if err != nil {
		return nil, err
	}
	if external.Problem != nil {
		return nil, external.Problem
	}
	transport, err := c.externalTransport(key, external)
	if err != nil {
		return nil, err
	}
	if c.Measure != nil {
		transport = c.Measure(transport)
	}
	return broker.New(external.Access, transport), nil
}

// externalTransport returns the transport of an external broker, a new one when its address or CA has changed.
func (c *Connector) externalTransport(key client.ObjectKey, external External) (http.RoundTripper, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	noted := external.Access.URL + "\n" + external.ca
	before, found := c.outside[key]
	if found && before.noted == noted {
		return before.transport, nil
	}
	transport, err := external.transport()
	if err != nil {
		return nil, err
	}
	if found {
		before.transport.CloseIdleConnections()
	}
	if c.outside == nil {
		c.outside = map[client.ObjectKey]outsideTransport{}
	}
	c.outside[key] = outsideTransport{noted: noted, transport: transport}
	return transport, nil
}

// outsideTransport is the transport of an external broker, with the values that it was created from.
type outsideTransport struct {
	noted     string
	transport *broker.ExternalTransport
}

func (e External) transport() (*broker.ExternalTransport, error) {
	parsed, err := url.Parse(e.Access.URL)
	if err != nil {
		return nil, fmt.Errorf("parsing key %s: %w", uriKey, err)
	}
	trust := broker.Trust{Name: parsed.Hostname()}
	if e.ca != "" {
		trust.Roots = x509.NewCertPool()
		trust.Roots.AppendCertsFromPEM([]byte(e.ca))
	}
	return broker.NewExternalTransport(trust), nil
}
