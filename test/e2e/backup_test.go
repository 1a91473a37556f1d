// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// savedCluster is backed up and deleted, and revivedCluster restores its backup.
const (
	savedCluster   = "saved"
	revivedCluster = "revived"
	savedMessages  = 500
)

// restoreNewCluster backs up a cluster on a volume, deletes the cluster, and restores its messages into a new one.
func restoreNewCluster() {
	saved, revived := singleCluster(savedCluster), singleCluster(revivedCluster)
	store, ledger := ledgerClaim(), ledgerClaim()
	store.Name, ledger.Name = "backups", "backup-ledger"
	backup := &posthornv1.Backup{ObjectMeta: meta(savedCluster), Spec: posthornv1.BackupSpec{
		ClusterRef:  posthornv1.ClusterReference{Name: savedCluster},
		Destination: posthornv1.BackupDestination{Volume: &posthornv1.VolumeDestination{ClaimName: store.Name, SubPath: "saved"}},
	}}
	DeferCleanup(func() {
		for _, object := range []client.Object{saved, revived, backup, store, ledger} {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, object))).To(Succeed())
		}
	})
	for _, object := range []client.Object{saved, store, ledger} {
		Expect(k8s.Create(ctx, object)).To(Succeed())
	}
	becomesReady(saved)
	start("backup-publish", work{
		command: "publish", queue: "orders", messages: savedMessages, declare: true, secret: names.DefaultUserSecret(savedCluster), ledger: ledger.Name,
	}).keptItsWord()

	Expect(k8s.Create(ctx, backup)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(backup), backup)).To(Succeed())
		g.Expect(backup.Status.Phase).To(Equal(posthornv1.JobCompleted), "%s", readyMessage(backup))
	}).Should(Succeed())
	Expect(*backup.Status.Messages).To(Equal(int64(savedMessages)))
	Expect(backup.Status.Verified).To(BeTrue())

	Expect(k8s.Delete(ctx, saved)).To(Succeed())
	Eventually(func() bool {
		return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: savedCluster + "-0"}, &corev1.Pod{}))
	}).Should(BeTrue(), "the pod goes with its cluster")

	revived.Spec.Bootstrap = &posthornv1.BootstrapSpec{BackupRef: &posthornv1.BackupReference{Name: backup.Name}}
	Expect(k8s.Create(ctx, revived)).To(Succeed())
	becomesReady(revived)
	v := start("backup-consume", work{
		command: "consume", queue: "orders", secret: names.DefaultUserSecret(revivedCluster), ledger: ledger.Name,
	}).keptItsWord()
	Expect(v.Arrived).To(Equal(savedMessages))
}

// readyMessage returns the message of the condition Ready of a Backup.
func readyMessage(backup *posthornv1.Backup) string {
	if ready := apimeta.FindStatusCondition(backup.Status.Conditions, posthornv1.ConditionReady); ready != nil {
		return ready.Reason + ": " + ready.Message
	}
	return "no condition"
}
