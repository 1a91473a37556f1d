// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/broker"
)

// The demo's scenario: the node of the leader is cut off while messages are published, and reconnected after the
// client has consumed and checked them.
func keepMessagesThroughCutOfLeader() {
	leader := leaderOf(mainQueue)
	c := start("cut-leader", work{command: "run", queue: mainQueue, messages: endless, rate: 1000, notOn: []string{leader.Spec.NodeName}})
	c.confirmedAtLeast(1000)
	leader = leaderOf(mainQueue)
	Expect(leader.Spec.NodeName).NotTo(Equal(c.node), "the leader moved to the client's node before anything happened")
	cutNode(leader.Spec.NodeName)
	c.moreConfirmed(3000)
	c.enough()
	// Another member must have become the leader.
	q, err := queueOf(mainQueue, leader.Spec.NodeName)
	Expect(err).NotTo(HaveOccurred())
	Expect(q.Leader).To(And(Not(BeEmpty()), Not(Equal(leader.Name))))
	healNode(leader.Spec.NodeName)
	becomesWhole(mainQueue)
	after := brokerPod(leader.Name)
	Expect(after.UID).To(Equal(leader.UID), "the pod on the cut node went on")
	Expect(after.Status.ContainerStatuses[0].RestartCount).To(Equal(leader.Status.ContainerStatuses[0].RestartCount))
}

func keepMessagesThroughDeletionOfLeader() {
	newWorkQueue("deleted")
	c := start("delete-leader", work{command: "run", queue: "deleted", messages: endless, rate: 600, overlap: true})
	c.confirmedAtLeast(600)
	leader := leaderOf("deleted")
	say("deleting %s, the leader, at once", leader.Name)
	// One second is shorter than a drain: this is a crash followed by a new process.
	Expect(k8s.Delete(ctx, leader.DeepCopy(), client.GracePeriodSeconds(1))).To(Succeed())
	isMadeAgain(&leader)
	becomesWhole("deleted")
	c.moreConfirmed(600)
	c.enough()
}

// isMadeAgain waits for another pod of the same name.
func isMadeAgain(pod *corev1.Pod) {
	GinkgoHelper()
	Eventually(func() (types.UID, error) {
		var again corev1.Pod
		err := k8s.Get(ctx, client.ObjectKeyFromObject(pod), &again)
		return again.UID, client.IgnoreNotFound(err)
	}).ShouldNot(Or(Equal(pod.UID), BeEmpty()))
}

func keepMessagesThroughCutOfFollower() {
	newWorkQueue("minority")
	leader := leaderOf("minority")
	follower := followerOf(&leader, "")
	c := start("cut-follower", work{command: "run", queue: "minority", messages: endless, rate: 600, overlap: true, notOn: []string{follower.Spec.NodeName}})
	c.confirmedAtLeast(600)
	cutNode(follower.Spec.NodeName)
	c.moreConfirmed(2400)
	c.enough()
	q, err := queueOf("minority", follower.Spec.NodeName)
	Expect(err).NotTo(HaveOccurred())
	Expect(q.Leader).To(Equal(leader.Name), "a majority was there all the time: the leader stays")
	// Without one of three, the queue needs both others, and they report so.
	Eventually(func(g Gomega) {
		one, err := ask(&leader)
		g.Expect(err).NotTo(HaveOccurred())
		answer, err := one.QuorumCritical(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Critical).To(BeTrue())
		g.Expect(queueNames(answer.Queues)).To(ContainElement("minority"))
	}).Should(Succeed())
	healNode(follower.Spec.NodeName)
	becomesWhole("minority")
}

// replaceEveryDisk removes pod and volume of each broker, one after the other when the queue is whole again, until
// every byte has been copied.
func replaceEveryDisk() {
	newWorkQueue("moved")
	const messages = 3000
	ledger := publishKept("moved", messages)
	for _, name := range memberNames() {
		loseDisk(name)
		becomesWhole("moved")
	}
	consumed := start("disks-consume", work{command: "consume", queue: "moved", ledger: ledger})
	v := consumed.keptItsWord()
	Expect(v.Arrived).To(Equal(messages))
	for _, queue := range []string{mainQueue, "moved"} {
		Eventually(whole(queue)).Should(Succeed())
	}
}

// loseDisk removes a broker's pod and volume, and waits until a new process runs on a new volume.
func loseDisk(name string) { loseDisks(name) }

// loseDisks is loseDisk for several brokers at the same time.
func loseDisks(names ...string) {
	GinkgoHelper()
	claims := make([]corev1.PersistentVolumeClaim, len(names))
	for i, name := range names {
		Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "data-" + name}, &claims[i])).To(Succeed())
		say("%s loses its disk", name)
		Expect(k8s.Delete(ctx, claims[i].DeepCopy())).To(Succeed())
	}
	for _, name := range names {
		pod := brokerPod(name)
		Expect(k8s.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(1))).To(Succeed())
	}
	for i, name := range names {
		Eventually(func(g Gomega) {
			var again corev1.PersistentVolumeClaim
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(&claims[i]), &again)).To(Succeed())
			g.Expect(again.UID).NotTo(Equal(claims[i].UID))
			g.Expect(again.Status.Phase).To(Equal(corev1.ClaimBound))
			g.Expect(again.Spec.VolumeName).NotTo(Equal(claims[i].Spec.VolumeName))
		}).Should(Succeed(), "a new volume for %s", name)
	}
}

// ledgerClaim keeps a publishing client's ledger for the consuming one.
func ledgerClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: meta("ledger"), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
	}}
}

func queueNames(refs []broker.QueueRef) []string {
	out := make([]string, 0, len(refs))
	for _, ref := range refs {
		out = append(out, ref.Name)
	}
	return out
}
