// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package user

import (
	"context"
	"fmt"
	"sort"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/permission"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

// Revoke blocks a user whose namespace may no longer use the cluster, or revokes its permissions in vhosts that the
// namespace may no longer use, and closes its connections. It empties the permissions first and deletes them last, so
// that a retry after a failure finds them and closes the connections too.
func (w *work) Revoke(ctx context.Context, b broker.Client, tenant topology.Tenant, admitted bool) error {
	found, err := b.GetUser(ctx, w.user.BrokerName())
	if broker.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !admitted {
		if found.PasswordHash != "" || len(found.Tags) > 0 {
			if err := b.PutUserWithoutPassword(ctx, w.user.BrokerName(), nil); err != nil {
				return fmt.Errorf("deleting the password: %w", err)
			}
		}
		// The password is set again when the namespace may use the cluster again.
		w.user.Status.CredentialVersion = ""
	}
	permissions, err := w.foundPermissions(ctx, b)
	if err != nil {
		return err
	}
	granted, err := w.grantedByOwner(ctx)
	if err != nil {
		return err
	}
	var outside []string
	for vhost := range permissions {
		if !granted[vhost] && (!admitted || !tenant.MayUseVhost(vhost)) {
			outside = append(outside, vhost)
		}
	}
	sort.Strings(outside)
	return topology.RevokeAccess(ctx, b, w.user.BrokerName(), outside, permissions)
}

// grantedByOwner returns the vhosts in which a Permission of the cluster's namespace grants the user access: that
// Permission has the rights of the cluster's owner.
func (w *work) grantedByOwner(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	var list posthornv1.PermissionList
	cluster := topology.ClusterKey(w.user)
	if err := topology.Grants(ctx, w.env.Client, &list, cluster, w.user.BrokerName()); err != nil {
		return nil, err
	}
	for i := range list.Items {
		p := &list.Items[i]
		if p.Namespace == cluster.Namespace && p.Status.Claim == topology.ClaimOf(permission.Kind{}, p) {
			out[p.Spec.Vhost] = true
		}
	}
	return out, nil
}
