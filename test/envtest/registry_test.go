// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"crypto/tls"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
)

// registry resolves clusters to fake brokers. A cluster without a broker has an address without a listener.
type registry struct {
	// pods is a cache.
	pods client.Reader

	mu      sync.Mutex
	servers map[client.ObjectKey]*brokertest.Server
	// held are certificates of nodes that have not loaded a newer one yet.
	held map[client.ObjectKey]*tls.Certificate
}

const nowhere = "://127.0.0.1:1"

func (r *registry) get(key client.ObjectKey) *brokertest.Server {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.servers[key]
}

func (r *registry) set(key client.ObjectKey, server *brokertest.Server) {
	server.SetListens(func(node string) brokertest.Listens { return r.listens(key, node) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.servers[key] = server
}

// hold keeps the certificate of the cluster's nodes, even if the Secret changes, until release.
func (r *registry) hold(key client.ObjectKey) error {
	shown, err := r.certificate(key, "")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[key] = shown
	return err
}

// pretend makes the cluster's nodes show the certificate of a Secret, until release.
func (r *registry) pretend(key client.ObjectKey, secret *corev1.Secret) error {
	shown, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[key] = &shown
	return err
}

func (r *registry) release(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, key)
}

func (r *registry) closeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, server := range r.servers {
		server.Close()
	}
}

func (r *registry) ClusterURL(key client.ObjectKey, listener connect.Listener) string {
	server := r.get(key)
	switch {
	case server == nil && listener == connect.Plain:
		return "http" + nowhere
	case server == nil:
		return "https" + nowhere
	case listener == connect.Plain:
		return server.URL()
	}
	return r.secureURL(server, key, "", listener)
}

func (r *registry) NodeURL(key client.ObjectKey, pod string, listener connect.Listener) string {
	server := r.get(key)
	switch {
	case server == nil:
		return r.ClusterURL(key, listener)
	case listener == connect.Plain:
		return server.NodeURL(pod)
	}
	return r.secureURL(server, key, pod, listener)
}

func (r *registry) secureURL(server *brokertest.Server, key client.ObjectKey, pod string, listener connect.Listener) string {
	if listener == connect.Operator {
		return server.OperatorURL(pod, func() (*tls.Config, error) { return operatorTLS(key) })
	}
	return server.SecureURL(pod, func() (*tls.Certificate, error) { return r.certificate(key, pod) })
}

// operatorTLS returns the TLS configuration of a node's listener for the operator, from the present Secrets.
func operatorTLS(key client.ObjectKey) (*tls.Config, error) {
	var nodes, operator corev1.Secret
	for name, secret := range map[string]*corev1.Secret{
		names.InternodeSecret(key.Name): &nodes, names.OperatorCertificateSecret(key.Name): &operator,
	} {
		if err := k8s.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, secret); err != nil {
			return nil, err
		}
	}
	return brokertest.OperatorTLS(nodes.Data[corev1.TLSCertKey], nodes.Data[corev1.TLSPrivateKeyKey], operator.Data["ca.crt"])
}

// listens returns the listeners of a node: the ports of its pod. A node without a pod has the listener without TLS
// and the one for the operator's certificate.
func (r *registry) listens(key client.ObjectKey, node string) brokertest.Listens {
	var pod corev1.Pod
	if err := r.pods.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: node}, &pod); err != nil {
		return brokertest.Listens{Plain: true, Operator: true}
	}
	var out brokertest.Listens
	for _, port := range pod.Spec.Containers[0].Ports {
		out.Plain = out.Plain || port.ContainerPort == names.PortManagement
		out.Secure = out.Secure || port.ContainerPort == names.PortManagementTLS
		out.Operator = out.Operator || port.ContainerPort == names.PortOperator
	}
	return out
}

// certificate returns the certificate of a node, or of any node with TLS: the content of the Secret that its pod
// mounts.
func (r *registry) certificate(key client.ObjectKey, node string) (*tls.Certificate, error) {
	r.mu.Lock()
	held := r.held[key]
	r.mu.Unlock()
	if held != nil {
		return held, nil
	}
	var pods corev1.PodList
	if err := r.pods.List(ctx, &pods, client.InNamespace(key.Namespace), client.MatchingLabels(names.Selector(key.Name))); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		name := mountedAt(&pods.Items[i], "tls/tls.crt")
		if name == "" || node != "" && node != pods.Items[i].Name {
			continue
		}
		var secret corev1.Secret
		if err := k8s.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, &secret); err != nil {
			return nil, err
		}
		shown, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
		return &shown, err
	}
	return nil, fmt.Errorf("no node %q of %s has a certificate", node, key)
}

// mountedAt returns the Secret with a key mounted at a path below the configuration; empty for none.
func mountedAt(pod *corev1.Pod, path string) string {
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.Secret == nil {
				continue
			}
			for _, item := range source.Secret.Items {
				if item.Path == path {
					return source.Secret.Name
				}
			}
		}
	}
	return ""
}
