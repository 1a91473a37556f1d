// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
)

const (
	// defaultUserKey is the configuration file that gives the first user to a new cluster.
	defaultUserKey = "default_user.conf"
	// defaultPasswordLength in characters.
	defaultPasswordLength = 32
	// defaultUserSuffix is the number of random characters in the default user's name.
	defaultUserSuffix = 8
)

// ensureDefaultUser keeps the Secret with the default user's credentials. They are generated once:
// the broker takes them only when the cluster is first formed.
func (s *scope) ensureDefaultUser(ctx context.Context) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: names.DefaultUserSecret(s.cluster.Name)}}
	err := s.ensure(ctx, secret, func() error {
		username, password := string(secret.Data["username"]), string(secret.Data["password"])
		if username == "" || password == "" {
			var err error
			if username, password, err = newCredentials(); err != nil {
				return err
			}
		}
		if secret.UID == "" {
			secret.Type = names.BindingType
		}
		host := names.Host(s.cluster.Namespace, s.cluster.Name)
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		for key, value := range connect.Binding(host, username, password) {
			secret.Data[key] = value
		}
		secret.Data[defaultUserKey] = []byte(fmt.Sprintf("default_user = %s\ndefault_pass = %s\n", username, password))
		return nil
	})
	if err != nil {
		return err
	}
	s.cluster.Status.Binding = &posthornv1.BindingReference{Name: secret.Name}
	return nil
}

func newCredentials() (username, password string, err error) {
	suffix, err := connect.Password(defaultUserSuffix)
	if err != nil {
		return "", "", err
	}
	password, err = connect.Password(defaultPasswordLength)
	return "default_user_" + suffix, password, err
}
