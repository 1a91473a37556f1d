// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// checkOverride refuses changes of spec.podTemplate to the labels that select the pods, to the identity, data and
// configuration of a node, and to fields that other parts of the spec set.
func checkOverride(made, merged *corev1.PodTemplateSpec) error {
	for name, value := range made.Labels {
		if merged.Labels[name] != value {
			return forbidden("the label " + name)
		}
	}
	for name, value := range made.Annotations {
		if merged.Annotations[name] != value {
			return forbidden("the annotation " + name)
		}
	}
	a, b := &made.Spec, &merged.Spec
	for field, isSame := range map[string]bool{
		"serviceAccountName (the operator creates one for the cluster)": a.ServiceAccountName == b.ServiceAccountName,
		"restartPolicy":         a.RestartPolicy == b.RestartPolicy,
		"hostname":              a.Hostname == b.Hostname,
		"subdomain":             a.Subdomain == b.Subdomain,
		"activeDeadlineSeconds": b.ActiveDeadlineSeconds == nil,
	} {
		if !isSame {
			return forbidden(field)
		}
	}
	for i := range a.Volumes {
		if !hasEqual(b.Volumes, a.Volumes[i], func(v corev1.Volume) string { return v.Name }) {
			return forbidden("the volume " + a.Volumes[i].Name)
		}
	}
	for _, volume := range b.Volumes {
		if volume.Name == dataVolume {
			return forbidden("the volume " + dataVolume)
		}
	}
	return checkContainer(brokerOf(made), brokerOf(merged))
}

// checkContainer compares the broker's container.
func checkContainer(made, merged *corev1.Container) error {
	switch {
	case merged == nil:
		return forbidden("the container " + containerName)
	case made.Image != merged.Image:
		return forbidden("the broker's image (spec.image and spec.version set it)")
	case !reflect.DeepEqual(made.Command, merged.Command) || !reflect.DeepEqual(made.Args, merged.Args):
		return forbidden("the broker's command and arguments (spec.config sets what the broker reads)")
	}
	for i := range made.Env {
		if !hasEqual(merged.Env, made.Env[i], func(e corev1.EnvVar) string { return e.Name }) {
			return forbidden("the environment variable " + made.Env[i].Name)
		}
	}
	for _, variable := range merged.Env {
		// The broker reads any setting from its environment, which overrides the operator's files.
		if strings.HasPrefix(variable.Name, "POSTHORN_") && !hasEqual(made.Env, variable, func(e corev1.EnvVar) string { return e.Name }) {
			return forbidden("environment variables that begin with POSTHORN_ (spec.config is for settings)")
		}
	}
	for i := range made.VolumeMounts {
		if !hasEqual(merged.VolumeMounts, made.VolumeMounts[i], func(m corev1.VolumeMount) string { return m.MountPath }) {
			return forbidden("the volume mounted at " + made.VolumeMounts[i].MountPath)
		}
	}
	for i := range made.Ports {
		if !hasEqual(merged.Ports, made.Ports[i], func(p corev1.ContainerPort) string { return p.Name }) {
			return forbidden("the port " + made.Ports[i].Name)
		}
	}
	return nil
}

func brokerOf(template *corev1.PodTemplateSpec) *corev1.Container {
	for i := range template.Spec.Containers {
		if template.Spec.Containers[i].Name == containerName {
			return &template.Spec.Containers[i]
		}
	}
	return nil
}

// hasEqual reports whether the element of a list with the same key is equal.
func hasEqual[T any](list []T, wanted T, key func(T) string) bool {
	for i := range list {
		if key(list[i]) == key(wanted) {
			return reflect.DeepEqual(list[i], wanted)
		}
	}
	return false
}

func forbidden(field string) error {
	return newTerminalError("InvalidPodTemplate", "spec.podTemplate must not change %s", field)
}
