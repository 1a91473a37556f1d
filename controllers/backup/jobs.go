// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/topology"
)

// poll is the interval at which a Job that runs, and an object that a Job waits for, are read.
const poll = 10 * time.Second

// staleRetry is the time after which an object is reconciled again whose cached version was old.
const staleRetry = 200 * time.Millisecond

// errStale: the cached version of the object is older than one that the operator wrote.
var errStale = errors.New("the cache has an old version of the object")

// Jobs is what the reconcilers of this package share.
type Jobs struct {
	Client client.Client
	// Live reads past the cache.
	Live   client.Reader
	Scheme *runtime.Scheme
	Events events.EventRecorder
	// Resync is the longest interval between two reads of a Job that runs.
	Resync time.Duration
	// ForgetBound is how long a deleted Backup waits for a store that does not delete the backup.
	ForgetBound time.Duration
	// Now is the clock.
	Now func() time.Time
}

// pollInterval is the time between two reads of a Job that runs.
func (r *Jobs) pollInterval() time.Duration { return min(poll, r.Resync) }

// oneShot is an object whose Job runs once.
type oneShot struct {
	object client.Object
	work   string
	phase  posthornv1.JobPhase
	// isUntouched reports whether an object of the same type has started no Job.
	isUntouched func(client.Object) bool
	// task returns the task, or an error from topology.Wait or topology.Refuse.
	task func(context.Context) (task, error)
}

// step reads the Job of an object, or creates it when it has none yet.
func (r *Jobs) step(ctx context.Context, o oneShot) (outcome, error) {
	name := names.JobOf(o.object.GetName(), string(o.object.GetUID()), o.work)
	job, err := r.findJob(ctx, o.object, name)
	if err != nil {
		return decideError(err, r.Now())
	}
	if job != nil {
		return r.read(ctx, job)
	}
	if o.phase == posthornv1.JobRunning {
		return failed(reasonJobLost, "the Job "+name+" was deleted before the operator read its result", r.Now()), nil
	}
	// A cached version that is old would run the Job again.
	fresh, isObject := o.object.DeepCopyObject().(client.Object)
	if !isObject {
		return outcome{}, fmt.Errorf("%T is not an object", o.object)
	}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(o.object), fresh); err != nil {
		return outcome{}, fmt.Errorf("reading the newest version: %w", err)
	}
	if fresh.GetUID() != o.object.GetUID() || !o.isUntouched(fresh) {
		return outcome{}, errStale
	}
	t, err := o.task(ctx)
	if err != nil {
		return decideError(err, r.Now())
	}
	job, err = r.create(ctx, t)
	if err != nil {
		return decideError(err, r.Now())
	}
	return outcomeOf(job, nil), nil
}

// decideError turns a refusal into a failure, and a missing object into a reason to wait.
func decideError(err error, now time.Time) (outcome, error) {
	var refusal *topology.Refusal
	var pending *topology.Pending
	switch {
	case errors.As(err, &refusal):
		return failed(refusal.Reason, refusal.Message, now), nil
	case errors.As(err, &pending):
		return outcome{phase: posthornv1.JobPending, reason: pending.Reason, message: topology.OneLine(pending.Message)}, nil
	}
	return outcome{}, err
}

// findJob returns the Job of an object; nil when there is none.
func (r *Jobs) findJob(ctx context.Context, owner client.Object, name string) (*batchv1.Job, error) {
	job := &batchv1.Job{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: owner.GetNamespace(), Name: name}, job)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the Job %s: %w", name, err)
	case !metav1.IsControlledBy(job, owner):
		return nil, topology.Refuse(reasonNameTaken, "the Job %s exists and belongs to another object", name)
	}
	return job, nil
}

// podsOf returns the pods of a Job.
func (r *Jobs) podsOf(ctx context.Context, namespace, job string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.Live.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{batchv1.JobNameLabel: job}); err != nil {
		return nil, fmt.Errorf("listing the pods of the Job %s: %w", job, err)
	}
	return list.Items, nil
}

func (r *Jobs) read(ctx context.Context, job *batchv1.Job) (outcome, error) {
	pods, err := r.podsOf(ctx, job.Namespace, job.Name)
	if err != nil {
		return outcome{}, err
	}
	return outcomeOf(job, pods), nil
}

// create creates the Job of a task.
func (r *Jobs) create(ctx context.Context, t task) (*batchv1.Job, error) {
	job := jobFor(t)
	if err := controllerutil.SetControllerReference(t.owner, job, r.Scheme); err != nil {
		return nil, fmt.Errorf("setting the owner of the Job %s: %w", job.Name, err)
	}
	err := r.Client.Create(ctx, job)
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return nil, topology.Refuse(reasonRefused, "the API server refuses the Job %s: %v", job.Name, err)
	case err != nil:
		return nil, fmt.Errorf("creating the Job %s: %w", job.Name, err)
	}
	return job, nil
}

// removeJob deletes the Job of an object with its pods.
func (r *Jobs) removeJob(ctx context.Context, owner client.Object, name string) error {
	job, err := r.findJob(ctx, owner, name)
	if err != nil || job == nil {
		return err
	}
	uid := job.UID
	err = r.Client.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions(metav1.Preconditions{UID: &uid}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the Job %s: %w", name, err)
	}
	return nil
}

// environment is the cluster that a Job works with.
type environment struct {
	cluster *posthornv1.BrokerCluster
	// node is a ready pod.
	node string
	pods pods
}

// findEnvironment returns a cluster with a ready node.
func (r *Jobs) findEnvironment(ctx context.Context, namespace string, ref posthornv1.ClusterReference) (environment, error) {
	var cluster posthornv1.BrokerCluster
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, &cluster)
	switch {
	case apierrors.IsNotFound(err):
		return environment{}, topology.Wait(reasonClusterNotFound, "BrokerCluster %s does not exist in namespace %s: create it, or delete this object and create it in the namespace of the cluster", ref.Name, namespace)
	case err != nil:
		return environment{}, fmt.Errorf("reading the BrokerCluster: %w", err)
	case cluster.DeletionTimestamp != nil:
		return environment{}, topology.Wait(reasonClusterNotFound, "BrokerCluster %s is being deleted", ref.Name)
	case cluster.Spec.Hibernated:
		return environment{}, topology.Wait(reasonHibernated, "BrokerCluster %s is hibernated: unset spec.hibernated", ref.Name)
	}
	var list corev1.PodList
	if err := r.Client.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels(names.Selector(ref.Name))); err != nil {
		return environment{}, fmt.Errorf("listing the pods of the BrokerCluster: %w", err)
	}
	pod := readyNode(list.Items)
	if pod == nil {
		return environment{}, topology.Wait(reasonNoReadyNode, "no node of BrokerCluster %s is ready", ref.Name)
	}
	return environment{cluster: &cluster, node: pod.Name, pods: podsLike(&cluster, pod)}, nil
}

// readyNode returns the first ready pod, by name, that has the listener for the operator; nil when there is none.
func readyNode(pods []corev1.Pod) *corev1.Pod {
	var best *corev1.Pod
	for i := range pods {
		pod := &pods[i]
		isReady := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		broker := brokerOf(pod)
		if !isReady || pod.DeletionTimestamp != nil || broker == nil || (best != nil && best.Name < pod.Name) {
			continue
		}
		if slices.ContainsFunc(broker.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == names.PortOperator }) {
			best = pod
		}
	}
	return best
}

func brokerOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == containerName {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// podsLike returns the properties of a Job's pods that those of the cluster have.
func podsLike(cluster *posthornv1.BrokerCluster, pod *corev1.Pod) pods {
	out := pods{
		pullSecrets: cluster.Spec.ImagePullSecrets, serviceAccount: pod.Spec.ServiceAccountName,
		nodeSelector: pod.Spec.NodeSelector, tolerations: pod.Spec.Tolerations,
	}
	if broker := brokerOf(pod); broker != nil {
		out.image = broker.Image
	}
	return out
}

// checkDestination returns an error when the Secret or the claim of a destination does not exist.
func (r *Jobs) checkDestination(ctx context.Context, namespace string, destination posthornv1.BackupDestination) error {
	if volume := destination.Volume; volume != nil {
		var claim corev1.PersistentVolumeClaim
		// The cache has only the volumes of brokers.
		err := r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: volume.ClaimName}, &claim)
		if apierrors.IsNotFound(err) {
			return topology.Wait(reasonClaimNotFound, "PersistentVolumeClaim %s does not exist in namespace %s: create it", volume.ClaimName, namespace)
		}
		if err != nil {
			return fmt.Errorf("reading the PersistentVolumeClaim %s: %w", volume.ClaimName, err)
		}
		return nil
	}
	ref := destination.S3.CredentialsSecretRef
	var secret corev1.Secret
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, &secret)
	if apierrors.IsNotFound(err) {
		return topology.Wait(reasonSecretNotFound, "Secret %s with the credentials of the store does not exist in namespace %s: create it with the keys %s and %s", ref.Name, namespace, ref.AccessKeyIDKey, ref.SecretAccessKeyKey)
	}
	if err != nil {
		return fmt.Errorf("reading the Secret %s: %w", ref.Name, err)
	}
	var missing []string
	for _, key := range []string{ref.AccessKeyIDKey, ref.SecretAccessKeyKey} {
		if len(secret.Data[key]) == 0 {
			missing = append(missing, key)
		}
	}
	if len(missing) > 0 {
		return topology.Wait(reasonInvalidSecret, "Secret %s has no value for %s: add the credentials of the store", ref.Name, strings.Join(missing, " and "))
	}
	return nil
}
