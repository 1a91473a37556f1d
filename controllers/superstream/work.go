// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package superstream

import (
	"context"
	"fmt"
	"strings"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/queuestate"
	"posthorn.io/posthorn/internal/topology"
)

// Arguments of streams, of the exchange and of its bindings.
const (
	argumentType          = "x-queue-type"
	argumentMembers       = "x-initial-cluster-size"
	argumentQuorumMembers = "x-quorum-initial-group-size"
	argumentLeader        = "x-queue-leader-locator"
	argumentSuperStream   = "x-super-stream"
	argumentOrder         = "x-stream-partition-order"
)

const (
	exchangeType = "direct"
	// defaultLeader spreads the leaders of the partitions over the nodes.
	defaultLeader = "balanced"
	// reservedPrefix begins the names of exchanges that only the broker declares.
	reservedPrefix = "amq."
	// maxNameBytes bounds the name of a stream.
	maxNameBytes = 255
	// maxNames bounds a list of differences.
	maxNames = 10
	// maxSteps bounds the partitions that get or lose a member in one reconciliation, because a new member copies the
	// whole stream.
	maxSteps = 8
)

type work struct {
	superStream *posthornv1.SuperStream
	env         topology.Env
	partitions  []posthornv1.Partition
	// wanted are the complete arguments of each stream.
	wanted map[string]any
	// found is the state in the broker; nil when it was not queried since the last change.
	found *state
	// placements are the last steps of the members, by stream.
	placements map[string]queuestate.Placement
}

// Check refuses names outside the tenancy, names that the broker refuses, and arguments that the operator sets itself.
func (w *work) Check(tenant topology.Tenant) error {
	spec := &w.superStream.Spec
	if err := tenant.CheckVhost(spec.Vhost); err != nil {
		return err
	}
	if name := w.superStream.BrokerName(); strings.HasPrefix(name, reservedPrefix) {
		return topology.Refuse(topology.ReasonInvalid, "super stream name %q is reserved for the broker: set spec.name to a name that does not begin with %s", name, reservedPrefix)
	}
	if len(w.partitions) == 0 {
		return topology.Refuse(topology.ReasonInvalid, "the super stream has no partitions: set spec.partitions or spec.routingKeys")
	}
	for _, partition := range w.partitions {
		if size := len(partition.Stream); size > maxNameBytes {
			return topology.Refuse(topology.ReasonInvalid, "the name of the stream of routing key %q has %d bytes, and at most %d are allowed: set spec.name to a shorter name", partition.RoutingKey, size, maxNameBytes)
		}
	}
	var err error
	w.wanted, err = arguments(spec)
	return err
}

// arguments returns the arguments of the declaration of each stream.
func arguments(spec *posthornv1.SuperStreamSpec) (map[string]any, error) {
	out, err := topology.Values(spec.Arguments)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{argumentType, argumentMembers, argumentQuorumMembers} {
		if _, given := out[name]; given {
			return nil, topology.Refuse(topology.ReasonInvalid, "spec.arguments must not have %s: partitions are streams, and spec.replicas sets the number of their members", name)
		}
	}
	out[argumentType] = posthornv1.QueueTypeStream
	if _, given := out[argumentLeader]; !given {
		out[argumentLeader] = defaultLeader
	}
	if spec.Replicas > 0 {
		out[argumentMembers] = spec.Replicas
	}
	return out, nil
}

// Winner returns the resource of another kind, or the SuperStream of another name, that owns the exchange or a stream.
func (w *work) Winner(ctx context.Context) (string, error) {
	winner, err := topology.ExchangeOwner(ctx, w.env.Client, w.superStream, w.superStream.BrokerName())
	for _, partition := range w.partitions {
		if err == nil && winner == "" {
			winner, err = topology.QueueOwner(ctx, w.env.Client, w.superStream, partition.Stream)
		}
		if err == nil && winner == "" {
			winner, err = topology.PartitionOwner(ctx, w.env.Client, w.superStream, partition.Stream)
		}
	}
	return winner, err
}

func (w *work) Adoption() posthornv1.AdoptionPolicy { return w.superStream.Spec.Adoption }

func (w *work) Reclaim() string { return string(w.superStream.Spec.ReclaimPolicy) }

func (w *work) Prepare(context.Context) error { return nil }

// Exists reports whether the exchange or one of the streams exists: a part of a super stream belongs to somebody, too.
func (w *work) Exists(ctx context.Context, b broker.Client) (bool, error) {
	var err error
	if w.found, err = w.query(ctx, b); err != nil {
		return false, err
	}
	return w.found.exchange != nil || len(w.found.streams) > 0, nil
}

// Compare returns missing and superfluous parts, which Update corrects, and properties of existing parts that only a new
// declaration can change.
func (w *work) Compare(ctx context.Context, b broker.Client) (topology.Difference, error) {
	if w.found == nil {
		var err error
		if w.found, err = w.query(ctx, b); err != nil {
			return topology.Difference{}, err
		}
	}
	return topology.Difference{
		Mutable:   shorten(planOf(w.partitions, w.found).names(w.partitions)),
		Immutable: shorten(w.immutable()),
	}, nil
}

// immutable lists the properties of the existing exchange and streams that differ.
func (w *work) immutable() []string {
	var out []string
	differ := func(prefix string, properties ...property) {
		for _, each := range properties {
			if each.differs {
				out = append(out, prefix+each.name)
			}
		}
	}
	if x := w.found.exchange; x != nil {
		differ("exchange.", property{"type", x.Type != exchangeType}, property{"durable", !x.Durable},
			property{"autoDelete", x.AutoDelete}, property{"internal", x.Internal})
		out = append(out, topology.DifferentKeys("exchange.arguments", nil, without(x.Arguments, argumentSuperStream))...)
	}
	// The operator adopts streams with any placement of leaders and any declared number of members.
	ignored := []string{argumentType, argumentMembers}
	if _, given := w.superStream.Spec.Arguments[argumentLeader]; !given {
		ignored = append(ignored, argumentLeader)
	}
	wanted := without(w.wanted, ignored...)
	for _, partition := range w.partitions {
		q := w.found.streams[partition.Stream]
		if q == nil {
			continue
		}
		prefix := "partitions." + partition.Stream + "."
		differ(prefix, property{"type", q.Type != posthornv1.QueueTypeStream}, property{"durable", !q.Durable},
			property{"autoDelete", q.AutoDelete}, property{"exclusive", q.Exclusive}, property{"replicas", w.adoptionRemovesMembers(q)})
		out = append(out, topology.DifferentKeys(prefix+"arguments", wanted, without(q.Arguments, ignored...))...)
	}
	return out
}

// property of an object in the broker.
type property struct {
	name    string
	differs bool
}

// without returns arguments except the named ones.
func without(arguments map[string]any, names ...string) map[string]any {
	out := make(map[string]any, len(arguments))
	for name, value := range arguments {
		out[name] = value
	}
	for _, name := range names {
		delete(out, name)
	}
	return out
}

// adoptionRemovesMembers reports whether the super stream is not owned yet and a stream has more members than the spec
// asks for. Adopting a stream must not lower its redundancy.
func (w *work) adoptionRemovesMembers(q *broker.Queue) bool {
	wanted := int(w.superStream.Spec.Replicas)
	return w.superStream.Status.Claim == "" && wanted > 0 && len(q.Members) > wanted
}

func (w *work) Create(ctx context.Context, b broker.Client) error {
	w.found = &state{}
	return w.repair(ctx, b)
}

// repair creates the missing parts and deletes the superfluous bindings. It does not bind a queue that is no stream.
func (w *work) repair(ctx context.Context, b broker.Client) error {
	vhost, name := w.superStream.Spec.Vhost, w.superStream.BrokerName()
	changes, before := planOf(w.partitions, w.found), w.found
	w.found = nil
	if changes.declareExchange {
		err := b.DeclareExchange(ctx, vhost, name, broker.ExchangeDeclaration{
			Type: exchangeType, Durable: true, Arguments: map[string]any{argumentSuperStream: true},
		})
		if broker.IsNotFound(err) {
			return topology.Refuse(topology.ReasonVhostNotFound, "the broker has no vhost %q", vhost)
		}
		if err != nil {
			return err
		}
	}
	for _, partition := range changes.declare {
		err := b.DeclareQueue(ctx, vhost, partition.Stream, broker.QueueDeclaration{Durable: true, Arguments: w.wanted})
		if err != nil {
			return err
		}
	}
	for _, binding := range changes.unbind {
		err := b.Unbind(ctx, broker.BindingEnds{Vhost: vhost, Source: name, Destination: binding.Destination}, binding.PropertiesKey)
		if err != nil && !broker.IsNotFound(err) {
			return err
		}
	}
	for _, index := range changes.bind {
		partition := w.partitions[index]
		if q := before.streams[partition.Stream]; q != nil && q.Type != posthornv1.QueueTypeStream {
			continue
		}
		// A node that is behind answers that the exchange or the stream does not exist, and the reconciler tries again.
		ends := broker.BindingEnds{Vhost: vhost, Source: name, Destination: partition.Stream}
		if err := b.Bind(ctx, ends, partition.RoutingKey, orderOf(index)); err != nil {
			return err
		}
	}
	return nil
}

// Update corrects the parts that can be corrected, and refuses the other differences.
func (w *work) Update(ctx context.Context, b broker.Client, difference topology.Difference) error {
	if err := w.repair(ctx, b); err != nil {
		return err
	}
	if len(difference.Immutable) == 0 {
		return nil
	}
	return topology.Refuse(topology.ReasonImmutable,
		"the super stream in the broker differs in %v, which cannot be changed; delete the exchange or the stream in the broker, and the operator declares it again, empty, or change this object",
		difference.Immutable)
}

// streams returns the queues of the partitions in their order.
func (w *work) streams() []*broker.Queue {
	var out []*broker.Queue
	for _, partition := range w.partitions {
		if q := w.found.streams[partition.Stream]; q != nil {
			out = append(out, q)
		}
	}
	return out
}

func (w *work) Report(ctx context.Context, b broker.Client) error {
	w.placements = map[string]queuestate.Placement{}
	wanted, steps := int(w.superStream.Spec.Replicas), 0
	status := &w.superStream.Status
	status.Messages, status.Partitions = 0, int32(len(w.partitions)) //nolint:gosec // The schema allows at most 1000.
	for _, q := range w.streams() {
		if steps < maxSteps && !queuestate.IsPlaced(q, wanted) {
			step, after, err := queuestate.Place(ctx, b, wanted, q, w.env.Cluster)
			if err != nil {
				return err
			}
			w.placements[q.Name], w.found.streams[q.Name] = step, after
			q = after
			steps++
		}
		status.Messages += q.Messages
	}
	usable, _ := summarize(w.streams())
	status.UsablePartitions = int32(usable) //nolint:gosec // The schema allows at most 1000.
	return nil
}

// Impediment returns why clients could not use a partition when it was last queried.
func (w *work) Impediment() *topology.Impediment {
	if w.found == nil {
		return nil
	}
	_, impediment := summarize(w.streams())
	return impediment
}

// Settled reports whether every partition has the wanted number of members.
func (w *work) Settled() bool {
	for _, q := range w.streams() {
		if !queuestate.IsPlaced(q, int(w.superStream.Spec.Replicas)) {
			return false
		}
	}
	return true
}

// Forget deletes the exchange, so that nobody publishes to a partition that is gone, and then the streams.
func (w *work) Forget(ctx context.Context, b broker.Client) error {
	vhost := w.superStream.Spec.Vhost
	if err := b.DeleteExchange(ctx, vhost, w.superStream.BrokerName()); err != nil && !broker.IsNotFound(err) {
		return err
	}
	for _, partition := range w.partitions {
		if err := b.DeleteQueue(ctx, vhost, partition.Stream, false); err != nil && !broker.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (w *work) Conditions(set func(kind string, truth topology.Truth, reason, message string), failure error) {
	if failure != nil || w.found == nil {
		set(posthornv1.ConditionReplicasPlaced, topology.Unknown, "NotObserved", "")
		return
	}
	for _, q := range w.streams() {
		truth, reason, message := queuestate.ReplicasPlaced(q, int(w.superStream.Spec.Replicas), w.placements[q.Name])
		if truth != topology.True {
			set(posthornv1.ConditionReplicasPlaced, truth, reason, fmt.Sprintf("%s: %s", q.Name, message))
			return
		}
	}
	set(posthornv1.ConditionReplicasPlaced, topology.True, "Placed", "")
}
