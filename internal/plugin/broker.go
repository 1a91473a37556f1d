// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// Keys of the default user's Secret.
const (
	usernameKey = "username"
	passwordKey = "password"
)

// credentialsSecret returns the Secret with the default user's credentials.
func (s *Session) credentialsSecret(ctx context.Context, cluster *posthornv1.BrokerCluster) (*corev1.Secret, error) {
	name := names.DefaultUserSecret(cluster.Name)
	if cluster.Status.Binding != nil {
		name = cluster.Status.Binding.Name
	}
	var secret corev1.Secret
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, &secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("namespace %s has no Secret %s with the credentials of cluster %s; the operator creates it, so check that the operator runs: "+
			"kubectl posthorn status %s --namespace %s", s.Namespace, name, cluster.Name, cluster.Name, s.Namespace)
	}
	if err != nil {
		return nil, s.explain(err, "reading the credentials of cluster "+cluster.Name, right{"get", "secrets", name})
	}
	if len(secret.Data[usernameKey]) == 0 || len(secret.Data[passwordKey]) == 0 {
		return nil, fmt.Errorf("the Secret %s in namespace %s lacks the key %s or %s: restore them; the operator has the password that the broker accepts in Secret %s",
			name, s.Namespace, usernameKey, passwordKey, names.OperatorSecret(cluster.Name))
	}
	return &secret, nil
}

// node is a connection with the HTTP API of a node.
type node struct {
	broker.Client
	tunnel *Tunnel
}

// connectTo opens a connection with a node. The port without TLS is always open inside the pod.
func (s *Session) connectTo(ctx context.Context, cluster *posthornv1.BrokerCluster, pod string) (*node, error) {
	secret, err := s.credentialsSecret(ctx, cluster)
	if err != nil {
		return nil, err
	}
	tunnel, err := s.forward(ctx, pod, 0)
	if err != nil {
		return nil, err
	}
	access := broker.Access{URL: tunnel.URL, Username: string(secret.Data[usernameKey]), Password: string(secret.Data[passwordKey])}
	return &node{Client: broker.New(access, s.Transport), tunnel: tunnel}, nil
}

func (n *node) close() { n.tunnel.Close() }

// forward forwards a local port to the HTTP API of a node.
func (s *Session) forward(ctx context.Context, pod string, local int) (*Tunnel, error) {
	tunnel, err := s.Pods.Forward(ctx, s.Namespace, pod, local, names.PortManagement)
	if err != nil {
		return nil, s.explain(err, "forwarding a port to node "+pod, right{"create", "pods/portforward", pod})
	}
	return tunnel, nil
}

// explainAnswer adds the remedy to an error of a broker.
func (s *Session) explainAnswer(err error, action string, cluster *posthornv1.BrokerCluster) error {
	if broker.IsUnauthorized(err) {
		return fmt.Errorf("%s: the broker refused the credentials of Secret %s: %w; if the Secret was edited, the operator sets the new password soon, so try again",
			action, names.DefaultUserSecret(cluster.Name), err)
	}
	return fmt.Errorf("%s: %w", action, err)
}
