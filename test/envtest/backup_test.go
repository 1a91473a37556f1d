// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// backupResult is the result of a backup as posthorn ctl writes it.
const backupResult = `{"started_at":"2026-01-31T02:00:00Z","messages":7,"bytes":70,"queues":2,"queues_not_included":1}`

// backupClaim creates the volume of backups.
func (w *world) backupClaim() {
	GinkgoHelper()
	create(&corev1.PersistentVolumeClaim{ObjectMeta: w.meta("backups"), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}})
}

func onClaim() posthornv1.BackupDestination {
	return posthornv1.BackupDestination{Volume: &posthornv1.VolumeDestination{ClaimName: "backups"}}
}

func (w *world) backup(name string, changes ...func(*posthornv1.Backup)) *posthornv1.Backup {
	return changed(&posthornv1.Backup{ObjectMeta: w.meta(name), Spec: posthornv1.BackupSpec{
		ClusterRef: posthornv1.ClusterReference{Name: clusterName}, Destination: onClaim(),
	}}, changes)
}

func (w *world) restore(name string, changes ...func(*posthornv1.Restore)) *posthornv1.Restore {
	return changed(&posthornv1.Restore{ObjectMeta: w.meta(name), Spec: posthornv1.RestoreSpec{
		ClusterRef: posthornv1.ClusterReference{Name: clusterName}, BackupRef: &posthornv1.BackupReference{Name: "b"},
	}}, changes)
}

// jobOf waits for the Job of an object.
func jobOf(object client.Object, work string) *batchv1.Job {
	GinkgoHelper()
	job := &batchv1.Job{}
	key := client.ObjectKey{Namespace: object.GetNamespace(), Name: names.JobOf(object.GetName(), string(object.GetUID()), work)}
	Eventually(func() error { return k8s.Get(ctx, key, job) }).Should(Succeed())
	return job
}

// noJobs expects that a namespace has no Job.
func (w *world) noJobs() {
	GinkgoHelper()
	Eventually(w.jobs).Should(BeEmpty())
}

func (w *world) jobs() []string {
	var list batchv1.JobList
	if err := k8s.List(ctx, &list, client.InNamespace(w.namespace)); err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, job := range list.Items {
		out = append(out, job.Name)
	}
	return out
}

// end takes the place of the Job controller and the kubelet: the pod of a Job ends with an exit code and a message.
func end(job *batchv1.Job, code int32, message string) {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: job.Namespace, Name: job.Name + "-p", Labels: map[string]string{batchv1.JobNameLabel: job.Name},
	}, Spec: *job.Spec.Template.Spec.DeepCopy()}
	for name, value := range job.Spec.Template.Labels {
		pod.Labels[name] = value
	}
	create(pod)
	now := metav1.Now()
	pod.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		pod.Status.Phase = corev1.PodFailed
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "posthorn", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, FinishedAt: now, Reason: "Ended"},
	}}}
	Expect(k8s.Status().Update(ctx, pod)).To(Succeed())
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(job), job)).To(Succeed())
	job.Status.StartTime = &now
	before, last := batchv1.JobSuccessCriteriaMet, batchv1.JobComplete
	if code != 0 {
		before, last = batchv1.JobFailureTarget, batchv1.JobFailed
	} else {
		job.Status.Succeeded = 1
		job.Status.CompletionTime = &now
	}
	for _, kind := range []batchv1.JobConditionType{before, last} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, Reason: "Test", LastTransitionTime: now})
	}
	Expect(k8s.Status().Update(ctx, job)).To(Succeed())
}

// phase returns the phase of a Backup or Restore.
func phase(object client.Object) func() posthornv1.JobPhase {
	return func() posthornv1.JobPhase {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return posthornv1.JobPhase(err.Error())
		}
		switch o := object.(type) {
		case *posthornv1.Backup:
			return o.Status.Phase
		case *posthornv1.Restore:
			return o.Status.Phase
		}
		return ""
	}
}

// completed creates a Backup and completes it.
func (w *world) completed(name string, changes ...func(*posthornv1.Backup)) *posthornv1.Backup {
	GinkgoHelper()
	backup := w.backup(name, changes...)
	create(backup)
	job := jobOf(backup, "backup")
	end(job, 0, backupResult)
	Eventually(phase(backup)).Should(Equal(posthornv1.JobCompleted))
	// A Restore that waited for the Backup has a Job by now.
	Eventually(gone(job)).Should(BeTrue())
	return backup
}

func deletes(b *posthornv1.Backup) { b.Spec.DeletionPolicy = posthornv1.ReclaimDelete }

var _ = Describe("a Backup", func() {
	It("runs one Job and reports its counts", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		backup := w.backup("b")
		create(backup)
		job := jobOf(backup, "backup")
		Expect(metav1.IsControlledBy(job, backup)).To(BeTrue())
		args := strings.Join(job.Spec.Template.Spec.Containers[0].Args, " ")
		Expect(args).To(ContainSubstring("--url=https://c-0.c-nodes." + w.namespace + ".svc:15670"))
		Expect(args).To(ContainSubstring("backup create --to=/backups --name=b-" + string(backup.UID)[:8]))
		Expect(job.Spec.Template.Spec.Containers[0].Image).To(Equal("example.test/posthorn:1.0.0"))
		Eventually(phase(backup)).Should(Equal(posthornv1.JobRunning))
		Expect(ready(backup)()).To(HavePrefix("False Running: the Job " + job.Name + " runs"))
		end(job, 0, backupResult)
		Eventually(phase(backup)).Should(Equal(posthornv1.JobCompleted))
		w.noJobs()
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(backup), backup)).To(Succeed())
		status := backup.Status
		Expect(*status.Messages).To(Equal(int64(7)))
		Expect(*status.Size).To(Equal(int64(70)))
		Expect(*status.Queues).To(Equal(int64(2)))
		Expect(*status.QueuesNotIncluded).To(Equal(int64(1)))
		Expect(status.Verified).To(BeTrue())
		Expect(status.Name).To(Equal("b-" + string(backup.UID)[:8]))
		Expect(status.RecoveryPoint.UTC().Format(time.RFC3339)).To(Equal("2026-01-31T02:00:00Z"))
		Expect(status.StartedAt).NotTo(BeNil())
		Expect(status.CompletedAt).NotTo(BeNil())
		Expect(ready(backup)()).To(HavePrefix("True Completed"))
		Eventually(eventsOf(backup, "Completed")).Should(Equal(1))
		Consistently(w.jobs).Should(BeEmpty(), "it never runs again")

		refusedWith(k8s.Patch(ctx, backup, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"scope":{"vhosts":["x"]}}}`))), "spec: a Backup runs once, and only spec.deletionPolicy can change")
		refusedWith(k8s.Patch(ctx, backup, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"destination":{"volume":{"claimName":"x"}}}}`))), "create another Backup")
		refusedWith(k8s.Patch(ctx, backup, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"clusterRef":{"name":"x"}}}`))), "clusterRef is immutable")
	})

	It("fails with the error of the command, and does not run again", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		backup := w.backup("b")
		create(backup)
		end(jobOf(backup, "backup"), 1, "Warning: slow\nError: the store refuses the credentials\nCheck the address.\n")
		Eventually(phase(backup)).Should(Equal(posthornv1.JobFailed))
		Expect(ready(backup)()).To(Equal("False CommandFailed: the store refuses the credentials; Check the address."))
		Expect(conditionOf(backup, posthornv1.ConditionStalled)()).To(HavePrefix("True CommandFailed"))
		Eventually(eventsOf(backup, "CommandFailed")).Should(Equal(1))
		w.noJobs()
		Consistently(w.jobs).Should(BeEmpty())
	})

	It("waits for its cluster, its volume and its credentials, and names them", func() {
		w := &world{namespace: newNamespace(nil)}
		backup := w.backup("b", func(b *posthornv1.Backup) {
			b.Spec.Destination = posthornv1.BackupDestination{S3: &posthornv1.S3Destination{Bucket: "abc", CredentialsSecretRef: posthornv1.S3CredentialsReference{Name: "s3"}}}
		})
		create(backup)
		Eventually(ready(backup)).Should(HavePrefix("False ClusterNotFound: BrokerCluster c does not exist in namespace " + w.namespace))
		create(newCluster(w.namespace))
		w.startBroker()
		w.readyWorld()
		Eventually(ready(backup)).Should(HavePrefix("False SecretNotFound: Secret s3 with the credentials of the store does not exist"))
		secret := &corev1.Secret{ObjectMeta: w.meta("s3"), Data: map[string][]byte{"access-key-id": []byte("a")}}
		create(secret)
		Eventually(ready(backup)).Should(HavePrefix("False InvalidSecret: Secret s3 has no value for secret-access-key"))
		Expect(phase(backup)()).To(Equal(posthornv1.JobPending))
		change(secret, func(s *corev1.Secret) { s.Data["secret-access-key"] = []byte("b") })
		Expect(strings.Join(jobOf(backup, "backup").Spec.Template.Spec.Containers[0].Args, " ")).To(ContainSubstring("--to=s3://abc"))

		volume := w.backup("v")
		create(volume)
		Eventually(ready(volume)).Should(HavePrefix("False ClaimNotFound: PersistentVolumeClaim backups does not exist"))
		w.backupClaim()
		jobOf(volume, "backup")
	})

	It("fails when its Job is deleted before its result was read", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		backup := w.backup("b")
		create(backup)
		job := jobOf(backup, "backup")
		Eventually(phase(backup)).Should(Equal(posthornv1.JobRunning))
		Expect(k8s.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		Eventually(ready(backup)).Should(HavePrefix("False JobLost"))
		Consistently(w.jobs).Should(BeEmpty())
	})

	It("keeps the backup in the store by default, and another one of the same name has another name there", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		first := w.completed("b")
		Expect(k8s.Delete(ctx, first)).To(Succeed())
		Eventually(gone(w.backup("b"))).Should(BeTrue())
		w.noJobs()
		second := w.completed("b")
		Expect(second.Status.Name).NotTo(Equal(first.Status.Name))
	})

	It("deletes the backup in the store, also when the cluster is gone", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		backup := w.completed("b", deletes)
		Expect(k8s.Delete(ctx, w.cluster())).To(Succeed())
		Expect(k8s.Delete(ctx, backup)).To(Succeed())
		job := jobOf(backup, "delete")
		Expect(strings.Join(job.Spec.Template.Spec.Containers[0].Args, " ")).To(Equal("ctl --quiet backup delete --in=/backups --if-exists -- " + backup.Status.Name))
		Expect(gone(w.backup("b"))()).To(BeFalse())
		end(job, 0, "")
		Eventually(gone(w.backup("b"))).Should(BeTrue())
	})

	It("reports a deletion that fails, and is deleted without it by an annotation", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		backup := w.completed("b", deletes)
		Expect(k8s.Delete(ctx, backup)).To(Succeed())
		end(jobOf(backup, "delete"), 1, "Error: no answer from the store\n")
		Eventually(ready(backup)).Should(And(HavePrefix("False DeletionFailed: the backup cannot be deleted in the store: no answer from the store"), ContainSubstring("annotate it with posthorn.io/abandon-backup")))
		change(backup, func(b *posthornv1.Backup) { b.Annotations = map[string]string{names.AnnotationAbandon: "true"} })
		Eventually(gone(w.backup("b"))).Should(BeTrue())
		Eventually(eventsOf(backup, "LeftBehind")).Should(Equal(1))
	})

	It("does not wait for ever for a store that does not delete", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		backup := w.completed("b", deletes)
		Expect(k8s.Delete(ctx, w.claimObject())).To(Succeed())
		change(w.claimObject(), func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
		Expect(k8s.Delete(ctx, backup)).To(Succeed())
		Eventually(gone(w.backup("b"))).Should(BeTrue())
		Eventually(eventsOf(backup, "LeftBehind")).Should(Equal(1))
	})
})

// claimObject identifies the volume of backups.
func (w *world) claimObject() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: w.meta("backups")}
}

var _ = Describe("a Restore", func() {
	It("runs one Job for each way to treat queues with messages", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		backup := w.completed("b")
		for conflict, option := range map[string]string{"": "", "Skip": "--skip-non-empty", "Append": "--into-non-empty"} {
			restore := w.restore("r"+strings.ToLower(conflict), func(r *posthornv1.Restore) {
				r.Spec.Conflict = conflict
				r.Spec.Scope = &posthornv1.RestoreScope{Vhost: "/", Queues: []posthornv1.ObjectName{"orders"}}
			})
			create(restore)
			job := jobOf(restore, "restore")
			args := strings.Join(job.Spec.Template.Spec.Containers[0].Args, " ")
			Expect(args).To(HaveSuffix("-- " + backup.Status.Name))
			Expect(args).To(ContainSubstring("--vhost=/ --queue=orders"))
			if option == "" {
				Expect(args).NotTo(ContainSubstring("non-empty"))
			} else {
				Expect(args).To(ContainSubstring(option))
			}
			end(job, 0, `{"messages":5,"queues":1,"queues_skipped":2}`)
			Eventually(phase(restore)).Should(Equal(posthornv1.JobCompleted))
			Expect(*restore.Status.Messages).To(Equal(int64(5)))
			Expect(*restore.Status.QueuesSkipped).To(Equal(int64(2)))
			refusedWith(k8s.Patch(ctx, restore, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"asVhost":"x"}}`))), "spec: a Restore runs once and cannot change; create another Restore")
		}
	})

	It("waits for its Backup, and fails with it", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		restore := w.restore("r")
		create(restore)
		Eventually(ready(restore)).Should(HavePrefix("False BackupNotFound: Backup b does not exist"))
		backup := w.backup("b")
		create(backup)
		Eventually(ready(restore)).Should(HavePrefix("False BackupNotCompleted: Backup b is not completed yet"))
		end(jobOf(backup, "backup"), 1, "Error: no space\n")
		Eventually(ready(restore)).Should(Equal("False BackupFailed: Backup b has failed, so create a Restore of another one: no space"))
		Expect(phase(restore)()).To(Equal(posthornv1.JobFailed))
	})

	It("restores from a store without a Backup, and fails with the error of the command", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		restore := w.restore("r", func(r *posthornv1.Restore) {
			r.Spec.BackupRef, r.Spec.Source = nil, &posthornv1.RestoreSource{Destination: onClaim(), Name: "nightly-1"}
		})
		create(restore)
		end(jobOf(restore, "restore"), 1, "Error: queue 'orders' in vhost '/' has messages\n")
		Eventually(ready(restore)).Should(Equal("False CommandFailed: queue 'orders' in vhost '/' has messages"))
		Eventually(eventsOf(restore, "CommandFailed")).Should(Equal(1))
	})
})

var _ = Describe("a ScheduledBackup", func() {
	// yearly has no time within the run of a spec.
	yearly := func(w *world, changes ...func(*posthornv1.ScheduledBackup)) *posthornv1.ScheduledBackup {
		return changed(&posthornv1.ScheduledBackup{ObjectMeta: w.meta("s"), Spec: posthornv1.ScheduledBackupSpec{
			Schedule: "0 0 1 1 *", Template: w.backup("").Spec,
		}}, changes)
	}
	// backdate makes several times of the schedule pass.
	backdate := func(object *posthornv1.ScheduledBackup, years int) {
		GinkgoHelper()
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
		before := object.DeepCopy()
		object.Status.LastScheduleTime = &metav1.Time{Time: time.Now().AddDate(-years, 0, 0)}
		Expect(k8s.Status().Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
	}
	backups := func(w *world) func() []string {
		return func() []string {
			var list posthornv1.BackupList
			if err := k8s.List(ctx, &list, client.InNamespace(w.namespace)); err != nil {
				return []string{err.Error()}
			}
			out := []string{}
			for _, backup := range list.Items {
				out = append(out, backup.Name)
			}
			return out
		}
	}

	It("creates one Backup for all missed times, none while it runs, and keeps the newest", func() {
		w := newWorld()
		w.readyWorld()
		w.backupClaim()
		object := yearly(w, func(s *posthornv1.ScheduledBackup) { s.Spec.Keep = new(int32(1)) })
		create(object)
		Eventually(ready(object)).Should(HavePrefix("True Scheduled"))
		Consistently(backups(w)).Should(BeEmpty())
		backdate(object, 3)
		Eventually(backups(w)).Should(HaveLen(1))
		first := &posthornv1.Backup{ObjectMeta: w.meta(backups(w)()[0])}
		Expect(first.Name).To(Equal(fmt.Sprintf("s-%d0101000000", time.Now().UTC().Year())))
		job := func() *batchv1.Job {
			Expect(k8s.Get(ctx, client.ObjectKeyFromObject(first), first)).To(Succeed())
			return jobOf(first, "backup")
		}()
		// It is due again, but the first one runs.
		backdate(object, 2)
		Consistently(backups(w)).Should(HaveLen(1))
		end(job, 0, backupResult)
		Eventually(func() string {
			_ = k8s.Get(ctx, client.ObjectKeyFromObject(object), object)
			return object.Status.LastSuccessfulBackup
		}).Should(Equal(first.Name))
		Expect(object.Status.LastSuccessfulTime).NotTo(BeNil())
		Expect(object.Status.NextScheduleTime).NotTo(BeNil())

		older := w.completed("older", func(b *posthornv1.Backup) {
			b.Labels = map[string]string{names.LabelScheduledBackup: string(object.UID)}
			b.Annotations = map[string]string{names.AnnotationScheduledBackup: object.Name}
		})
		// The Backup that was created first goes, with its backup in the store.
		Eventually(func() bool {
			return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(first), first)) || first.DeletionTimestamp != nil
		}).Should(BeTrue())
		end(jobOf(first, "delete"), 0, "")
		Eventually(backups(w)).Should(Equal([]string{older.Name}))
		Expect(k8s.Delete(ctx, object)).To(Succeed())
		Consistently(backups(w)).Should(Equal([]string{older.Name}), "Backups stay")
	})

	It("creates none while it is suspended, and one afterwards", func() {
		w := newWorld()
		object := yearly(w, func(s *posthornv1.ScheduledBackup) { s.Spec.Suspend = true })
		create(object)
		backdate(object, 3)
		Eventually(ready(object)).Should(HavePrefix("True Suspended"))
		Consistently(backups(w)).Should(BeEmpty())
		change(object, func(s *posthornv1.ScheduledBackup) { s.Spec.Suspend = false })
		Eventually(backups(w)).Should(HaveLen(1))
	})
})

var _ = Describe("bootstrap from a backup", func() {
	It("restores once before the cluster is Ready, and reports why it cannot", func() {
		w := newWorld(func(c *posthornv1.BrokerCluster) {
			c.Spec.Bootstrap = &posthornv1.BootstrapSpec{BackupRef: &posthornv1.BackupReference{Name: "b"}}
		})
		w.backupClaim()
		Eventually(ready(w.cluster())).Should(HavePrefix("False Restoring: Restore c-bootstrap: Backup b does not exist"))
		Expect(conditionOf(w.cluster(), posthornv1.ConditionAvailable)()).To(HavePrefix("True"))
		w.completed("b")
		restore := &posthornv1.Restore{ObjectMeta: w.meta("c-bootstrap")}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(restore), restore)).To(Succeed())
		end(jobOf(restore, "restore"), 1, "Error: no answer from the store\n")
		Eventually(ready(w.cluster())).Should(And(HavePrefix("False BackupNotRestored: Restore c-bootstrap: no answer from the store"), ContainSubstring("delete the Restore")))

		uid := restore.UID
		Expect(k8s.Delete(ctx, restore)).To(Succeed())
		Eventually(func() bool {
			return k8s.Get(ctx, client.ObjectKeyFromObject(restore), restore) == nil && restore.UID != uid
		}).Should(BeTrue())
		end(jobOf(restore, "restore"), 0, `{"messages":7,"queues":2,"queues_skipped":0}`)
		w.readyWorld()
		Eventually(eventsOf(w.cluster(), "BackupRestored")).Should(Equal(1))

		// No second restore.
		Expect(k8s.Delete(ctx, restore)).To(Succeed())
		Consistently(func() bool { return gone(restore)() }).Should(BeTrue())
	})
})
