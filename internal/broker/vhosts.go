// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"net/http"
)

// Names of the limits of a virtual host.
const (
	limitConnections = "max-connections"
	limitQueues      = "max-queues"
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

// CurrentLimits returns the limits of a virtual host. RabbitMQ takes a negative limit as none.
func (v *Vhost) CurrentLimits() VhostLimits {
	limit := func(name string) *int64 {
		value, found := v.Limits[name]
		if !found || value < 0 {
			return nil
		}
		return &value
	}
	return VhostLimits{MaxConnections: limit(limitConnections), MaxQueues: limit(limitQueues)}
}

// SetVhostLimits sets both limits of a virtual host.
func (c *HTTPClient) SetVhostLimits(ctx context.Context, name string, limits VhostLimits) error {
	if err := c.setVhostLimit(ctx, name, limitConnections, limits.MaxConnections); err != nil {
		return err
	}
	return c.setVhostLimit(ctx, name, limitQueues, limits.MaxQueues)
}

func (c *HTTPClient) setVhostLimit(ctx context.Context, vhost, name string, value *int64) error {
	where := path("vhost-limits", vhost, name)
	if value == nil {
		return c.call(ctx, http.MethodDelete, where, nil, nil)
	}
	return c.call(ctx, http.MethodPut, where, map[string]int64{"value": *value}, nil)
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
