// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package permission

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

// grant is a Permission or a TopicPermission.
type grant interface {
	topology.Object
	BrokerVhost() string
	BrokerUser() string
}

// check refuses vhosts and users outside the tenancy.
func check(g grant, tenant topology.Tenant) error {
	if err := tenant.CheckVhost(g.BrokerVhost()); err != nil {
		return err
	}
	return tenant.CheckUser(g.BrokerUser())
}

// winner describes the User that sets the same permission and takes precedence; empty when there is none.
func winner(ctx context.Context, env topology.Env, g grant, field string, sets func(*posthornv1.UserSpec) bool) (string, error) {
	user, err := topology.OwnerOf(ctx, env.Client, topology.ClusterKey(g), g.BrokerUser())
	if err != nil || user == nil || !sets(&user.Spec) || topology.Precedes(g, user) {
		return "", err
	}
	return fmt.Sprintf("%s of User %s, which is older", field, client.ObjectKeyFromObject(user)), nil
}

// explain returns for what a permission waits that the broker refused because the user or the vhost does not exist.
func explain(ctx context.Context, b broker.Client, g grant, refusal error) error {
	if !broker.IsUnknownUser(refusal) {
		return refusal
	}
	_, err := b.GetVhost(ctx, g.BrokerVhost())
	if broker.IsNotFound(err) {
		return topology.Refuse(topology.ReasonVhostNotFound, "the broker has no vhost %q", g.BrokerVhost())
	}
	if err != nil {
		return err
	}
	_, err = b.GetUser(ctx, g.BrokerUser())
	if broker.IsNotFound(err) {
		return topology.Wait(topology.ReasonUserNotFound, "waits for user %q, which the broker does not have", g.BrokerUser())
	}
	if err != nil {
		return err
	}
	// Another node answered than before, and it knows both.
	return &topology.Invisible{Err: refusal}
}
