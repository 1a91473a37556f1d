// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// ensureOptional keeps a child of an API that may not be installed: nil without an error when it is
// not. The API is looked for each time, so it is used from the first attempt after it appeared. Of the
// spec only what is wanted is set: what the API's defaults or webhooks add stays.
func (s *scope) ensureOptional(ctx context.Context, kind schema.GroupVersionKind, name string, spec map[string]any, labels map[string]string) (*unstructured.Unstructured, error) {
	current := newOptional(kind, s.cluster.Namespace, name)
	err := s.Client.Get(ctx, client.ObjectKeyFromObject(current), current)
	switch {
	case meta.IsNoMatchError(err):
		return nil, nil
	case err != nil && !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading %s %s: %w", kind.Kind, name, err)
	}
	exists := err == nil
	if err := s.mayChange(current); err != nil {
		return nil, err
	}
	wanted := current.DeepCopy()
	s.label(wanted)
	addLabels(wanted, labels)
	if err := controllerutil.SetControllerReference(s.cluster, wanted, s.Scheme); err != nil {
		return nil, fmt.Errorf("owning %s %s: %w", kind.Kind, name, err)
	}
	before, _, err := unstructured.NestedMap(wanted.Object, "spec")
	if err != nil {
		before = nil
	}
	wanted.Object["spec"] = overlay(before, spec)
	differs := !equality.Semantic.DeepEqual(wanted.Object, current.Object)
	switch {
	case !exists:
		err = s.Client.Create(ctx, wanted)
	case differs:
		err = s.Client.Update(ctx, wanted)
	}
	switch {
	case meta.IsNoMatchError(err), !exists && apierrors.IsNotFound(err):
		// The API went away since it was last looked for.
		return nil, nil
	case err != nil:
		return nil, refused(err, "writing "+kind.Kind+" "+name)
	case !exists:
		s.childCreated(wanted)
	case differs:
		s.childRepaired(wanted)
	}
	return wanted, nil
}

// removeOptional removes a child of an API that may not be installed.
func (s *scope) removeOptional(ctx context.Context, kind schema.GroupVersionKind, name string) error {
	err := s.remove(ctx, newOptional(kind, s.cluster.Namespace, name))
	if meta.IsNoMatchError(err) {
		return nil
	}
	return err
}

func newOptional(kind schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

func addLabels(object client.Object, more map[string]string) {
	labels := object.GetLabels()
	for name, value := range more {
		if _, taken := labels[name]; !taken {
			labels[name] = value
		}
	}
	object.SetLabels(labels)
}

// overlay puts wanted over base: maps are merged, everything else is replaced. Neither is changed.
func overlay(base, wanted map[string]any) map[string]any {
	out := make(map[string]any, len(base)+len(wanted))
	for key, value := range base {
		out[key] = value
	}
	for key, value := range wanted {
		inner, isMap := value.(map[string]any)
		under, isToo := out[key].(map[string]any)
		if isMap && isToo {
			value = overlay(under, inner)
		}
		out[key] = value
	}
	return out
}
