// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Overview tells about the node that answers.
func (c *HTTPClient) Overview(ctx context.Context) (Overview, error) {
	var out Overview
	return out, c.call(ctx, http.MethodGet, path("overview"), nil, &out)
}

// Nodes lists the members of the cluster.
func (c *HTTPClient) Nodes(ctx context.Context) ([]Node, error) {
	var out []Node
	return out, c.call(ctx, http.MethodGet, path("nodes"), nil, &out)
}

// QuorumCritical asks the node that answers whether queues would lose their majority without it.
// The check's 503 is an answer, any other 503 (one without status: failed) an error.
func (c *HTTPClient) QuorumCritical(ctx context.Context) (Criticality, error) {
	const where = "/api/health/checks/node-is-quorum-critical"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.access.URL+where, nil)
	if err != nil {
		return Criticality{}, fmt.Errorf("GET %s: making the request: %w", where, err)
	}
	request.SetBasicAuth(c.access.Username, c.access.Password)
	response, err := c.http.Do(request)
	if err != nil {
		return Criticality{}, fmt.Errorf("GET %s: %w", where, withoutURL(err))
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusServiceUnavailable {
		return Criticality{}, fmt.Errorf("GET %s: %w", where, readError(response))
	}
	data, err := readAnswer(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return Criticality{}, fmt.Errorf("GET %s: %w", where, err)
	}
	var answer struct {
		Status string     `json:"status"`
		Reason string     `json:"reason"`
		Queues []QueueRef `json:"queues"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return Criticality{}, fmt.Errorf("GET %s: status %d with an unexpected answer: %w", where, response.StatusCode, err)
	}
	switch {
	case response.StatusCode == http.StatusOK && answer.Status == "ok":
		return Criticality{}, nil
	case response.StatusCode == http.StatusServiceUnavailable && answer.Status == "failed":
		return Criticality{Critical: true, Reason: answer.Reason, Queues: answer.Queues}, nil
	}
	return Criticality{}, fmt.Errorf("GET %s: status %d with an unexpected answer", where, response.StatusCode)
}

// Drain starts maintenance mode or asks for its progress. A broker that answers with no body has
// nothing left to move.
func (c *HTTPClient) Drain(ctx context.Context, node string) (MaintenanceState, error) {
	out := MaintenanceState{}
	if err := c.call(ctx, http.MethodPut, path("nodes", node, "maintenance"), struct{}{}, &out); err != nil {
		return MaintenanceState{}, err
	}
	if out.State == "" {
		out.State = "drained"
	}
	return out, nil
}

// Revive ends maintenance mode.
func (c *HTTPClient) Revive(ctx context.Context, node string) error {
	return c.call(ctx, http.MethodDelete, path("nodes", node, "maintenance"), nil, nil)
}
