// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Overview describes the node that answers.
func (c *HTTPClient) Overview(ctx context.Context) (Overview, error) {
	var out Overview
	return out, c.call(ctx, http.MethodGet, path("overview"), nil, &out)
}

// Nodes lists the members of the cluster.
func (c *HTTPClient) Nodes(ctx context.Context) ([]Node, error) {
	var out []Node
	return out, c.call(ctx, http.MethodGet, path("nodes"), nil, &out)
}

// QuorumCritical asks the answering node whether queues would lose their majority without it. A 503 with status:
// failed is the check's answer, any other 503 an error.
func (c *HTTPClient) QuorumCritical(ctx context.Context) (Criticality, error) {
	var queues []QueueRef
	failed, reason, err := c.check(ctx, "node-is-quorum-critical", &queues)
	if err != nil || !failed {
		return Criticality{}, err
	}
	return Criticality{Critical: true, Reason: reason, Queues: queues}, nil
}

// NotReadyReason asks the answering node whether it serves clients, and returns its reason if it does not.
func (c *HTTPClient) NotReadyReason(ctx context.Context) (string, error) {
	_, reason, err := c.check(ctx, "ready-to-serve-clients", &struct{}{})
	return reason, err
}

// LostQueues lists queues whose only copy was on a disk that was lost. It returns none for a broker without that
// check.
func (c *HTTPClient) LostQueues(ctx context.Context) ([]LostQueue, error) {
	var queues []LostQueue
	_, _, err := c.check(ctx, "lost-queues", &queues)
	if IsNotFound(err) {
		return nil, nil
	}
	return queues, err
}

// check requests a health check and reads the queues of a failed one, with its reason.
func (c *HTTPClient) check(ctx context.Context, name string, queues any) (failed bool, reason string, err error) {
	where := "/api/health/checks/" + name
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.access.URL+where, nil)
	if err != nil {
		return false, "", fmt.Errorf("GET %s: creating the request: %w", where, err)
	}
	c.authorize(request)
	response, err := c.http.Do(request)
	if err != nil {
		return false, "", fmt.Errorf("GET %s: %w", where, withoutURL(err))
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusServiceUnavailable {
		return false, "", fmt.Errorf("GET %s: %w", where, readError(response))
	}
	data, err := readAnswer(response.Body, maxAnswer)
	if err != nil {
		return false, "", fmt.Errorf("GET %s: %w", where, err)
	}
	var answer struct {
		Status string          `json:"status"`
		Reason string          `json:"reason"`
		Queues json.RawMessage `json:"queues"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return false, "", fmt.Errorf("GET %s: status %d with an unexpected answer: %w", where, response.StatusCode, err)
	}
	switch {
	case response.StatusCode == http.StatusOK && answer.Status == "ok":
		return false, "", nil
	case response.StatusCode == http.StatusServiceUnavailable && answer.Status == "failed":
		if len(answer.Queues) > 0 {
			if err := json.Unmarshal(answer.Queues, queues); err != nil {
				return false, "", fmt.Errorf("GET %s: unexpected queues: %w", where, err)
			}
		}
		return true, answer.Reason, nil
	}
	return false, "", fmt.Errorf("GET %s: status %d with an unexpected answer", where, response.StatusCode)
}

// Drain starts maintenance mode or returns its progress. An answer without a body means that nothing is left to move.
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
