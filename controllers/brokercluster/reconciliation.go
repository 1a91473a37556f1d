// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// reconciliation is one pass over one BrokerCluster. Its methods are the phases, which write to the API server and
// to brokers; decisions are functions of in and seen.
type reconciliation struct {
	*Reconciler
	in   inputs
	seen observed
	out  decided
}

// start a reconciliation of a cluster.
func (r *Reconciler) start(cluster *posthornv1.BrokerCluster) *reconciliation {
	return &reconciliation{Reconciler: r, in: inputs{
		cluster: cluster, now: r.Now(),
		options: options{
			ImageRepository: r.ImageRepository, DefaultImage: r.DefaultImage, DefaultProtocols: r.DefaultProtocols, OperatorNamespace: r.OperatorNamespace,
		},
	}}
}

// run goes through the phases. The nodes are observed also when a phase failed, for the status.
func (r *reconciliation) run(ctx context.Context) error {
	failure := r.load(ctx)
	isPaused := r.in.cluster.Spec.Paused
	if failure == nil {
		if !isPaused {
			failure = r.applyChildren(ctx)
		}
		failure = errors.Join(failure, r.recordTrust(ctx))
	}
	if err := r.observe(ctx); err != nil {
		return errors.Join(failure, err)
	}
	if !isPaused {
		failure = errors.Join(failure, r.ensureDisruptionBudget(ctx), r.reloadNodes(ctx))
	}
	switch {
	case failure != nil:
		return failure
	case isPaused:
		r.out.roll = decideRoll(rollStateOf(&r.seen))
		return nil
	case r.in.cluster.Spec.Hibernated:
		return nil
	}
	return r.operate(ctx)
}

// load reads the children from which the target of the reconciliation follows, and decides that target.
func (r *reconciliation) load(ctx context.Context) error {
	var sts appsv1.StatefulSet
	err := r.Client.Get(ctx, r.in.key(), &sts)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("reading the StatefulSet: %w", err)
	default:
		if err := mayChange(&sts, r.in.cluster); err != nil {
			return err
		}
		r.seen.sts = &sts
	}
	r.out.decideTarget(&r.in, &r.seen)
	if r.seen.claims, err = r.listClaims(ctx); err != nil {
		return err
	}
	r.out.sizes = decideSize(&r.in.cluster.Spec, nodesOf(r.seen.sts), retainedVolumes(&r.in, r.seen.claims))
	if r.seen.pods, err = r.listPods(ctx); err != nil {
		return err
	}
	r.out.access = decideAccess(&r.in, &r.seen)
	return r.readLiveSettings(ctx)
}

// applyChildren brings the children to the spec, in the order in which they need each other.
func (r *reconciliation) applyChildren(ctx context.Context) error {
	for _, phase := range []func(context.Context) error{
		r.readServingSecret,
		r.ensureServiceAccount,
		r.ensureAccess,
		r.ensureDefaultUser,
		r.ensureInternode,
		r.ensureOperatorCertificate,
		r.ensureServing,
		r.ensureConfigMap,
		r.ensureNodesService,
		r.ensureClientService,
		r.ensureExternalServices,
		r.ensureOperatorService,
		r.ensureStatefulSet,
		r.ensureLiveSettings,
		r.growVolumes,
		r.rotateDefaultUser,
		r.ensureNetworkPolicy,
		r.ensureMonitoring,
	} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	return nil
}

// operate recovers a lost majority, or else removes a surplus node, or else replaces outdated pods; it cares for the running cluster when neither is
// left to do.
func (r *reconciliation) operate(ctx context.Context) error {
	for _, phase := range []func(context.Context) (bool, error){r.recoverMajority, r.forgetStrayNode, r.scaleDown} {
		if isBusy, err := phase(ctx); isBusy || err != nil {
			return err
		}
	}
	for _, phase := range []func(context.Context) error{
		r.restoreDefaultUser,
		r.roll,
		r.balance,
		r.importDefinitions,
		r.enableFlags,
		r.collectSettings,
	} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	return nil
}

// listPods returns the cluster's pods by name.
func (r *reconciliation) listPods(ctx context.Context) (map[string]*corev1.Pod, error) {
	var list corev1.PodList
	err := r.Client.List(ctx, &list, client.InNamespace(r.in.cluster.Namespace), client.MatchingLabels(names.Selector(r.in.cluster.Name)))
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	pods := make(map[string]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods, nil
}

// listClaims returns the cluster's volumes.
func (r *reconciliation) listClaims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	var claims corev1.PersistentVolumeClaimList
	err := r.Client.List(ctx, &claims, client.InNamespace(r.in.cluster.Namespace), client.MatchingLabels(names.Selector(r.in.cluster.Name)))
	if err != nil {
		return nil, fmt.Errorf("listing volumes: %w", err)
	}
	return claims.Items, nil
}
