// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// definitionsRetry is the interval at which a definitions file that is missing or was refused is read again.
const definitionsRetry = 10 * time.Second

// importDefinitions imports the definitions or restores the backup of spec.bootstrap once. An annotation on the operator's access Secret
// records the import, and not the status, which may get lost: a second import would reset passwords and policies.
func (r *reconciliation) importDefinitions(ctx context.Context) error {
	bootstrap := r.in.cluster.Spec.Bootstrap
	if bootstrap == nil || (bootstrap.DefinitionsSecretRef == nil && bootstrap.BackupRef == nil) || !r.out.isSettled(&r.in, &r.seen) {
		return nil
	}
	var secret corev1.Secret
	if err := r.Client.Get(ctx, r.in.keyOf(names.OperatorSecret(r.in.cluster.Name)), &secret); err != nil {
		return fmt.Errorf("reading whether the definitions were imported: %w", err)
	}
	if secret.Annotations[names.AnnotationImported] != "" {
		return nil
	}
	// The cache may not have the annotation of the previous reconciliation.
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(&secret), &secret); err != nil {
		return fmt.Errorf("reading whether the definitions were imported: %w", err)
	}
	if secret.Annotations[names.AnnotationImported] != "" {
		return nil
	}
	if bootstrap.BackupRef != nil {
		isRestored, err := r.restoreBackup(ctx)
		if err != nil || !isRestored {
			return err
		}
		return r.recordImport(ctx, &secret)
	}
	file, why, err := r.readDefinitions(ctx)
	if err != nil {
		return err
	}
	if why == "" {
		why, err = r.postDefinitions(ctx, file)
	}
	if err != nil || why != "" {
		r.seen.importFailure = why
		r.out.requeueWithin(definitionsRetry)
		return err
	}
	if err := r.recordImport(ctx, &secret); err != nil {
		return err
	}
	r.out.note("DefinitionsImported", "Bootstrap", "imported the definitions of Secret %s", bootstrap.DefinitionsSecretRef.Name)
	return nil
}

// recordImport records on the access Secret that spec.bootstrap is applied.
func (r *reconciliation) recordImport(ctx context.Context, secret *corev1.Secret) error {
	before := client.MergeFrom(secret.DeepCopy())
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, names.AnnotationImported, r.in.now.UTC().Format(time.RFC3339))
	if err := r.Client.Patch(ctx, secret, before); err != nil {
		return fmt.Errorf("recording that spec.bootstrap is applied: %w", err)
	}
	return nil
}

// readDefinitions reads the file. why is the reason, for the status, that it cannot be imported.
func (r *reconciliation) readDefinitions(ctx context.Context) (file []byte, why string, err error) {
	ref := r.in.cluster.Spec.Bootstrap.DefinitionsSecretRef
	var secret corev1.Secret
	err = r.Client.Get(ctx, r.in.keyOf(ref.Name), &secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Sprintf("Secret %s does not exist", ref.Name), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the definitions: %w", err)
	}
	file = secret.Data[ref.Key]
	var object map[string]json.RawMessage
	if err := json.Unmarshal(file, &object); err != nil {
		// The message of the JSON decoder could contain a password.
		return nil, fmt.Sprintf("key %s of Secret %s is not a JSON object", ref.Key, ref.Name), nil //nolint:nilerr // why has the reason; see above.
	}
	return file, "", nil
}

func (r *reconciliation) postDefinitions(ctx context.Context, file []byte) (why string, err error) {
	b, err := r.Brokers.Cluster(ctx, r.in.key())
	if err != nil {
		return "", err
	}
	err = b.ImportDefinitions(ctx, file)
	switch {
	case err == nil:
		return "", nil
	case broker.IsTerminal(err):
		return err.Error(), nil
	}
	return "", fmt.Errorf("importing the definitions: %w", err)
}
