// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package user

import (
	"context"

	"posthorn.io/posthorn/internal/broker"
)

// topicKey identifies a topic permission.
type topicKey struct{ vhost, exchange string }

func (w *work) wantedPermissions() map[string]broker.Permission {
	out := map[string]broker.Permission{}
	for _, p := range w.user.Spec.Permissions {
		out[p.Vhost] = broker.Permission{User: w.user.BrokerName(), Vhost: p.Vhost, Configure: p.Configure, Write: p.Write, Read: p.Read}
	}
	return out
}

func (w *work) wantedTopicPermissions() map[topicKey]broker.TopicPermission {
	out := map[topicKey]broker.TopicPermission{}
	for _, p := range w.user.Spec.TopicPermissions {
		out[topicKey{p.Vhost, p.Exchange}] = broker.TopicPermission{User: w.user.BrokerName(), Vhost: p.Vhost, Exchange: p.Exchange, Write: p.Write, Read: p.Read}
	}
	return out
}

func (w *work) limits() broker.Limits {
	limits := w.tenant.Limits(w.user.Spec.Limits)
	return broker.Limits{MaxConnections: limits.Connections, MaxChannels: limits.Channels}
}

// foundPermissions are the user's permissions by vhost.
func (w *work) foundPermissions(ctx context.Context, b broker.Client) (map[string]broker.Permission, error) {
	list, err := b.ListPermissions(ctx, w.user.BrokerName())
	if err != nil {
		return nil, err
	}
	out := map[string]broker.Permission{}
	for _, p := range list {
		p.User = w.user.BrokerName()
		out[p.Vhost] = p
	}
	return out, nil
}

func (w *work) foundTopicPermissions(ctx context.Context, b broker.Client) (map[topicKey]broker.TopicPermission, error) {
	list, err := b.ListTopicPermissions(ctx, w.user.BrokerName())
	if err != nil {
		return nil, err
	}
	out := map[topicKey]broker.TopicPermission{}
	for _, p := range list {
		p.User = w.user.BrokerName()
		out[topicKey{p.Vhost, p.Exchange}] = p
	}
	return out, nil
}

// compareRights returns which of permissions, topic permissions and limits differ.
func (w *work) compareRights(ctx context.Context, b broker.Client) ([]string, error) {
	var out []string
	permissions, err := w.foundPermissions(ctx, b)
	if err != nil {
		return nil, err
	}
	if !sameMap(permissions, w.wantedPermissions()) {
		out = append(out, partPermissions)
	}
	topics, err := w.foundTopicPermissions(ctx, b)
	if err != nil {
		return nil, err
	}
	if !sameMap(topics, w.wantedTopicPermissions()) {
		out = append(out, partTopicPermissions)
	}
	limits, err := b.UserLimits(ctx, w.user.BrokerName())
	if err != nil {
		return nil, err
	}
	if limits != w.limits() {
		out = append(out, partLimits)
	}
	return out, nil
}

func sameMap[K, V comparable](a, b map[K]V) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if other, found := b[key]; !found || other != value {
			return false
		}
	}
	return true
}

// setPermissions revokes unwanted permissions before it grants wanted ones.
func (w *work) setPermissions(ctx context.Context, b broker.Client) error {
	found, err := w.foundPermissions(ctx, b)
	if err != nil {
		return err
	}
	wanted := w.wantedPermissions()
	for vhost := range found {
		if _, keep := wanted[vhost]; keep {
			continue
		}
		if err := b.DeletePermission(ctx, vhost, w.user.BrokerName()); err != nil && !broker.IsNotFound(err) {
			return err
		}
	}
	for vhost, permission := range wanted {
		if found[vhost] == permission {
			if _, there := found[vhost]; there {
				continue
			}
		}
		if err := b.PutPermission(ctx, permission); err != nil {
			return err
		}
	}
	return nil
}

// setTopicPermissions: the broker deletes topic permissions of a whole vhost, so a vhost with an unwanted one loses
// all and gets the wanted ones again.
func (w *work) setTopicPermissions(ctx context.Context, b broker.Client) error {
	found, err := w.foundTopicPermissions(ctx, b)
	if err != nil {
		return err
	}
	wanted := w.wantedTopicPermissions()
	cleared := map[string]bool{}
	for key := range found {
		if _, keep := wanted[key]; keep || cleared[key.vhost] {
			continue
		}
		if err := b.DeleteTopicPermissions(ctx, key.vhost, w.user.BrokerName()); err != nil && !broker.IsNotFound(err) {
			return err
		}
		cleared[key.vhost] = true
	}
	for key, permission := range wanted {
		if there, known := found[key]; known && there == permission && !cleared[key.vhost] {
			continue
		}
		if err := b.PutTopicPermission(ctx, permission); err != nil {
			return err
		}
	}
	return nil
}
