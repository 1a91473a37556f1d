// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// unreadyAnnotation on a pod makes the fake kubelet report a running pod that is no longer ready.
const unreadyAnnotation = "test.posthorn.io/unready"

// machineDownAnnotation on a pod makes it one whose machine Kubernetes has lost contact with.
const machineDownAnnotation = "test.posthorn.io/machine-down"

// crashedAnnotation on a pod makes the fake kubelet report that the broker's process was killed, or, with the value loop,
// that it is killed again and again.
const crashedAnnotation = "test.posthorn.io/crashed"

// earlierAnnotation makes pods those of an operator version without its own listener.
const earlierAnnotation = "test.posthorn.io/earlier-operator"

// setEarlier gives a cluster pods that accept passwords only.
func setEarlier(c *posthornv1.BrokerCluster) {
	c.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"metadata":{"annotations":{"` + earlierAnnotation + `":"true"}}}`)}
}

// kubelets takes the place of the StatefulSet controller, the volume provisioner and the kubelets: pods are ready as
// soon as they exist, unless the name of their image contains bad.
type kubelets struct {
	client client.Client
	live   client.Reader
}

func (k *kubelets) setup(mgr ctrl.Manager) error {
	if err := ctrl.NewControllerManagedBy(mgr).Named("config-checks").For(&corev1.Pod{}).Complete(reconcile.Func(k.checkConfig)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("kubelets").For(&appsv1.StatefulSet{}).Owns(&corev1.Pod{}).Complete(k)
}

// checkConfig takes the place of a pod that checks settings: the broker does not know keys that begin with
// "nonsense".
func (k *kubelets) checkConfig(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := k.live.Get(ctx, request.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if pod.Labels[names.LabelName] != names.ConfigCheck || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return reconcile.Result{}, nil
	}
	if strings.Contains(pod.Spec.Containers[0].Image, "bad") {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "posthorn", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"},
		}}}
		return reconcile.Result{}, client.IgnoreNotFound(k.client.Status().Update(ctx, &pod))
	}
	ended := &corev1.ContainerStateTerminated{Reason: "Completed", Message: "good"}
	pod.Status.Phase = corev1.PodSucceeded
	for _, source := range pod.Spec.Volumes[0].Projected.Sources {
		if source.ConfigMap == nil {
			continue
		}
		var files corev1.ConfigMap
		err := k.live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: source.ConfigMap.Name}, &files)
		if isOptional := source.ConfigMap.Optional; apierrors.IsNotFound(err) && isOptional != nil && *isOptional {
			continue
		}
		if err != nil {
			return reconcile.Result{}, err
		}
		for i, line := range strings.Split(files.Data["90-user.conf"], "\n") {
			if strings.HasPrefix(line, "nonsense") {
				key, _, _ := strings.Cut(line, " ")
				pod.Status.Phase = corev1.PodFailed
				ended = &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 2, Message: fmt.Sprintf("/etc/posthorn/conf.d/90-user.conf:%d: unknown key `%s`\n", i+1, key)}
			}
		}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "posthorn", State: corev1.ContainerState{Terminated: ended}}}
	return reconcile.Result{}, client.IgnoreNotFound(k.client.Status().Update(ctx, &pod))
}

func revisionOf(template corev1.PodTemplateSpec) string {
	data, err := json.Marshal(template)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:4])
}

func (k *kubelets) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var sts appsv1.StatefulSet
	if err := k.live.Get(ctx, request.NamespacedName, &sts); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	revision := revisionOf(sts.Spec.Template)
	ready := int32(0)
	for i := int32(0); i < *sts.Spec.Replicas; i++ {
		name := fmt.Sprintf("%s-%d", sts.Name, i)
		if err := k.claim(ctx, &sts, "data-"+name); err != nil {
			return reconcile.Result{}, err
		}
		var pod corev1.Pod
		err := k.live.Get(ctx, client.ObjectKey{Namespace: sts.Namespace, Name: name}, &pod)
		if apierrors.IsNotFound(err) {
			pod, err = k.create(ctx, &sts, name, revision)
		}
		if err != nil {
			return reconcile.Result{}, client.IgnoreAlreadyExists(err)
		}
		before := pod.DeepCopy()
		if k.report(&pod) {
			ready++
		}
		// A write without a change costs the API server as much as one with a change.
		if equality.Semantic.DeepEqual(before.Status, pod.Status) {
			continue
		}
		if err := k.client.Status().Update(ctx, &pod); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	if err := k.takeAway(ctx, &sts); err != nil {
		return reconcile.Result{}, err
	}
	before := sts.Status.DeepCopy()
	sts.Status.ObservedGeneration = sts.Generation
	sts.Status.UpdateRevision = revision
	sts.Status.Replicas, sts.Status.ReadyReplicas = *sts.Spec.Replicas, ready
	if equality.Semantic.DeepEqual(*before, sts.Status) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(k.client.Status().Update(ctx, &sts))
}

func (k *kubelets) claim(ctx context.Context, sts *appsv1.StatefulSet, name string) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: sts.Namespace, Name: name, Labels: sts.Spec.VolumeClaimTemplates[0].Labels}}
	if err := k.live.Get(ctx, client.ObjectKeyFromObject(claim), claim.DeepCopy()); !apierrors.IsNotFound(err) {
		return err
	}
	claim.Spec = sts.Spec.VolumeClaimTemplates[0].Spec
	claim.Spec.VolumeName = "pv-" + string(uuid.NewUUID())
	if err := k.client.Create(ctx, claim); err != nil {
		return client.IgnoreAlreadyExists(err)
	}
	claim.Status.Phase = corev1.ClaimBound
	claim.Status.Capacity = claim.Spec.Resources.Requests
	return k.client.Status().Update(ctx, claim)
}

// takeAway deletes the surplus pods, and their volumes if the StatefulSet asks for it.
func (k *kubelets) takeAway(ctx context.Context, sts *appsv1.StatefulSet) error {
	var pods corev1.PodList
	if err := k.live.List(ctx, &pods, client.InNamespace(sts.Namespace), client.MatchingLabels(sts.Spec.Selector.MatchLabels)); err != nil {
		return err
	}
	for i := range pods.Items {
		name := pods.Items[i].Name
		ordinal, err := strconv.Atoi(strings.TrimPrefix(name, sts.Name+"-"))
		if err != nil || ordinal < int(*sts.Spec.Replicas) {
			continue
		}
		if err := k.client.Delete(ctx, &pods.Items[i]); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return err
		}
		if server := brokers.get(client.ObjectKey{Namespace: sts.Namespace, Name: sts.Name}); server != nil {
			server.SetNode(name, false)
		}
		if sts.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
			if err := deleteClaim(ctx, k.client, sts.Namespace, "data-"+name); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteClaim deletes a volume like the volume protection controller.
func deleteClaim(ctx context.Context, c client.Client, namespace, name string) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := c.Delete(ctx, claim); err != nil {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(c.Patch(ctx, claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
}

func (k *kubelets) create(ctx context.Context, sts *appsv1.StatefulSet, name, revision string) (corev1.Pod, error) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: sts.Namespace, Name: name, Labels: map[string]string{"controller-revision-hash": revision}}}
	for key, value := range sts.Spec.Template.Labels {
		pod.Labels[key] = value
	}
	pod.Labels["topology.kubernetes.io/zone"] = "zone-" + name[len(name)-1:]
	pod.Annotations = sts.Spec.Template.Annotations
	pod.Spec = *sts.Spec.Template.Spec.DeepCopy()
	if pod.Annotations[earlierAnnotation] != "" {
		broker := &pod.Spec.Containers[0]
		broker.Ports = slices.DeleteFunc(broker.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == names.PortOperator })
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-" + name},
	}})
	if err := controllerutil.SetControllerReference(sts, &pod, k.client.Scheme()); err != nil {
		return pod, err
	}
	if err := k.client.Create(ctx, &pod); err != nil {
		return pod, err
	}
	if server := brokers.get(client.ObjectKey{Namespace: sts.Namespace, Name: sts.Name}); server != nil {
		server.StartNode(name)
	}
	return pod, nil
}

// report writes the pod's status and reports whether it is ready.
func (k *kubelets) report(pod *corev1.Pod) bool {
	start := pod.CreationTimestamp
	pod.Status.StartTime = &start
	pod.Status.PodIP = "10.0.0.1"
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
	pod.Status.HostIP = "192.0.2.10"
	pod.Status.HostIPs = []corev1.HostIP{{IP: "192.0.2.10"}}
	pod.Status.Phase = corev1.PodRunning
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: start}
	container := corev1.ContainerStatus{Name: "posthorn", Image: pod.Spec.Containers[0].Image, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: start}}}
	switch {
	case strings.Contains(pod.Spec.Containers[0].Image, "bad"):
		ready.Status = corev1.ConditionFalse
		pod.Status.Phase = corev1.PodPending
		container.Ready = false
		container.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}
	case pod.Annotations[unreadyAnnotation] != "", pod.Annotations[machineDownAnnotation] != "":
		ready.Status = corev1.ConditionFalse
		ready.LastTransitionTime = metav1.NewTime(start.Add(time.Minute))
	case pod.Annotations[crashedAnnotation] != "":
		ready.Status = corev1.ConditionFalse
		ready.LastTransitionTime = metav1.NewTime(start.Add(time.Minute))
		container.Ready = false
		container.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137}}
		if pod.Annotations[crashedAnnotation] == "loop" {
			container.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		}
	}
	pod.Status.Conditions = []corev1.PodCondition{ready}
	if pod.Annotations[machineDownAnnotation] != "" {
		// The node controller withdraws Ready alone.
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: start})
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{container}
	return ready.Status == corev1.ConditionTrue
}

// storedDigest is the digest that the operator records of a stored template.
func storedDigest(sts *appsv1.StatefulSet) string {
	data, err := json.Marshal(sts.Spec.Template)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
