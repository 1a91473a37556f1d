// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"regexp"
	"sort"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

// maxShadows bounds status.shadowedBy.
const maxShadows = 16

type work struct {
	policy *posthornv1.Policy
	wanted map[string]any
	found  *broker.Policy
}

// Check refuses names outside the tenancy, and operator policies of tenants, because these policies limit tenants.
func (w *work) Check(tenant topology.Tenant) error {
	if err := tenant.CheckVhost(w.policy.Spec.Vhost); err != nil {
		return err
	}
	if w.policy.Spec.Scope == posthornv1.PolicyScopeOperator && !tenant.Home {
		return topology.Refuse(topology.ReasonNotAllowed, "a policy of scope Operator works only in the BrokerCluster's own namespace")
	}
	var err error
	w.wanted, err = topology.Values(w.policy.Spec.Definition)
	return err
}

func (w *work) scope() broker.PolicyScope {
	if w.policy.Spec.Scope == posthornv1.PolicyScopeOperator {
		return broker.OperatorPolicies
	}
	return broker.UserPolicies
}

func (w *work) Adoption() posthornv1.AdoptionPolicy { return w.policy.Spec.Adoption }

func (w *work) Reclaim() string { return string(w.policy.Spec.ReclaimPolicy) }

func (w *work) Prepare(context.Context) error { return nil }

func (w *work) Exists(ctx context.Context, b broker.Client) (bool, error) {
	found, err := b.GetPolicy(ctx, w.scope(), w.policy.Spec.Vhost, w.policy.BrokerName())
	if broker.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	w.found = &found
	return true, nil
}

func (w *work) Compare(ctx context.Context, b broker.Client) (topology.Difference, error) {
	if w.found == nil {
		found, err := b.GetPolicy(ctx, w.scope(), w.policy.Spec.Vhost, w.policy.BrokerName())
		if err != nil {
			return topology.Difference{}, err
		}
		w.found = &found
	}
	return topology.Difference{Mutable: differences(&w.policy.Spec, w.wanted, w.found)}, nil
}

func differences(spec *posthornv1.PolicySpec, definition map[string]any, found *broker.Policy) []string {
	var out []string
	if found.ApplyTo != spec.ApplyTo {
		out = append(out, "applyTo")
	}
	if found.Pattern != spec.Pattern {
		out = append(out, "pattern")
	}
	if found.Priority != spec.Priority {
		out = append(out, "priority")
	}
	return append(out, topology.DifferentKeys("definition", definition, found.Definition)...)
}

func (w *work) Create(ctx context.Context, b broker.Client) error {
	w.found = nil
	spec := &w.policy.Spec
	err := b.PutPolicy(ctx, w.scope(), spec.Vhost, w.policy.BrokerName(), broker.Policy{
		Pattern: spec.Pattern, ApplyTo: spec.ApplyTo, Priority: spec.Priority, Definition: w.wanted,
	})
	if broker.IsNotFound(err) {
		return topology.Refuse(topology.ReasonVhostNotFound, "the broker has no vhost %q", spec.Vhost)
	}
	return err
}

func (w *work) Update(ctx context.Context, b broker.Client, _ topology.Difference) error {
	return w.Create(ctx, b)
}

func (w *work) Report(ctx context.Context, b broker.Client) error {
	queues, err := b.ListQueues(ctx, w.policy.Spec.Vhost)
	if err != nil {
		return err
	}
	status := &w.policy.Status
	status.MatchedQueues, status.ShadowedBy = effect(&w.policy.Spec, w.policy.BrokerName(), queues)
	return nil
}

// effect counts the queues that the policy applies to, and lists the other policies that apply to queues that it
// matches.
func effect(spec *posthornv1.PolicySpec, name string, queues []broker.Queue) (int32, []string) {
	pattern, err := regexp.Compile(spec.Pattern)
	if err != nil {
		// The broker's regular expressions have syntax that Go's lack; the count is enough then.
		pattern = nil
	}
	matched, shadows := int32(0), map[string]bool{}
	for i := range queues {
		effective := queues[i].Policy
		if spec.Scope == posthornv1.PolicyScopeOperator {
			effective = queues[i].OperatorPolicy
		}
		switch {
		case effective == name:
			matched++
		case effective != "" && pattern != nil && applies(spec.ApplyTo, queues[i].Type) && pattern.MatchString(queues[i].Name):
			shadows[effective] = true
		}
	}
	var by []string
	for shadow := range shadows {
		by = append(by, shadow)
	}
	sort.Strings(by)
	if len(by) > maxShadows {
		by = by[:maxShadows]
	}
	return matched, by
}

func applies(applyTo, queueType string) bool {
	switch applyTo {
	case "all", "queues":
		return true
	case "streams":
		return queueType == posthornv1.QueueTypeStream
	}
	return applyTo == queueType+"_queues"
}

// Impediment returns nil: a policy that the broker has is applied.
func (w *work) Impediment() *topology.Impediment { return nil }

func (w *work) Settled() bool { return true }

func (w *work) Forget(ctx context.Context, b broker.Client) error {
	return b.DeletePolicy(ctx, w.scope(), w.policy.Spec.Vhost, w.policy.BrokerName())
}

func (w *work) Conditions(func(kind string, truth topology.Truth, reason, message string), error) {}
