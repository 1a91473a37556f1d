// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// drainTimeout is the default of drain --timeout.
const drainTimeout = 10 * time.Minute

func (r *runner) drainCommand() *cobra.Command {
	timeout, force := drainTimeout, false
	command := &cobra.Command{
		Use:   "drain NODE",
		Short: "Put a node into maintenance mode and wait until its leaders have moved away",
		Long: `Puts a node into maintenance mode: it closes to new clients, and the leaders of its queues move to other nodes. The
command returns when none is left. Replicas stay, and no pod is stopped. A restart of the node ends maintenance mode, and
so does undrain.

It refuses a node while another node of the cluster is not ready or is drained too, because leaders then have fewer nodes
to move to; --force drains it nevertheless.`,
		Example: `  kubectl posthorn drain c-1
  kubectl posthorn drain c-1 --timeout 1h`,
		Args: oneNode,
		RunE: r.withSession(func(ctx context.Context, s *Session, args []string) error {
			pod, cluster, err := s.findNode(ctx, args[0])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return r.drain(ctx, s, cluster, pod, force)
		}),
	}
	command.Flags().DurationVar(&timeout, "timeout", drainTimeout, "how long to wait; the drain continues afterwards")
	command.Flags().BoolVar(&force, "force", false, "drain although another node is not ready or is drained")
	return command
}

func (r *runner) drain(ctx context.Context, s *Session, cluster *posthornv1.BrokerCluster, pod *corev1.Pod, force bool) error {
	if !isReady(pod) {
		return fmt.Errorf("node %s is not ready and cannot be drained; kubectl posthorn status %s --namespace %s shows why", pod.Name, cluster.Name, s.Namespace)
	}
	node, err := s.connectTo(ctx, cluster, pod.Name)
	if err != nil {
		return err
	}
	defer node.close()
	if !force {
		if err := s.mayDrain(ctx, cluster, node, pod.Name); err != nil {
			return err
		}
	}
	leaders := int64(-1)
	err = s.awaiting(ctx, func() (bool, error) {
		state, err := node.Drain(ctx, pod.Name)
		if err != nil {
			return false, s.explainAnswer(err, "draining node "+pod.Name, cluster)
		}
		if !state.Drained() && state.Leaders != leaders {
			leaders = state.Leaders
			_, _ = fmt.Fprintf(r.Err, "%s: %d leaders are left\n", pod.Name, leaders)
		}
		return state.Drained(), nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("node %s is still being drained: %d leaders are left; wait longer with --timeout, or end the drain with: kubectl posthorn undrain %[1]s --namespace %[3]s", pod.Name, max(leaders, 0), s.Namespace)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(r.Out, "%s is drained; it serves clients again after: kubectl posthorn undrain %[1]s --namespace %s\n", pod.Name, s.Namespace)
	return err
}

// mayDrain refuses a drain that leaves leaders fewer nodes than one failure would.
func (s *Session) mayDrain(ctx context.Context, cluster *posthornv1.BrokerCluster, node *node, name string) error {
	pods, err := s.podsOf(ctx, cluster)
	if err != nil {
		return err
	}
	for i := range pods {
		if other := &pods[i]; other.Name != name && !isReady(other) {
			return fmt.Errorf("node %s is not ready: draining %s as well leaves fewer nodes for its leaders; wait until %[1]s is ready, or use --force", other.Name, name)
		}
	}
	if missing := int(cluster.Spec.Replicas) - len(pods); missing > 0 {
		return fmt.Errorf("cluster %s has %d of %d pods: draining %s as well leaves fewer nodes for its leaders; wait for the others, or use --force", cluster.Name, len(pods), cluster.Spec.Replicas, name)
	}
	list, err := node.Nodes(ctx)
	if err != nil {
		return s.explainAnswer(err, "listing the nodes at "+name, cluster)
	}
	for _, other := range list {
		if other.Name != name && other.BeingDrained {
			return fmt.Errorf("node %s is drained already: draining %s as well leaves fewer nodes for its leaders; run kubectl posthorn undrain %[1]s, or use --force", other.Name, name)
		}
	}
	return nil
}

func (r *runner) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undrain NODE",
		Short: "End the maintenance mode of a node",
		Long: `Ends the maintenance mode of a node: it accepts clients and leaders again. Leaders do not move back by themselves;
posthorn ctl rebalance spreads them.

It refuses a node that the operator drains to replace or to remove it: the operator would drain it again.`,
		Example: `  kubectl posthorn undrain c-1
  kubectl posthorn ctl c -- rebalance`,
		Args: oneNode,
		RunE: r.withSession(func(ctx context.Context, s *Session, args []string) error {
			pod, cluster, err := s.findNode(ctx, args[0])
			if err != nil {
				return err
			}
			return r.undrain(ctx, s, cluster, pod)
		}),
	}
}

func (r *runner) undrain(ctx context.Context, s *Session, cluster *posthornv1.BrokerCluster, pod *corev1.Pod) error {
	switch purpose := pod.Annotations[names.AnnotationDraining]; purpose {
	case "":
	case names.DrainingForRemoval:
		return fmt.Errorf("the operator drains node %s to remove it; raise spec.replicas of cluster %s to keep it", pod.Name, cluster.Name)
	default:
		return fmt.Errorf("the operator drains node %s to replace its pod, and would drain it again; wait, or pause the operator with: kubectl posthorn pause %s --namespace %s", pod.Name, cluster.Name, s.Namespace)
	}
	node, err := s.connectTo(ctx, cluster, pod.Name)
	if err != nil {
		return err
	}
	defer node.close()
	if err := node.Revive(ctx, pod.Name); err != nil {
		return s.explainAnswer(err, "ending the maintenance mode of node "+pod.Name, cluster)
	}
	_, err = fmt.Fprintf(r.Out, "%s serves clients again\n", pod.Name)
	return err
}
