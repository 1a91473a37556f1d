// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/topology"
)

// Names of the properties that may differ.
const (
	partQueueType = "defaultQueueType"
	partTags      = "tags"
	partTracing   = "tracing"
	partLimits    = "limits"
)

const (
	// recheckContents is the time between two checks of a vhost that waits for its contents to be deleted.
	recheckContents = time.Second
	// emptyGrace is how long after its own deletion a vhost waits for the deletion of its queues to begin: kubectl
	// and the namespace controller delete one object after the other.
	emptyGrace = 10 * time.Second
)

type work struct {
	vhost *posthornv1.Vhost
	env   topology.Env
	found *broker.Vhost
	// tenant has the rights of the namespace.
	tenant topology.Tenant
}

// Check refuses names outside the tenancy.
func (w *work) Check(tenant topology.Tenant) error {
	w.tenant = tenant
	return tenant.CheckVhost(w.vhost.BrokerName())
}

func (w *work) Adoption() posthornv1.AdoptionPolicy { return w.vhost.Spec.Adoption }

func (w *work) Reclaim() string { return w.vhost.Spec.ReclaimPolicy }

func (w *work) Prepare(context.Context) error { return nil }

// limits returns the limits that the vhost may have.
func (w *work) limits() posthornv1.VhostLimits { return w.tenant.LimitsOfVhost(w.vhost.Spec.Limits) }

func (w *work) Exists(ctx context.Context, b broker.Client) (bool, error) {
	found, err := b.GetVhost(ctx, w.vhost.BrokerName())
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
		found, err := b.GetVhost(ctx, w.vhost.BrokerName())
		if err != nil {
			return topology.Difference{}, err
		}
		w.found = &found
	}
	return topology.Difference{Mutable: differences(&w.vhost.Spec, w.limits(), w.found)}, nil
}

func differences(spec *posthornv1.VhostSpec, allowed posthornv1.VhostLimits, found *broker.Vhost) []string {
	var out []string
	if spec.DefaultQueueType != "" && spec.DefaultQueueType != found.DefaultQueueType {
		out = append(out, partQueueType)
	}
	if !sameSet(spec.Tags, found.Tags) {
		out = append(out, partTags)
	}
	if spec.Tracing != found.Tracing {
		out = append(out, partTracing)
	}
	current, wanted := found.CurrentLimits(), limits(allowed)
	if !maps.Equal(current, wanted) {
		out = append(out, partLimits)
	}
	return out
}

// sameSet compares tags without their order.
func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

// limits returns the limits of the spec with the names of the broker.
func limits(spec posthornv1.VhostLimits) broker.Limits {
	out := broker.Limits{}
	for name, value := range byName(spec) {
		if value != nil {
			out[name] = *value
		}
	}
	return out
}

// byName returns all limits; nil is no limit.
func byName(spec posthornv1.VhostLimits) map[string]*int64 {
	wide := func(value *int32) *int64 {
		if value == nil {
			return nil
		}
		return new(int64(*value))
	}
	return map[string]*int64{
		broker.MaxConnections: wide(spec.MaxConnections), broker.MaxQueues: wide(spec.MaxQueues), broker.MaxChannels: wide(spec.MaxChannels),
		broker.MaxMessageRate: spec.MaxMessageRate, broker.MaxByteRate: spec.MaxByteRate,
		broker.MaxStoredBytes: spec.MaxStoredBytes,
	}
}

// limitNames are the limits in messages, in the order of the messages.
var limitNames = []struct{ limit, name string }{
	{broker.MaxConnections, "connections"}, {broker.MaxQueues, "queues"}, {broker.MaxChannels, "channels"},
	{broker.MaxMessageRate, "messages per second"}, {broker.MaxByteRate, "bytes per second"},
	{broker.MaxStoredBytes, "stored bytes"},
}

func (w *work) Create(ctx context.Context, b broker.Client) error {
	parts := []string{partQueueType}
	if len(limits(w.limits())) > 0 {
		parts = append(parts, partLimits)
	}
	return w.Update(ctx, b, topology.Difference{Mutable: parts})
}

func (w *work) Update(ctx context.Context, b broker.Client, difference topology.Difference) error {
	w.found = nil
	spec := &w.vhost.Spec
	if slices.ContainsFunc(difference.Mutable, func(part string) bool { return part != partLimits }) {
		settings := broker.VhostSettings{DefaultQueueType: spec.DefaultQueueType, Tags: spec.Tags, Tracing: spec.Tracing}
		if err := b.PutVhost(ctx, w.vhost.BrokerName(), settings); err != nil {
			return err
		}
	}
	if slices.Contains(difference.Mutable, partLimits) {
		return b.SetVhostLimits(ctx, w.vhost.BrokerName(), limits(w.limits()))
	}
	return nil
}

func (w *work) Report(ctx context.Context, b broker.Client) error {
	allowed := w.limits()
	w.vhost.Status.Limits = &allowed
	var err error
	w.vhost.Status.Queues, err = b.CountQueues(ctx, w.vhost.BrokerName())
	return err
}

// Impediment returns nil: a vhost runs on every node.
func (w *work) Impediment() *topology.Impediment { return nil }

func (w *work) Settled() bool { return true }

// Forget deletes the vhost with everything in it. DeleteIfEmpty first waits for the objects of the vhost that are
// being deleted, because Kubernetes deletes the contents of a namespace in any order. The broker cannot refuse the
// deletion because of queues, so a queue that a client declares between the check and the deletion is deleted too.
func (w *work) Forget(ctx context.Context, b broker.Client) error {
	name := w.vhost.BrokerName()
	if w.vhost.Spec.ReclaimPolicy != posthornv1.ReclaimDeleteIfEmpty {
		return b.DeleteVhost(ctx, name)
	}
	going, err := topology.DeletedIn(ctx, w.env.Client, topology.ClusterKey(w.vhost), name)
	if err != nil {
		return err
	}
	if going != nil {
		err := topology.Wait(topology.ReasonDeleting, "waits until %T %s is deleted", going, client.ObjectKeyFromObject(going))
		return topology.RetryAfter(err, recheckContents)
	}
	queues, err := b.CountQueues(ctx, name)
	if err != nil {
		return err
	}
	deleted := w.vhost.GetDeletionTimestamp()
	if queues > 0 && deleted != nil && w.env.Now().Sub(deleted.Time) < emptyGrace {
		return topology.RetryAfter(topology.Wait(topology.ReasonNotEmpty, "the virtual host %q has %d queues", name, queues), recheckContents)
	}
	if queues > 0 {
		return topology.Refuse(topology.ReasonNotEmpty, "the virtual host %q has %d queues", name, queues)
	}
	return b.DeleteVhost(ctx, name)
}

// Conditions reports limits of the spec that the cluster does not allow.
func (w *work) Conditions(set func(kind string, truth topology.Truth, reason, message string), _ error) {
	if w.tenant.Namespace == "" {
		set(posthornv1.ConditionLimitsCapped, topology.Unknown, "NotObserved", "")
		return
	}
	allAsked, allGiven := byName(w.vhost.Spec.Limits), byName(w.limits())
	var capped []string
	for _, each := range limitNames {
		asked, given := allAsked[each.limit], allGiven[each.limit]
		if asked != nil && given != nil && *asked > *given {
			capped = append(capped, fmt.Sprintf("%d of %d %s", *given, *asked, each.name))
		}
	}
	if len(capped) == 0 {
		set(posthornv1.ConditionLimitsCapped, topology.False, "AsSpecified", "")
		return
	}
	set(posthornv1.ConditionLimitsCapped, topology.True, "TenancyVhostLimits", fmt.Sprintf(
		"%s: spec.tenancy.vhostLimits of BrokerCluster %s/%s is lower than spec.limits, and in force", strings.Join(capped, ", "), w.env.Cluster.Namespace, w.env.Cluster.Name))
}
