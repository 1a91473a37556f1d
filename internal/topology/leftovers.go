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

// errLeftoversFull: a leftover could not be recorded.
var errLeftoversFull = errors.New("the record of leftovers is full")

// leftoverKey returns the key of an object in the record: its kind and a digest of its claim.
func (a *attempt[T]) leftoverKey() string {
	digest := sha256.Sum256([]byte(a.claim))
	return a.leftoverPrefix() + hex.EncodeToString(digest[:16])
}

// leftoverPrefix returns the prefix of the keys of the kind.
func (r *Reconciler[T]) leftoverPrefix() string {
	return reflect.TypeOf(r.Kind.New()).Elem().Name() + "."
}

// recordLeftover records that the resource's object is still to be deleted in the broker. The record is in the
// namespace of the BrokerCluster: it outlives the resource and its namespace, and is deleted with the cluster.
func (a *attempt[T]) recordLeftover(ctx context.Context) error {
	cluster, err := a.findCluster(ctx)
	if err != nil {
		return err
	}
	if going, err := isBeingDeleted(ctx, a.Live, cluster.Namespace); err != nil || going {
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
	record := leftoverRecord(cluster)
	_, err = controllerutil.CreateOrUpdate(ctx, a.Client, record, func() error {
		if record.UID != "" && !metav1.IsControlledBy(record, cluster) {
			return fmt.Errorf("it exists and does not belong to the BrokerCluster %s; delete or rename it", cluster.Name)
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
		record.Labels = names.Labels(cluster.Name)
		record.Data[a.leftoverKey()] = string(text)
		return controllerutil.SetControllerReference(cluster, record, a.Scheme)
	})
	if err != nil {
		return fmt.Errorf("recording the leftover in ConfigMap %s: %w", record.Name, err)
	}
	return nil
}

func leftoverRecord(cluster *posthornv1.BrokerCluster) *corev1.ConfigMap {
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
	record := leftoverRecord(cluster)
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(record), record); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !metav1.IsControlledBy(record, cluster) {
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

// ownedByAnother asks the API server, because the cache may be behind a claim that was just written.
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
		return live.GetUID() != a.object.GetUID() && live.Topology().Claim == a.claim
	}), err
}
