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

// Resolver tells where the management API of a cluster and of its nodes is, over TLS (secure) or not.
type Resolver interface {
	ClusterURL(cluster client.ObjectKey, secure bool) string
	NodeURL(cluster client.ObjectKey, pod string, secure bool) string
}

// DNS is the Resolver for an operator that runs inside Kubernetes.
type DNS struct{}

// ClusterURL is the client Service.
func (DNS) ClusterURL(cluster client.ObjectKey, secure bool) string {
	return address(names.Host(cluster.Namespace, cluster.Name), secure)
}

// NodeURL is the pod's name in the headless Service.
func (DNS) NodeURL(cluster client.ObjectKey, pod string, secure bool) string {
	return address(names.NodeHost(cluster.Namespace, cluster.Name, pod), secure)
}

func address(host string, secure bool) string {
	if secure {
		return "https://" + host + ":" + strconv.Itoa(names.PortManagementTLS)
	}
	return "http://" + host + ":" + strconv.Itoa(names.PortManagement)
}

// keepNote is how long what was read of a cluster is used again. With 10,000 objects of a cluster to
// look at, reading it for each would be most of what the API server is asked.
const keepNote = 3 * time.Second

// Connector makes clients with the credentials of a cluster's default user, as the operator noted them.
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
	// secure transports by cluster.
	secure map[client.ObjectKey]secureTransport
}

// kept is what was read, and when.
type kept struct {
	Note
	read time.Time
}

// secureTransport is made of what is noted of trust.
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
	return c.client(cluster, note, c.Resolver.ClusterURL(cluster, note.Secure), note.Secure)
}

// Nodes makes a function that makes clients which ask one node each, over TLS or not.
func (c *Connector) Nodes(ctx context.Context, cluster client.ObjectKey) (func(pod string, secure bool) (broker.Client, error), error) {
	note, err := c.note(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return func(pod string, secure bool) (broker.Client, error) {
		return c.client(cluster, note, c.Resolver.NodeURL(cluster, pod, secure), secure)
	}, nil
}

// As makes a client that asks any ready node with given credentials.
func (c *Connector) As(ctx context.Context, cluster client.ObjectKey, username, password string) (broker.Client, error) {
	note, err := c.note(ctx, cluster)
	if err != nil {
		return nil, err
	}
	note.Username, note.Password = username, password
	return c.client(cluster, note, c.Resolver.ClusterURL(cluster, note.Secure), note.Secure)
}

func (c *Connector) client(cluster client.ObjectKey, note Note, url string, secure bool) (broker.Client, error) {
	access := broker.Access{URL: url, Username: note.Username, Password: note.Password}
	if !secure {
		return broker.New(access, c.Transport), nil
	}
	transport, err := c.secureTransport(cluster, note)
	if err != nil {
		return nil, err
	}
	if c.Measure != nil {
		return broker.New(access, c.Measure(transport)), nil
	}
	return broker.New(access, transport), nil
}

// secureTransport gives the cluster's transport, a new one when what is trusted has changed.
func (c *Connector) secureTransport(cluster client.ObjectKey, note Note) (*http.Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, found := c.secure[cluster]
	if found && before.noted == note.trusts {
		return before.transport, nil
	}
	trusts, err := note.believed()
	if err != nil {
		return nil, err
	}
	if found {
		before.transport.CloseIdleConnections()
	}
	if c.secure == nil {
		c.secure = map[client.ObjectKey]secureTransport{}
	}
	made := secureTransport{noted: note.trusts, transport: broker.NewSecureTransport(trusts)}
	c.secure[cluster] = made
	return made.transport, nil
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
	if gone, found := c.secure[cluster]; found {
		gone.transport.CloseIdleConnections()
		delete(c.secure, cluster)
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
