// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backup reconciles Backups, ScheduledBackups and Restores. A Job runs posthorn ctl for each of them.
package backup

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/requests"
)

// Work of a Job. It is part of the Job's name and the value of names.LabelComponent.
const (
	workBackup  = "backup"
	workRestore = "restore"
	workDelete  = "delete"
)

const (
	containerName = "posthorn"
	// brokerUser is the user and group of the broker's image.
	brokerUser = int64(10001)
	// secretFileMode lets the group (fsGroup) read, and nobody else.
	secretFileMode = int32(0o440)

	// storeVolume is the volume of a destination, mounted at storeDir.
	storeVolume = "store"
	storeDir    = "/backups"
	// credentialsVolume has the credentials of an S3-compatible store.
	credentialsVolume = "s3"
	credentialsDir    = "/etc/posthorn/s3"
	accessKeyIDFile   = "access-key-id"
	secretKeyFile     = "secret-access-key"
	// operatorVolume has the operator's client certificate, which the nodes accept instead of a password.
	operatorVolume = "operator"
	operatorDir    = "/etc/posthorn/operator"
	caKey          = "ca.crt"

	// terminationLog is the file with the termination message of a container.
	terminationLog = "/dev/termination-log"

	// keptSeconds is how long Kubernetes keeps a finished Job whose result the operator has not read.
	keptSeconds = int32(7 * 24 * 60 * 60)
	// deleteTimeout bounds one deletion in a store.
	deleteTimeout = time.Hour
	// deleteRetries is the number of times that Kubernetes repeats a deletion. Backups and restores are not repeated: the
	// second attempt would find what the first one left, and hide why that failed.
	deleteRetries = int32(2)
	// answerSeconds bounds one response of a node.
	answerSeconds = 120
)

// pods are the properties that a Job's pods share with those of the cluster.
type pods struct {
	image          string
	pullSecrets    []corev1.LocalObjectReference
	serviceAccount string
	nodeSelector   map[string]string
	tolerations    []corev1.Toleration
}

// task is a run of posthorn ctl backup.
type task struct {
	owner client.Object
	// work is the kind of work: workBackup, workRestore or workDelete.
	work string
	// cluster is the name of the BrokerCluster.
	cluster string
	pods    pods
	// node is the pod whose HTTP API the command uses; empty when it needs none.
	node        string
	destination posthornv1.BackupDestination
	// args of posthorn ctl, from the name of the command on.
	args     []string
	settings posthornv1.JobSettings
}

// storeOf returns the name of a destination for posthorn ctl, and the options for it.
func storeOf(destination posthornv1.BackupDestination) (store string, options []string) {
	if volume := destination.Volume; volume != nil {
		return strings.TrimSuffix(storeDir+"/"+volume.SubPath, "/"), nil
	}
	s3 := destination.S3
	if s3.Endpoint != "" {
		options = append(options, "--s3-endpoint="+strings.TrimSuffix(s3.Endpoint, "/"))
	}
	if s3.Region != "" {
		options = append(options, "--s3-region="+s3.Region)
	}
	if s3.VirtualHosts {
		options = append(options, "--s3-virtual-hosts")
	}
	if s3.AllowHTTP {
		options = append(options, "--s3-allow-http")
	}
	options = append(options,
		"--s3-access-key-id-file="+credentialsDir+"/"+accessKeyIDFile, "--s3-secret-access-key-file="+credentialsDir+"/"+secretKeyFile)
	return strings.TrimSuffix("s3://"+s3.Bucket+"/"+s3.Prefix, "/"), options
}

// backupArgs returns the command that writes a backup.
func backupArgs(spec *posthornv1.BackupSpec, name string) []string {
	store, options := storeOf(spec.Destination)
	args := append([]string{"create", "--to=" + store, "--name=" + name, "--result-file=" + terminationLog}, options...)
	if scope := spec.Scope; scope != nil {
		for _, vhost := range scope.Vhosts {
			args = append(args, "--vhost="+string(vhost))
		}
		for _, queue := range scope.Queues {
			args = append(args, "--queue="+string(queue))
		}
		if scope.DefinitionsOnly {
			args = append(args, "--definitions-only")
		}
	}
	return args
}

// restoreArgs returns the command that restores a backup.
func restoreArgs(spec *posthornv1.RestoreSpec, source posthornv1.RestoreSource) []string {
	store, options := storeOf(source.Destination)
	args := append([]string{"restore", "--from=" + store, "--result-file=" + terminationLog}, options...)
	if scope := spec.Scope; scope != nil {
		if scope.Vhost != "" {
			args = append(args, "--vhost="+string(scope.Vhost))
		}
		for _, queue := range scope.Queues {
			args = append(args, "--queue="+string(queue))
		}
		if scope.DefinitionsOnly {
			args = append(args, "--definitions-only")
		}
		if scope.MessagesOnly {
			args = append(args, "--messages-only")
		}
	}
	if spec.AsVhost != "" {
		args = append(args, "--as-vhost="+string(spec.AsVhost))
	}
	switch spec.Conflict {
	case posthornv1.ConflictSkip:
		args = append(args, "--skip-non-empty")
	case posthornv1.ConflictAppend:
		args = append(args, "--into-non-empty")
	}
	return append(args, "--", source.Name)
}

// deleteArgs returns the command that deletes a backup. One that does not exist is no failure: nothing was written, or
// it is deleted.
func deleteArgs(destination posthornv1.BackupDestination, name string) []string {
	store, options := storeOf(destination)
	return append(append([]string{"delete", "--in=" + store, "--if-exists"}, options...), "--", name)
}

// jobFor returns the Job of a task, without its owner.
func jobFor(t task) *batchv1.Job {
	deadline, kept, retries := int64(deleteTimeout/time.Second), keptSeconds, int32(0)
	if t.settings.Timeout != nil {
		deadline = int64(t.settings.Timeout.Duration / time.Second)
	}
	if t.work == workDelete {
		retries = deleteRetries
	}
	labels := names.BackupLabels(t.cluster, t.work)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.owner.GetNamespace(), Name: names.JobOf(t.owner.GetName(), string(t.owner.GetUID()), t.work), Labels: labels,
		},
		Spec: batchv1.JobSpec{
			BackoffLimit: &retries, ActiveDeadlineSeconds: &deadline, TTLSecondsAfterFinished: &kept,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podOf(t)},
		},
	}
}

func podOf(t task) corev1.PodSpec {
	no, yes, user := false, true, brokerUser
	onRootMismatch := corev1.FSGroupChangeOnRootMismatch
	volumes, mounts := volumesOf(t)
	return corev1.PodSpec{
		RestartPolicy:                corev1.RestartPolicyNever,
		ServiceAccountName:           t.pods.serviceAccount,
		AutomountServiceAccountToken: &no,
		EnableServiceLinks:           &no,
		ImagePullSecrets:             t.pods.pullSecrets,
		NodeSelector:                 t.pods.nodeSelector,
		Tolerations:                  t.pods.tolerations,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
			FSGroup: &user, FSGroupChangePolicy: &onRootMismatch,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:            containerName,
			Image:           t.pods.image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			Command:         []string{"/posthorn"},
			Args:            append(connection(t), t.args...),
			Resources:       defaultRequests.Add(t.settings.Resources),
			VolumeMounts:    mounts,
			// The error of a command that failed goes to the status.
			TerminationMessagePath:   terminationLog,
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
		Volumes: volumes,
	}
}

// connection returns the arguments up to the command backup.
func connection(t task) []string {
	args := []string{"ctl", "--quiet"}
	if t.node != "" {
		args = append(args,
			"--url=https://"+names.NodeHost(t.owner.GetNamespace(), t.cluster, t.node)+":"+strconv.Itoa(names.PortOperator),
			"--cacert="+operatorDir+"/"+caKey, "--cert="+operatorDir+"/"+corev1.TLSCertKey, "--key="+operatorDir+"/"+corev1.TLSPrivateKeyKey,
			// The nodes identify the operator by its certificate. A user would take precedence.
			"--certificate-only",
			fmt.Sprintf("--timeout=%d", answerSeconds))
	}
	return append(args, "backup")
}

// volumesOf returns the volumes of a Job's pod and their mounts.
func volumesOf(t task) ([]corev1.Volume, []corev1.VolumeMount) {
	mode := secretFileMode
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	add := func(name, path string, readOnly bool, source corev1.VolumeSource) {
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: source})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: readOnly})
	}
	secret := func(name string, items ...corev1.KeyToPath) corev1.VolumeProjection {
		return corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: items}}
	}
	if t.node != "" {
		add(operatorVolume, operatorDir, true, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: &mode, Sources: []corev1.VolumeProjection{
			secret(names.OperatorCertificateSecret(t.cluster),
				corev1.KeyToPath{Key: corev1.TLSCertKey, Path: corev1.TLSCertKey}, corev1.KeyToPath{Key: corev1.TLSPrivateKeyKey, Path: corev1.TLSPrivateKeyKey}),
			secret(names.InternodeSecret(t.cluster), corev1.KeyToPath{Key: caKey, Path: caKey}),
		}}})
	}
	if volume := t.destination.Volume; volume != nil {
		readOnly := t.work == workRestore
		add(storeVolume, storeDir, readOnly, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: volume.ClaimName, ReadOnly: readOnly}})
	}
	if s3 := t.destination.S3; s3 != nil {
		ref := s3.CredentialsSecretRef
		add(credentialsVolume, credentialsDir, true, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: ref.Name, DefaultMode: &mode,
			Items: []corev1.KeyToPath{{Key: ref.AccessKeyIDKey, Path: accessKeyIDFile}, {Key: ref.SecretAccessKeyKey, Path: secretKeyFile}},
		}})
	}
	return volumes, mounts
}

// Requests of a Job's container where the spec names none. The command holds one part of the backup in memory, of 16 MiB or
// one message.
var defaultRequests = requests.Defaults{CPU: "100m", Memory: "256Mi"}
