// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package superstream

import (
	"context"
	"fmt"
	"slices"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/queuestate"
	"posthorn.io/posthorn/internal/topology"
)

// state is the state of a super stream in the broker.
type state struct {
	// exchange is nil when it does not exist.
	exchange *broker.Exchange
	// streams has the queues with the names of partitions; one that does not exist is absent.
	streams map[string]*broker.Queue
	// bindings have the exchange as source and a stream, or a queue with the name of a partition, as destination.
	bindings []broker.SourceBinding
}

// query asks the broker for the exchange, its bindings and the queues of the partitions.
func (w *work) query(ctx context.Context, b broker.Client) (*state, error) {
	out := &state{streams: map[string]*broker.Queue{}}
	vhost, name := w.superStream.Spec.Vhost, w.superStream.BrokerName()
	for _, partition := range w.partitions {
		queue, err := b.GetQueue(ctx, vhost, partition.Stream)
		if err == nil {
			out.streams[partition.Stream] = &queue
		} else if !broker.IsNotFound(err) {
			return nil, err
		}
	}
	exchange, err := b.GetExchange(ctx, vhost, name)
	if broker.IsNotFound(err) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	out.exchange = &exchange
	// The request may reach a node that does not know the exchange or the vhost yet: the bindings are then made again, which
	// changes nothing.
	all, err := b.BindingsFrom(ctx, vhost, name)
	if err != nil && !broker.IsNotFound(err) {
		return nil, err
	}
	for _, binding := range all {
		isPartition, err := w.isPartition(ctx, b, out, binding)
		if err != nil {
			return nil, err
		}
		if isPartition {
			out.bindings = append(out.bindings, binding)
		}
	}
	return out, nil
}

// isPartition reports whether clients of the stream protocol regard the destination of a binding as a partition: they do so
// for every stream. Other queues and exchanges may be bound to the exchange too.
func (w *work) isPartition(ctx context.Context, b broker.Client, s *state, binding broker.SourceBinding) (bool, error) {
	if binding.DestinationType != posthornv1.DestinationQueue {
		return false, nil
	}
	if s.streams[binding.Destination] != nil {
		return true, nil
	}
	queue, err := b.GetQueue(ctx, w.superStream.Spec.Vhost, binding.Destination)
	if broker.IsNotFound(err) {
		return false, nil
	}
	return queue.Type == posthornv1.QueueTypeStream, err
}

// plan has the objects that have to be created and deleted in the broker.
type plan struct {
	declareExchange bool
	// declare are the partitions without a queue.
	declare []posthornv1.Partition
	// bind are indexes of partitions without their binding.
	bind []int
	// unbind are bindings that no partition has.
	unbind []broker.SourceBinding
}

// planOf returns the changes that bring the broker to the spec.
func planOf(partitions []posthornv1.Partition, s *state) plan {
	out := plan{declareExchange: s.exchange == nil}
	present := map[int]bool{}
	for _, binding := range s.bindings {
		index := slices.IndexFunc(partitions, func(p posthornv1.Partition) bool { return p.Stream == binding.Destination })
		if index < 0 || binding.RoutingKey != partitions[index].RoutingKey || len(topology.DifferentKeys("", orderOf(index), binding.Arguments)) > 0 {
			out.unbind = append(out.unbind, binding)
			continue
		}
		present[index] = true
	}
	for i, partition := range partitions {
		if s.streams[partition.Stream] == nil {
			out.declare = append(out.declare, partition)
		}
		if !present[i] {
			out.bind = append(out.bind, i)
		}
	}
	return out
}

// orderOf returns the arguments of the binding of a partition.
func orderOf(index int) map[string]any { return map[string]any{argumentOrder: index} }

// names lists the differences that a plan removes.
func (p plan) names(partitions []posthornv1.Partition) []string {
	var out []string
	if p.declareExchange {
		out = append(out, "exchange")
	}
	for _, partition := range p.declare {
		out = append(out, "partitions."+partition.Stream)
	}
	for _, index := range p.bind {
		out = append(out, "bindings."+partitions[index].Stream)
	}
	for _, binding := range p.unbind {
		if name := "bindings." + binding.Destination; !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// shorten keeps the first names of a list, because conditions have a limited length.
func shorten(names []string) []string {
	if len(names) <= maxNames {
		return names
	}
	return append(slices.Clone(names[:maxNames]), fmt.Sprintf("and %d others", len(names)-maxNames))
}

// summarize returns the number of streams that clients can use, and why they cannot use one of the others.
func summarize(streams []*broker.Queue) (usable int, first *topology.Impediment) {
	for _, stream := range streams {
		impediment := queuestate.ImpedimentOf(stream)
		if impediment == nil {
			usable++
		} else if first == nil {
			first = &topology.Impediment{Reason: impediment.Reason, Message: fmt.Sprintf("%s: %s", stream.Name, impediment.Message)}
		}
	}
	if first != nil {
		first.Message = fmt.Sprintf("%d of %d partitions can be used; %s", usable, len(streams), first.Message)
	}
	return usable, first
}
