// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
)

const (
	// defaultUserKey is the configuration file with the first user of a new cluster.
	defaultUserKey = "default_user.conf"
	// defaultPasswordLength in characters.
	defaultPasswordLength = 32
	// maxDefaultPassword is the longest that the setting default_pass takes, in bytes.
	maxDefaultPassword = 255
	// defaultUserSuffix is the number of random characters in the default user's name.
	defaultUserSuffix = 8
	// administrator is the default user's tag.
	administrator = "administrator"
)

// credentials of the default user.
type credentials struct {
	// username, which never changes.
	username string
	// accepted is the password that the broker has, as far as the operator knows.
	accepted string
	// wanted is the password in the Secret for applications, which people may edit.
	wanted string
}

// ensureAccess keeps the operator's own record of the default user's credentials. The broker reads them only at its first
// start, so they must outlive the Secret that people edit.
func (r *reconciliation) ensureAccess(ctx context.Context) error {
	return r.ensureAccessSecret(ctx, func(secret *corev1.Secret) error {
		record := connect.AccessRecordOf(secret)
		username, password := record.Username, record.Password
		if username == "" || password == "" {
			var err error
			if username, password, err = r.recoverCredentials(ctx, secret); err != nil {
				return err
			}
		}
		connect.WriteCredentials(secret, username, password)
		r.seen.credentials = credentials{username: username, accepted: password, wanted: password}
		return nil
	})
}

// recoverCredentials returns the credentials for a record that has none. An existing broker accepts only those of its first
// start, so new ones are created only for a new cluster:
//
//	the default user's Secret has credentials | those
//	a StatefulSet or a volume exists          | error CredentialsLost
//	neither exists                            | new ones
func (r *reconciliation) recoverCredentials(ctx context.Context, secret *corev1.Secret) (username, password string, err error) {
	var seen corev1.Secret
	err = r.Client.Get(ctx, r.in.keyOf(names.DefaultUserSecret(r.in.cluster.Name)), &seen)
	if client.IgnoreNotFound(err) != nil {
		return "", "", fmt.Errorf("reading the default user's credentials: %w", err)
	}
	if err == nil && isOwnedBy(&seen, r.in.cluster) {
		username, password = acceptedCredentials(&seen)
	}
	if username != "" && password != "" {
		if r.in.cluster.Status.CurrentVersion != "" {
			// A cluster is complete only after its definitions were imported.
			metav1.SetMetaDataAnnotation(&secret.ObjectMeta, names.AnnotationImported, r.in.now.UTC().Format(time.RFC3339))
		}
		r.out.warn("CredentialsRecovered", "Recover", "Secret %s had no credentials; restored them from Secret %s", secret.Name, seen.Name)
		return username, password, nil
	}
	if !r.seen.isNewCluster() {
		return "", "", newTerminalError("CredentialsLost", "the broker keeps the default user of its first start, and neither Secret %s nor Secret %s has the credentials of that user: restore Secret %s from a backup, or delete the cluster and its volumes to start with a new cluster",
			secret.Name, names.DefaultUserSecret(r.in.cluster.Name), secret.Name)
	}
	return newCredentials()
}

// acceptedCredentials reads the default user's Secret. The configuration file has the password that the broker accepted
// last; the other keys may have been edited.
func acceptedCredentials(secret *corev1.Secret) (username, password string) {
	for line := range strings.Lines(string(secret.Data[defaultUserKey])) {
		switch key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " = "); key {
		case "default_user":
			username = value
		case "default_pass":
			password = value
		}
	}
	if username == "" || password == "" {
		return string(secret.Data["username"]), string(secret.Data["password"])
	}
	return username, password
}

// ensureAccessSecret creates the operator's access Secret or updates it with the function. It outlives the cluster where the
// volumes do: a cluster that is created again gets the volumes back, whose broker accepts only these credentials. The
// garbage collector deletes the Secret with the last volume.
func (r *reconciliation) ensureAccessSecret(ctx context.Context, update func(*corev1.Secret) error) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.in.cluster.Namespace, Name: names.OperatorSecret(r.in.cluster.Name)}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, secret, func() error {
		if err := mayChange(secret, r.in.cluster); err != nil && !isLeftBehind(secret, r.in.cluster) {
			return err
		}
		setLabels(secret, r.in.cluster)
		if r.seen.isNewCluster() {
			delete(secret.Annotations, names.AnnotationImported)
		}
		secret.OwnerReferences = accessSecretOwners(&r.in, r.seen.claims)
		if r.in.cluster.Spec.Storage.WhenDeleted == string(appsv1.DeletePersistentVolumeClaimRetentionPolicyType) {
			if err := controllerutil.SetControllerReference(r.in.cluster, secret, r.Scheme); err != nil {
				return fmt.Errorf("setting its owner: %w", err)
			}
		}
		return update(secret)
	})
	if err != nil {
		return fmt.Errorf("%T %s: %w", secret, secret.Name, err)
	}
	return nil
}

// isNewCluster reports whether the cluster has neither a StatefulSet nor volumes of an earlier cluster.
func (seen *observed) isNewCluster() bool { return seen.sts == nil && len(seen.claims) == 0 }

// isLeftBehind reports whether a access Secret is left over from a deleted cluster of the same name.
func isLeftBehind(secret *corev1.Secret, cluster *posthornv1.BrokerCluster) bool {
	for name, value := range names.Labels(cluster.Name) {
		if secret.Labels[name] != value {
			return false
		}
	}
	return metav1.GetControllerOf(secret) == nil
}

// ensureDefaultUser keeps the Secret in service-binding form. It keeps a password that somebody wrote into the Secret, and
// rotateDefaultUser sets that password in the broker.
func (r *reconciliation) ensureDefaultUser(ctx context.Context) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: names.DefaultUserSecret(r.in.cluster.Name)}}
	err := r.ensure(ctx, secret, func() error {
		if edited := string(secret.Data["password"]); edited != "" {
			if strings.ContainsFunc(edited, unicode.IsControl) || len(edited) > maxDefaultPassword {
				return newTerminalError("InvalidSecret", "key password of Secret %s must be one line of at most %d bytes: it goes into a configuration file", secret.Name, maxDefaultPassword)
			}
			r.seen.credentials.wanted = edited
		}
		if secret.UID == "" {
			secret.Type = names.BindingType
		}
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		connect.Bind(secret.Data, connect.EndpointOf(r.in.cluster, r.out.protocols), r.seen.credentials.username, r.seen.credentials.wanted)
		secret.Data[defaultUserKey] = []byte(fmt.Sprintf("default_user = %s\ndefault_pass = %s\n", r.seen.credentials.username, r.seen.credentials.accepted))
		return nil
	})
	if err != nil {
		return err
	}
	r.out.binding = &posthornv1.BindingReference{Name: secret.Name}
	return nil
}

// rotateDefaultUser sets a password that somebody wrote into the Secret in the broker, and records it afterwards. A broker
// that already accepts the new password got it before a crash of the operator.
func (r *reconciliation) rotateDefaultUser(ctx context.Context) error {
	c := r.seen.credentials
	if c.wanted == c.accepted {
		return nil
	}
	if err := r.changePassword(ctx); err != nil {
		return fmt.Errorf("changing the default user's password: %w", err)
	}
	err := r.ensureAccessSecret(ctx, func(secret *corev1.Secret) error {
		connect.WriteCredentials(secret, c.username, c.wanted)
		return nil
	})
	if err != nil {
		return err
	}
	r.seen.credentials.accepted = c.wanted
	r.Brokers.Forget(r.in.key())
	r.out.note("Rotated", "Rotate", "the default user now has the new password of Secret %s", names.DefaultUserSecret(r.in.cluster.Name))
	return r.ensureDefaultUser(ctx)
}

// changePassword sets the wanted password in the broker. Nodes that do not accept the operator's certificate get it from the
// default user itself, with the password that they accept.
func (r *reconciliation) changePassword(ctx context.Context) error {
	c := r.seen.credentials
	if r.out.access.listener == connect.Operator {
		b, err := r.Brokers.Cluster(ctx, r.in.key())
		if err != nil {
			return err
		}
		return b.PutUser(ctx, c.username, c.wanted, []string{administrator})
	}
	b, err := r.Brokers.As(ctx, r.in.key(), c.username, c.accepted)
	if err != nil {
		return err
	}
	err = b.PutUser(ctx, c.username, c.wanted, []string{administrator})
	if !broker.IsUnauthorized(err) {
		return err
	}
	if b, err = r.Brokers.As(ctx, r.in.key(), c.username, c.wanted); err != nil {
		return err
	}
	_, err = b.Overview(ctx)
	return err
}

func newCredentials() (username, password string, err error) {
	suffix, err := connect.Password(defaultUserSuffix)
	if err != nil {
		return "", "", err
	}
	password, err = connect.Password(defaultPasswordLength)
	return "default_user_" + suffix, password, err
}
