// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

const (
	clusterName = "c"
	appUser     = "app"
	policyName  = "bound"
)

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// makeNamespace creates the namespace with admitting labels. It first deletes what an interrupted run left.
func makeNamespace(name string, labels ...string) {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	Expect(client.IgnoreNotFound(k8s.Delete(ctx, ns))).To(Succeed())
	fresh := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	for _, label := range labels {
		fresh.Labels[label] = "yes"
	}
	Eventually(func() error { return k8s.Create(ctx, fresh.DeepCopy()) }).Should(Succeed())
	Eventually(func() error {
		return k8s.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
	}).Should(Succeed(), "pods are refused until the namespace has its service account")
}

func newCluster() *posthornv1.BrokerCluster {
	return &posthornv1.BrokerCluster{
		ObjectMeta: meta(clusterName),
		Spec: posthornv1.BrokerClusterSpec{
			Replicas: replicas, Image: image, Version: version,
			Protocols: []posthornv1.Protocol{posthornv1.ProtocolAMQP, posthornv1.ProtocolMQTT},
			Storage:   posthornv1.StorageSpec{Size: resource.MustParse("1Gi"), WhenDeleted: "Delete"},
			Tenancy:   &posthornv1.TenancySpec{AllowedNamespaces: &metav1.LabelSelector{MatchLabels: map[string]string{messaging: "yes"}}},
		},
	}
}

func newQueue(name string) *posthornv1.Queue {
	return &posthornv1.Queue{ObjectMeta: meta(name), Spec: posthornv1.QueueSpec{
		ClusterRef: posthornv1.ClusterReference{Name: clusterName}, Type: posthornv1.QueueTypeQuorum,
		ReclaimPolicy: posthornv1.ReclaimDelete,
	}}
}

func newPolicy() *posthornv1.Policy {
	return &posthornv1.Policy{ObjectMeta: meta(policyName), Spec: posthornv1.PolicySpec{
		ClusterRef: posthornv1.ClusterReference{Name: clusterName}, Pattern: "^orders", ApplyTo: "queues", Priority: 10,
		Definition: map[string]apiextensionsv1.JSON{
			"max-length": {Raw: []byte("1000000")}, "overflow": {Raw: []byte(`"reject-publish"`)},
		},
	}}
}

// newUser may publish and consume only.
func newUser() *posthornv1.User {
	return &posthornv1.User{ObjectMeta: meta(appUser), Spec: posthornv1.UserSpec{
		ClusterRef:  posthornv1.ClusterReference{Name: clusterName},
		Credentials: posthornv1.CredentialsSpec{Generate: &posthornv1.GenerateSpec{Length: 32}},
		Permissions: []posthornv1.UserPermission{{Vhost: "/", Write: ".*", Read: ".*"}},
	}}
}

// manifest returns an object in kubectl's format.
func manifest(object client.Object) string {
	GinkgoHelper()
	kind, err := k8s.GroupVersionKindFor(object)
	Expect(err).NotTo(HaveOccurred())
	object.GetObjectKind().SetGroupVersionKind(kind)
	text, err := json.Marshal(object)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// becomesReady waits for the condition Ready, about the newest spec.
func becomesReady(object client.Object) {
	GinkgoHelper()
	start := time.Now()
	Eventually(readiness(object)).Should(HavePrefix("True "))
	say("%T %s is ready after %.1fs", object, object.GetName(), time.Since(start).Seconds())
}

// readiness returns "Status Reason: Message" of the condition Ready once it is about the newest spec.
func readiness(object client.Object) func() string {
	return func() string {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err.Error()
		}
		var conditions []metav1.Condition
		observed := int64(0)
		switch o := object.(type) {
		case *posthornv1.BrokerCluster:
			conditions, observed = o.Status.Conditions, o.Status.ObservedGeneration
		case topology.Object:
			conditions, observed = o.Topology().Conditions, o.Topology().ObservedGeneration
		}
		if observed != object.GetGeneration() {
			return fmt.Sprintf("the status is about generation %d, not %d", observed, object.GetGeneration())
		}
		found := apimeta.FindStatusCondition(conditions, posthornv1.ConditionReady)
		if found == nil {
			return "no condition"
		}
		return fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message)
	}
}

// changeCluster patches the cluster's spec.
func changeCluster(change func(*posthornv1.BrokerClusterSpec)) error {
	var cluster posthornv1.BrokerCluster
	if err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: clusterName}, &cluster); err != nil {
		return err
	}
	before := cluster.DeepCopy()
	change(&cluster.Spec)
	return k8s.Patch(ctx, &cluster, client.MergeFrom(before))
}

func currentCluster() *posthornv1.BrokerCluster {
	GinkgoHelper()
	var cluster posthornv1.BrokerCluster
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: clusterName}, &cluster)).To(Succeed())
	return &cluster
}
