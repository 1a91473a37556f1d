// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/json"
	"net/http"
)

// replica is the body of a request about a member of a queue.
type replica struct {
	Node string `json:"node"`
}

// ForgetNode removes a node from the cluster. A broker that has to move replicas first answers with a state.
func (c *HTTPClient) ForgetNode(ctx context.Context, node string) (bool, error) {
	var answer struct {
		State string `json:"state"`
	}
	if err := c.call(ctx, http.MethodDelete, path("nodes", node), nil, &answer); err != nil {
		return false, err
	}
	return answer.State == "", nil
}

// RecoverMajority does one step of the recovery from a lost majority.
func (c *HTTPClient) RecoverMajority(ctx context.Context, lost []string) (RecoveryStep, error) {
	var out RecoveryStep
	in := map[string][]string{"lost": append([]string{}, lost...)}
	return out, c.call(ctx, http.MethodPost, path("recovery", "majority"), in, &out)
}

// QuorumStatus returns the state of the members of a quorum queue.
func (c *HTTPClient) QuorumStatus(ctx context.Context, vhost, name string) ([]Replica, error) {
	var out []Replica
	return out, c.call(ctx, http.MethodGet, path("queues", "quorum", vhost, name, "status"), nil, &out)
}

// RebalanceQueues starts spreading leaders; the broker answers before it is done.
func (c *HTTPClient) RebalanceQueues(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, path("rebalance", "queues"), struct{}{}, nil)
}

// AllQueues lists the queues of all vhosts.
func (c *HTTPClient) AllQueues(ctx context.Context) ([]Queue, error) {
	var out []Queue
	return out, c.call(ctx, http.MethodGet, path("queues"), nil, &out)
}

// AddReplica adds a member of a quorum queue or stream on a node.
func (c *HTTPClient) AddReplica(ctx context.Context, vhost, name, node string) error {
	return c.call(ctx, http.MethodPost, path("queues", "quorum", vhost, name, "replicas", "add"), replica{node}, nil)
}

// DeleteReplica deletes the member of a quorum queue or stream on a node.
func (c *HTTPClient) DeleteReplica(ctx context.Context, vhost, name, node string) error {
	return c.call(ctx, http.MethodDelete, path("queues", "quorum", vhost, name, "replicas", "delete"), replica{node}, nil)
}

// ImportDefinitions sends a definitions file, a JSON object.
func (c *HTTPClient) ImportDefinitions(ctx context.Context, file []byte) error {
	return c.call(ctx, http.MethodPost, path("definitions"), json.RawMessage(file), nil)
}

// FeatureFlags lists the cluster's feature flags.
func (c *HTTPClient) FeatureFlags(ctx context.Context) ([]FeatureFlag, error) {
	var out []FeatureFlag
	return out, c.call(ctx, http.MethodGet, path("feature-flags"), nil, &out)
}

// EnableFeatureFlag enables a flag.
func (c *HTTPClient) EnableFeatureFlag(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPut, path("feature-flags", name, "enable"), struct{}{}, nil)
}
