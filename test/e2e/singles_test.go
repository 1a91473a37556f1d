// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// Clusters of one node, each with a spec of its own; the last two are in a namespace that is deleted.
const (
	againCluster   = "again"
	secureCluster  = "secure"
	issuedCluster  = "issued"
	givenCluster   = "given"
	oddCluster     = "odd"
	servingCluster = "serving"
	silentCluster  = "silent"
	unknownSetting = "no.such_setting"
)

const (
	goingNamespace = "e2e-going"
	// namespaceBound is how long the deletion of a namespace may take.
	namespaceBound = 2 * time.Minute
)

func singleCluster(name string) *posthornv1.BrokerCluster {
	cluster := newCluster()
	cluster.Name, cluster.Spec.Replicas = name, 1
	switch name {
	case againCluster:
		cluster.Spec.Storage.WhenDeleted = "Retain"
	case secureCluster:
		cluster.Spec.TLS = &posthornv1.TLSSpec{DisablePlaintext: true}
	case issuedCluster:
		cluster.Spec.TLS = &posthornv1.TLSSpec{IssuerRef: &posthornv1.IssuerReference{Name: company}}
	case givenCluster:
		cluster.Spec.TLS = &posthornv1.TLSSpec{SecretName: givenCluster, DisablePlaintext: true}
	case oddCluster:
		skipValidation(cluster)
		cluster.Spec.Config = map[string]posthornv1.ConfigValue{unknownSetting: "1"}
	case silentCluster:
		skipValidation(cluster)
		cluster.Spec.Config = map[string]posthornv1.ConfigValue{unknownSetting: "1"}
		cluster.Namespace = goingNamespace
	case servingCluster:
		cluster.Namespace = goingNamespace
	}
	return cluster
}

// inGoing are objects of a cluster in the deleted namespace, each of which has to be deleted in the broker.
func inGoing(cluster string) (*posthornv1.Queue, *posthornv1.Policy, *posthornv1.User) {
	q, p, u := newQueue(cluster), newPolicy(), newUser()
	p.Name, u.Name = cluster, cluster
	q.Namespace, p.Namespace, u.Namespace = goingNamespace, goingNamespace, goingNamespace
	q.Spec.ClusterRef.Name, p.Spec.ClusterRef.Name, u.Spec.ClusterRef.Name = cluster, cluster, cluster
	return q, p, u
}

// startSingles creates them all, once: they start while other specs run.
var startSingles = sync.OnceFunc(func() {
	GinkgoHelper()
	makeNamespace(goingNamespace)
	for _, name := range []string{againCluster, secureCluster, issuedCluster, givenCluster, oddCluster, servingCluster, silentCluster} {
		Expect(k8s.Create(ctx, singleCluster(name))).To(Succeed())
	}
	for _, cluster := range []string{servingCluster, silentCluster} {
		q, p, u := inGoing(cluster)
		for _, object := range []client.Object{q, p, u} {
			Expect(k8s.Create(ctx, object)).To(Succeed())
		}
	}
})

// going has the time of the namespace's deletion, and is closed at its end.
var going = struct {
	since time.Time
	gone  chan time.Time
}{gone: make(chan time.Time, 1)}

// deleteNamespace deletes a namespace with all its contents: a serving cluster and its objects, and a cluster that
// never started with objects that would be deleted in its broker.
func deleteNamespace() {
	startSingles()
	q, p, u := inGoing(servingCluster)
	for _, object := range []client.Object{q, p, u} {
		becomesReady(object)
	}
	q, p, u = inGoing(silentCluster)
	for _, object := range []client.Object{q, p, u} {
		Eventually(readiness(object)).Should(HavePrefix("False "))
		Expect(object.GetFinalizers()).To(ContainElement(names.Finalizer), "%T waits for its broker", object)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: goingNamespace}}
	Expect(k8s.Delete(ctx, ns)).To(Succeed())
	going.since = time.Now()
	go func() {
		key := client.ObjectKeyFromObject(ns)
		_ = wait.PollUntilContextCancel(ctx, polling, true, func(ctx context.Context) (bool, error) {
			return apierrors.IsNotFound(k8s.Get(ctx, key, &corev1.Namespace{})), nil
		})
		going.gone <- time.Now()
	}()
}

// namespaceWent waits for the end of the deletion that deleteNamespace began.
func namespaceWent() {
	if going.since.IsZero() {
		Skip("it was not deleted")
	}
	var gone time.Time
	Eventually(going.gone).WithTimeout(namespaceBound).Should(Receive(&gone))
	say("the namespace was gone after %.1fs", gone.Sub(going.since).Seconds())
	Expect(gone.Sub(going.since)).To(BeNumerically("<", namespaceBound))
}
