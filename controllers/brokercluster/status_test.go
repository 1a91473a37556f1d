// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/lagging"
	"posthorn.io/posthorn/internal/names"
)

// TestStatusIsNotWrittenOverANewerOne uses a cache that is behind: a reconciliation of an old version must not mix
// its results with those of the one before.
func TestStatusIsNotWrittenOverANewerOne(t *testing.T) {
	ctx := context.Background()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), posthornv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	cluster := testCluster()
	cluster.Spec.Paused = true
	key := client.ObjectKeyFromObject(cluster)
	base := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(cluster).WithObjects(cluster).Build()
	cache := lagging.New(base)
	r := &Reconciler{
		Client: cache, Scheme: scheme, Events: events.NewFakeRecorder(10), Resync: time.Minute, Now: time.Now,
		Brokers: &connect.Connector{Secrets: base, Resolver: connect.DNS{}, Now: time.Now},
	}
	look := func() reconcile.Result {
		t.Helper()
		result, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: key})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	stored := func() *posthornv1.BrokerCluster {
		t.Helper()
		found := &posthornv1.BrokerCluster{}
		if err := base.Get(ctx, key, found); err != nil {
			t.Fatal(err)
		}
		return found
	}
	look()
	behind := stored()
	if behind.Status.Phase != posthornv1.PhasePaused || behind.Status.Replicas != 0 {
		t.Fatalf("%+v", behind.Status)
	}
	newer := stored()
	newer.Status.Rollout = &posthornv1.RolloutStatus{Step: "c-2", TimedOut: true}
	if err := base.Status().Update(ctx, newer); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "c-0", Labels: names.Selector("c")}}
	if err := base.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	cache.Show(behind)
	if result := look(); result.RequeueAfter > time.Second {
		t.Errorf("looked at again only after %s", result.RequeueAfter)
	}
	if now := stored().Status; !reflect.DeepEqual(now, newer.Status) {
		t.Errorf("parts of two attempts: %+v", now)
	}
	cache.Show(nil)
	look()
	if now := stored().Status; now.Replicas != 1 || now.Rollout == nil {
		t.Errorf("%+v", now)
	}
}

// TestChangeOfTheStatusIsReportedOnce uses a cache that does not have the status that reported the change.
func TestChangeOfTheStatusIsReportedOnce(t *testing.T) {
	ctx := context.Background()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), posthornv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	cluster := testCluster()
	cluster.Spec.Paused = true
	pod := podOn("w0", corev1.ConditionFalse)
	pod.Namespace, pod.Name, pod.Labels = cluster.Namespace, "c-0", names.Selector("c")
	base := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(cluster).WithObjects(cluster, pod).Build()
	before := &posthornv1.BrokerCluster{}
	if err := base.Get(ctx, client.ObjectKeyFromObject(cluster), before); err != nil {
		t.Fatal(err)
	}
	cache, recorder := lagging.New(base), events.NewFakeRecorder(10)
	r := &Reconciler{
		Client: cache, Scheme: scheme, Events: recorder, Resync: time.Minute, Now: time.Now,
		Brokers: &connect.Connector{Secrets: base, Resolver: connect.DNS{}, Now: time.Now},
	}
	for _, shown := range []client.Object{before, before, nil} {
		cache.Show(shown)
		if _, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}); err != nil {
			t.Fatal(err)
		}
	}
	close(recorder.Events)
	reported := 0
	for text := range recorder.Events {
		if strings.Contains(text, "MachineDown") {
			reported++
		}
	}
	if reported != 1 {
		t.Errorf("reported %d times", reported)
	}
}

// TestLeadersAreSpreadOnlyIfThatCanBeRecorded uses a cache that is behind after leaders were spread over three nodes.
func TestLeadersAreSpreadOnlyIfThatCanBeRecorded(t *testing.T) {
	ctx := context.Background()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), posthornv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for _, isBehind := range []bool{true, false} {
		cluster := testCluster()
		cluster.Spec.Placement.Rebalance, cluster.Status.BalancedFor = posthornv1.RebalanceOnMembershipChange, 5
		base := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(cluster).WithObjects(cluster).Build()
		if err := base.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
			t.Fatal(err)
		}
		if isBehind {
			noted := cluster.DeepCopy()
			noted.Status.BalancedFor = 3
			if err := base.Status().Update(ctx, noted); err != nil {
				t.Fatal(err)
			}
		}
		r := &reconciliation{
			Reconciler: &Reconciler{Live: base, Brokers: &connect.Connector{Secrets: base, Resolver: connect.DNS{}, Now: time.Now}},
			in:         inputs{cluster: cluster},
			seen:       observed{sts: &appsv1.StatefulSet{}},
			out:        decided{roll: rollDecision{Action: rollDone}},
		}
		for range cluster.Spec.Replicas {
			r.seen.members = append(r.seen.members, memberView{rollMember: rollMember{Presence: podPresent, Ready: true, Current: true}})
		}
		// The broker of this test cannot be reached, because it has no Secret.
		err := r.balance(ctx)
		if asked := err != nil; asked == isBehind {
			t.Errorf("the cache is behind: %t; %v", isBehind, err)
		}
		if soon := r.out.requeue > 0 && r.out.requeue <= time.Second; soon != isBehind {
			t.Errorf("the cache is behind: %t; looked at again after %s", isBehind, r.out.requeue)
		}
	}
}
