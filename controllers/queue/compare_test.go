// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"strings"
	"testing"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

// TestAdoptionIgnoresTheDeclaredNumberOfMembers covers a Queue that is deleted with reclaimPolicy Retain and
// applied again. The broker keeps the argument of the first declaration for ever.
func TestAdoptionIgnoresTheDeclaredNumberOfMembers(t *testing.T) {
	cases := map[string]struct {
		replicas, clusterMembers int32
		declared                 any
		members                  int
		claimed                  bool
		want                     string
	}{
		"declared with the cluster's number, none asked for":    {0, 3, 3.0, 3, false, ""},
		"the cluster's number was removed since":                {0, 0, 3.0, 3, false, ""},
		"replicas were changed from 3 to 5":                     {5, 0, 3.0, 5, false, ""},
		"replicas were changed from 3 to 5, one member to come": {5, 0, 3.0, 4, false, ""},
		"replicas were changed from 5 to 3":                     {3, 0, 5.0, 3, false, ""},
		"declared by a client without the argument":             {3, 0, nil, 3, false, ""},
		"adoption would remove members":                         {3, 0, 3.0, 5, false, "replicas"},
		"an owned queue loses members later":                    {3, 0, 5.0, 5, true, ""},
	}
	for name, c := range cases {
		q := &posthornv1.Queue{Spec: posthornv1.QueueSpec{Vhost: "/", Type: posthornv1.QueueTypeQuorum, Replicas: c.replicas}}
		if c.claimed {
			q.Status.Claim = "n/c|%2F/q"
		}
		cluster := &posthornv1.BrokerCluster{}
		cluster.Spec.Placement.QuorumReplicas = c.clusterMembers
		found := broker.Queue{Type: "quorum", Durable: true, Arguments: map[string]any{argumentType: "quorum"}}
		if c.declared != nil {
			found.Arguments[argumentQuorumMembers] = c.declared
		}
		found.Members = strings.Fields("c-0 c-1 c-2 c-3 c-4")[:c.members]
		w := &work{queue: q, env: topology.Env{Cluster: cluster}, found: &found}
		var err error
		if w.wanted, err = arguments(&q.Spec, w.members()); err != nil {
			t.Fatal(err)
		}
		difference, err := w.Compare(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(difference.All(), " "); got != c.want {
			t.Errorf("%s: differs in %q, want %q", name, got, c.want)
		}
	}
}
