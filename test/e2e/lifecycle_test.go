// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// lifecycleTimeout bounds an action of many steps, each with a bound of its own.
const lifecycleTimeout = 5 * time.Minute

// publishKept fills a queue and returns the volume with the ledger of its messages.
func publishKept(queue string, messages int) string {
	GinkgoHelper()
	return publishKeptAs("", queue, messages)
}

// publishKeptAs is publishKept with the service binding of another user.
func publishKeptAs(secret, queue string, messages int) string {
	GinkgoHelper()
	claim := ledgerClaim()
	Expect(k8s.Create(ctx, claim)).To(Succeed())
	DeferCleanup(func() {
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, ledgerClaim()))).To(Succeed())
		Eventually(func() error {
			return k8s.Get(ctx, client.ObjectKeyFromObject(claim), &corev1.PersistentVolumeClaim{})
		}).Should(MatchError(ContainSubstring("not found")), "the next spec makes one of the same name")
	})
	start(queue+"-publish", work{command: "publish", queue: queue, messages: messages, ledger: claim.Name, secret: secret}).keptItsWord()
	return claim.Name
}

// volumes returns the volumes of the brokers by claim.
func volumes() map[string]types.UID {
	GinkgoHelper()
	out := map[string]types.UID{}
	for _, name := range memberNames() {
		var claim corev1.PersistentVolumeClaim
		Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "data-" + name}, &claim)).To(Succeed())
		out[name] = claim.UID
	}
	return out
}

// sleepAndWake hibernates the cluster with messages in it.
func sleepAndWake() {
	newWorkQueue("slept")
	const messages = 2000
	ledger := publishKept("slept", messages)
	before := volumes()
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Hibernated = true })).To(Succeed())
	DeferCleanup(func() {
		Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Hibernated = false })).To(Succeed())
	})
	Eventually(brokerPods).Should(BeEmpty())
	Eventually(func() posthornv1.ClusterPhase { return currentCluster().Status.Phase }).Should(Equal(posthornv1.PhaseHibernated))
	say("the cluster sleeps")
	Expect(volumes()).To(Equal(before))
	Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Hibernated = false })).To(Succeed())
	becomesWhole("slept")
	v := start("slept-consume", work{command: "consume", queue: "slept", ledger: ledger}).keptItsWord()
	Expect(v.Arrived).To(Equal(messages))
}

// rotatePassword gives the application a new password: the broker refuses the old one from then on, and open
// connections continue.
func rotatePassword() {
	newWorkQueue("rotated")
	var user posthornv1.User
	key := client.ObjectKey{Namespace: namespace, Name: appUser}
	Expect(k8s.Get(ctx, key, &user)).To(Succeed())
	version := user.Status.CredentialVersion
	old := newBinding("old-password", "provider", "posthorn")
	connected := start("rotate-connected", work{command: "run", queue: "rotated", messages: endless, rate: 600, overlap: true})
	connected.confirmedAtLeast(600)
	binding := &corev1.Secret{ObjectMeta: meta(appUser + "-binding")}
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(binding), binding)).To(Succeed())
	before := binding.DeepCopy()
	binding.Data["password"] = []byte("written-by-a-person")
	Expect(k8s.Patch(ctx, binding, client.MergeFrom(before))).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, key, &user)).To(Succeed())
		g.Expect(user.Status.CredentialVersion).NotTo(Equal(version))
	}).Should(Succeed(), "the operator takes the new password up")
	becomesReady(newUser())
	connected.moreConfirmed(600)
	Expect(connected.enough().Reconnects).To(BeZero())
	// Every node gets the new password gradually.
	Eventually(func() int {
		code, _ := start(fmt.Sprintf("old-password-%d", time.Now().UnixMilli()), work{command: "run", queue: "rotated", messages: 10, rate: 10, pubs: 1, secret: old}).ended()
		return code
	}).Should(Equal(exitRefused))
	start("rotate-new", work{command: "run", queue: "rotated", messages: 100, rate: 100}).keptItsWord()
}

// spreadOverZones: with more brokers than zones, a queue's members are still in different zones.
func spreadOverZones() {
	GinkgoHelper()
	zones := map[string]string{}
	for _, member := range currentCluster().Status.Members {
		zones[member.Name] = member.Zone
	}
	Expect(zones).To(HaveLen(5))
	for at := range 3 {
		q := newQueue(fmt.Sprintf("spread-%d", at))
		q.Spec.Replicas = 3
		Expect(k8s.Create(ctx, q)).To(Succeed())
		DeferCleanup(func() { Expect(client.IgnoreNotFound(k8s.Delete(ctx, q))).To(Succeed()) })
		becomesReady(q)
		found, err := queueOf(q.Name)
		Expect(err).NotTo(HaveOccurred())
		places := map[string]bool{}
		for _, name := range found.Members {
			places[zones[name]] = true
		}
		Expect(places).To(And(HaveLen(3), Not(HaveKey(""))), "%v are in %v", found.Members, zones)
	}
}

// shrinkUnderLoad scales the cluster to five and back to three, with a queue that has a member on each of the five. A
// client publishes and consumes until the last node is gone.
func shrinkUnderLoad() {
	resize := func(nodes, members int32) {
		Expect(changeCluster(func(spec *posthornv1.BrokerClusterSpec) {
			spec.Replicas, spec.Placement.QuorumReplicas = nodes, members
		})).To(Succeed())
	}
	newWorkQueue("shrunk")
	c := start("shrunk", work{command: "run", queue: "shrunk", messages: endless, rate: 400, overlap: true})
	startSingles()
	resize(5, 5)
	DeferCleanup(func() {
		resize(replicas, 0)
		for _, name := range []string{"data-c-3", "data-c-4"} {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: meta(name)}))).To(Succeed())
		}
	})
	Eventually(readiness(newCluster())).WithTimeout(lifecycleTimeout).Should(HavePrefix("True "))
	Eventually(func() ([]string, error) { q, err := queueOf("shrunk"); return q.Members, err }).WithTimeout(lifecycleTimeout).Should(HaveLen(5))
	say("five nodes, five members")
	spreadOverZones()
	resize(replicas, replicas)
	began := time.Now()
	Eventually(func() (int, error) {
		pods, err := brokerPods()
		return len(pods), errors.Join(err, operatorContent())
	}).WithTimeout(lifecycleTimeout).Should(Equal(replicas))
	say("three again after %.1fs", time.Since(began).Seconds())
	c.moreConfirmed(400)
	c.enough()
	q, err := queueOf("shrunk")
	Expect(err).NotTo(HaveOccurred())
	Expect(q.Members).To(ConsistOf(memberNames()))
	becomesWhole("shrunk")
}
