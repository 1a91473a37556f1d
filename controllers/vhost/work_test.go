// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"slices"
	"testing"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

func TestDifferencesNameEveryProperty(t *testing.T) {
	limited := posthornv1.VhostLimits{MaxConnections: new(int32(0)), MaxQueues: new(int32(5))}
	for name, c := range map[string]struct {
		spec  posthornv1.VhostSpec
		found broker.Vhost
		want  []string
	}{
		"equal": {
			posthornv1.VhostSpec{DefaultQueueType: "quorum", Tags: []string{"a", "b"}, Limits: limited},
			broker.Vhost{DefaultQueueType: "quorum", Tags: broker.Tags{"b", "a"}, Limits: map[string]int64{"max-connections": 0, "max-queues": 5}}, nil,
		},
		"a queue type that the spec leaves to the broker": {posthornv1.VhostSpec{}, broker.Vhost{DefaultQueueType: "quorum"}, nil},
		"a negative limit, which is none":                 {posthornv1.VhostSpec{}, broker.Vhost{Limits: map[string]int64{"max-queues": -1}}, nil},
		"no limit instead of a limit of 0":                {posthornv1.VhostSpec{Limits: limited}, broker.Vhost{Limits: map[string]int64{"max-queues": 5}}, []string{partLimits}},
		"a rate": {
			posthornv1.VhostSpec{Limits: posthornv1.VhostLimits{MaxMessageRate: new(int64(9)), MaxByteRate: new(int64(8)), MaxChannels: new(int32(7))}},
			broker.Vhost{Limits: map[string]int64{"max-message-rate": 9, "max-byte-rate": 8, "max-channels": 6}}, []string{partLimits},
		},
		"equal rates": {
			posthornv1.VhostSpec{Limits: posthornv1.VhostLimits{MaxMessageRate: new(int64(9)), MaxByteRate: new(int64(8)), MaxChannels: new(int32(7))}},
			broker.Vhost{Limits: map[string]int64{"max-message-rate": 9, "max-byte-rate": 8, "max-channels": 7}}, nil,
		},
		"everything": {
			posthornv1.VhostSpec{DefaultQueueType: "quorum", Tags: []string{"a"}, Tracing: true, Limits: limited},
			broker.Vhost{DefaultQueueType: "classic", Tags: broker.Tags{"b"}, Limits: map[string]int64{"max-connections": 1}},
			[]string{partQueueType, partTags, partTracing, partLimits},
		},
	} {
		if got := differences(&c.spec, c.spec.Limits, &c.found); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
