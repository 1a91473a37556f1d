// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// imageOf settles the image: the spec's; else the one of the spec's version; else the one that the
// cluster has already, so that a new version of the operator with another default restarts nothing;
// else the operator's default.
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

// judgeVersion keeps the image that the cluster has when the spec's version is refused: everything
// else goes on.
func (s *scope) judgeVersion() {
	status := &s.cluster.Status
	if s.sts == nil {
		return
	}
	var disabled []string
	if status.FeatureFlags != nil {
		disabled = status.FeatureFlags.Disabled
	}
	from := status.CurrentVersion
	if _, is := parseVersion(from); !is {
		from = lowestVersion(status.Members)
	}
	s.refusal = decideVersion(from, s.version, disabled)
	if s.refusal.reason != "" {
		s.image = imageOf(&posthornv1.BrokerClusterSpec{}, s.sts, "", s.image)
	}
}

// lowestVersion that the nodes have told; empty when none did.
func lowestVersion(members []posthornv1.MemberStatus) string {
	lowest := ""
	for _, m := range members {
		told, is := parseVersion(m.Version)
		if known, found := parseVersion(lowest); is && (!found || told.before(known)) {
			lowest = m.Version
		}
	}
	return lowest
}

// versionOf is the spec's version, else the image's tag or digest.
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
