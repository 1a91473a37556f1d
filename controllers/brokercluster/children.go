// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// terminalError is an error that a retry does not fix.
type terminalError struct {
	reason string
	err    error
}

func (e *terminalError) Error() string { return e.err.Error() }
func (e *terminalError) Unwrap() error { return e.err }

// newTerminalError returns an error that a retry does not fix. Its reason goes to the condition Ready.
func newTerminalError(reason, format string, args ...any) error {
	return &terminalError{reason: reason, err: fmt.Errorf(format, args...)}
}

func asTerminalError(err error) (*terminalError, bool) {
	var t *terminalError
	found := errors.As(err, &t)
	return t, found
}

// refused turns the API server's rejection of an object made from the spec into a terminal error.
func refused(err error, doing string) error {
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return newTerminalError("Refused", "%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// ensure creates a child or updates it with the function. It refuses an object of that name that belongs to somebody
// else. An Event reports a repair that no change of the spec explains.
func (r *reconciliation) ensure(ctx context.Context, child client.Object, update func() error) error {
	done, err := r.apply(ctx, child, update)
	switch done {
	case controllerutil.OperationResultUpdated:
		r.noteRepair(child)
	case controllerutil.OperationResultCreated:
		r.noteCreation(child)
	default:
		// Nothing was written, or the status alone.
	}
	return err
}

// noteRepair adds an Event about an update, unless a change of the spec explains it.
func (r *reconciliation) noteRepair(child client.Object) {
	if r.in.cluster.Status.ObservedGeneration == r.in.cluster.Generation {
		r.noteUpdate(child)
	}
}

// noteCreation adds an Event about a child that was missing. Children of a cluster that was never available are new.
func (r *reconciliation) noteCreation(child client.Object) {
	status := &r.in.cluster.Status
	if meta.IsStatusConditionTrue(status.Conditions, posthornv1.ConditionAvailable) && status.ObservedGeneration == r.in.cluster.Generation {
		r.out.note("ChildCreated", "Reconcile", "created %s %s, which was missing", kindOf(child), child.GetName())
	}
}

func (r *reconciliation) noteUpdate(child client.Object) {
	r.out.note("ChildUpdated", "Reconcile", "updated %s %s, which differed from what the spec asks for", kindOf(child), child.GetName())
}

// apply is ensure without the Events.
func (r *reconciliation) apply(ctx context.Context, child client.Object, update func() error) (controllerutil.OperationResult, error) {
	child.SetNamespace(r.in.cluster.Namespace)
	done, err := controllerutil.CreateOrUpdate(ctx, r.Client, child, func() error {
		if err := mayChange(child, r.in.cluster); err != nil {
			return err
		}
		setLabels(child, r.in.cluster)
		if err := update(); err != nil {
			return err
		}
		return controllerutil.SetControllerReference(r.in.cluster, child, r.Scheme)
	})
	if err != nil {
		return controllerutil.OperationResultNone, fmt.Errorf("%T %s: %w", child, child.GetName(), err)
	}
	return done, nil
}

// remove deletes a child that the spec no longer asks for. It leaves an object of that name that belongs to
// somebody else.
func (r *reconciliation) remove(ctx context.Context, child client.Object) error {
	child.SetNamespace(r.in.cluster.Namespace)
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(child), child)
	if apierrors.IsNotFound(err) || (err == nil && !isOwnedBy(child, r.in.cluster)) {
		return nil
	}
	if err == nil {
		err = client.IgnoreNotFound(r.Client.Delete(ctx, child))
	}
	if err != nil {
		return fmt.Errorf("removing %s %s: %w", kindOf(child), child.GetName(), err)
	}
	return nil
}

// mayChange returns an error when an object exists and does not belong to the cluster.
func mayChange(child client.Object, cluster *posthornv1.BrokerCluster) error {
	if child.GetUID() == "" || isOwnedBy(child, cluster) {
		return nil
	}
	return newTerminalError("NameTaken", "%s %s exists and does not belong to this BrokerCluster", kindOf(child), child.GetName())
}

func isOwnedBy(child client.Object, cluster *posthornv1.BrokerCluster) bool {
	for _, ref := range child.GetOwnerReferences() {
		if ref.UID == cluster.UID && ref.Controller != nil && *ref.Controller {
			return true
		}
	}
	return false
}

func kindOf(child client.Object) string {
	if kind := child.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	name := fmt.Sprintf("%T", child)
	return name[strings.LastIndex(name, ".")+1:]
}

// setLabels adds the operator's labels and keeps others.
func setLabels(child client.Object, cluster *posthornv1.BrokerCluster) {
	labels := child.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for name, value := range names.Labels(cluster.Name) {
		labels[name] = value
	}
	child.SetLabels(labels)
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
