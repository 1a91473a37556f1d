// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver starts the API server of the operator's tests. It allows for slow machines, and reports ready
// only after the server has loaded the operator's permissions.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	// room is how long the API server may take to start, to stop, and for background work. A busy machine with an
	// empty page cache needs most of a minute.
	room = 3 * time.Minute
	// serviceRange has addresses for the Services of all specs together: nothing deletes the Services of deleted
	// clusters.
	serviceRange = "10.0.0.0/16"
	// poll is the interval of readiness checks.
	poll = 50 * time.Millisecond
)

// Leader election of an operator under test, with long timeouts too: an operator that cannot write its lease exits.
const (
	LeaseDuration = 4 * time.Minute
	RenewDeadline = 3 * time.Minute
	RetryPeriod   = 2 * time.Second
)

// Start starts a server with bounded memory and a lax garbage collector, which otherwise takes a quarter of its
// processor time.
func Start(server *envtest.Environment) (*rest.Config, error) {
	for name, value := range map[string]string{"GOGC": "400", "GOMEMLIMIT": "1GiB"} {
		before, was := os.LookupEnv(name)
		if err := os.Setenv(name, value); err != nil {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
		defer func() {
			_ = os.Unsetenv(name)
			if was {
				_ = os.Setenv(name, before)
			}
		}()
	}
	return server.Start()
}

// New returns an API server that has the CustomResourceDefinitions of the folders once it is started.
func New(folders ...string) *envtest.Environment {
	server := &envtest.Environment{
		ErrorIfCRDPathMissing:    true,
		CRDInstallOptions:        envtest.CRDInstallOptions{Paths: folders, MaxTime: room, PollInterval: poll},
		ControlPlaneStartTimeout: room,
		ControlPlaneStopTimeout:  room,
	}
	server.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", serviceRange)
	return server
}

// AwaitRights waits until the API server grants a service account every permission of its roles: it learns of roles
// and bindings a moment after they are stored.
func AwaitRights(ctx context.Context, k8s client.Client, namespace, account string) error {
	wanted, err := rightsOf(ctx, k8s, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account})
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		return fmt.Errorf("no role is bound to the service account %s/%s", namespace, account)
	}
	for i := range wanted {
		right := &wanted[i]
		err := wait.PollUntilContextTimeout(ctx, poll, room, true, func(ctx context.Context) (bool, error) {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + namespace + ":" + account,
				Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
				ResourceAttributes: right,
			}}
			err := k8s.Create(ctx, review)
			return review.Status.Allowed, err
		})
		if err != nil {
			return fmt.Errorf("the right to %s %s/%s in %q: %w", right.Verb, right.Group, right.Resource, right.Namespace, err)
		}
	}
	return nil
}

// rightsOf returns the permissions of the roles bound to a subject.
func rightsOf(ctx context.Context, k8s client.Client, subject rbacv1.Subject) ([]authorizationv1.ResourceAttributes, error) {
	var everywhere rbacv1.ClusterRoleBindingList
	var inside rbacv1.RoleBindingList
	if err := errors.Join(k8s.List(ctx, &everywhere), k8s.List(ctx, &inside)); err != nil {
		return nil, fmt.Errorf("listing bindings: %w", err)
	}
	var out []authorizationv1.ResourceAttributes
	add := func(namespace string, subjects []rbacv1.Subject, ref rbacv1.RoleRef) error {
		if !bound(subjects, subject) {
			return nil
		}
		rules, err := rulesOf(ctx, k8s, namespace, ref)
		for i := range rules {
			out = append(out, attributes(namespace, &rules[i])...)
		}
		return err
	}
	for i := range everywhere.Items {
		if err := add("", everywhere.Items[i].Subjects, everywhere.Items[i].RoleRef); err != nil {
			return nil, err
		}
	}
	for i := range inside.Items {
		if err := add(inside.Items[i].Namespace, inside.Items[i].Subjects, inside.Items[i].RoleRef); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func bound(subjects []rbacv1.Subject, wanted rbacv1.Subject) bool {
	for _, s := range subjects {
		if s.Kind == wanted.Kind && s.Namespace == wanted.Namespace && s.Name == wanted.Name {
			return true
		}
	}
	return false
}

func rulesOf(ctx context.Context, k8s client.Client, namespace string, ref rbacv1.RoleRef) ([]rbacv1.PolicyRule, error) {
	if ref.Kind == "ClusterRole" {
		var role rbacv1.ClusterRole
		err := k8s.Get(ctx, client.ObjectKey{Name: ref.Name}, &role)
		return role.Rules, err
	}
	var role rbacv1.Role
	err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, &role)
	return role.Rules, err
}

// attributes returns the permissions of a rule one by one.
func attributes(namespace string, rule *rbacv1.PolicyRule) []authorizationv1.ResourceAttributes {
	objects := rule.ResourceNames
	if len(objects) == 0 {
		objects = []string{""}
	}
	var out []authorizationv1.ResourceAttributes
	for _, group := range rule.APIGroups {
		for _, what := range rule.Resources {
			resource, part, _ := strings.Cut(what, "/")
			for _, verb := range rule.Verbs {
				for _, name := range objects {
					out = append(out, authorizationv1.ResourceAttributes{
						Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: part, Name: name,
					})
				}
			}
		}
	}
	return out
}
