// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package permission

import (
	"context"
	"fmt"
	"slices"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

type topicWork struct {
	permission *posthornv1.TopicPermission
	env        topology.Env
	found      *broker.TopicPermission
}

func (w *topicWork) Check(tenant topology.Tenant) error { return check(w.permission, tenant) }

// Winner returns the User whose spec.topicPermissions take precedence.
func (w *topicWork) Winner(ctx context.Context) (string, error) {
	return winner(ctx, w.env, w.permission, "spec.topicPermissions", func(spec *posthornv1.UserSpec) bool {
		return slices.ContainsFunc(spec.TopicPermissions, func(p posthornv1.UserTopicPermission) bool {
			return p.Vhost == w.permission.Spec.Vhost && p.Exchange == w.permission.Spec.Exchange
		})
	})
}

func (w *topicWork) Adoption() posthornv1.AdoptionPolicy { return w.permission.Spec.Adoption }

func (w *topicWork) Reclaim() string { return string(w.permission.Spec.ReclaimPolicy) }

func (w *topicWork) Prepare(context.Context) error { return nil }

func (w *topicWork) Exists(ctx context.Context, b broker.Client) (bool, error) {
	list, err := b.ListTopicPermissions(ctx, w.permission.BrokerUser())
	if broker.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for i := range list {
		if list[i].Vhost == w.permission.Spec.Vhost && list[i].Exchange == w.permission.Spec.Exchange {
			w.found = &list[i]
			return true, nil
		}
	}
	return false, nil
}

func (w *topicWork) Compare(ctx context.Context, b broker.Client) (topology.Difference, error) {
	if w.found == nil {
		exists, err := w.Exists(ctx, b)
		if err == nil && !exists {
			err = &topology.Invisible{Err: fmt.Errorf("the broker does not list %s", w.permission.BrokerName())}
		}
		if err != nil {
			return topology.Difference{}, err
		}
	}
	var out []string
	if w.permission.Spec.Write != w.found.Write {
		out = append(out, "write")
	}
	if w.permission.Spec.Read != w.found.Read {
		out = append(out, "read")
	}
	return topology.Difference{Mutable: out}, nil
}

func (w *topicWork) Create(ctx context.Context, b broker.Client) error {
	w.found = nil
	spec := &w.permission.Spec
	err := b.PutTopicPermission(ctx, broker.TopicPermission{
		User: w.permission.BrokerUser(), Vhost: spec.Vhost, Exchange: spec.Exchange, Write: spec.Write, Read: spec.Read,
	})
	return explain(ctx, b, w.permission, err)
}

func (w *topicWork) Update(ctx context.Context, b broker.Client, _ topology.Difference) error {
	return w.Create(ctx, b)
}

func (w *topicWork) Report(context.Context, broker.Client) error { return nil }

// Impediment returns nil: a topic permission that the broker has is in force.
func (w *topicWork) Impediment() *topology.Impediment { return nil }

func (w *topicWork) Settled() bool { return true }

func (w *topicWork) Forget(ctx context.Context, b broker.Client) error {
	return b.DeleteTopicPermission(ctx, w.permission.Spec.Vhost, w.permission.BrokerUser(), w.permission.Spec.Exchange)
}

func (w *topicWork) Conditions(func(kind string, truth topology.Truth, reason, message string), error) {
}
