// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

const (
	// maxLeftoverBytes bounds the record of a cluster; the API server accepts at most 1 MiB.
	maxLeftoverBytes = 512 << 10
	// leftoverInterval is the interval of the sweeps of recorded leftovers.
	leftoverInterval = 15 * time.Second
)

var (
	// errLeftoversFull: a leftover could not be recorded.
	errLeftoversFull = errors.New("the record of leftovers is full")
	// errNoRecord: an external broker has no record of leftovers, because only the owner of its Secret may use it.
	errNoRecord = errors.New("external brokers have no record of leftovers")
	// errUndecided: a new resource for the object of a leftover has not said yet whether it adopts the object.
	errUndecided = errors.New("a new resource for the same object is not reconciled yet")
)

// leftoverKey returns the key of an object in the record: its kind and a digest of its claim.
func (a *attempt[T]) leftoverKey() string {
	digest := sha256.Sum256([]byte(a.claim))
	return a.leftoverPrefix() + hex.EncodeToString(digest[:16])
}

// leftoverPrefix returns the prefix of the keys of the kind.
func (r *Reconciler[T]) leftoverPrefix() string {
	return reflect.TypeOf(r.Kind.New()).Elem().Name() + "."
}

// recordLeftover records that the resource's object is still to be deleted in the broker of a cluster. The record is in
// the namespace of the BrokerCluster: it outlives the resource and its namespace.
func (a *attempt[T]) recordLeftover(ctx context.Context) error {
	if a.isExternal() {
		return errNoRecord
	}
	cluster, err := a.findCluster(ctx)
	if err != nil {
		return err
	}
	owners, err := a.leftoverOwners(ctx)
	if err != nil {
		return err
	}
	if len(owners) == 0 {
		holder := leftoverRecord(ClusterKey(a.object))
		if err := controllerutil.SetControllerReference(cluster, holder, a.Scheme); err != nil {
			return fmt.Errorf("setting the owner of the leftovers: %w", err)
		}
		owners = holder.OwnerReferences
	}
	return a.writeLeftover(ctx, owners)
}

// recordOnVolumes records the resource's object as a leftover of a cluster that was deleted, and whose volumes remain: a
// cluster that is created again has the object again. It reports whether there are such volumes.
func (a *attempt[T]) recordOnVolumes(ctx context.Context) (bool, error) {
	owners, err := a.leftoverOwners(ctx)
	if err != nil {
		return false, err
	}
	owners = slices.DeleteFunc(owners, func(owner metav1.OwnerReference) bool { return owner.Kind != volumeKind })
	if len(owners) == 0 {
		return false, nil
	}
	return true, a.writeLeftover(ctx, owners)
}

// volumeKind is the kind of the owners that let the record outlive the cluster.
const volumeKind = "PersistentVolumeClaim"

// leftoverOwners returns the owners of the record: those of the operator's access Secret, which is needed exactly as long,
// until the last volume is deleted. There are none before the cluster has a volume.
func (a *attempt[T]) leftoverOwners(ctx context.Context) ([]metav1.OwnerReference, error) {
	key := ClusterKey(a.object)
	var access corev1.Secret
	err := a.Live.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: names.OperatorSecret(key.Name)}, &access)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the owners of Secret %s: %w", names.OperatorSecret(key.Name), err)
	}
	return access.OwnerReferences, nil
}

// writeLeftover adds the resource to the record of its cluster.
func (a *attempt[T]) writeLeftover(ctx context.Context, owners []metav1.OwnerReference) error {
	key := ClusterKey(a.object)
	if going, err := isBeingDeleted(ctx, a.Live, key.Namespace); err != nil || going {
		return err
	}
	// Only the fields that Forget needs.
	kept := a.Kind.New()
	whole, err := json.Marshal(a.object)
	if err == nil {
		err = json.Unmarshal(whole, kept)
	}
	if err != nil {
		return fmt.Errorf("encoding the leftover: %w", err)
	}
	kept.SetManagedFields(nil)
	kept.SetAnnotations(nil)
	kept.Topology().Conditions = nil
	text, err := json.Marshal(kept)
	if err != nil {
		return fmt.Errorf("encoding the leftover: %w", err)
	}
	record := leftoverRecord(key)
	_, err = controllerutil.CreateOrUpdate(ctx, a.Client, record, func() error {
		if record.UID != "" && !isLeftoverRecord(record, key.Name) {
			return fmt.Errorf("it exists and does not belong to the BrokerCluster %s; delete or rename it", key.Name)
		}
		size := len(text)
		for key, value := range record.Data {
			size += len(key) + len(value)
		}
		if size > maxLeftoverBytes {
			return errLeftoversFull
		}
		if record.Data == nil {
			record.Data = map[string]string{}
		}
		record.Labels, record.OwnerReferences = names.Labels(key.Name), owners
		record.Data[a.leftoverKey()] = string(text)
		return nil
	})
	if err != nil {
		return fmt.Errorf("recording the leftover in ConfigMap %s: %w", record.Name, err)
	}
	return nil
}

// isLeftoverRecord reports whether the operator wrote a ConfigMap as the record of a cluster or of its volumes.
func isLeftoverRecord(record *corev1.ConfigMap, cluster string) bool {
	for name, value := range names.Labels(cluster) {
		if record.Labels[name] != value {
			return false
		}
	}
	return len(record.OwnerReferences) > 0 && !slices.ContainsFunc(record.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.Kind != volumeKind && (owner.Kind != "BrokerCluster" || owner.Name != cluster)
	})
}

func leftoverRecord(cluster client.ObjectKey) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: names.Leftovers(cluster.Name)}}
}

// sweepLoop deletes recorded leftovers until the context ends.
func (r *Reconciler[T]) sweepLoop(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := r.Sweep(ctx); err != nil {
			log.FromContext(ctx).Info("cannot delete leftovers in a broker yet, retrying", "cause", err.Error())
		}
	}, min(leftoverInterval, r.Resync))
}

// Sweep deletes the recorded leftovers of the kind in all clusters whose broker answers.
func (r *Reconciler[T]) Sweep(ctx context.Context) error {
	var clusters posthornv1.BrokerClusterList
	if err := r.Client.List(ctx, &clusters); err != nil {
		return fmt.Errorf("listing BrokerClusters: %w", err)
	}
	var failures []error
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		if cluster.DeletionTimestamp == nil && !cluster.Spec.Hibernated {
			failures = append(failures, r.sweepCluster(ctx, cluster))
		}
	}
	return errors.Join(failures...)
}

func (r *Reconciler[T]) sweepCluster(ctx context.Context, cluster *posthornv1.BrokerCluster) error {
	record := leftoverRecord(client.ObjectKeyFromObject(cluster))
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(record), record); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !isLeftoverRecord(record, cluster.Name) {
		return nil
	}
	var failures []error
	done := false
	for key, text := range record.Data {
		if !strings.HasPrefix(key, r.leftoverPrefix()) {
			continue
		}
		if err := r.forgetLeftover(ctx, cluster, text); err != nil {
			failures = append(failures, err)
			continue
		}
		delete(record.Data, key)
		done = true
	}
	if done {
		// A conflict with another writer makes this fail, and the next sweep repeats it.
		if err := r.Client.Update(ctx, record); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			failures = append(failures, fmt.Errorf("writing ConfigMap %s: %w", record.Name, err))
		}
	}
	return errors.Join(failures...)
}

// forgetLeftover deletes one object in the broker, unless another resource owns it by now. An error means that a
// later sweep has to repeat it.
func (r *Reconciler[T]) forgetLeftover(ctx context.Context, cluster *posthornv1.BrokerCluster, text string) error {
	object := r.Kind.New()
	if json.Unmarshal([]byte(text), object) != nil {
		return nil //nolint:nilerr // Nobody could ever delete what an unreadable record names.
	}
	a := &attempt[T]{Reconciler: r, object: object, claim: claimOf(r.Kind, object)}
	if ClusterKey(object) != client.ObjectKeyFromObject(cluster) {
		return nil
	}
	owned, err := a.ownedByAnother(ctx)
	if err != nil || owned {
		return err
	}
	b, err := r.Brokers.Cluster(ctx, ClusterKey(object))
	if err != nil {
		return err
	}
	a.work = r.Kind.Work(object, a.env(cluster))
	err = a.within(ctx, b, func() error { return a.work.Forget(ctx, b) })
	if isTerminal(err) {
		return nil
	}
	return err
}

// ownedByAnother reports whether another resource owns the object of a leftover. It asks the API server, because the cache
// may be behind a claim that was just written. A resource that was applied again, and is not reconciled yet, decides
// first: it may adopt the object, for example a queue with its messages.
func (a *attempt[T]) ownedByAnother(ctx context.Context) (bool, error) {
	others, err := a.siblings(ctx, a.object)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(others, func(other T) bool {
		live := a.Kind.New()
		if failure := a.Live.Get(ctx, client.ObjectKeyFromObject(other), live); failure != nil {
			err = errors.Join(err, client.IgnoreNotFound(failure))
			return false
		}
		if live.GetUID() == a.object.GetUID() {
			return false
		}
		isRefused := meta.IsStatusConditionTrue(live.Topology().Conditions, posthornv1.ConditionStalled)
		if live.Topology().Claim != a.claim && !isRefused && live.GetDeletionTimestamp() == nil {
			err = errors.Join(err, errUndecided)
		}
		return live.Topology().Claim == a.claim
	}), err
}
