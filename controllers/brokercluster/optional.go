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

// ensureOptional keeps a child of an API that may not be installed; it returns nil without an error when the API is not. It
// tries the API each time, so that the child is created soon after the API is installed. It sets only the given fields of
// the spec, and keeps those that defaults or webhooks add.
func (r *reconciliation) ensureOptional(ctx context.Context, kind schema.GroupVersionKind, name string, spec map[string]any, labels map[string]string) (*unstructured.Unstructured, error) {
	current := newOptional(kind, r.in.cluster.Namespace, name)
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(current), current)
	switch {
	case meta.IsNoMatchError(err):
		return nil, nil
	case err != nil && !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading %s %s: %w", kind.Kind, name, err)
	}
	exists := err == nil
	if err := mayChange(current, r.in.cluster); err != nil {
		return nil, err
	}
	wanted := current.DeepCopy()
	setLabels(wanted, r.in.cluster)
	addLabels(wanted, labels)
	if err := controllerutil.SetControllerReference(r.in.cluster, wanted, r.Scheme); err != nil {
		return nil, fmt.Errorf("setting the owner of %s %s: %w", kind.Kind, name, err)
	}
	before, _, err := unstructured.NestedMap(wanted.Object, "spec")
	if err != nil {
		before = nil
	}
	wanted.Object["spec"] = overlay(before, spec)
	differs := !equality.Semantic.DeepEqual(wanted.Object, current.Object)
	switch {
	case !exists:
		err = r.Client.Create(ctx, wanted)
	case differs:
		err = r.Client.Update(ctx, wanted)
	}
	switch {
	case meta.IsNoMatchError(err), !exists && apierrors.IsNotFound(err):
		// The API was removed after the read.
		return nil, nil
	case err != nil:
		return nil, refused(err, "writing "+kind.Kind+" "+name)
	case !exists:
		r.noteCreation(wanted)
	case differs:
		r.noteRepair(wanted)
	}
	return wanted, nil
}

// removeOptional removes a child of an API that may not be installed.
func (r *reconciliation) removeOptional(ctx context.Context, kind schema.GroupVersionKind, name string) error {
	err := r.remove(ctx, newOptional(kind, r.in.cluster.Namespace, name))
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

// overlay returns base with the values of wanted: maps are merged, other values are replaced. Neither argument changes.
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
