// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

func s3Destination() posthornv1.BackupDestination {
	return posthornv1.BackupDestination{S3: &posthornv1.S3Destination{
		Bucket: "backups", Prefix: "shop", Endpoint: "https://s3.example.com/", Region: "eu-1", VirtualHosts: true,
		CredentialsSecretRef: posthornv1.S3CredentialsReference{Name: "s3", AccessKeyIDKey: "id", SecretAccessKeyKey: "key"},
	}}
}

func volumeDestination(path string) posthornv1.BackupDestination {
	return posthornv1.BackupDestination{Volume: &posthornv1.VolumeDestination{ClaimName: "claim", SubPath: path}}
}

func TestArgumentsOfCommands(t *testing.T) {
	const s3Options = " --s3-endpoint=https://s3.example.com --s3-region=eu-1 --s3-virtual-hosts" +
		" --s3-access-key-id-file=/etc/posthorn/s3/access-key-id --s3-secret-access-key-file=/etc/posthorn/s3/secret-access-key"
	source := posthornv1.RestoreSource{Destination: volumeDestination(""), Name: "n"}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"a backup in a bucket": {
			backupArgs(&posthornv1.BackupSpec{Destination: s3Destination()}, "n"),
			"create --to=s3://backups/shop --name=n --result-file=/dev/termination-log" + s3Options,
		},
		"a backup of queues": {
			backupArgs(&posthornv1.BackupSpec{Destination: volumeDestination("a/b"), Scope: &posthornv1.BackupScope{
				Vhosts: []posthornv1.ObjectName{"/", "-x"}, Queues: []posthornv1.ObjectName{"orders"},
			}}, "n"),
			"create --to=/backups/a/b --name=n --result-file=/dev/termination-log --vhost=/ --vhost=-x --queue=orders",
		},
		"a backup of definitions": {
			backupArgs(&posthornv1.BackupSpec{Destination: volumeDestination(""), Scope: &posthornv1.BackupScope{DefinitionsOnly: true}}, "n"),
			"create --to=/backups --name=n --result-file=/dev/termination-log --definitions-only",
		},
		"a restore": {
			restoreArgs(&posthornv1.RestoreSpec{Conflict: posthornv1.ConflictFail}, source),
			"restore --from=/backups --result-file=/dev/termination-log -- n",
		},
		"a restore of a part": {
			restoreArgs(&posthornv1.RestoreSpec{
				Conflict: posthornv1.ConflictSkip, AsVhost: "copy",
				Scope: &posthornv1.RestoreScope{Vhost: "shop", Queues: []posthornv1.ObjectName{"orders"}, MessagesOnly: true},
			}, source),
			"restore --from=/backups --result-file=/dev/termination-log --vhost=shop --queue=orders --messages-only --as-vhost=copy --skip-non-empty -- n",
		},
		"a restore behind messages": {
			restoreArgs(&posthornv1.RestoreSpec{Conflict: posthornv1.ConflictAppend, Scope: &posthornv1.RestoreScope{DefinitionsOnly: true}}, source),
			"restore --from=/backups --result-file=/dev/termination-log --definitions-only --into-non-empty -- n",
		},
		"a deletion": {deleteArgs(s3Destination(), "n"), "delete --in=s3://backups/shop --if-exists" + s3Options + " -- n"},
	} {
		if got := strings.Join(test.args, " "); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, test.want)
		}
	}
}

func TestJobOfABackup(t *testing.T) {
	owner := &posthornv1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: strings.Repeat("n.", 100), UID: "12345678-abcd"}}
	job := jobFor(task{
		owner: owner, work: workBackup, cluster: "c", node: "c-1", pods: pods{image: "i", serviceAccount: "c"}, destination: s3Destination(),
		args: []string{"create"}, settings: posthornv1.JobSettings{Timeout: &metav1.Duration{Duration: time.Hour}},
	})
	if len(job.Name) > 63 || !strings.HasSuffix(job.Name, "-12345678-backup") || strings.Contains(job.Name, ".") {
		t.Errorf("the name is %s", job.Name)
	}
	if *job.Spec.ActiveDeadlineSeconds != 3600 || *job.Spec.BackoffLimit != 0 {
		t.Errorf("%+v", job.Spec)
	}
	pod := job.Spec.Template.Spec
	want := "ctl --quiet --url=https://c-1.c-nodes.ns.svc:15670 --cacert=/etc/posthorn/operator/ca.crt --cert=/etc/posthorn/operator/tls.crt" +
		" --key=/etc/posthorn/operator/tls.key --certificate-only --timeout=120 backup create"
	if got := strings.Join(pod.Containers[0].Args, " "); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if *pod.AutomountServiceAccountToken || !*pod.SecurityContext.RunAsNonRoot || !*pod.Containers[0].SecurityContext.ReadOnlyRootFilesystem {
		t.Error("the pod is not restricted")
	}
	var volumes []string
	for _, volume := range pod.Volumes {
		volumes = append(volumes, volume.Name)
	}
	if !slices.Equal(volumes, []string{operatorVolume, credentialsVolume}) {
		t.Errorf("volumes %v", volumes)
	}
	for name, value := range names.BackupSelector("c") {
		if job.Spec.Template.Labels[name] != value {
			t.Errorf("the network policy does not admit the pod: %v", job.Spec.Template.Labels)
		}
	}
}

func TestJobOfADeletionNeedsNoCluster(t *testing.T) {
	owner := &posthornv1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "12345678"}}
	pod := jobFor(task{owner: owner, work: workDelete, cluster: "c", destination: volumeDestination(""), args: []string{"delete"}}).Spec.Template.Spec
	if got := strings.Join(pod.Containers[0].Args, " "); got != "ctl --quiet backup delete" {
		t.Error(got)
	}
	if len(pod.Volumes) != 1 || pod.Volumes[0].PersistentVolumeClaim == nil || pod.Containers[0].VolumeMounts[0].ReadOnly {
		t.Errorf("volumes %+v", pod.Volumes)
	}
	restore := jobFor(task{owner: owner, work: workRestore, cluster: "c", destination: volumeDestination(""), args: []string{"restore"}}).Spec.Template.Spec
	if !restore.Containers[0].VolumeMounts[0].ReadOnly {
		t.Error("a restore can write to the store")
	}
}
