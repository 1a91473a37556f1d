// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"maps"
	"net/http"
	"slices"
)

// GetVhost returns one virtual host.
func (c *HTTPClient) GetVhost(ctx context.Context, name string) (Vhost, error) {
	var out Vhost
	return out, c.call(ctx, http.MethodGet, path("vhosts", name), nil, &out)
}

// PutVhost creates a virtual host or changes it. The creator gets all permissions in a new one.
func (c *HTTPClient) PutVhost(ctx context.Context, name string, settings VhostSettings) error {
	if settings.Tags == nil {
		settings.Tags = []string{}
	}
	return c.call(ctx, http.MethodPut, path("vhosts", name), settings, nil)
}

// CurrentLimits returns the limits of a virtual host.
func (v *Vhost) CurrentLimits() Limits { return Limits(v.Limits).current() }

// SetVhostLimits sets the limits of a virtual host and removes all others.
func (c *HTTPClient) SetVhostLimits(ctx context.Context, name string, limits Limits) error {
	vhost, err := c.GetVhost(ctx, name)
	if err != nil {
		return err
	}
	return c.setLimits(ctx, "vhost-limits", name, vhost.CurrentLimits(), limits)
}

// setLimits changes the limits that differ, because an older broker knows fewer limits.
func (c *HTTPClient) setLimits(ctx context.Context, kind, name string, current, wanted Limits) error {
	for _, limit := range slices.Sorted(maps.Keys(current)) {
		if _, keep := wanted[limit]; keep {
			continue
		}
		if err := c.call(ctx, http.MethodDelete, path(kind, name, limit), nil, nil); err != nil && !IsNotFound(err) {
			return err
		}
	}
	for _, limit := range slices.Sorted(maps.Keys(wanted)) {
		value := wanted[limit]
		if found, set := current[limit]; set && found == value {
			continue
		}
		if err := c.call(ctx, http.MethodPut, path(kind, name, limit), map[string]int64{"value": value}, nil); err != nil {
			return err
		}
	}
	return nil
}

// CountQueues returns the number of queues in a virtual host. It asks for a page of one queue, which has the total.
func (c *HTTPClient) CountQueues(ctx context.Context, vhost string) (int64, error) {
	var out struct {
		Total int64 `json:"filtered_count"`
	}
	return out.Total, c.call(ctx, http.MethodGet, path("queues", vhost)+"?page=1&page_size=1&columns=name", nil, &out)
}

// DeleteVhost deletes a virtual host with everything in it.
func (c *HTTPClient) DeleteVhost(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, path("vhosts", name), nil, nil)
}
