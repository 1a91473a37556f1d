// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// imageOf returns the image of the spec; else the image of the spec's version; else the present image of the cluster,
// so that an operator with another default restarts nothing; else the operator's default.
func imageOf(spec *posthornv1.BrokerClusterSpec, sts *appsv1.StatefulSet, repository, fallback string) string {
	if spec.Image != "" {
		return spec.Image
	}
	if spec.Version != "" {
		return repository + ":" + spec.Version
	}
	if sts != nil {
		for _, container := range sts.Spec.Template.Spec.Containers {
			if container.Name == containerName {
				return container.Image
			}
		}
	}
	return fallback
}

// decideTarget decides the image, version and protocols of the pods. A version that is refused leaves the present
// image; the rest of the spec is still applied.
func (out *decided) decideTarget(in *inputs, seen *observed) {
	out.image = imageOf(&in.cluster.Spec, seen.sts, in.ImageRepository, in.DefaultImage)
	out.protocols = protocolsOf(in.cluster, seen.sts, in.DefaultProtocols)
	out.version = versionOf(&in.cluster.Spec, out.image)
	out.restartedAt = restartedAt(in, seen)
	if seen.sts == nil {
		return
	}
	status := &in.cluster.Status
	var disabled []string
	if status.FeatureFlags != nil {
		disabled = status.FeatureFlags.Disabled
	}
	from := status.CurrentVersion
	if _, is := parseVersion(from); !is {
		from = lowestVersion(status.Members)
	}
	out.refusal = decideVersion(from, out.version, disabled)
	if out.refusal.reason != "" {
		out.image = imageOf(&posthornv1.BrokerClusterSpec{}, seen.sts, "", out.image)
	}
}

// restartedAt returns the value of AnnotationRestartedAt. Without the annotation it is that of the last restart: a tool
// that removes the annotation restarts nothing.
func restartedAt(in *inputs, seen *observed) string {
	if value := in.cluster.Annotations[names.AnnotationRestartedAt]; value != "" || seen.sts == nil {
		return value
	}
	return seen.sts.Spec.Template.Annotations[names.AnnotationRestartedAt]
}

// lowestVersion returns the lowest version that a node has reported; empty when none has.
func lowestVersion(members []posthornv1.MemberStatus) string {
	lowest := ""
	for _, m := range members {
		reported, is := parseVersion(m.Version)
		if known, found := parseVersion(lowest); is && (!found || reported.isBefore(known)) {
			lowest = m.Version
		}
	}
	return lowest
}

// versionOf returns the spec's version, else the image's tag or digest.
func versionOf(spec *posthornv1.BrokerClusterSpec, image string) string {
	if spec.Version != "" {
		return spec.Version
	}
	if _, digest, found := strings.Cut(image, "@"); found {
		return digest
	}
	last := image[strings.LastIndex(image, "/")+1:]
	if _, tag, found := strings.Cut(last, ":"); found {
		return tag
	}
	return "latest"
}
