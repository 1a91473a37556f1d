// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

const (
	// checkSeconds bounds one check, including the pull of the image.
	checkSeconds = int64(600)
	// checkRetry is the time after which a failed check is repeated.
	checkRetry = 10 * time.Second
	// exitConfig is the broker's exit code for a configuration that it refuses.
	exitConfig = int32(2)
)

// Reasons of Ready while new settings are checked.
const (
	reasonCheckingConfig = "CheckingConfig"
	reasonInvalidConfig  = "InvalidConfig"
)

// checkResult is the result of a check of settings.
type checkResult string

const (
	configPending checkResult = "Pending" // the check has not finished
	configValid   checkResult = "Valid"   // the broker accepts the settings
	configInvalid checkResult = "Invalid" // the broker refuses them
	configUnknown checkResult = "Unknown" // the pod failed for another reason
)

// checkSettings reports whether the StatefulSet may get the pod template: a broker of the wanted image has accepted the
// settings, in a pod of its own. Otherwise r.out.held or r.out.invalidConfig has the reason.
func (r *reconciliation) checkSettings(ctx context.Context, template *corev1.PodTemplateSpec, inputs templateInputs) (bool, error) {
	name := ""
	if needsConfigCheck(r.seen.sts, inputs, len(r.in.cluster.Spec.Config)) {
		name = names.ConfigCheckPod(r.in.cluster.Name, digest([]byte(inputs.Image+"\n"+inputs.Config)))
	}
	if err := r.removeConfigChecks(ctx, name); err != nil || name == "" {
		return err == nil, err
	}
	pod := &corev1.Pod{}
	err := r.Client.Get(ctx, r.in.keyOf(name), pod)
	switch {
	case apierrors.IsNotFound(err):
		r.out.held = &finding{reason: reasonCheckingConfig, message: "pod " + name + " checks the settings with the image " + inputs.Image}
		return false, r.startConfigCheck(ctx, template, name)
	case err != nil:
		return false, fmt.Errorf("reading the pod %s: %w", name, err)
	}
	if err := mayChange(pod, r.in.cluster); err != nil {
		return false, err
	}
	result, message := resultOfCheck(pod)
	switch result {
	case configValid:
		return true, nil
	case configInvalid:
		r.out.invalidConfig = "the broker refuses spec.config, so no pod is changed: " + message
		if r.seen.sts != nil && isHibernated(r.seen.sts) {
			r.out.invalidConfig = "the broker refuses spec.config, so the cluster stays hibernated: " + message
		}
		if ready := meta.FindStatusCondition(r.in.cluster.Status.Conditions, posthornv1.ConditionReady); ready == nil || ready.Message != r.out.invalidConfig {
			r.out.warnOfChange(reasonInvalidConfig, "CheckConfig", "%s", r.out.invalidConfig)
		}
		return false, nil
	case configUnknown:
		r.out.requeueWithin(checkRetry)
		if r.in.now.Sub(pod.CreationTimestamp.Time) > checkRetry {
			err = client.IgnoreNotFound(r.Client.Delete(ctx, pod))
		}
	case configPending:
	}
	r.out.held = &finding{reason: reasonCheckingConfig, message: strings.TrimSuffix("pod "+name+" checks the settings with the image "+inputs.Image+"; "+message, "; ")}
	return false, err
}

// needsConfigCheck reports whether settings are new, or new for the image. Without settings in the spec only the operator's
// own apply.
func needsConfigCheck(sts *appsv1.StatefulSet, inputs templateInputs, settings int) bool {
	if settings == 0 {
		return false
	}
	if sts == nil {
		return true
	}
	runs := brokerOf(&sts.Spec.Template)
	return runs == nil || runs.Image != inputs.Image || sts.Spec.Template.Annotations[names.AnnotationConfig] != inputs.Config
}

// startConfigCheck creates the pod that checks the settings.
func (r *reconciliation) startConfigCheck(ctx context.Context, template *corev1.PodTemplateSpec, name string) error {
	pod := configCheckPod(template)
	pod.Namespace, pod.Name, pod.Labels = r.in.cluster.Namespace, name, names.ConfigCheckLabels(r.in.cluster.Name)
	if err := controllerutil.SetControllerReference(r.in.cluster, pod, r.Scheme); err != nil {
		return fmt.Errorf("setting the owner of pod %s: %w", name, err)
	}
	err := r.Client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		// The cache does not have it yet.
		r.out.requeueWithin(staleRetry)
		return nil
	}
	if err != nil {
		return refused(err, "creating the pod "+name+" that checks the settings")
	}
	return nil
}

// configCheckPod returns a pod that reads the configuration files of the template's pods, and ends.
func configCheckPod(template *corev1.PodTemplateSpec) *corev1.Pod {
	no, deadline := false, checkSeconds
	from := template.Spec
	broker := brokerOf(template).DeepCopy()
	// Quotas and limit ranges may require requests and limits.
	small := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy:                corev1.RestartPolicyNever,
		ActiveDeadlineSeconds:        &deadline,
		ServiceAccountName:           from.ServiceAccountName,
		AutomountServiceAccountToken: &no,
		EnableServiceLinks:           &no,
		ImagePullSecrets:             from.ImagePullSecrets,
		SecurityContext:              from.SecurityContext.DeepCopy(),
		NodeSelector:                 from.NodeSelector,
		Tolerations:                  from.Tolerations,
		Containers: []corev1.Container{{
			Name:                     containerName,
			Image:                    broker.Image,
			ImagePullPolicy:          broker.ImagePullPolicy,
			Command:                  broker.Command,
			Args:                     []string{"config", "check", configDir + "/" + mainConfigKey},
			Resources:                corev1.ResourceRequirements{Requests: small, Limits: small},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext:          broker.SecurityContext,
			VolumeMounts:             []corev1.VolumeMount{{Name: configVolume, MountPath: configDir, ReadOnly: true}},
		}},
	}}
	for _, volume := range from.Volumes {
		if volume.Name == configVolume {
			pod.Spec.Volumes = append(pod.Spec.Volumes, *volume.DeepCopy())
		}
	}
	return pod
}

// resultOfCheck returns the result of a check, with a message unless it accepted the settings.
func resultOfCheck(pod *corev1.Pod) (checkResult, string) {
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		return configValid, ""
	case corev1.PodFailed:
	default:
		_, trouble := notRunningReason(pod)
		return configPending, trouble
	}
	for _, status := range pod.Status.ContainerStatuses {
		ended := status.State.Terminated
		if status.Name != containerName || ended == nil {
			continue
		}
		if ended.ExitCode == exitConfig && strings.TrimSpace(ended.Message) != "" {
			return configInvalid, settingsErrors(ended.Message)
		}
		return configUnknown, fmt.Sprintf("%s: exit code %d%s", ended.Reason, ended.ExitCode, terminationMessage(ended))
	}
	return configUnknown, strings.TrimSuffix(pod.Status.Reason+": "+pod.Status.Message, ": ")
}

// settingsErrors returns the broker's list of errors in one line, without the names of files inside the pod.
func settingsErrors(output string) string {
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(output), "\n") {
		if rest, found := strings.CutPrefix(line, configDir+"/"+userConfigPath+":"); found {
			_, line, _ = strings.Cut(rest, ": ")
		}
		out = append(out, strings.TrimSpace(line))
	}
	return keepEnd(strings.Join(out, "; "))
}

// removeConfigChecks deletes the pods that checked settings, except the named one.
func (r *reconciliation) removeConfigChecks(ctx context.Context, except string) error {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(r.in.cluster.Namespace), client.MatchingLabels(names.ConfigCheckLabels(r.in.cluster.Name))); err != nil {
		return fmt.Errorf("listing the pods that check settings: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Name == except || pod.DeletionTimestamp != nil || !isOwnedBy(pod, r.in.cluster) {
			continue
		}
		uid := pod.UID
		if err := r.Client.Delete(ctx, pod, client.Preconditions(metav1.Preconditions{UID: &uid})); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting the pod %s: %w", pod.Name, err)
		}
	}
	return nil
}
