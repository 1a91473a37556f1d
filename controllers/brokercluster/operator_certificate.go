// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/pki"
)

const (
	// operatorPort names the port of the HTTP API for the operator.
	operatorPort = "operator"
	// operatorName is the common name of the operator's certificate.
	operatorName = "operator"
	// operatorDir is where pods find the authorities of the operator's certificate.
	operatorDir = configDir + "/operator"

	operatorLifetime    = 365 * 24 * time.Hour
	operatorRenewBefore = 120 * 24 * time.Hour
	// operatorSettle is more than a kubelet needs to bring a changed Secret into its pods; the broker
	// takes it up while it runs.
	operatorSettle = time.Hour
)

// ensureOperatorCertificate keeps the operator's client certificate, signed by an authority that signs
// nothing else: the nodes take the holder for an administrator.
func (s *scope) ensureOperatorCertificate(ctx context.Context) error {
	_, _, err := s.ensureOwnCertificate(ctx, operatorCertificate(s.cluster.Namespace, s.cluster.Name))
	return err
}

func operatorCertificate(namespace, cluster string) ownCertificate {
	return ownCertificate{
		secret: names.OperatorCertificateSecret(cluster), authority: names.OperatorCASecret(cluster),
		subject: namespace + "/" + cluster + " operator",
		leaf: pki.Leaf{
			Name: operatorName, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			Lifetime: operatorLifetime, RenewBefore: operatorRenewBefore, Settle: operatorSettle,
		},
	}
}

// addOperatorListener lets the broker listen for the operator. It shows the nodes' certificate there, which
// every cluster has. Settings go into the environment: a pod has them if, and only if, it has the files.
func addOperatorListener(template *corev1.PodTemplateSpec, cluster string) {
	container := &template.Spec.Containers[0]
	for _, setting := range [][2]string{
		// Also where it is the default: no setting of spec.config may lock the operator out.
		{"POSTHORN_OPERATOR_CERTIFICATE__NAME", operatorName},
		{"POSTHORN_OPERATOR_SSL_PORT", strconv.Itoa(names.PortOperator)},
		{"POSTHORN_OPERATOR_SSL_CACERTFILE", operatorDir + "/" + caKey},
		{"POSTHORN_OPERATOR_SSL_CERTFILE", internodeDir + "/" + corev1.TLSCertKey},
		{"POSTHORN_OPERATOR_SSL_KEYFILE", internodeDir + "/" + corev1.TLSPrivateKeyKey},
	} {
		container.Env = append(container.Env, corev1.EnvVar{Name: setting[0], Value: setting[1]})
	}
	container.Ports = append(container.Ports, corev1.ContainerPort{
		Name: operatorPort, ContainerPort: names.PortOperator, Protocol: corev1.ProtocolTCP,
	})
	files := template.Spec.Volumes[0].Projected
	files.Sources = append(files.Sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: names.OperatorCertificateSecret(cluster)},
		Items:                []corev1.KeyToPath{{Key: caKey, Path: "operator/" + caKey}},
	}})
}

// ensureOperatorService keeps the Service by which the operator asks any ready node. It is not the client
// Service, which may be open to the world.
func (s *scope) ensureOperatorService(ctx context.Context) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: names.OperatorService(s.cluster.Name)}}
	return s.ensure(ctx, service, func() error {
		service.Spec.Type = corev1.ServiceTypeClusterIP
		service.Spec.Selector = names.Selector(s.cluster.Name)
		service.Spec.Ports = []corev1.ServicePort{port(operatorPort, names.PortOperator)}
		return nil
	})
}

// listenerOf gives the best listener of a pod that the operator can ask at, going by the ports that the pod was made with.
// A pod of an earlier revision may know the default user's password only.
func listenerOf(containers []corev1.Container) connect.Listener {
	best := connect.Plain
	for i := range containers {
		if containers[i].Name != containerName {
			continue
		}
		for _, port := range containers[i].Ports {
			switch port.Name {
			case operatorPort:
				return connect.Operator
			case managementTLS:
				best = connect.Secure
			}
		}
	}
	return best
}

// serviceListener says at which listener any ready node is asked: the best that one has. A Service has the
// ready pods that have the port. Where no pod is ready all pods count, and where there is none those to come.
func serviceListener(pods map[string]*corev1.Pod, toCome connect.Listener) connect.Listener {
	var ready, all []connect.Listener
	for _, pod := range pods {
		listener := listenerOf(pod.Spec.Containers)
		all = append(all, listener)
		is := condition(pod, corev1.PodReady)
		if is != nil && is.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
			ready = append(ready, listener)
		}
	}
	for _, known := range [][]connect.Listener{ready, all, {toCome}} {
		if len(known) == 0 {
			continue
		}
		for _, best := range []connect.Listener{connect.Operator, connect.Secure} {
			if slices.Contains(known, best) {
				return best
			}
		}
		return connect.Plain
	}
	return toCome
}

// listenerToCome is that of pods which are made now.
func (s *scope) listenerToCome() connect.Listener {
	if s.sts == nil {
		return connect.Operator
	}
	return listenerOf(s.sts.Spec.Template.Spec.Containers)
}

// identity reads the operator's certificate and the authorities of the nodes' certificate; false: they are not there.
func (s *scope) identity(ctx context.Context) (connect.Identity, bool, error) {
	var own, nodes corev1.Secret
	for name, secret := range map[string]*corev1.Secret{
		names.OperatorCertificateSecret(s.cluster.Name): &own, names.InternodeSecret(s.cluster.Name): &nodes,
	} {
		err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: name}, secret)
		if apierrors.IsNotFound(err) {
			return connect.Identity{}, false, nil
		}
		if err != nil {
			return connect.Identity{}, false, fmt.Errorf("reading the Secret %s: %w", name, err)
		}
	}
	return connect.Identity{
		Cert: string(own.Data[corev1.TLSCertKey]), Key: string(own.Data[corev1.TLSPrivateKeyKey]),
		Name: internodeName(s.cluster.Namespace, s.cluster.Name), Roots: string(nodes.Data[caKey]),
	}, true, nil
}

// mendDefaultUser gives the default user its password and tag again when somebody changed or deleted it in the
// broker: the Secret says what they are. The operator needs neither itself. A broker that does not answer is asked
// again in the next attempt.
func (s *scope) mendDefaultUser(ctx context.Context) error {
	if s.listener != connect.Operator || s.tally().ready == 0 {
		return nil
	}
	b, err := s.Brokers.Cluster(ctx, s.key())
	if err != nil {
		return err
	}
	c := s.credentials
	user, err := b.GetUser(ctx, c.username)
	isGone := broker.IsNotFound(err)
	if err != nil && !isGone {
		log.FromContext(ctx).V(1).Info("the default user cannot be looked at", "reason", err.Error())
		return nil
	}
	if !isGone && isDefaultUser(user, c.accepted) {
		return nil
	}
	// The cache may not have a password yet that was given to the broker a moment ago.
	var note corev1.Secret
	if err := s.Live.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: names.OperatorSecret(s.cluster.Name)}, &note); err != nil {
		return fmt.Errorf("reading the default user's password: %w", err)
	}
	if connect.NoteOf(&note).Password != c.accepted {
		s.lookAgain(behind)
		return nil
	}
	if err := b.PutUser(ctx, c.username, c.accepted, []string{administrator}); err != nil {
		return fmt.Errorf("giving the default user its password again: %w", err)
	}
	if isGone {
		all := broker.Permission{User: c.username, Vhost: defaultVhost, Configure: ".*", Write: ".*", Read: ".*"}
		if err := b.PutPermission(ctx, all); err != nil && !broker.IsTerminal(err) {
			return fmt.Errorf("giving the default user its permissions again: %w", err)
		}
	}
	s.event(corev1.EventTypeWarning, "DefaultUserRestored", "Restore",
		"the default user was changed in the broker; it has the password of Secret %s and the tag %s again", names.DefaultUserSecret(s.cluster.Name), administrator)
	return nil
}

// defaultVhost is where a new cluster's default user has all permissions.
const defaultVhost = "/"

// isDefaultUser says whether a user is as the operator made it. Hashes that cannot be compared are left alone.
func isDefaultUser(user broker.User, password string) bool {
	hasPassword := user.PasswordHash != "" && user.CheckPassword(password) != broker.PasswordDiffers
	return hasPassword && slices.Contains(user.Tags, administrator)
}
