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

// definitionsRetry is how often a definitions file that is not there or was refused is looked at again.
const definitionsRetry = 10 * time.Second

// bootstrap imports the definitions of spec.bootstrap once. That it was done is noted beside the
// operator's credentials: it must not happen again when the status is lost, since it would set
// passwords and policies back.
func (s *scope) bootstrap(ctx context.Context) error {
	if s.cluster.Spec.Bootstrap == nil || s.cluster.Spec.Bootstrap.DefinitionsSecretRef == nil || !s.settled(s.tally()) {
		return nil
	}
	var note corev1.Secret
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: names.OperatorSecret(s.cluster.Name)}, &note); err != nil {
		return fmt.Errorf("looking whether definitions were imported: %w", err)
	}
	if note.Annotations[names.AnnotationImported] != "" {
		return nil
	}
	// The cache may not have what the last reconcile noted.
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(&note), &note); err != nil {
		return fmt.Errorf("looking whether definitions were imported: %w", err)
	}
	if note.Annotations[names.AnnotationImported] != "" {
		return nil
	}
	file, why, err := s.definitions(ctx)
	if err != nil {
		return err
	}
	if why == "" {
		why, err = s.importDefinitions(ctx, file)
	}
	if err != nil || why != "" {
		s.bootstrapping = why
		s.lookAgain(definitionsRetry)
		return err
	}
	before := client.MergeFrom(note.DeepCopy())
	metav1.SetMetaDataAnnotation(&note.ObjectMeta, names.AnnotationImported, s.Now().UTC().Format(time.RFC3339))
	if err := s.Client.Patch(ctx, &note, before); err != nil {
		return fmt.Errorf("noting that definitions were imported: %w", err)
	}
	s.event(corev1.EventTypeNormal, "DefinitionsImported", "Bootstrap", "imported the definitions of Secret %s", s.cluster.Spec.Bootstrap.DefinitionsSecretRef.Name)
	return nil
}

// definitions reads the file; why it cannot be imported is for the status.
func (s *scope) definitions(ctx context.Context) (file []byte, why string, err error) {
	ref := s.cluster.Spec.Bootstrap.DefinitionsSecretRef
	var secret corev1.Secret
	err = s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: ref.Name}, &secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Sprintf("there is no Secret %s", ref.Name), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the definitions: %w", err)
	}
	file = secret.Data[ref.Key]
	var object map[string]json.RawMessage
	if err := json.Unmarshal(file, &object); err != nil {
		// The JSON decoder's words could repeat a password.
		return nil, fmt.Sprintf("key %s of Secret %s is not a JSON object", ref.Key, ref.Name), nil //nolint:nilerr // The text says why; see above.
	}
	return file, "", nil
}

func (s *scope) importDefinitions(ctx context.Context, file []byte) (why string, err error) {
	b, err := s.Brokers.Cluster(ctx, s.key())
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
