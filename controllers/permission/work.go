// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package permission

import (
	"context"
	"slices"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

type work struct {
	permission *posthornv1.Permission
	env        topology.Env
	found      *broker.Permission
}

func (w *work) Check(tenant topology.Tenant) error { return check(w.permission, tenant) }

// Winner returns the User whose spec.permissions take precedence.
func (w *work) Winner(ctx context.Context) (string, error) {
	return winner(ctx, w.env, w.permission, "spec.permissions", func(spec *posthornv1.UserSpec) bool {
		return slices.ContainsFunc(spec.Permissions, func(p posthornv1.UserPermission) bool { return p.Vhost == w.permission.Spec.Vhost })
	})
}

func (w *work) Adoption() posthornv1.AdoptionPolicy { return w.permission.Spec.Adoption }

func (w *work) Reclaim() string { return string(w.permission.Spec.ReclaimPolicy) }

func (w *work) Prepare(context.Context) error { return nil }

func (w *work) get(ctx context.Context, b broker.Client) error {
	found, err := b.GetPermission(ctx, w.permission.Spec.Vhost, w.permission.BrokerUser())
	if err == nil {
		w.found = &found
	}
	return err
}

func (w *work) Exists(ctx context.Context, b broker.Client) (bool, error) {
	err := w.get(ctx, b)
	if broker.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (w *work) Compare(ctx context.Context, b broker.Client) (topology.Difference, error) {
	if w.found == nil {
		if err := w.get(ctx, b); err != nil {
			return topology.Difference{}, err
		}
	}
	return topology.Difference{Mutable: differences(&w.permission.Spec, w.found)}, nil
}

func differences(spec *posthornv1.PermissionSpec, found *broker.Permission) []string {
	var out []string
	if spec.Configure != found.Configure {
		out = append(out, "configure")
	}
	if spec.Write != found.Write {
		out = append(out, "write")
	}
	if spec.Read != found.Read {
		out = append(out, "read")
	}
	return out
}

func (w *work) Create(ctx context.Context, b broker.Client) error {
	w.found = nil
	spec := &w.permission.Spec
	err := b.PutPermission(ctx, broker.Permission{
		User: w.permission.BrokerUser(), Vhost: spec.Vhost, Configure: spec.Configure, Write: spec.Write, Read: spec.Read,
	})
	return explain(ctx, b, w.permission, err)
}

func (w *work) Update(ctx context.Context, b broker.Client, _ topology.Difference) error {
	return w.Create(ctx, b)
}

func (w *work) Report(context.Context, broker.Client) error { return nil }

// Impediment returns nil: a permission that the broker has is in force.
func (w *work) Impediment() *topology.Impediment { return nil }

func (w *work) Settled() bool { return true }

func (w *work) Forget(ctx context.Context, b broker.Client) error {
	return b.DeletePermission(ctx, w.permission.Spec.Vhost, w.permission.BrokerUser())
}

// Revoke revokes the permission, which the namespace may not grant any more, and closes the user's connections.
func (w *work) Revoke(ctx context.Context, b broker.Client, _ topology.Tenant, _ bool) error {
	found, err := b.GetPermission(ctx, w.permission.Spec.Vhost, w.permission.BrokerUser())
	if broker.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	vhost := w.permission.Spec.Vhost
	return topology.RevokeAccess(ctx, b, w.permission.BrokerUser(), []string{vhost}, map[string]broker.Permission{vhost: found})
}

func (w *work) Conditions(func(kind string, truth topology.Truth, reason, message string), error) {}
