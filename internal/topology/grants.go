// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// userIndex indexes permissions by cluster and user, and by the User that they refer to.
const userIndex = "posthorn.io/user"

// grant is a resource that gives access to a user, and names the user or refers to a User of its namespace.
type grant interface {
	Object
	BrokerVhost() string
	// BrokerUser returns the user's name in the broker; empty while the reference is not resolved.
	BrokerUser() string
	// UserName returns the name of the User that the resource refers to; empty when it names the user itself.
	UserName() string
	SetBrokerUser(name string)
}

// contender is Work for a property of the broker that a resource of another kind may set too.
type contender interface {
	// Winner describes the resource of another kind that takes precedence; empty when there is none.
	Winner(ctx context.Context) (string, error)
}

func namedUser(cluster client.ObjectKey, name string) string { return cluster.String() + "|" + name }

func referredUser(key client.ObjectKey) string { return "ref|" + key.String() }

// usersOf returns the values of userIndex.
func usersOf(g grant) []string {
	var out []string
	if name := g.BrokerUser(); name != "" {
		out = append(out, namedUser(ClusterKey(g), name))
	}
	if name := g.UserName(); name != "" {
		out = append(out, referredUser(client.ObjectKey{Namespace: g.GetNamespace(), Name: name}))
	}
	return out
}

// resolveUser records the name of the user that a permission applies to. The error says why the permission has to wait
// for its User.
func (r *Reconciler[T]) resolveUser(ctx context.Context, object T) error {
	g, is := any(object).(grant)
	if !is {
		return nil
	}
	if g.UserName() == "" {
		g.SetBrokerUser(g.BrokerUser())
		return nil
	}
	var user posthornv1.User
	key := client.ObjectKey{Namespace: g.GetNamespace(), Name: g.UserName()}
	err := r.Client.Get(ctx, key, &user)
	if apierrors.IsNotFound(err) || (err == nil && user.DeletionTimestamp != nil) {
		return Wait(ReasonUserNotFound, "User %s does not exist", key)
	}
	if err != nil {
		return fmt.Errorf("reading User %s: %w", key, err)
	}
	if of := ClusterKey(&user); of != ClusterKey(g) {
		return Refuse(ReasonInvalid, "User %s is a user of BrokerCluster %s, and this permission is for BrokerCluster %s", key, of, ClusterKey(g))
	}
	if before := g.BrokerUser(); g.Topology().Claim != "" && before != user.BrokerName() {
		return Refuse(ReasonImmutable, "User %s was %q in the broker and is now %q; delete this object and create it again", key, before, user.BrokerName())
	}
	g.SetBrokerUser(user.BrokerName())
	if !isUsable(&user) {
		return Wait(ReasonUserNotReady, "User %s is not Ready", key)
	}
	return nil
}

// isUsable reports whether the broker has the user. A User in conflict with an older Permission is not Ready, and the
// Permission must not wait for it.
func isUsable(user *posthornv1.User) bool {
	ready := meta.FindStatusCondition(user.Status.Conditions, posthornv1.ConditionReady)
	if ready == nil || user.Status.ObservedGeneration != user.Generation {
		return false
	}
	return ready.Status == "True" ||
		ready.Reason == ReasonConflict && meta.IsStatusConditionTrue(user.Status.Conditions, posthornv1.ConditionCredentialsSynced)
}

// userChanged passes Users that appear, change their spec or become usable or unusable.
func userChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, is := e.ObjectOld.(*posthornv1.User)
			after, isToo := e.ObjectNew.(*posthornv1.User)
			return is && isToo && (before.Generation != after.Generation || isUsable(before) != isUsable(after) || before.Status.Claim != after.Status.Claim)
		},
	}
}

// grantsOf returns the permissions of the kind that refer to a User or name its user.
func (r *Reconciler[T]) grantsOf(ctx context.Context, object client.Object) []reconcile.Request {
	user, is := object.(*posthornv1.User)
	if !is {
		return nil
	}
	var requests []reconcile.Request
	for _, key := range []string{referredUser(client.ObjectKeyFromObject(user)), namedUser(ClusterKey(user), user.BrokerName())} {
		list := r.Kind.NewList()
		if err := r.Client.List(ctx, list, client.MatchingFields{userIndex: key}); err != nil {
			return nil
		}
		requests = append(requests, RequestsFor(r.Kind.Items(list))...)
	}
	return requests
}

// UserOf returns the User that may own the user of a permission.
func UserOf(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []reconcile.Request {
		g, is := object.(grant)
		if !is {
			return nil
		}
		var list posthornv1.UserList
		claim := ClusterKey(g).String() + "|" + Identity(g.BrokerUser())
		if err := reader.List(ctx, &list, client.MatchingFields{identityIndex: claim}); err != nil {
			return nil
		}
		return RequestsFor(Pointers(list.Items))
	}
}

// GrantChanged passes permissions that appear, go away or change their owner.
func GrantChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, is := e.ObjectOld.(grant)
		after, isToo := e.ObjectNew.(grant)
		return is && isToo && (before.Topology().Claim != after.Topology().Claim || before.BrokerUser() != after.BrokerUser())
	}}
}

// OwnerOf returns the User that owns a user of a broker; nil when there is none.
func OwnerOf(ctx context.Context, reader client.Reader, cluster client.ObjectKey, username string) (*posthornv1.User, error) {
	claim := cluster.String() + "|" + Identity(username)
	var list posthornv1.UserList
	if err := reader.List(ctx, &list, client.MatchingFields{identityIndex: claim}); err != nil {
		return nil, fmt.Errorf("looking for the User %q: %w", username, err)
	}
	for i := range list.Items {
		if list.Items[i].Status.Claim == claim && list.Items[i].DeletionTimestamp == nil {
			return &list.Items[i], nil
		}
	}
	return nil, nil // No User owns it.
}

// Precedes reports whether a permission takes precedence over a User that sets the same permission: the older one
// does, and the User between two of the same age and name.
func Precedes(permission client.Object, user *posthornv1.User) bool { return older(permission, user) }

// Grants lists into list the permissions for a user.
func Grants(ctx context.Context, reader client.Reader, list client.ObjectList, cluster client.ObjectKey, username string) error {
	if err := reader.List(ctx, list, client.MatchingFields{userIndex: namedUser(cluster, username)}); err != nil {
		return fmt.Errorf("looking for permissions of user %q: %w", username, err)
	}
	return nil
}

// GrantState is the right of a permission to its name in the broker.
type GrantState int

// Values of GrantState.
const (
	// GrantRefused: its namespace may not grant it.
	GrantRefused GrantState = iota
	// GrantAllowed: its namespace may grant it, and it does not own it yet.
	GrantAllowed
	// GrantOwned: it owns the permission in the broker.
	GrantOwned
)

// StateOf returns the right of a permission to its name in the broker.
func StateOf(ctx context.Context, env Env, g grant, claim string) (GrantState, error) {
	if g.GetDeletionTimestamp() != nil {
		return GrantRefused, nil
	}
	if g.Topology().Claim == claim {
		return GrantOwned, nil
	}
	tenant, err := admit(ctx, env.Live, env.Cluster, g.GetNamespace())
	if err == nil && !tenant.Home {
		tenant.Nearer, err = nearer(ctx, env.Live, env.Cluster, g.GetNamespace(), g.BrokerUser())
	}
	if err == nil {
		err = errors.Join(tenant.CheckVhost(g.BrokerVhost()), tenant.CheckUser(g.BrokerUser()))
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return GrantRefused, nil
	}
	if err != nil {
		return GrantRefused, err
	}
	return GrantAllowed, nil
}

// RevokeAccess revokes a user's access to vhosts, given its permissions there, and closes its connections. It empties
// the permissions first and deletes them last, so that a retry after a failure finds them and closes the connections
// too.
func RevokeAccess(ctx context.Context, b broker.Client, user string, vhosts []string, permissions map[string]broker.Permission) error {
	if len(vhosts) == 0 {
		return nil
	}
	for _, vhost := range vhosts {
		nothing := broker.Permission{User: user, Vhost: vhost}
		if permissions[vhost] != nothing {
			if err := b.PutPermission(ctx, nothing); err != nil {
				return fmt.Errorf("revoking permissions: %w", err)
			}
		}
		if err := b.DeleteTopicPermissions(ctx, vhost, user); err != nil && !broker.IsNotFound(err) {
			return fmt.Errorf("revoking topic permissions: %w", err)
		}
	}
	if err := b.CloseConnections(ctx, user); err != nil && !broker.IsNotFound(err) {
		return fmt.Errorf("closing connections: %w", err)
	}
	for _, vhost := range vhosts {
		if err := b.DeletePermission(ctx, vhost, user); err != nil && !broker.IsNotFound(err) {
			return fmt.Errorf("revoking permissions: %w", err)
		}
	}
	return nil
}
