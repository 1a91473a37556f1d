// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package user

import (
	"context"
	"fmt"
	"sort"
	"strings"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

// Names of the properties that may differ.
const (
	partExistence        = "existence"
	partPassword         = "password"
	partTags             = "tags"
	partPermissions      = "permissions"
	partTopicPermissions = "topicPermissions"
	partLimits           = "limits"
)

// tenantTags are the tags that are allowed outside the cluster's namespace: they give no access outside the vhosts in
// which the user has permissions.
var tenantTags = map[posthornv1.UserTag]bool{"management": true, "policymaker": true}

type work struct {
	user *posthornv1.User
	env  topology.Env
	// tenant has the rights of the user's namespace.
	tenant topology.Tenant

	// password of the user, and the version of the Secret that it comes from.
	password, version string
	found             *broker.User
	// credentials and permissions record the progress of the reconciliation.
	credentials, permissions bool
	// others are the permissions that other objects set; nil until they were looked up.
	others *elsewhere
}

// Check refuses names, vhosts and tags outside the tenancy.
func (w *work) Check(tenant topology.Tenant) error {
	w.tenant = tenant
	w.user.Status.Username = w.user.BrokerName()
	if err := tenant.CheckUser(w.user.BrokerName()); err != nil {
		return err
	}
	for _, tag := range w.user.Spec.Tags {
		if !tenant.Home && !tenantTags[tag] {
			return topology.Refuse(topology.ReasonNotAllowed, "the tag %s may only be given in the BrokerCluster's own namespace", tag)
		}
	}
	for _, permission := range w.user.Spec.Permissions {
		if err := tenant.CheckVhost(permission.Vhost); err != nil {
			return err
		}
	}
	for _, permission := range w.user.Spec.TopicPermissions {
		if err := tenant.CheckVhost(permission.Vhost); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) Adoption() posthornv1.AdoptionPolicy { return w.user.Spec.Adoption }

func (w *work) Reclaim() string { return string(w.user.Spec.ReclaimPolicy) }

func (w *work) Exists(ctx context.Context, b broker.Client) (bool, error) {
	found, err := b.GetUser(ctx, w.user.BrokerName())
	if broker.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	w.found = &found
	return true, nil
}

func (w *work) Compare(ctx context.Context, b broker.Client) (topology.Difference, error) {
	var d topology.Difference
	if w.found == nil {
		found, err := b.GetUser(ctx, w.user.BrokerName())
		if err != nil {
			return d, err
		}
		w.found = &found
	}
	if !w.passwordIsSet() {
		d.Mutable = append(d.Mutable, partPassword)
		d.Expected = w.version != w.user.Status.CredentialVersion
	}
	if !sameWords(w.found.Tags, w.tags()) {
		d.Mutable = append(d.Mutable, partTags)
	}
	w.credentials = d.None()
	rights, err := w.compareRights(ctx, b)
	d.Mutable = append(d.Mutable, rights...)
	w.permissions = err == nil && len(rights) == 0
	return d, err
}

// passwordIsSet compares the password with the hash that the broker reports. Without a known hash it relies on the
// version of the Secret that was applied last.
func (w *work) passwordIsSet() bool {
	if w.certificate() {
		return w.found.PasswordHash == ""
	}
	switch w.found.CheckPassword(w.password) {
	case broker.PasswordSame:
		return true
	case broker.PasswordDiffers:
		return false
	default:
		return w.version == w.user.Status.CredentialVersion
	}
}

// certificate reports whether the user has a certificate and no password.
func (w *work) certificate() bool { return w.user.Spec.Credentials.Certificate != nil }

func (w *work) putUser(ctx context.Context, b broker.Client) error {
	if w.certificate() {
		return b.PutUserWithoutPassword(ctx, w.user.BrokerName(), w.tags())
	}
	return b.PutUser(ctx, w.user.BrokerName(), w.password, w.tags())
}

func (w *work) tags() []string {
	out := make([]string, 0, len(w.user.Spec.Tags))
	for _, tag := range w.user.Spec.Tags {
		out = append(out, string(tag))
	}
	return out
}

func sameWords(a, b []string) bool {
	a, b = append([]string{}, a...), append([]string{}, b...)
	sort.Strings(a)
	sort.Strings(b)
	return strings.Join(a, ",") == strings.Join(b, ",")
}

func (w *work) Create(ctx context.Context, b broker.Client) error {
	return w.Update(ctx, b, topology.Difference{Mutable: []string{
		partExistence, partPassword, partPermissions, partTopicPermissions, partLimits,
	}})
}

// Update corrects password and tags first, then permissions.
func (w *work) Update(ctx context.Context, b broker.Client, difference topology.Difference) error {
	differs := map[string]bool{}
	for _, part := range difference.Mutable {
		differs[part] = true
	}
	w.found = nil
	if differs[partPassword] || differs[partTags] {
		if err := w.putUser(ctx, b); err != nil {
			return fmt.Errorf("setting password and tags: %w", err)
		}
	}
	w.user.Status.CredentialVersion = w.version
	w.credentials = true
	err := w.updateRights(ctx, b, differs)
	if broker.IsUnknownUser(err) && w.mayNotBeVisible(ctx, b, differs[partPassword]) {
		return &topology.Invisible{Err: err}
	}
	return err
}

// mayNotBeVisible reports whether the node that answered may not know the user yet: this reconciliation has created
// the user, or the user cannot be read.
func (w *work) mayNotBeVisible(ctx context.Context, b broker.Client, made bool) bool {
	if made {
		return true
	}
	_, err := b.GetUser(ctx, w.user.BrokerName())
	return broker.IsNotFound(err)
}

func (w *work) updateRights(ctx context.Context, b broker.Client, differs map[string]bool) error {
	if differs[partPermissions] {
		if err := w.setPermissions(ctx, b); err != nil {
			return fmt.Errorf("setting permissions: %w", err)
		}
	}
	if differs[partTopicPermissions] {
		if err := w.setTopicPermissions(ctx, b); err != nil {
			return fmt.Errorf("setting topic permissions: %w", err)
		}
	}
	if differs[partLimits] {
		if err := b.SetUserLimits(ctx, w.user.BrokerName(), w.limits()); err != nil {
			return fmt.Errorf("setting limits: %w", err)
		}
	}
	return nil
}

func (w *work) Report(ctx context.Context, _ broker.Client) error {
	w.user.Status.CredentialVersion = w.version
	limits := w.tenant.Limits(w.user.Spec.Limits)
	w.user.Status.Limits = &limits
	err := w.conflict(ctx)
	w.permissions = w.permissions && err == nil
	return err
}

// Impediment returns nil: a user with this password, these tags and permissions in the broker can log in.
func (w *work) Impediment() *topology.Impediment { return nil }

func (w *work) Settled() bool { return true }

func (w *work) Forget(ctx context.Context, b broker.Client) error {
	return b.DeleteUser(ctx, w.user.BrokerName())
}

func (w *work) Conditions(set func(kind string, truth topology.Truth, reason, message string), failure error) {
	message := ""
	if failure != nil {
		message = failure.Error()
	}
	one := func(kind string, synced bool) {
		switch {
		case synced:
			set(kind, topology.True, topology.ReasonInSync, "")
		case failure != nil:
			set(kind, topology.False, "NotSynced", message)
		default:
			set(kind, topology.Unknown, "NotObserved", "")
		}
	}
	one(posthornv1.ConditionCredentialsSynced, w.credentials)
	one(posthornv1.ConditionPermissionsSynced, w.permissions)
	if w.tenant.Namespace == "" {
		set(posthornv1.ConditionLimitsCapped, topology.Unknown, "NotObserved", "")
	} else if capped := w.cappedLimits(); len(capped) > 0 {
		set(posthornv1.ConditionLimitsCapped, topology.True, "TenancyUserLimits", fmt.Sprintf(
			"%s: spec.tenancy.userLimits of BrokerCluster %s/%s is lower than spec.limits, and in force", strings.Join(capped, ", "), w.env.Cluster.Namespace, w.env.Cluster.Name))
	} else {
		set(posthornv1.ConditionLimitsCapped, topology.False, "AsSpecified", "")
	}
}

// cappedLimits lists the limits in spec.limits that the cluster does not allow. A user without limits has those of
// the cluster.
func (w *work) cappedLimits() []string {
	asked, given := w.user.Spec.Limits, w.tenant.Limits(w.user.Spec.Limits)
	var out []string
	for _, limit := range []struct {
		name         string
		asked, given int64
	}{
		{"connections", int64(asked.Connections), int64(given.Connections)}, {"channels", int64(asked.Channels), int64(given.Channels)},
		{"messages per second", asked.MessageRate, given.MessageRate}, {"bytes per second", asked.ByteRate, given.ByteRate},
	} {
		if limit.asked > limit.given && limit.given > 0 {
			out = append(out, fmt.Sprintf("%d of %d %s", limit.given, limit.asked, limit.name))
		}
	}
	return out
}
