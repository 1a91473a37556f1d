// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// partitionIndex indexes SuperStreams by the streams of their partitions.
const partitionIndex = "posthorn.io/partitions"

// partitioned is a resource for several streams.
type partitioned interface {
	Object
	BrokerVhost() string
	BrokerPartitions() []posthornv1.Partition
}

// partitionKeys returns the values of partitionIndex.
func partitionKeys(object partitioned) []string {
	var out []string
	for _, partition := range object.BrokerPartitions() {
		out = append(out, partitionKey(object, object.BrokerVhost(), partition.Stream))
	}
	return out
}

func partitionKey(object Object, vhost, stream string) string {
	return ClusterKey(object).String() + "|" + Identity(vhost, stream)
}

// PartitionOwner describes the SuperStream that owns a stream of this name and takes precedence over a resource; empty when
// there is none.
func PartitionOwner(ctx context.Context, reader client.Reader, object vhostObject, stream string) (string, error) {
	return owner(ctx, reader, object, &posthornv1.SuperStreamList{}, partitionIndex, partitionKey(object, object.BrokerVhost(), stream))
}

// SuperStreamOwner describes the SuperStream that owns an exchange of this name, as PartitionOwner does.
func SuperStreamOwner(ctx context.Context, reader client.Reader, object vhostObject, exchange string) (string, error) {
	return owner(ctx, reader, object, &posthornv1.SuperStreamList{}, identityIndex, partitionKey(object, object.BrokerVhost(), exchange))
}

// QueueOwner describes the Queue that owns a queue of this name, as PartitionOwner does.
func QueueOwner(ctx context.Context, reader client.Reader, object vhostObject, queue string) (string, error) {
	return owner(ctx, reader, object, &posthornv1.QueueList{}, identityIndex, partitionKey(object, object.BrokerVhost(), queue))
}

// ExchangeOwner describes the Exchange that owns an exchange of this name, as PartitionOwner does.
func ExchangeOwner(ctx context.Context, reader client.Reader, object vhostObject, exchange string) (string, error) {
	return owner(ctx, reader, object, &posthornv1.ExchangeList{}, identityIndex, partitionKey(object, object.BrokerVhost(), exchange))
}

// vhostObject is a resource whose object belongs to one vhost.
type vhostObject interface {
	Object
	BrokerVhost() string
}

// owner describes the first other resource in an index that owns its object and takes precedence over a resource: it does
// if the resource owns nothing or is younger.
func owner(ctx context.Context, reader client.Reader, object Object, list client.ObjectList, field, value string) (string, error) {
	if err := reader.List(ctx, list, client.MatchingFields{field: value}); err != nil {
		return "", fmt.Errorf("looking for resources of another kind: %w", err)
	}
	found := ""
	err := meta.EachListItem(list, func(item runtime.Object) error {
		other, is := item.(Object)
		if is && found == "" && other.GetUID() != object.GetUID() && other.Topology().Claim != "" && (object.Topology().Claim == "" || older(other, object)) {
			found = fmt.Sprintf("%s %s", reflect.TypeOf(other).Elem().Name(), client.ObjectKeyFromObject(other))
		}
		return nil
	})
	return found, err
}
