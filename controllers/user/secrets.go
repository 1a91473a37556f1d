// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package user

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/topology"
)

const (
	passwordKey = "password"
	// maxPassword bounds the password in a Secret, in bytes.
	maxPassword = 1024
	// defaultLength of a generated password, if the schema's default did not apply.
	defaultLength = 32
)

// certificateVersion takes the place of the version of a Secret for a user without a password.
const certificateVersion = "certificate"

// Prepare determines the password and keeps the binding Secret.
func (w *work) Prepare(ctx context.Context) error {
	given, version, err := w.givenPassword(ctx)
	if err != nil {
		return err
	}
	binding := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.user.Namespace, Name: w.user.BindingName()}}
	done, err := controllerutil.CreateOrUpdate(ctx, w.env.Client, binding, func() error { return w.fillBinding(binding, given) })
	if err != nil {
		return fmt.Errorf("secret %s: %w", binding.Name, err)
	}
	w.reportBinding(binding.Name, done)
	w.password = string(binding.Data[passwordKey])
	w.version = version
	if w.certificate() {
		w.version = certificateVersion
	}
	if w.version == "" {
		w.version = binding.ResourceVersion
	}
	w.user.Status.Binding = &posthornv1.BindingReference{Name: binding.Name}
	return nil
}

// reportBinding records an Event about a binding Secret that the operator repaired. status.binding is set once the
// Secret exists.
func (w *work) reportBinding(name string, done controllerutil.OperationResult) {
	credentials := &w.user.Spec.Credentials
	switch {
	case w.user.Status.Binding == nil:
	case done == controllerutil.OperationResultUpdated:
		w.env.Tell("BindingUpdated", "Sync", "updated Secret %s to the user, password and addresses in force", name)
	case done != controllerutil.OperationResultCreated:
	case credentials.SecretRef == nil && credentials.Certificate == nil:
		w.env.Tell("BindingRestored", "Sync", "created Secret %s, which was missing, with a new password", name)
	default:
		w.env.Tell("BindingRestored", "Sync", "created Secret %s, which was missing", name)
	}
}

// givenPassword reads spec.credentials.secretRef; empty when the password is generated.
func (w *work) givenPassword(ctx context.Context) (password, version string, err error) {
	ref := w.user.Spec.Credentials.SecretRef
	if ref == nil {
		return "", "", nil
	}
	if ref.Name == w.user.BindingName() {
		return "", "", topology.Refuse("InvalidSecret", "credentials.secretRef must not name the binding Secret %s", ref.Name)
	}
	var secret corev1.Secret
	err = w.env.Live.Get(ctx, client.ObjectKey{Namespace: w.user.Namespace, Name: ref.Name}, &secret)
	if apierrors.IsNotFound(err) {
		return "", "", topology.Wait("SecretNotFound", "Secret %s does not exist", ref.Name)
	}
	if err != nil {
		return "", "", fmt.Errorf("reading secret %s: %w", ref.Name, err)
	}
	password = string(secret.Data[passwordKey])
	if len(password) == 0 || len(password) > maxPassword {
		return "", "", topology.Refuse("InvalidSecret", "key %s of Secret %s must hold 1 to %d bytes", passwordKey, ref.Name, maxPassword)
	}
	return password, secret.ResourceVersion, nil
}

// fillBinding writes the data of the binding Secret. It keeps the password, so that an edit rotates it, and keeps
// other keys.
func (w *work) fillBinding(binding *corev1.Secret, given string) error {
	if binding.UID != "" && !metav1.IsControlledBy(binding, w.user) {
		return topology.Refuse(topology.ReasonConflict, "Secret %s exists and does not belong to this User", binding.Name)
	}
	password := given
	if password == "" && !w.certificate() {
		password = string(binding.Data[passwordKey])
	}
	if len(password) > maxPassword {
		return topology.Refuse("InvalidSecret", "key %s of Secret %s must hold 1 to %d bytes", passwordKey, binding.Name, maxPassword)
	}
	if password == "" && !w.certificate() {
		length := defaultLength
		if generate := w.user.Spec.Credentials.Generate; generate != nil && generate.Length > 0 {
			length = int(generate.Length)
		}
		var err error
		if password, err = connect.Password(length); err != nil {
			return err
		}
	}
	if binding.UID == "" {
		binding.Type = names.BindingType
	}
	if binding.Data == nil {
		binding.Data = map[string][]byte{}
	}
	if w.env.External != nil {
		connect.BindExternal(binding.Data, w.env.External, w.user.BrokerName(), password)
	} else {
		connect.Bind(binding.Data, connect.EndpointOf(w.env.Cluster, w.env.Cluster.Status.Protocols), w.user.BrokerName(), password)
	}
	if w.certificate() {
		// A URI has no form for a client certificate.
		delete(binding.Data, passwordKey)
		delete(binding.Data, "uri")
	}
	if binding.Labels == nil {
		binding.Labels = map[string]string{}
	}
	binding.Labels[names.LabelManagedBy] = names.Manager
	return controllerutil.SetControllerReference(w.user, binding, w.env.Scheme)
}
