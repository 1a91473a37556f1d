// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// makeAgain deletes a cluster whose volumes stay, and creates it again with the next version: the broker on the
// volumes accepts the operator and has its data. Feature flags stay disabled for people to enable.
func makeAgain() {
	startSingles()
	DeferCleanup(func() {
		for _, object := range []client.Object{
			&posthornv1.BrokerCluster{ObjectMeta: meta(againCluster)},
			&corev1.PersistentVolumeClaim{ObjectMeta: meta("data-" + againCluster + "-0")},
			&corev1.Secret{ObjectMeta: meta(names.OperatorSecret(againCluster))},
		} {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, object))).To(Succeed())
		}
	})
	first := singleCluster(againCluster)
	becomesReady(first)
	q := newQueue("kept")
	q.Spec.ClusterRef.Name, q.Spec.ReclaimPolicy = againCluster, posthornv1.ReclaimRetain
	Expect(k8s.Create(ctx, q)).To(Succeed())
	becomesReady(q)
	Expect(k8s.Delete(ctx, q)).To(Succeed())

	Expect(k8s.Delete(ctx, first)).To(Succeed())
	for _, child := range []client.Object{
		&appsv1.StatefulSet{ObjectMeta: meta(againCluster)}, &corev1.Pod{ObjectMeta: meta(againCluster + "-0")},
		&corev1.Secret{ObjectMeta: meta(names.DefaultUserSecret(againCluster))}, &corev1.Service{ObjectMeta: meta(againCluster)},
	} {
		Eventually(func() bool {
			return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(child), child))
		}).Should(BeTrue(), "%T %s goes with its cluster", child, child.GetName())
	}
	second := singleCluster(againCluster)
	second.Spec.Image, second.Spec.Version, second.Spec.FeatureFlags.Policy = nextImage, nextVersion, posthornv1.FeatureFlagsManual
	Expect(k8s.Create(ctx, second)).To(Succeed())
	becomesReady(second)
	kept := func() error {
		pod := brokerPod(againCluster + "-0")
		one, err := askOf(againCluster, &pod)
		if err == nil {
			_, err = one.GetQueue(ctx, "/", "kept")
		}
		return err
	}
	Expect(kept()).To(Succeed())
	leaveFlagToPeople(againCluster)
	Expect(kept()).To(Succeed())
}
