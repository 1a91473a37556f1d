// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"net/http"
)

// SettingKey is a key of the broker's configuration.
type SettingKey struct {
	// Key as in a file; ".*" at its end stands for any name.
	Key string `json:"key"`
	// Default as in a file; empty when there is none.
	Default string `json:"default"`
	// Live: a reload applies changes of the key.
	Live bool `json:"live"`
}

// Setting is a value of a node's configuration.
type Setting struct {
	Key string `json:"key"`
	// Value as in a file; passwords are masked.
	Value string `json:"value"`
	// Source is the file and line, the environment variable or the option that sets the value, or "default".
	Source string `json:"source"`
	// Live: a reload applies changes of the key.
	Live bool `json:"live"`
}

// Reload is the result of a reload of the configuration.
type Reload struct {
	// Changed are the keys whose changes were applied.
	Changed []string `json:"changed"`
	// Restart are the keys whose changes the next start applies.
	Restart []string `json:"restart"`
}

// SettingKeys lists the keys that the answering node knows. It returns none for a broker without a reload.
func (c *HTTPClient) SettingKeys(ctx context.Context, node string) ([]SettingKey, error) {
	var out []SettingKey
	err := c.call(ctx, http.MethodGet, path("nodes", node, "configuration", "keys"), nil, &out)
	if IsNotFound(err) {
		return nil, nil
	}
	return out, err
}

// Settings lists the configuration of the answering node.
func (c *HTTPClient) Settings(ctx context.Context, node string) ([]Setting, error) {
	var out []Setting
	return out, c.call(ctx, http.MethodGet, path("nodes", node, "configuration"), nil, &out)
}

// ReloadSettings makes the answering node read its configuration files again.
func (c *HTTPClient) ReloadSettings(ctx context.Context, node string) (Reload, error) {
	var out Reload
	return out, c.call(ctx, http.MethodPost, path("nodes", node, "configuration", "reload"), struct{}{}, &out)
}
