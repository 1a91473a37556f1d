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
	// defaultUserKey is the configuration file that gives the first user to a new cluster.
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
	// username, given once.
	username string
	// accepted is the password that the broker has, as far as the operator knows.
	accepted string
	// wanted is the password in the Secret that people see.
	wanted string
}

// ensureAccess keeps the operator's own note of the default user's credentials. The broker takes
// those of a new cluster only once, so they must outlive the Secret that people see and edit.
func (s *scope) ensureAccess(ctx context.Context) error {
	return s.ensureNote(ctx, func(note *corev1.Secret) error {
		noted := connect.NoteOf(note)
		username, password := noted.Username, noted.Password
		if username == "" || password == "" {
			var err error
			if username, password, err = s.recoverCredentials(ctx, note); err != nil {
				return err
			}
		}
		connect.WriteCredentials(note, username, password)
		s.credentials = credentials{username: username, accepted: password, wanted: password}
		return nil
	})
}

// recoverCredentials gives the credentials for a note that has none. A broker that exists takes those of its
// first start and no others: they come from the default user's Secret, and are never invented.
//
//	the default user's Secret has them  | they are taken from there
//	a StatefulSet or a volume exists    | error CredentialsLost
//	nothing exists                      | new ones
func (s *scope) recoverCredentials(ctx context.Context, note *corev1.Secret) (username, password string, err error) {
	var seen corev1.Secret
	err = s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: names.DefaultUserSecret(s.cluster.Name)}, &seen)
	if client.IgnoreNotFound(err) != nil {
		return "", "", fmt.Errorf("looking for the default user's credentials: %w", err)
	}
	if err == nil && ownedBy(&seen, s.cluster) {
		username, password = acceptedCredentials(&seen)
	}
	if username != "" && password != "" {
		if s.cluster.Status.CurrentVersion != "" {
			// A cluster is complete only after its definitions were imported.
			metav1.SetMetaDataAnnotation(&note.ObjectMeta, names.AnnotationImported, s.Now().UTC().Format(time.RFC3339))
		}
		s.event(corev1.EventTypeWarning, "CredentialsRecovered", "Recover", "Secret %s had no credentials; they were taken from Secret %s", note.Name, seen.Name)
		return username, password, nil
	}
	begins, err := s.beginsEmpty(ctx)
	if err != nil {
		return "", "", err
	}
	if !begins {
		return "", "", terminal("CredentialsLost", "the broker keeps the default user of its first start, and neither Secret %s nor Secret %s has that user's credentials: restore Secret %s from a backup, or delete the cluster and its volumes to begin anew",
			note.Name, names.DefaultUserSecret(s.cluster.Name), note.Name)
	}
	return newCredentials()
}

// acceptedCredentials reads the default user's Secret: the file that nodes start with has what the broker
// took last, while anybody may have written the other keys.
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

// ensureNote makes the operator's note or brings it to what update sets. The note outlives the cluster where
// the volumes do: a cluster that is made again gets them back, and with them a broker that takes these
// credentials and no others. The garbage collector deletes the note with the last volume.
func (s *scope) ensureNote(ctx context.Context, update func(*corev1.Secret) error) error {
	begins, err := s.beginsEmpty(ctx)
	if err != nil {
		return err
	}
	owners, err := s.ownersOfNote(ctx)
	if err != nil {
		return err
	}
	note := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.cluster.Namespace, Name: names.OperatorSecret(s.cluster.Name)}}
	_, err = controllerutil.CreateOrUpdate(ctx, s.Client, note, func() error {
		if err := s.mayChange(note); err != nil && !leftBehind(note, s.cluster) {
			return err
		}
		s.label(note)
		if begins {
			delete(note.Annotations, names.AnnotationImported)
		}
		note.OwnerReferences = owners
		if s.cluster.Spec.Storage.WhenDeleted == string(appsv1.DeletePersistentVolumeClaimRetentionPolicyType) {
			if err := controllerutil.SetControllerReference(s.cluster, note, s.Scheme); err != nil {
				return fmt.Errorf("owning it: %w", err)
			}
		}
		return update(note)
	})
	if err != nil {
		return fmt.Errorf("%T %s: %w", note, note.Name, err)
	}
	return nil
}

// beginsEmpty says whether the cluster is new, with no volumes of an earlier one.
func (s *scope) beginsEmpty(ctx context.Context) (bool, error) {
	if s.sts != nil {
		return false, nil
	}
	claims, err := s.listClaims(ctx)
	return len(claims) == 0, err
}

// leftBehind says whether a note is that of a cluster of the same name, which is gone.
func leftBehind(note *corev1.Secret, cluster *posthornv1.BrokerCluster) bool {
	for name, value := range names.Labels(cluster.Name) {
		if note.Labels[name] != value {
			return false
		}
	}
	return metav1.GetControllerOf(note) == nil
}

// ensureDefaultUser keeps the Secret in service-binding form. A password that somebody wrote into it
// is kept, and given to the broker by rotateDefaultUser.
func (s *scope) ensureDefaultUser(ctx context.Context) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: names.DefaultUserSecret(s.cluster.Name)}}
	err := s.ensure(ctx, secret, func() error {
		if edited := string(secret.Data["password"]); edited != "" {
			if strings.ContainsFunc(edited, unicode.IsControl) || len(edited) > maxDefaultPassword {
				return terminal("InvalidSecret", "key password of Secret %s must be one line of at most %d bytes: it goes into a configuration file", secret.Name, maxDefaultPassword)
			}
			s.credentials.wanted = edited
		}
		if secret.UID == "" {
			secret.Type = names.BindingType
		}
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		connect.Bind(secret.Data, connect.EndpointOf(s.cluster, s.protocols), s.credentials.username, s.credentials.wanted)
		secret.Data[defaultUserKey] = []byte(fmt.Sprintf("default_user = %s\ndefault_pass = %s\n", s.credentials.username, s.credentials.accepted))
		return nil
	})
	if err != nil {
		return err
	}
	s.cluster.Status.Binding = &posthornv1.BindingReference{Name: secret.Name}
	return nil
}

// rotateDefaultUser gives the broker a password that somebody wrote into the Secret, and notes it
// after the broker took it. A broker that takes the new one already was told before a crash.
func (s *scope) rotateDefaultUser(ctx context.Context) error {
	c := s.credentials
	if c.wanted == c.accepted {
		return nil
	}
	if err := s.changePassword(ctx); err != nil {
		return fmt.Errorf("changing the default user's password: %w", err)
	}
	err := s.ensureNote(ctx, func(note *corev1.Secret) error {
		connect.WriteCredentials(note, c.username, c.wanted)
		return nil
	})
	if err != nil {
		return err
	}
	s.credentials.accepted = c.wanted
	s.Brokers.Forget(s.key())
	s.event(corev1.EventTypeNormal, "Rotated", "Rotate", "the default user has the new password of Secret %s", names.DefaultUserSecret(s.cluster.Name))
	return s.ensureDefaultUser(ctx)
}

// changePassword gives the broker the wanted password. Where nodes do not take the operator's certificate, the default
// user does it, with the password that the broker takes.
func (s *scope) changePassword(ctx context.Context) error {
	c := s.credentials
	if s.listener == connect.Operator {
		b, err := s.Brokers.Cluster(ctx, s.key())
		if err != nil {
			return err
		}
		return b.PutUser(ctx, c.username, c.wanted, []string{administrator})
	}
	b, err := s.Brokers.As(ctx, s.key(), c.username, c.accepted)
	if err != nil {
		return err
	}
	err = b.PutUser(ctx, c.username, c.wanted, []string{administrator})
	if !broker.IsUnauthorized(err) {
		return err
	}
	if b, err = s.Brokers.As(ctx, s.key(), c.username, c.wanted); err != nil {
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
