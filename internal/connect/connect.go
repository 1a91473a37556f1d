// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connect creates clients of clusters and of their nodes.
package connect

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// Listener is one of a node's listeners for the HTTP API.
type Listener string

// Listeners, as access records name them.
const (
	// Plain is without TLS.
	Plain Listener = ""
	// Secure is over TLS.
	Secure Listener = "https"
	// Operator accepts the operator's client certificate instead of a password.
	Operator Listener = "operator"
)

// Resolver returns the addresses of the HTTP API of a cluster and of its nodes.
type Resolver interface {
	ClusterURL(cluster client.ObjectKey, listener Listener) string
	NodeURL(cluster client.ObjectKey, pod string, listener Listener) string
}

// DNS is the Resolver for an operator that runs inside Kubernetes.
type DNS struct{}

// ClusterURL returns the URL of the client Service, or of the operator's own.
func (DNS) ClusterURL(cluster client.ObjectKey, listener Listener) string {
	if listener == Operator {
		return address(names.OperatorHost(cluster.Namespace, cluster.Name), listener)
	}
	return address(names.Host(cluster.Namespace, cluster.Name), listener)
}

// NodeURL returns the URL of a pod in the headless Service.
func (DNS) NodeURL(cluster client.ObjectKey, pod string, listener Listener) string {
	return address(names.NodeHost(cluster.Namespace, cluster.Name, pod), listener)
}

func address(host string, listener Listener) string {
	switch listener {
	case Operator:
		return "https://" + host + ":" + strconv.Itoa(names.PortOperator)
	case Secure:
		return "https://" + host + ":" + strconv.Itoa(names.PortManagementTLS)
	default:
		return "http://" + host + ":" + strconv.Itoa(names.PortManagement)
	}
}

// recordLifetime is how long an access record is reused. With 10,000 objects in a cluster, reading it for each of
// them would be most of the API server's load.
const recordLifetime = 3 * time.Second

// Connector creates clients with the operator's certificate. For nodes that do not accept the certificate it uses the
// default user's credentials in the access record.
type Connector struct {
	// Secrets reads Secrets without a cache.
	Secrets  client.Reader
	Resolver Resolver
	// Transport is for requests without TLS.
	Transport http.RoundTripper
	// Measure, if any, wraps the transports of requests with TLS, of which each cluster has its own.
	Measure func(http.RoundTripper) http.RoundTripper
	// RefuseExternal: no connection Secret is read, and no external broker gets a request.
	RefuseExternal bool
	// Now is the clock.
	Now func() time.Time

	mu   sync.Mutex
	kept map[client.ObjectKey]kept
	// secure transports by cluster and listener.
	secure map[destination]secureTransport
	// externals are the connection Secrets that were read, and outside the transports of their brokers.
	externals map[client.ObjectKey]keptExternal
	outside   map[client.ObjectKey]outsideTransport
	// forgotten counts calls of Forget.
	forgotten uint64
}

// kept is an access record and the time at which it was read.
type kept struct {
	AccessRecord
	read time.Time
}

type destination struct {
	cluster  client.ObjectKey
	listener Listener
}

// secureTransport is a transport with the trusts and the identity that it was created from.
type secureTransport struct {
	noted     string
	transport *http.Transport
}

// Cluster returns a client of any ready node, or of an external broker.
func (c *Connector) Cluster(ctx context.Context, cluster client.ObjectKey) (broker.Client, error) {
	if _, is := SecretOf(cluster); is {
		return c.externalClient(ctx, cluster)
	}
	record, err := c.record(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return c.client(cluster, record, record.Listener, c.Resolver.ClusterURL(cluster, record.Listener))
}

// Nodes returns a function that creates a client of one node at one of its listeners.
func (c *Connector) Nodes(ctx context.Context, cluster client.ObjectKey) (func(pod string, listener Listener) (broker.Client, error), error) {
	record, err := c.record(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return func(pod string, listener Listener) (broker.Client, error) {
		return c.client(cluster, record, listener, c.Resolver.NodeURL(cluster, pod, listener))
	}, nil
}

// As returns a client of any ready node with given credentials.
func (c *Connector) As(ctx context.Context, cluster client.ObjectKey, username, password string) (broker.Client, error) {
	record, err := c.record(ctx, cluster)
	if err != nil {
		return nil, err
	}
	transport, err := c.transport(cluster, record, record.Listener)
	if err != nil {
		return nil, err
	}
	access := broker.Access{URL: c.Resolver.ClusterURL(cluster, record.Listener), Username: username, Password: password}
	return broker.New(access, transport), nil
}

func (c *Connector) client(cluster client.ObjectKey, record AccessRecord, listener Listener, url string) (broker.Client, error) {
	transport, err := c.transport(cluster, record, listener)
	if err != nil {
		return nil, err
	}
	access := broker.Access{URL: url}
	if listener != Operator {
		access.Username, access.Password = record.Username, record.Password
	}
	return broker.New(access, transport), nil
}

func (c *Connector) transport(cluster client.ObjectKey, record AccessRecord, listener Listener) (http.RoundTripper, error) {
	if listener == Plain {
		return c.Transport, nil
	}
	transport, err := c.secureTransport(destination{cluster, listener}, record)
	if err != nil {
		return nil, err
	}
	if c.Measure != nil {
		return c.Measure(transport), nil
	}
	return transport, nil
}

// secureTransport returns the transport of a cluster's listener, a new one when trusts or identity have changed.
func (c *Connector) secureTransport(to destination, record AccessRecord) (*http.Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	noted := record.trusts
	if to.listener == Operator {
		noted = record.identity
	}
	before, found := c.secure[to]
	if found && before.noted == noted {
		return before.transport, nil
	}
	transport, err := record.transport(to.listener)
	if err != nil {
		return nil, err
	}
	if found {
		before.transport.CloseIdleConnections()
	}
	if c.secure == nil {
		c.secure = map[destination]secureTransport{}
	}
	c.secure[to] = secureTransport{noted: noted, transport: transport}
	return transport, nil
}

// Forget makes the next client read the access record of the cluster, or the connection Secret, again.
func (c *Connector) Forget(cluster client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten++
	delete(c.kept, cluster)
	delete(c.externals, cluster)
}

// Drop forgets a deleted cluster or connection Secret.
func (c *Connector) Drop(cluster client.ObjectKey) {
	c.Forget(cluster)
	c.mu.Lock()
	defer c.mu.Unlock()
	if gone, found := c.outside[cluster]; found {
		gone.transport.CloseIdleConnections()
		delete(c.outside, cluster)
	}
	for to, gone := range c.secure {
		if to.cluster == cluster {
			gone.transport.CloseIdleConnections()
			delete(c.secure, to)
		}
	}
}

func (c *Connector) record(ctx context.Context, cluster client.ObjectKey) (AccessRecord, error) {
	c.mu.Lock()
	known, found := c.kept[cluster]
	c.mu.Unlock()
	if found && c.Now().Sub(known.read) < recordLifetime {
		return known.AccessRecord, nil
	}
	record, err := c.readRecord(ctx, cluster)
	if err != nil {
		c.Forget(cluster)
		return record, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = map[client.ObjectKey]kept{}
	}
	c.kept[cluster] = kept{AccessRecord: record, read: c.Now()}
	return record, nil
}

func (c *Connector) readRecord(ctx context.Context, cluster client.ObjectKey) (AccessRecord, error) {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: names.OperatorSecret(cluster.Name)}
	if err := c.Secrets.Get(ctx, key, &secret); err != nil {
		return AccessRecord{}, fmt.Errorf("reading the cluster's credentials: %w", err)
	}
	record := AccessRecordOf(&secret)
	if record.Username == "" || record.Password == "" {
		return AccessRecord{}, fmt.Errorf("secret %s has no username and password", key)
	}
	return record, nil
}
