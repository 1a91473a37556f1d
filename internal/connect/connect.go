// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connect makes broker clients for clusters and their nodes.
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

// Listeners, as they are noted.
const (
	// Plain is without TLS.
	Plain Listener = ""
	// Secure is over TLS.
	Secure Listener = "https"
	// Operator takes the operator's client certificate instead of a password.
	Operator Listener = "operator"
)

// Resolver tells where the management API of a cluster and of its nodes is.
type Resolver interface {
	ClusterURL(cluster client.ObjectKey, listener Listener) string
	NodeURL(cluster client.ObjectKey, pod string, listener Listener) string
}

// DNS is the Resolver for an operator that runs inside Kubernetes.
type DNS struct{}

// ClusterURL is the client Service, or the operator's own.
func (DNS) ClusterURL(cluster client.ObjectKey, listener Listener) string {
	if listener == Operator {
		return address(names.OperatorHost(cluster.Namespace, cluster.Name), listener)
	}
	return address(names.Host(cluster.Namespace, cluster.Name), listener)
}

// NodeURL is the pod's name in the headless Service.
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

// keepNote is how long what was read of a cluster is used again. With 10,000 objects of a cluster to
// look at, reading it for each would be most of what the API server is asked.
const keepNote = 3 * time.Second

// Connector makes clients with the operator's certificate, or for nodes that do not take that with the credentials of
// the cluster's default user, as the operator noted them.
type Connector struct {
	// Secrets reads Secrets, not from a cache.
	Secrets  client.Reader
	Resolver Resolver
	// Transport is for requests without TLS.
	Transport http.RoundTripper
	// Measure, if any, goes around the transports of requests with TLS, of which each cluster has its own.
	Measure func(http.RoundTripper) http.RoundTripper
	// Now is the clock.
	Now func() time.Time

	mu   sync.Mutex
	kept map[client.ObjectKey]kept
	// secure transports by cluster and listener.
	secure map[destination]secureTransport
}

// kept is what was read, and when.
type kept struct {
	Note
	read time.Time
}

type destination struct {
	cluster  client.ObjectKey
	listener Listener
}

// secureTransport is made of what is noted of trust and of the operator's certificate.
type secureTransport struct {
	noted     string
	transport *http.Transport
}

// Cluster makes a client that asks any ready node.
func (c *Connector) Cluster(ctx context.Context, cluster client.ObjectKey) (broker.Client, error) {
	note, err := c.note(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return c.client(cluster, note, note.Listener, c.Resolver.ClusterURL(cluster, note.Listener))
}

// Nodes makes a function that makes clients which ask one node each at one of its listeners.
func (c *Connector) Nodes(ctx context.Context, cluster client.ObjectKey) (func(pod string, listener Listener) (broker.Client, error), error) {
	note, err := c.note(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return func(pod string, listener Listener) (broker.Client, error) {
		return c.client(cluster, note, listener, c.Resolver.NodeURL(cluster, pod, listener))
	}, nil
}

// As makes a client that asks any ready node with given credentials.
func (c *Connector) As(ctx context.Context, cluster client.ObjectKey, username, password string) (broker.Client, error) {
	note, err := c.note(ctx, cluster)
	if err != nil {
		return nil, err
	}
	transport, err := c.transport(cluster, note, note.Listener)
	if err != nil {
		return nil, err
	}
	access := broker.Access{URL: c.Resolver.ClusterURL(cluster, note.Listener), Username: username, Password: password}
	return broker.New(access, transport), nil
}

func (c *Connector) client(cluster client.ObjectKey, note Note, listener Listener, url string) (broker.Client, error) {
	transport, err := c.transport(cluster, note, listener)
	if err != nil {
		return nil, err
	}
	access := broker.Access{URL: url}
	if listener != Operator {
		access.Username, access.Password = note.Username, note.Password
	}
	return broker.New(access, transport), nil
}

func (c *Connector) transport(cluster client.ObjectKey, note Note, listener Listener) (http.RoundTripper, error) {
	if listener == Plain {
		return c.Transport, nil
	}
	transport, err := c.secureTransport(destination{cluster, listener}, note)
	if err != nil {
		return nil, err
	}
	if c.Measure != nil {
		return c.Measure(transport), nil
	}
	return transport, nil
}

// secureTransport gives the transport of a cluster's listener, a new one when what is trusted or shown has changed.
func (c *Connector) secureTransport(to destination, note Note) (*http.Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	noted := note.trusts
	if to.listener == Operator {
		noted = note.identity
	}
	before, found := c.secure[to]
	if found && before.noted == noted {
		return before.transport, nil
	}
	transport, err := note.transport(to.listener)
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

// Forget makes the next client read what is noted of the cluster anew.
func (c *Connector) Forget(cluster client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.kept, cluster)
}

// Drop forgets a cluster that is gone.
func (c *Connector) Drop(cluster client.ObjectKey) {
	c.Forget(cluster)
	c.mu.Lock()
	defer c.mu.Unlock()
	for to, gone := range c.secure {
		if to.cluster == cluster {
			gone.transport.CloseIdleConnections()
			delete(c.secure, to)
		}
	}
}

func (c *Connector) note(ctx context.Context, cluster client.ObjectKey) (Note, error) {
	c.mu.Lock()
	known, found := c.kept[cluster]
	c.mu.Unlock()
	if found && c.Now().Sub(known.read) < keepNote {
		return known.Note, nil
	}
	note, err := c.readNote(ctx, cluster)
	if err != nil {
		c.Forget(cluster)
		return note, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = map[client.ObjectKey]kept{}
	}
	c.kept[cluster] = kept{Note: note, read: c.Now()}
	return note, nil
}

func (c *Connector) readNote(ctx context.Context, cluster client.ObjectKey) (Note, error) {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: names.OperatorSecret(cluster.Name)}
	if err := c.Secrets.Get(ctx, key, &secret); err != nil {
		return Note{}, fmt.Errorf("reading the cluster's credentials: %w", err)
	}
	note := NoteOf(&secret)
	if note.Username == "" || note.Password == "" {
		return Note{}, fmt.Errorf("secret %s has no username and password", key)
	}
	return note, nil
}
