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

// Resolver tells where the management API of a cluster and of its nodes is.
type Resolver interface {
	ClusterURL(cluster client.ObjectKey) string
	NodeURL(cluster client.ObjectKey, pod string) string
}

// DNS is the Resolver for an operator that runs inside Kubernetes.
type DNS struct{}

// ClusterURL is the client Service.
func (DNS) ClusterURL(cluster client.ObjectKey) string {
	return "http://" + names.Host(cluster.Namespace, cluster.Name) + ":" + strconv.Itoa(names.PortManagement)
}

// NodeURL is the pod's name in the headless Service.
func (DNS) NodeURL(cluster client.ObjectKey, pod string) string {
	return "http://" + names.NodeHost(cluster.Namespace, cluster.Name, pod) + ":" + strconv.Itoa(names.PortManagement)
}

// keepCredentials is how long credentials that were read are used again. With 10,000 objects of a
// cluster to look at, reading them for each would be most of what the API server is asked.
const keepCredentials = 3 * time.Second

// Connector makes clients with the credentials of a cluster's default user.
type Connector struct {
	// Secrets reads Secrets, not from a cache.
	Secrets   client.Reader
	Resolver  Resolver
	Transport http.RoundTripper
	// Now is the clock.
	Now func() time.Time

	mu   sync.Mutex
	kept map[client.ObjectKey]kept
}

// kept are credentials and when they were read.
type kept struct {
	access broker.Access
	read   time.Time
}

// Cluster makes a client that asks any ready node.
func (c *Connector) Cluster(ctx context.Context, cluster client.ObjectKey) (broker.Client, error) {
	access, err := c.access(ctx, cluster)
	if err != nil {
		return nil, err
	}
	access.URL = c.Resolver.ClusterURL(cluster)
	return broker.New(access, c.Transport), nil
}

// Nodes makes a function that makes clients which ask one node each.
func (c *Connector) Nodes(ctx context.Context, cluster client.ObjectKey) (func(pod string) broker.Client, error) {
	access, err := c.access(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return func(pod string) broker.Client {
		one := access
		one.URL = c.Resolver.NodeURL(cluster, pod)
		return broker.New(one, c.Transport)
	}, nil
}

// As makes a client that asks any ready node with given credentials.
func (c *Connector) As(cluster client.ObjectKey, username, password string) broker.Client {
	return broker.New(broker.Access{URL: c.Resolver.ClusterURL(cluster), Username: username, Password: password}, c.Transport)
}

// Forget makes the next client read the cluster's credentials anew.
func (c *Connector) Forget(cluster client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.kept, cluster)
}

func (c *Connector) access(ctx context.Context, cluster client.ObjectKey) (broker.Access, error) {
	c.mu.Lock()
	known, found := c.kept[cluster]
	c.mu.Unlock()
	if found && c.Now().Sub(known.read) < keepCredentials {
		return known.access, nil
	}
	access, err := c.readAccess(ctx, cluster)
	if err != nil {
		c.Forget(cluster)
		return access, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = map[client.ObjectKey]kept{}
	}
	c.kept[cluster] = kept{access: access, read: c.Now()}
	return access, nil
}

func (c *Connector) readAccess(ctx context.Context, cluster client.ObjectKey) (broker.Access, error) {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: names.OperatorSecret(cluster.Name)}
	if err := c.Secrets.Get(ctx, key, &secret); err != nil {
		return broker.Access{}, fmt.Errorf("reading the cluster's credentials: %w", err)
	}
	access := broker.Access{Username: string(secret.Data["username"]), Password: string(secret.Data["password"])}
	if access.Username == "" || access.Password == "" {
		return broker.Access{}, fmt.Errorf("secret %s has no username and password", key)
	}
	return access, nil
}
