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
	// checkSeconds bounds one check, the pull of the image included.
	checkSeconds = int64(600)
	// checkRetry is how soon a check that could not be done is repeated.
	checkRetry = 10 * time.Second
	// exitConfig is the broker's exit code for a configuration that it refuses.
	exitConfig = int32(2)
)

// Reasons of Ready while new settings are checked.
const (
	reasonCheckingConfig = "CheckingConfig"
	reasonInvalidConfig  = "InvalidConfig"
)

// configVerdict is what a check of settings has come to.
type configVerdict string

const (
	configPending configVerdict = "Pending" // it is not over
	configValid   configVerdict = "Valid"   // the broker accepts the settings
	configInvalid configVerdict = "Invalid" // the broker refuses them
	configUnknown configVerdict = "Unknown" // the pod failed for another reason
)

// settingsAccepted says whether the pod template may be given to the StatefulSet: a broker of the wanted
// image has accepted the settings, in a pod of its own. Otherwise it says why not in s.held or s.invalidConfig.
func (s *scope) settingsAccepted(ctx context.Context, template *corev1.PodTemplateSpec, inputs templateInputs) (bool, error) {
	name := ""
	if needsConfigCheck(s.sts, inputs, len(s.cluster.Spec.Config)) {
		name = names.ConfigCheckPod(s.cluster.Name, digest([]byte(inputs.Image+"\n"+inputs.Config)))
	}
	if err := s.removeConfigChecks(ctx, name); err != nil || name == "" {
		return err == nil, err
	}
	pod := &corev1.Pod{}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: name}, pod)
	switch {
	case apierrors.IsNotFound(err):
		s.held = &finding{reason: reasonCheckingConfig, message: "pod " + name + " checks the settings with the image " + inputs.Image}
		return false, s.startConfigCheck(ctx, template, name)
	case err != nil:
		return false, fmt.Errorf("reading the pod %s: %w", name, err)
	}
	if err := s.mayChange(pod); err != nil {
		return false, err
	}
	verdict, message := judgeConfigCheck(pod)
	switch verdict {
	case configValid:
		return true, nil
	case configInvalid:
		s.invalidConfig = "spec.config is refused, no pod is changed: " + message
		if ready := meta.FindStatusCondition(s.cluster.Status.Conditions, posthornv1.ConditionReady); ready == nil || ready.Message != s.invalidConfig {
			s.event(corev1.EventTypeWarning, reasonInvalidConfig, "CheckConfig", "%s", s.invalidConfig)
		}
		return false, nil
	case configUnknown:
		s.lookAgain(checkRetry)
		if s.Now().Sub(pod.CreationTimestamp.Time) > checkRetry {
			err = client.IgnoreNotFound(s.Client.Delete(ctx, pod))
		}
	case configPending:
	}
	s.held = &finding{reason: reasonCheckingConfig, message: strings.TrimSuffix("pod "+name+" checks the settings with the image "+inputs.Image+"; "+message, "; ")}
	return false, err
}

// needsConfigCheck says whether settings are new, or new for the image. Without settings of the spec
// there are only the operator's own.
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

// startConfigCheck makes the pod that checks the settings.
func (s *scope) startConfigCheck(ctx context.Context, template *corev1.PodTemplateSpec, name string) error {
	pod := configCheckPod(template)
	pod.Namespace, pod.Name, pod.Labels = s.cluster.Namespace, name, names.ConfigCheckLabels(s.cluster.Name)
	if err := controllerutil.SetControllerReference(s.cluster, pod, s.Scheme); err != nil {
		return fmt.Errorf("owning the pod %s: %w", name, err)
	}
	err := s.Client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		// The cache does not have it yet.
		s.lookAgain(behind)
		return nil
	}
	if err != nil {
		return refused(err, "making the pod "+name+" that checks the settings")
	}
	return nil
}

// configCheckPod reads the configuration files that pods of the template would get, and ends.
func configCheckPod(template *corev1.PodTemplateSpec) *corev1.Pod {
	no, deadline := false, checkSeconds
	from := template.Spec
	broker := brokerOf(template).DeepCopy()
	// Requests and limits, so that the pod is admitted where a quota or limit range asks for them.
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

// judgeConfigCheck says what a check has come to, in words where it did not accept the settings.
func judgeConfigCheck(pod *corev1.Pod) (configVerdict, string) {
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
		return configUnknown, fmt.Sprintf("%s: exit code %d%s", ended.Reason, ended.ExitCode, lastWords(ended))
	}
	return configUnknown, strings.TrimSuffix(pod.Status.Reason+": "+pod.Status.Message, ": ")
}

// settingsErrors is the broker's list of errors in one line, without the names of files that only pods have.
func settingsErrors(said string) string {
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(said), "\n") {
		if rest, found := strings.CutPrefix(line, configDir+"/"+userConfigPath+":"); found {
			_, line, _ = strings.Cut(rest, ": ")
		}
		out = append(out, strings.TrimSpace(line))
	}
	return cutWords(strings.Join(out, "; "))
}

// removeConfigChecks deletes the pods that checked settings, but the named one.
func (s *scope) removeConfigChecks(ctx context.Context, except string) error {
	var pods corev1.PodList
	if err := s.Client.List(ctx, &pods, client.InNamespace(s.cluster.Namespace), client.MatchingLabels(names.ConfigCheckLabels(s.cluster.Name))); err != nil {
		return fmt.Errorf("listing the pods that check settings: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Name == except || pod.DeletionTimestamp != nil || !ownedBy(pod, s.cluster) {
			continue
		}
		uid := pod.UID
		if err := s.Client.Delete(ctx, pod, client.Preconditions(metav1.Preconditions{UID: &uid})); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting the pod %s: %w", pod.Name, err)
		}
	}
	return nil
}
