// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"context"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// deleteCluster deletes the cluster and its children. Until the end of the spec it also deletes children that the operator
// creates before it sees the deletion, like the garbage collector.
func (w *world) deleteCluster() {
	GinkgoHelper()
	cluster := w.cluster()
	Expect(k8s.Delete(ctx, cluster)).To(Succeed())
	Eventually(gone(cluster)).Should(BeTrue())
	Expect(w.deleteChildren(ctx, cluster)).To(Succeed())
	Expect(k8s.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(w.namespace), client.GracePeriodSeconds(0))).To(Succeed())
	collecting, stop := context.WithCancel(ctx)
	DeferCleanup(stop)
	go func() {
		defer GinkgoRecover()
		for ticks := time.NewTicker(collectInterval); collecting.Err() == nil; <-ticks.C {
			// The next search repeats a failed deletion.
			_ = w.deleteChildren(collecting, cluster)
		}
	}()
}

// collectInterval is the time between two searches for children of a deleted cluster.
const collectInterval = 200 * time.Millisecond

func (w *world) deleteChildren(ctx context.Context, cluster *posthornv1.BrokerCluster) error {
	for _, list := range []client.ObjectList{
		&appsv1.StatefulSetList{}, &corev1.ServiceList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceAccountList{}, &policyv1.PodDisruptionBudgetList{},
	} {
		if err := k8s.List(ctx, list, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		for _, object := range items(list) {
			if !metav1.IsControlledBy(object, cluster) {
				continue
			}
			if err := client.IgnoreNotFound(k8s.Delete(ctx, object)); err != nil {
				return err
			}
		}
	}
	return nil
}

func items(list client.ObjectList) []client.Object {
	GinkgoHelper()
	var out []client.Object
	Expect(meta.EachListItem(list, func(o runtime.Object) error {
		object, is := o.(client.Object)
		Expect(is).To(BeTrue())
		out = append(out, object)
		return nil
	})).To(Succeed())
	return out
}

// credentials returns the credentials of the default user.
func (w *world) credentials() string {
	var secret corev1.Secret
	if err := k8s.Get(ctx, w.key("c-default-user"), &secret); err != nil {
		return err.Error()
	}
	return string(secret.Data["username"]) + " " + string(secret.Data["password"])
}

var _ = Describe("a recreated cluster", func() {
	It("gets its volumes back, and the operator the credentials that their broker accepts", func() {
		w := newWorld(setMonitor("Off"))
		w.readyWorld()
		before, volume := w.credentials(), w.claim("c-0").UID
		w.deleteCluster()
		again := newCluster(w.namespace)
		setMonitor("Off")(again)
		create(again)
		Eventually(w.credentials).Should(Equal(before))
		w.readyWorld()
		Expect(w.claim("c-0").UID).To(Equal(volume))
		w.worksWithQueues("orders")
	})

	It("is a new cluster when its volumes were deleted", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) { c.Spec.Storage.WhenDeleted = "Delete" })
		w.readyWorld()
		before := w.credentials()
		w.deleteCluster()
		for _, pod := range []string{"c-0", "c-1", "c-2"} {
			Expect(deleteClaim(ctx, k8s, w.namespace, "data-"+pod)).To(Succeed())
		}
		Expect(gone(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-operator"}})()).To(BeTrue())
		create(newCluster(w.namespace))
		Eventually(w.credentials).Should(And(HavePrefix("default_user_"), Not(Equal(before))))
	})

	It("restores the operator's access Secret when that was deleted", func() {
		w := newWorld()
		w.readyWorld()
		before := w.credentials()
		note := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-operator"}}
		Expect(k8s.Delete(ctx, note)).To(Succeed())
		Eventually(func() string {
			_ = k8s.Get(ctx, w.key("c-operator"), note)
			return string(note.Data["username"]) + " " + string(note.Data["password"])
		}).Should(Equal(before))
		w.readyWorld()
		Expect(w.credentials()).To(Equal(before))
		Eventually(eventsOf(w.cluster(), "CredentialsRecovered")).Should(BeNumerically(">=", 1))
		w.worksWithQueues("orders")
	})

	It("never invents credentials that the broker on its volumes does not accept", func() {
		w := newWorld(setMonitor("Off"))
		w.readyWorld()
		w.deleteCluster()
		note := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-operator"}}
		Expect(k8s.Get(ctx, w.key("c-operator"), note)).To(Succeed())
		Expect(k8s.Delete(ctx, note)).To(Succeed())
		again := newCluster(w.namespace)
		setMonitor("Off")(again)
		create(again)
		Eventually(ready(again)).Should(HavePrefix("False CredentialsLost"))
		Expect(conditionOf(again, posthornv1.ConditionStalled)()).To(HavePrefix("True CredentialsLost"))
		Expect(gone(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-default-user"}})()).To(BeTrue())
		restored := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-operator", Labels: note.Labels}, Data: note.Data}
		create(restored)
		w.readyWorld()
	})

	It("restores a default user that was changed in the broker, without an error in the status", func() {
		w := newWorld()
		w.readyWorld()
		name, password, _ := strings.Cut(w.credentials(), " ")
		for _, spoil := range []func(){
			func() { w.broker.SetUser(name, "changed behind its back", "administrator") },
			func() { w.broker.SetUser(name, password, "monitoring") },
			func() { w.broker.DeleteUser(name) },
		} {
			calls := len(w.broker.Calls("/"))
			spoil()
			Eventually(func() bool {
				user, _ := w.broker.User(name)
				return w.broker.Accepts(name, password) && slices.Contains(user.Tags, "administrator")
			}).Should(BeTrue())
			Expect(ready(w.cluster())()).To(HavePrefix("True AllNodesReady"))
			for _, call := range w.broker.Calls("/")[calls:] {
				Expect(call.Operator).To(BeTrue(), "%+v", call)
				Expect(call.Status).NotTo(Equal(401), "%+v", call)
			}
		}
		Expect(w.credentials()).To(Equal(name + " " + password))
		Eventually(eventsOf(w.cluster(), "DefaultUserRestored")).Should(BeNumerically(">=", 3))
		w.worksWithQueues("orders")
	})

	It("reports that earlier nodes refuse the operator's credentials, and accepts the right ones from the Secret", func() {
		w := newWorld(setEarlier)
		w.readyWorld()
		name, _, _ := strings.Cut(w.credentials(), " ")
		w.broker.SetUser(name, "changed behind its back", "administrator")
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False CredentialsRefused"), ContainSubstring("Secret c-default-user")))
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-default-user"}}
		change(secret, func(s *corev1.Secret) { s.Data["password"] = []byte("changed behind its back") })
		w.readyWorld()
	})

	It("does not use a Secret of that name that belongs to somebody else", func() {
		ns := newNamespace(nil)
		foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-operator"}, StringData: map[string]string{"username": "u", "password": "p"}}
		create(foreign)
		cluster := newCluster(ns)
		create(cluster)
		Eventually(ready(cluster)).Should(HavePrefix("False NameTaken"))
	})
})
