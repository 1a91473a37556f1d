// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

const (
	lossCluster = "loss"
	lossQueue   = "survives"
	lossUser    = "loss-app"
	// recoveryTimeout bounds a recovery; the broker waits until the lost nodes have been down for 30 seconds.
	recoveryTimeout = 4 * time.Minute
)

func lossObjects() []client.Object {
	cluster, queue, user := newCluster(), newQueue(lossQueue), newUser()
	cluster.Name, cluster.Spec.Protocols = lossCluster, []posthornv1.Protocol{posthornv1.ProtocolAMQP}
	user.Name = lossUser
	queue.Spec.ClusterRef.Name, user.Spec.ClusterRef.Name = lossCluster, lossCluster
	return []client.Object{cluster, queue, user}
}

// lossQueueOf returns the queue as one broker reports it.
func lossQueueOf(pod string) (broker.Queue, error) {
	there := brokerPod(pod)
	one, err := askOf(lossCluster, &there)
	if err != nil {
		return broker.Queue{}, err
	}
	return one.GetQueue(ctx, "/", lossQueue)
}

var _ = Describe("three brokers of which two lose their disks", Ordered, func() {
	var nodes []string
	for at := range replicas {
		nodes = append(nodes, fmt.Sprintf("%s-%d", lossCluster, at))
	}

	BeforeAll(func() {
		for _, object := range lossObjects() {
			Expect(k8s.Create(ctx, object)).To(Succeed())
		}
		DeferCleanup(func() {
			for _, object := range lossObjects() {
				Expect(client.IgnoreNotFound(k8s.Delete(ctx, object))).To(Succeed())
			}
		})
		for _, object := range lossObjects() {
			becomesReady(object)
		}
	})

	It("continue with the copies of the third when spec.majorityRecovery names the disks", func() {
		const messages = 2000
		var leader string
		Eventually(func(g Gomega) {
			q, err := lossQueueOf(nodes[0])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(q.Members).To(ConsistOf(nodes))
			g.Expect(q.Online).To(ConsistOf(nodes))
			leader = q.Leader
			g.Expect(leader).To(BeElementOf(nodes))
		}).Should(Succeed())
		ledger := publishKeptAs(lossUser+"-binding", lossQueue, messages)
		// The leader has every confirmed message; one of the others may lack the last ones.
		q, err := lossQueueOf(leader)
		Expect(err).NotTo(HaveOccurred())
		leader = q.Leader
		var lost []string
		for _, name := range nodes {
			if name != leader {
				lost = append(lost, name)
			}
		}
		say("%s remains", leader)
		cluster := newCluster()
		cluster.Name = lossCluster
		loseDisks(lost...)
		Eventually(readiness(cluster)).Should(And(HavePrefix("False MajorityLost"), ContainSubstring("set spec.majorityRecovery")))

		var named []posthornv1.LostNode
		for _, member := range cluster.Status.Members {
			if member.Name != leader {
				Expect(member.LastReady).NotTo(BeNil())
				named = append(named, posthornv1.LostNode{Node: member.Name, Volume: member.LastReady.Volume})
			}
		}
		before := cluster.DeepCopy()
		cluster.Spec.MajorityRecovery = &posthornv1.MajorityRecoverySpec{Lost: named, AcceptLoss: posthornv1.AcceptedLoss}
		Expect(k8s.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
		recovered := func() string {
			now := readiness(cluster)()
			found := apimeta.FindStatusCondition(cluster.Status.Conditions, posthornv1.ConditionMajorityRecovered)
			if found == nil {
				return now
			}
			return fmt.Sprintf("%s %s: %s; Ready is %s", found.Status, found.Reason, found.Message, now)
		}
		since, told := time.Now(), ""
		Eventually(func() string {
			now := recovered()
			if now != told {
				told = now
				say("%.1fs: %s", time.Since(since).Seconds(), now)
			}
			return now
		}).WithTimeout(recoveryTimeout).Should(HavePrefix("True Recovered"))
		for _, object := range lossObjects() {
			becomesReady(object)
		}
		Eventually(func(g Gomega) {
			for _, name := range nodes {
				q, err := lossQueueOf(name)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(q.Members).To(ConsistOf(nodes))
				g.Expect(q.Online).To(ConsistOf(nodes))
			}
		}).Should(Succeed(), "the queue has replicas on all nodes again")

		consumed := start("loss-consume", work{command: "consume", queue: lossQueue, ledger: ledger, secret: lossUser + "-binding"})
		Expect(consumed.keptItsWord().Arrived).To(Equal(messages))
		start("loss-run", work{command: "run", queue: lossQueue, messages: 500, secret: lossUser + "-binding"}).keptItsWord()
	})
})
