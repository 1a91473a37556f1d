// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"sort"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/queuestate"
	"posthorn.io/posthorn/internal/topology"
)

// Arguments that come from fields of the spec.
const (
	argumentType          = "x-queue-type"
	argumentQuorumMembers = "x-quorum-initial-group-size"
	argumentStreamMembers = "x-initial-cluster-size"
)

type work struct {
	queue *posthornv1.Queue
	// wanted are the complete arguments.
	wanted map[string]any
	// found is the queue in the broker; nil when it was not queried since the last change.
	found *broker.Queue
	env   topology.Env
	// placement is the last step of the members.
	placement queuestate.Placement
}

// Check refuses names outside the tenancy, and arguments that the operator sets itself.
func (w *work) Check(tenant topology.Tenant) error {
	if err := tenant.CheckVhost(w.queue.Spec.Vhost); err != nil {
		return err
	}
	var err error
	w.wanted, err = arguments(&w.queue.Spec, w.members())
	return err
}

// members returns the wanted number of members; 0 leaves it to the broker.
func (w *work) members() int32 { return w.queue.WantedMembers(&w.env.Cluster.Spec) }

// arguments returns the arguments of the declaration.
func arguments(spec *posthornv1.QueueSpec, members int32) (map[string]any, error) {
	out, err := topology.Values(spec.Arguments)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{argumentType, argumentQuorumMembers, argumentStreamMembers} {
		if _, given := out[name]; given {
			return nil, topology.Refuse(topology.ReasonInvalid, "spec.arguments must not have %s: it comes from spec.type and spec.replicas", name)
		}
	}
	out[argumentType] = spec.Type
	if members > 0 {
		switch spec.Type {
		case posthornv1.QueueTypeQuorum:
			out[argumentQuorumMembers] = members
		case posthornv1.QueueTypeStream:
			out[argumentStreamMembers] = members
		}
	}
	return out, nil
}

// Winner returns the SuperStream that owns the queue as a partition.
func (w *work) Winner(ctx context.Context) (string, error) {
	return topology.PartitionOwner(ctx, w.env.Client, w.queue, w.queue.BrokerName())
}

func (w *work) Adoption() posthornv1.AdoptionPolicy { return w.queue.Spec.Adoption }

func (w *work) Reclaim() string { return w.queue.Spec.ReclaimPolicy }

func (w *work) Prepare(context.Context) error { return nil }

func (w *work) Exists(ctx context.Context, b broker.Client) (bool, error) {
	found, err := b.GetQueue(ctx, w.queue.Spec.Vhost, w.queue.BrokerName())
	if broker.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	w.found = &found
	return true, nil
}

// Compare returns the differences that only a new declaration can remove. The number of members is not one of them:
// Report adds and removes members of an owned queue. Its argument is never compared, because the broker keeps the
// number of the first declaration.
func (w *work) Compare(ctx context.Context, b broker.Client) (topology.Difference, error) {
	if w.found == nil {
		found, err := b.GetQueue(ctx, w.queue.Spec.Vhost, w.queue.BrokerName())
		if err != nil {
			return topology.Difference{}, err
		}
		w.found = &found
	}
	immutable := differences(w.queue.Spec.Type, comparedArguments(w.wanted), comparedArguments(w.found.Arguments), w.found)
	if w.adoptionRemovesMembers() {
		immutable = append(immutable, "replicas")
	}
	return topology.Difference{Immutable: immutable}, nil
}

// adoptionRemovesMembers reports whether the queue is not owned yet and has more members than the spec asks
// for. Adopting a queue must not lower its redundancy.
func (w *work) adoptionRemovesMembers() bool {
	wanted := int(w.queue.Spec.Replicas)
	return queuestate.IsReplicated(w.queue.Spec.Type) && w.queue.Status.Claim == "" && wanted > 0 && len(w.found.Members) > wanted
}

// comparedArguments returns the arguments that must be equal. The type is compared as a field of its own, because
// a broker need not repeat it among the arguments.
func comparedArguments(arguments map[string]any) map[string]any {
	out := make(map[string]any, len(arguments))
	for name, value := range arguments {
		if name != argumentType && name != argumentQuorumMembers && name != argumentStreamMembers {
			out[name] = value
		}
	}
	return out
}

func differences(kind string, wanted, arguments map[string]any, found *broker.Queue) []string {
	var out []string
	for name, differs := range map[string]bool{
		"type": found.Type != kind, "durable": !found.Durable,
		"auto_delete": found.AutoDelete, "exclusive": found.Exclusive,
	} {
		if differs {
			out = append(out, name)
		}
	}
	sort.Strings(out)
	return append(out, topology.DifferentKeys("arguments", wanted, arguments)...)
}

func (w *work) Create(ctx context.Context, b broker.Client) error {
	w.found = nil
	err := b.DeclareQueue(ctx, w.queue.Spec.Vhost, w.queue.BrokerName(), broker.QueueDeclaration{Durable: true, Arguments: w.wanted})
	if broker.IsNotFound(err) {
		return topology.Refuse(topology.ReasonVhostNotFound, "the broker has no vhost %q", w.queue.Spec.Vhost)
	}
	return err
}

// Update declares the queue again if the spec allows it and the queue is empty, which the broker checks when it
// deletes it.
func (w *work) Update(ctx context.Context, b broker.Client, difference topology.Difference) error {
	what := fmt.Sprintf("the queue in the broker differs in %v, which cannot be changed", difference.Immutable)
	if w.queue.Spec.OnImmutableChange != posthornv1.ImmutableRecreateIfEmpty {
		return topology.Refuse(topology.ReasonImmutable, "%s (onImmutableChange: Fail)", what)
	}
	err := w.deleteIfEmpty(ctx, b)
	var refusal *topology.Refusal
	switch {
	case broker.IsNotFound(err):
	case broker.IsTerminal(err), errors.As(err, &refusal):
		return topology.Refuse(topology.ReasonImmutable, "%s, and the queue cannot be declared again: %v", what, err)
	case err != nil:
		return err
	}
	return w.Create(ctx, b)
}

func (w *work) Report(ctx context.Context, b broker.Client) error {
	var err error
	if w.placement, w.found, err = queuestate.Place(ctx, b, int(w.members()), w.found, w.env.Cluster); err != nil {
		return err
	}
	status, found := &w.queue.Status, w.found
	status.Leader = found.Leader
	if status.Leader == "" {
		status.Leader = found.Node
	}
	status.Members = queuestate.Names(found.Members)
	status.OnlineMembers = queuestate.Names(found.Online)
	status.EffectivePolicy = found.Policy
	status.EffectiveOperatorPolicy = found.OperatorPolicy
	status.Messages = found.Messages
	return nil
}

// Impediment returns why clients could not use the queue when it was last queried.
func (w *work) Impediment() *topology.Impediment {
	if w.found == nil {
		return nil
	}
	return queuestate.ImpedimentOf(w.found)
}

// Settled reports whether the queue has the wanted number of members. The watcher notices when one goes offline.
func (w *work) Settled() bool { return queuestate.IsPlaced(w.found, int(w.members())) }

func (w *work) Forget(ctx context.Context, b broker.Client) error {
	if w.queue.Spec.ReclaimPolicy == posthornv1.ReclaimDeleteIfEmpty {
		return w.deleteIfEmpty(ctx, b)
	}
	return b.DeleteQueue(ctx, w.queue.Spec.Vhost, w.queue.BrokerName(), false)
}

// deleteIfEmpty deletes the queue if it has no messages. The broker checks that when it deletes a queue, but not when it
// deletes a stream, as in RabbitMQ. A message that a client publishes to a stream between the check and the deletion is
// deleted too.
func (w *work) deleteIfEmpty(ctx context.Context, b broker.Client) error {
	vhost, name := w.queue.Spec.Vhost, w.queue.BrokerName()
	found, err := b.GetQueue(ctx, vhost, name)
	if err != nil {
		return err
	}
	if found.Type == posthornv1.QueueTypeStream {
		if found.State != queuestate.Running {
			return fmt.Errorf("the number of messages of stream %q in vhost %q is unknown, because its state is %q", name, vhost, found.State)
		}
		if found.Messages > 0 {
			return topology.Refuse(topology.ReasonNotEmpty, "stream %q in vhost %q has %d messages", name, vhost, found.Messages)
		}
	}
	return b.DeleteQueue(ctx, vhost, name, true)
}

func (w *work) Conditions(set func(kind string, truth topology.Truth, reason, message string), failure error) {
	if failure != nil || w.found == nil {
		set(posthornv1.ConditionReplicasPlaced, topology.Unknown, "NotObserved", "")
		return
	}
	truth, reason, message := queuestate.ReplicasPlaced(w.found, int(w.members()), w.placement)
	set(posthornv1.ConditionReplicasPlaced, truth, reason, message)
}
