// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// checkOverride refuses what spec.podTemplate must leave alone: what selects the pods, what tells a
// node who it is and where its data and configuration are, and what other fields of the spec set.
func checkOverride(made, merged *corev1.PodTemplateSpec) error {
	for name, value := range made.Labels {
		if merged.Labels[name] != value {
			return leaveAlone("the label " + name)
		}
	}
	for name, value := range made.Annotations {
		if merged.Annotations[name] != value {
			return leaveAlone("the annotation " + name)
		}
	}
	a, b := &made.Spec, &merged.Spec
	for what, same := range map[string]bool{
		"serviceAccountName (the operator makes one for the cluster)": a.ServiceAccountName == b.ServiceAccountName,
		"restartPolicy":         a.RestartPolicy == b.RestartPolicy,
		"hostname":              a.Hostname == b.Hostname,
		"subdomain":             a.Subdomain == b.Subdomain,
		"activeDeadlineSeconds": b.ActiveDeadlineSeconds == nil,
	} {
		if !same {
			return leaveAlone(what)
		}
	}
	for i := range a.Volumes {
		if !hasEqual(b.Volumes, a.Volumes[i], func(v corev1.Volume) string { return v.Name }) {
			return leaveAlone("the volume " + a.Volumes[i].Name)
		}
	}
	for _, volume := range b.Volumes {
		if volume.Name == dataVolume {
			return leaveAlone("the volume " + dataVolume)
		}
	}
	return checkContainer(brokerOf(made), brokerOf(merged))
}

// checkContainer compares the broker's container.
func checkContainer(made, merged *corev1.Container) error {
	switch {
	case merged == nil:
		return leaveAlone("the container " + containerName)
	case made.Image != merged.Image:
		return leaveAlone("the broker's image (spec.image and spec.version set it)")
	case !reflect.DeepEqual(made.Command, merged.Command) || !reflect.DeepEqual(made.Args, merged.Args):
		return leaveAlone("the broker's command and arguments (spec.config sets what the broker reads)")
	}
	for i := range made.Env {
		if !hasEqual(merged.Env, made.Env[i], func(e corev1.EnvVar) string { return e.Name }) {
			return leaveAlone("the environment variable " + made.Env[i].Name)
		}
	}
	for _, variable := range merged.Env {
		// The broker takes any setting from its environment: those of the operator come from files.
		if strings.HasPrefix(variable.Name, "POSTHORN_") && !hasEqual(made.Env, variable, func(e corev1.EnvVar) string { return e.Name }) {
			return leaveAlone("environment variables that begin with POSTHORN_ (spec.config is for settings)")
		}
	}
	for i := range made.VolumeMounts {
		if !hasEqual(merged.VolumeMounts, made.VolumeMounts[i], func(m corev1.VolumeMount) string { return m.MountPath }) {
			return leaveAlone("what is mounted at " + made.VolumeMounts[i].MountPath)
		}
	}
	for i := range made.Ports {
		if !hasEqual(merged.Ports, made.Ports[i], func(p corev1.ContainerPort) string { return p.Name }) {
			return leaveAlone("the port " + made.Ports[i].Name)
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

// hasEqual says whether the element of a list with the same key is the same in everything.
func hasEqual[T any](list []T, wanted T, key func(T) string) bool {
	for i := range list {
		if key(list[i]) == key(wanted) {
			return reflect.DeepEqual(list[i], wanted)
		}
	}
	return false
}

func leaveAlone(what string) error {
	return terminal("InvalidPodTemplate", "spec.podTemplate must leave alone %s", what)
}
