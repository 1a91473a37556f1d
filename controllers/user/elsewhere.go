// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package user

import (
	"context"
	"fmt"
	"sort"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/permission"
	"posthorn.io/posthorn/internal/topology"
)

// elsewhere are the permissions of a user that Permission and TopicPermission objects set, and not the User.
type elsewhere struct {
	vhosts map[string]bool
	topics map[topicKey]bool
	// conflicts describe those that the User's spec lists too.
	conflicts []string
}

// setElsewhere finds the permissions that the User must leave alone.
//
//	Permission                            | in the spec of the User | the User
//	owns the permission                   | no                      | leaves it
//	does not own it                       | no                      | revokes it
//	may grant it, and is older            | yes                     | leaves it and reports a conflict
//	is younger, or may not grant it       | yes                     | sets it
func (w *work) setElsewhere(ctx context.Context) (*elsewhere, error) {
	if w.others != nil {
		return w.others, nil
	}
	out := &elsewhere{vhosts: map[string]bool{}, topics: map[topicKey]bool{}}
	if err := w.addPermissions(ctx, out); err != nil {
		return nil, err
	}
	if err := w.addTopicPermissions(ctx, out); err != nil {
		return nil, err
	}
	sort.Strings(out.conflicts)
	w.others = out
	return out, nil
}

func (w *work) addPermissions(ctx context.Context, out *elsewhere) error {
	var list posthornv1.PermissionList
	if err := topology.Grants(ctx, w.env.Client, &list, topology.ClusterKey(w.user), w.user.BrokerName()); err != nil {
		return err
	}
	listed := w.wantedPermissions()
	for i := range list.Items {
		p := &list.Items[i]
		_, both := listed[p.Spec.Vhost]
		state, err := topology.StateOf(ctx, w.env, p, topology.ClaimOf(permission.Kind{}, p))
		if err != nil {
			return err
		}
		if !isSetBy(p, w.user, state, both) {
			continue
		}
		out.vhosts[p.Spec.Vhost] = true
		if both {
			out.conflicts = append(out.conflicts, fmt.Sprintf("vhost %q of spec.permissions is set by Permission %s", p.Spec.Vhost, client.ObjectKeyFromObject(p)))
		}
	}
	return nil
}

func (w *work) addTopicPermissions(ctx context.Context, out *elsewhere) error {
	var list posthornv1.TopicPermissionList
	if err := topology.Grants(ctx, w.env.Client, &list, topology.ClusterKey(w.user), w.user.BrokerName()); err != nil {
		return err
	}
	listed := w.wantedTopicPermissions()
	for i := range list.Items {
		p := &list.Items[i]
		key := topicKey{p.Spec.Vhost, p.Spec.Exchange}
		_, both := listed[key]
		state, err := topology.StateOf(ctx, w.env, p, topology.ClaimOf(permission.TopicKind{}, p))
		if err != nil {
			return err
		}
		if !isSetBy(p, w.user, state, both) {
			continue
		}
		out.topics[key] = true
		if both {
			out.conflicts = append(out.conflicts, fmt.Sprintf("exchange %q in vhost %q of spec.topicPermissions is set by TopicPermission %s", key.exchange, key.vhost, client.ObjectKeyFromObject(p)))
		}
	}
	return nil
}

// isSetBy decides the table of setElsewhere.
func isSetBy(p client.Object, user *posthornv1.User, state topology.GrantState, both bool) bool {
	if both {
		return state != topology.GrantRefused && topology.Precedes(p, user)
	}
	return state == topology.GrantOwned
}

// conflict returns a refusal when the spec lists permissions that older objects set.
func (w *work) conflict(ctx context.Context) error {
	others, err := w.setElsewhere(ctx)
	if err != nil || len(others.conflicts) == 0 {
		return err
	}
	return topology.Refuse(topology.ReasonConflict, "%s, which is older; remove it from this User or delete the other object", strings.Join(others.conflicts, ", and "))
}
