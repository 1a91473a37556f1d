// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package user

import (
	"context"
	"fmt"
	"sort"

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
	var outside []string
	for vhost := range permissions {
		if !admitted || !tenant.MayUseVhost(vhost) {
			outside = append(outside, vhost)
		}
	}
	sort.Strings(outside)
	return w.leave(ctx, b, outside, permissions)
}

// leave revokes the user's access to vhosts.
func (w *work) leave(ctx context.Context, b broker.Client, vhosts []string, permissions map[string]broker.Permission) error {
	if len(vhosts) == 0 {
		return nil
	}
	name := w.user.BrokerName()
	for _, vhost := range vhosts {
		nothing := broker.Permission{User: name, Vhost: vhost}
		if permissions[vhost] != nothing {
			if err := b.PutPermission(ctx, nothing); err != nil {
				return fmt.Errorf("revoking permissions: %w", err)
			}
		}
		if err := b.DeleteTopicPermissions(ctx, vhost, name); err != nil && !broker.IsNotFound(err) {
			return fmt.Errorf("revoking topic permissions: %w", err)
		}
	}
	if err := b.CloseConnections(ctx, name); err != nil && !broker.IsNotFound(err) {
		return fmt.Errorf("closing connections: %w", err)
	}
	for _, vhost := range vhosts {
		if err := b.DeletePermission(ctx, vhost, name); err != nil && !broker.IsNotFound(err) {
			return fmt.Errorf("revoking permissions: %w", err)
		}
	}
	return nil
}
