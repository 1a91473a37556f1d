// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// Clusters of one node, each with a spec of its own.
const (
	againCluster   = "again"
	secureCluster  = "secure"
	oddCluster     = "odd"
	silentCluster  = "silent"
	unknownSetting = "no.such_setting"
)

// namespaceBound is how long a namespace may take to go.
const namespaceBound = 2 * time.Minute

func singleCluster(name string) *posthornv1.BrokerCluster {
	cluster := newCluster()
	cluster.Name, cluster.Spec.Replicas = name, 1
	switch name {
	case againCluster:
		cluster.Spec.Storage.WhenDeleted = "Retain"
	case secureCluster:
		cluster.Spec.TLS = &posthornv1.TLSSpec{DisablePlaintext: true}
	case oddCluster, silentCluster:
		cluster.Spec.Config = map[string]posthornv1.ConfigValue{unknownSetting: "1"}
	}
	return cluster
}

// startSingles makes them all, once: they come up while something else is waited for.
var startSingles = sync.OnceFunc(func() {
	GinkgoHelper()
	for _, name := range []string{againCluster, secureCluster, oddCluster, silentCluster} {
		Expect(k8s.Create(ctx, singleCluster(name))).To(Succeed())
	}
	// It waits for a broker that never answers.
	q := newQueue(silentCluster)
	q.Spec.ClusterRef.Name = silentCluster
	Expect(k8s.Create(ctx, q)).To(Succeed())
})

// deleteNamespace deletes everything at once: a cluster that serves and what is in it, and a cluster that never
// started with a queue that it would have to be asked to delete.
func deleteNamespace() {
	startSingles()
	q := newQueue(silentCluster)
	Eventually(func() ([]string, error) {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(q), q)
		return q.Finalizers, err
	}).Should(ContainElement(names.Finalizer))
	Expect(readiness(q)()).To(HavePrefix("False "))
	Expect(readiness(newQueue(mainQueue))()).To(HavePrefix("True "))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	began := time.Now()
	Expect(k8s.Delete(ctx, ns)).To(Succeed())
	Eventually(func() (bool, error) {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(ns), ns)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}).WithTimeout(namespaceBound).Should(BeTrue(), "the namespace is gone: %v", &ns.Status.Conditions)
	say("the namespace was gone after %.1fs", time.Since(began).Seconds())
}
