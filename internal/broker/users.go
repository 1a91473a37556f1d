// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"net/http"
	"strings"
)

// GetUser returns one user.
func (c *HTTPClient) GetUser(ctx context.Context, name string) (User, error) {
	var out User
	return out, c.call(ctx, http.MethodGet, path("users", name), nil, &out)
}

// PutUser creates or replaces a user.
func (c *HTTPClient) PutUser(ctx context.Context, name, password string, tags []string) error {
	body := struct {
		Password string `json:"password"`
		Tags     string `json:"tags"`
	}{password, strings.Join(tags, ",")}
	return c.call(ctx, http.MethodPut, path("users", name), body, nil)
}

// PutUserWithoutPassword creates or replaces a user with an empty hash, which matches no password.
func (c *HTTPClient) PutUserWithoutPassword(ctx context.Context, name string, tags []string) error {
	body := struct {
		Hash string `json:"password_hash"`
		Tags string `json:"tags"`
	}{"", strings.Join(tags, ",")}
	return c.call(ctx, http.MethodPut, path("users", name), body, nil)
}

// DeleteUser deletes a user.
func (c *HTTPClient) DeleteUser(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, path("users", name), nil, nil)
}

// CloseConnections closes all connections of a user.
func (c *HTTPClient) CloseConnections(ctx context.Context, user string) error {
	return c.call(ctx, http.MethodDelete, path("connections", "username", user), nil, nil)
}

// GetPermission returns the user's permissions in one vhost.
func (c *HTTPClient) GetPermission(ctx context.Context, vhost, user string) (Permission, error) {
	var out Permission
	return out, c.call(ctx, http.MethodGet, path("permissions", vhost, user), nil, &out)
}

// ListPermissions lists the user's permissions in all vhosts.
func (c *HTTPClient) ListPermissions(ctx context.Context, user string) ([]Permission, error) {
	var out []Permission
	return out, c.call(ctx, http.MethodGet, path("users", user, "permissions"), nil, &out)
}

// PutPermission sets the user's permissions in one vhost.
func (c *HTTPClient) PutPermission(ctx context.Context, permission Permission) error {
	where := path("permissions", permission.Vhost, permission.User)
	permission.User, permission.Vhost = "", ""
	return c.call(ctx, http.MethodPut, where, permission, nil)
}

// EnterVhost gives the client's own user all permissions in a vhost, which an administrator may do. A client with a
// certificate has them.
func (c *HTTPClient) EnterVhost(ctx context.Context, vhost string) error {
	if c.access.Username == "" {
		return nil
	}
	return c.PutPermission(ctx, Permission{User: c.access.Username, Vhost: vhost, Configure: ".*", Write: ".*", Read: ".*"})
}

// DeletePermission deletes the user's permissions in one vhost.
func (c *HTTPClient) DeletePermission(ctx context.Context, vhost, user string) error {
	return c.call(ctx, http.MethodDelete, path("permissions", vhost, user), nil, nil)
}

// ListTopicPermissions lists the user's topic permissions in all vhosts.
func (c *HTTPClient) ListTopicPermissions(ctx context.Context, user string) ([]TopicPermission, error) {
	var out []TopicPermission
	return out, c.call(ctx, http.MethodGet, path("users", user, "topic-permissions"), nil, &out)
}

// PutTopicPermission sets the user's topic permission for one exchange.
func (c *HTTPClient) PutTopicPermission(ctx context.Context, permission TopicPermission) error {
	where := path("topic-permissions", permission.Vhost, permission.User)
	permission.User, permission.Vhost = "", ""
	return c.call(ctx, http.MethodPut, where, permission, nil)
}

// DeleteTopicPermission deletes the user's topic permission for one exchange.
func (c *HTTPClient) DeleteTopicPermission(ctx context.Context, vhost, user, exchange string) error {
	return c.call(ctx, http.MethodDelete, path("topic-permissions", vhost, user, exchange), nil, nil)
}

// DeleteTopicPermissions deletes the user's topic permissions in one vhost.
func (c *HTTPClient) DeleteTopicPermissions(ctx context.Context, vhost, user string) error {
	return c.call(ctx, http.MethodDelete, path("topic-permissions", vhost, user), nil, nil)
}

// UserLimits returns the user's limits.
func (c *HTTPClient) UserLimits(ctx context.Context, user string) (Limits, error) {
	var out []struct {
		User  string `json:"user"`
		Value Limits `json:"value"`
	}
	if err := c.call(ctx, http.MethodGet, path("user-limits", user), nil, &out); err != nil {
		return nil, err
	}
	for _, entry := range out {
		if entry.User == user {
			return entry.Value.current(), nil
		}
	}
	return Limits{}, nil
}

// SetUserLimits sets the user's limits and removes all others.
func (c *HTTPClient) SetUserLimits(ctx context.Context, user string, limits Limits) error {
	current, err := c.UserLimits(ctx, user)
	if err != nil {
		return err
	}
	return c.setLimits(ctx, "user-limits", user, current, limits)
}
