// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package user

import (
	"context"
	"maps"

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
	out := broker.Limits{}
	for name, value := range map[string]int64{
		broker.MaxConnections: int64(limits.Connections), broker.MaxChannels: int64(limits.Channels),
		broker.MaxMessageRate: limits.MessageRate, broker.MaxByteRate: limits.ByteRate,
	} {
		if value > 0 {
			out[name] = value
		}
	}
	return out
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
	wanted, found, err := w.permissionMaps(ctx, b)
	if err != nil {
		return nil, err
	}
	if !maps.Equal(found, wanted) {
		out = append(out, partPermissions)
	}
	wantedTopics, foundTopics, err := w.topicPermissionMaps(ctx, b)
	if err != nil {
		return nil, err
	}
	if !maps.Equal(foundTopics, wantedTopics) {
		out = append(out, partTopicPermissions)
	}
	limits, err := b.UserLimits(ctx, w.user.BrokerName())
	if err != nil {
		return nil, err
	}
	if !maps.Equal(limits, w.limits()) {
		out = append(out, partLimits)
	}
	return out, nil
}

// permissionMaps returns the wanted and the found permissions without those that a Permission object sets.
func (w *work) permissionMaps(ctx context.Context, b broker.Client) (wanted, found map[string]broker.Permission, err error) {
	if found, err = w.foundPermissions(ctx, b); err != nil {
		return nil, nil, err
	}
	set, err := w.setElsewhere(ctx)
	if err != nil {
		return nil, nil, err
	}
	wanted = w.wantedPermissions()
	for vhost := range set.vhosts {
		delete(wanted, vhost)
		delete(found, vhost)
	}
	return wanted, found, nil
}

// topicPermissionMaps returns the wanted and the found topic permissions without those that a TopicPermission object
// sets.
func (w *work) topicPermissionMaps(ctx context.Context, b broker.Client) (wanted, found map[topicKey]broker.TopicPermission, err error) {
	if found, err = w.foundTopicPermissions(ctx, b); err != nil {
		return nil, nil, err
	}
	set, err := w.setElsewhere(ctx)
	if err != nil {
		return nil, nil, err
	}
	wanted = w.wantedTopicPermissions()
	for key := range set.topics {
		delete(wanted, key)
		delete(found, key)
	}
	return wanted, found, nil
}

// setPermissions revokes unwanted permissions before it grants wanted ones.
func (w *work) setPermissions(ctx context.Context, b broker.Client) error {
	wanted, found, err := w.permissionMaps(ctx, b)
	if err != nil {
		return err
	}
	for vhost := range found {
		if _, keep := wanted[vhost]; keep {
			continue
		}
		if err := b.DeletePermission(ctx, vhost, w.user.BrokerName()); err != nil && !broker.IsNotFound(err) {
			return err
		}
	}
	for vhost, permission := range wanted {
		if there, known := found[vhost]; known && there == permission {
			continue
		}
		if err := b.PutPermission(ctx, permission); err != nil {
			return err
		}
	}
	return nil
}

// setTopicPermissions revokes unwanted topic permissions before it grants wanted ones.
func (w *work) setTopicPermissions(ctx context.Context, b broker.Client) error {
	wanted, found, err := w.topicPermissionMaps(ctx, b)
	if err != nil {
		return err
	}
	for key := range found {
		if _, keep := wanted[key]; keep {
			continue
		}
		if err := b.DeleteTopicPermission(ctx, key.vhost, w.user.BrokerName(), key.exchange); err != nil && !broker.IsNotFound(err) {
			return err
		}
	}
	for key, permission := range wanted {
		if there, known := found[key]; known && there == permission {
			continue
		}
		if err := b.PutTopicPermission(ctx, permission); err != nil {
			return err
		}
	}
	return nil
}
