// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// observed is what a reconciliation has learnt from the API server and from the brokers. Where a phase has written,
// it has the answer.
type observed struct {
	// sts is the StatefulSet as the API server returned it; nil before it is created.
	sts *appsv1.StatefulSet
	// pods of the cluster, by name.
	pods map[string]*corev1.Pod
	// claims are the volumes of the cluster.
	claims []corev1.PersistentVolumeClaim
	// members of the cluster, one for each ordinal; nil before observe.
	members []memberView
	// external has the addresses of each node for clients outside Kubernetes; nil before they are read.
	external map[string][]posthornv1.ExternalAddress
	// notAdvertised: the nodes do not know the setting for their external addresses, or none has answered yet.
	notAdvertised bool
	// live is the ConfigMap of the live settings; nil when it does not exist.
	live *corev1.ConfigMap
	// keys of the configuration that the nodes know, once keysAsked is set.
	keys      settingKeys
	keysAsked bool
	// revisions of the settings, by their digests, as far as they were read; nil for one that does not exist.
	revisions map[string]map[string]string
	// strayNode is a node that the broker still counts as a member and that has no place in the StatefulSet; empty
	// when there is none.
	strayNode string
	// lost are queues whose only copy was on a lost disk; lostKnown is set when a node answered.
	lost      []broker.LostQueue
	lostKnown bool
	// removal is what the broker answers about the removal of a node.
	removal removalView
	// volumes is the state of growing volumes.
	volumes volumeGrowth
	// credentials of the default user.
	credentials credentials
	// internodeEnd is when the inter-node certificate expires.
	internodeEnd time.Time
	// serving is the certificate that clients see.
	serving servingCertificate
	// monitoring is the state of the objects for Prometheus.
	monitoring finding
	// importFailure is why the definitions of spec.bootstrap are not imported yet; empty when nothing is left to import.
	importFailure string
	// restore is why the backup of spec.bootstrap is not restored yet; the zero value when nothing is left to restore.
	restore bootstrapRestore
}

// bootstrapRestore is the state of a restore.
type bootstrapRestore struct {
	finding
	// stalled: it has failed.
	stalled bool
}

// hasPodsBeyond reports whether pods exist whose ordinal is not below n.
func (seen *observed) hasPodsBeyond(in *inputs, n int32) bool {
	for name := range seen.pods {
		if ordinal, ours := in.ordinalOf(name); ours && ordinal >= n {
			return true
		}
	}
	return false
}

// isScalingDown reports whether the StatefulSet still has to delete a pod because it was made smaller.
func (seen *observed) isScalingDown(in *inputs) bool {
	return seen.sts != nil && seen.sts.Spec.Replicas != nil && seen.hasPodsBeyond(in, *seen.sts.Spec.Replicas)
}

// member returns the member with a name; nil when there is none.
func (seen *observed) member(name string) *memberView {
	for i := range seen.members {
		if seen.members[i].Name == name {
			return &seen.members[i]
		}
	}
	return nil
}

// troubleOf returns the trouble of a member as the end of a message; empty when there is none.
func (seen *observed) troubleOf(name string) string {
	if m := seen.member(name); m != nil && m.trouble != "" {
		return ": " + m.trouble
	}
	return ""
}

// updateRevision returns the revision that pods are to have; empty before the StatefulSet is created.
func (seen *observed) updateRevision() string {
	if seen.sts == nil {
		return ""
	}
	return seen.sts.Status.UpdateRevision
}

// hasOneVersion reports whether every node has told its version and all versions are the same.
func (seen *observed) hasOneVersion() bool {
	for i := range seen.members {
		if seen.members[i].version == "" || seen.members[i].version != seen.members[0].version {
			return false
		}
	}
	return len(seen.members) > 0
}

// refusesCredentials reports whether a ready node refuses the operator's credentials.
func (seen *observed) refusesCredentials() bool {
	return slices.ContainsFunc(seen.members, func(m memberView) bool { return m.Ready && m.unauthorized })
}

// memberCounts summarises the members.
type memberCounts struct {
	present, ready, current, critical, answered int
	hasOutdated                                 bool
	// trouble has one line for each node whose container does not run.
	trouble []string
	// untrusted are the nodes whose certificate the operator does not trust.
	untrusted []string
}

func (seen *observed) count() memberCounts {
	var n memberCounts
	for i := range seen.members {
		m := &seen.members[i]
		if m.Presence == podPresent {
			n.present++
		}
		if m.Ready {
			n.ready++
		}
		if m.Presence == podPresent && m.Current {
			n.current++
		}
		n.hasOutdated = n.hasOutdated || isOutdated(m.rollMember)
		if m.Health != healthUnknown {
			n.answered++
		}
		if m.Health == healthCritical {
			n.critical++
		}
		if m.isUntrusted {
			n.untrusted = append(n.untrusted, m.Name)
		}
		if m.trouble != "" {
			n.trouble = append(n.trouble, m.Name+": "+m.trouble)
		}
	}
	return n
}

// isQuorumSafe reports whether each of the given number of nodes answered that no queue needs it.
func (n memberCounts) isQuorumSafe(nodes int) bool {
	return n.critical == 0 && len(n.untrusted) == 0 && n.answered == nodes && nodes > 0
}
