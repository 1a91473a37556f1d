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
	// operatorDir is where pods mount the CA certificates of the operator's certificate.
	operatorDir = configDir + "/operator"

	operatorLifetime    = 365 * 24 * time.Hour
	operatorRenewBefore = 120 * 24 * time.Hour
	// operatorSettle is longer than a kubelet needs to update a mounted Secret; the broker reloads the file while it
	// runs.
	operatorSettle = time.Hour
)

// ensureOperatorCertificate keeps the operator's client certificate. Its CA signs nothing else: the nodes treat the
// holder of the certificate as an administrator.
func (r *reconciliation) ensureOperatorCertificate(ctx context.Context) error {
	_, _, err := r.ensureOwnCertificate(ctx, operatorCertificate(r.in.cluster.Namespace, r.in.cluster.Name))
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

// addOperatorListener adds the listener of the HTTP API for the operator. The broker shows the inter-node certificate
// there, which every cluster has. The settings are environment variables: a pod has them if, and only if, it has the
// files.
func addOperatorListener(template *corev1.PodTemplateSpec, cluster string) {
	container := &template.Spec.Containers[0]
	for _, setting := range [][2]string{
		// Set even where it is the default: no setting in spec.config may lock the operator out.
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

// ensureOperatorService keeps the Service through which the operator reaches any ready node. The client Service does
// not serve for this, because it may be open to the world.
func (r *reconciliation) ensureOperatorService(ctx context.Context) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: names.OperatorService(r.in.cluster.Name)}}
	return r.ensure(ctx, service, func() error {
		service.Spec.Type = corev1.ServiceTypeClusterIP
		service.Spec.Selector = names.Selector(r.in.cluster.Name)
		service.Spec.Ports = []corev1.ServicePort{port(operatorPort, names.PortOperator)}
		return nil
	})
}

// listenerOf returns the best listener for the operator among the ports that a pod was created with. A pod of an
// earlier revision may accept only the default user's password.
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

// serviceListener returns the best listener that a ready pod has: a Service leads to the ready pods that have its
// port. When no pod is ready all pods count, and when no pod exists the next ones.
func serviceListener(pods map[string]*corev1.Pod, next connect.Listener) connect.Listener {
	var ready, all []connect.Listener
	for _, pod := range pods {
		listener := listenerOf(pod.Spec.Containers)
		all = append(all, listener)
		is := condition(pod, corev1.PodReady)
		if is != nil && is.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
			ready = append(ready, listener)
		}
	}
	for _, known := range [][]connect.Listener{ready, all, {next}} {
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
	return next
}

// nextListener returns the listener of pods that are created from now on.
func nextListener(seen *observed) connect.Listener {
	if seen.sts == nil {
		return connect.Operator
	}
	return listenerOf(seen.sts.Spec.Template.Spec.Containers)
}

// readIdentity reads the operator's certificate and the CA certificates of the inter-node certificate; false when one
// of their Secrets does not exist.
func (r *reconciliation) readIdentity(ctx context.Context) (connect.Identity, bool, error) {
	var own, nodes corev1.Secret
	for name, secret := range map[string]*corev1.Secret{
		names.OperatorCertificateSecret(r.in.cluster.Name): &own, names.InternodeSecret(r.in.cluster.Name): &nodes,
	} {
		err := r.Client.Get(ctx, r.in.keyOf(name), secret)
		if apierrors.IsNotFound(err) {
			return connect.Identity{}, false, nil
		}
		if err != nil {
			return connect.Identity{}, false, fmt.Errorf("reading the Secret %s: %w", name, err)
		}
	}
	return connect.Identity{
		Cert: string(own.Data[corev1.TLSCertKey]), Key: string(own.Data[corev1.TLSPrivateKeyKey]),
		Name: internodeName(r.in.cluster.Namespace, r.in.cluster.Name), Roots: string(nodes.Data[caKey]),
	}, true, nil
}

// restoreDefaultUser gives the default user its password and tag again when somebody changed or deleted that user in
// the broker. The operator does not need the user itself. A broker that does not answer is asked again in the next
// reconciliation.
func (r *reconciliation) restoreDefaultUser(ctx context.Context) error {
	if r.out.access.listener != connect.Operator || r.seen.count().ready == 0 {
		return nil
	}
	b, err := r.Brokers.Cluster(ctx, r.in.key())
	if err != nil {
		return err
	}
	c := r.seen.credentials
	user, err := b.GetUser(ctx, c.username)
	isGone := broker.IsNotFound(err)
	if err != nil && !isGone {
		log.FromContext(ctx).V(1).Info("cannot read the default user", "reason", err.Error())
		return nil
	}
	if !isGone && isDefaultUser(user, c.accepted) {
		return nil
	}
	// The cache may not yet have a password that the broker was given a moment ago.
	var secret corev1.Secret
	if err := r.Live.Get(ctx, r.in.keyOf(names.OperatorSecret(r.in.cluster.Name)), &secret); err != nil {
		return fmt.Errorf("reading the default user's password: %w", err)
	}
	if connect.AccessRecordOf(&secret).Password != c.accepted {
		r.out.requeueWithin(staleRetry)
		return nil
	}
	if err := b.PutUser(ctx, c.username, c.accepted, []string{administrator}); err != nil {
		return fmt.Errorf("restoring the default user's password: %w", err)
	}
	if isGone {
		all := broker.Permission{User: c.username, Vhost: defaultVhost, Configure: ".*", Write: ".*", Read: ".*"}
		if err := b.PutPermission(ctx, all); err != nil && !broker.IsTerminal(err) {
			return fmt.Errorf("restoring the default user's permissions: %w", err)
		}
	}
	r.out.warn("DefaultUserRestored", "Restore",
		"the default user was changed in the broker; restored the password of Secret %s and the tag %s", names.DefaultUserSecret(r.in.cluster.Name), administrator)
	return nil
}

// defaultVhost is where a new cluster's default user has all permissions.
const defaultVhost = "/"

// isDefaultUser reports whether a user is as the operator created it. A hash that cannot be compared counts as equal.
func isDefaultUser(user broker.User, password string) bool {
	hasPassword := user.PasswordHash != "" && user.CheckPassword(password) != broker.PasswordDiffers
	return hasPassword && slices.Contains(user.Tags, administrator)
}
