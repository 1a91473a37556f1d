// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connect makes broker clients for clusters and their nodes.
package connect

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

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

// Connector makes clients with the credentials of a cluster's default user.
type Connector struct {
	// Secrets reads Secrets, not from a cache.
	Secrets   client.Reader
	Resolver  Resolver
	Transport http.RoundTripper
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

func (c *Connector) access(ctx context.Context, cluster client.ObjectKey) (broker.Access, error) {
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
