// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// restartTimeout is the default of restart --timeout.
const restartTimeout = 30 * time.Minute

// Prefixes that distinguish a node from a cluster of the same name.
const (
	nodePrefix    = "node/"
	clusterPrefix = "cluster/"
)

// restartOptions are the flags of restart.
type restartOptions struct {
	wait    bool
	timeout time.Duration
}

func (r *runner) restartCommand() *cobra.Command {
	options := restartOptions{}
	command := &cobra.Command{
		Use:   "restart [CLUSTER | NODE]",
		Short: "Let the operator restart all nodes one by one, or one node",
		Long: `Asks the operator to restart the nodes of a cluster, or one node. The operator drains and replaces one pod at a time, and
none without which a queue would lose its majority. With spec.upgrade.mode Supervised each step needs an approval.

The command sets the annotation posthorn.io/restarted-at on the BrokerCluster, or posthorn.io/restart=true on the pod of
the node. It needs the right to patch one of them, and deletes no pod. Where a cluster and a node have the same name, write
cluster/NAME or node/NAME.`,
		Example: `  kubectl posthorn restart c
  kubectl posthorn restart c --wait
  kubectl posthorn restart c-1`,
		Args: atMostOneCluster,
		RunE: r.withSession(func(ctx context.Context, s *Session, args []string) error {
			return r.restart(ctx, s, optional(args), options)
		}),
	}
	command.Flags().BoolVar(&options.wait, "wait", false, "wait until the new pods are ready")
	command.Flags().DurationVar(&options.timeout, "timeout", restartTimeout, "how long --wait waits; the restart continues afterwards")
	return command
}

func (r *runner) restart(ctx context.Context, s *Session, name string, options restartOptions) error {
	cluster, pod, err := s.findRestarted(ctx, name)
	if err != nil {
		return err
	}
	switch {
	case cluster.Spec.Hibernated:
		return fmt.Errorf("cluster %s is hibernated and has no nodes to restart; unset spec.hibernated instead", cluster.Name)
	case cluster.Spec.Paused:
		return fmt.Errorf("cluster %s is paused: the operator restarts nothing; first run: kubectl posthorn resume %[1]s --namespace %s", cluster.Name, s.Namespace)
	}
	if pod != nil {
		return r.restartNode(ctx, s, cluster, pod, options)
	}
	return r.restartCluster(ctx, s, cluster, options)
}

// findRestarted returns the cluster, and the pod if the name is that of a node.
func (s *Session) findRestarted(ctx context.Context, name string) (*posthornv1.BrokerCluster, *corev1.Pod, error) {
	if node, is := strings.CutPrefix(name, nodePrefix); is {
		pod, cluster, err := s.findNode(ctx, node)
		return cluster, pod, err
	}
	if plain, is := strings.CutPrefix(name, clusterPrefix); is || name == "" {
		cluster, err := s.findCluster(ctx, plain)
		return cluster, nil, err
	}
	clusters, err := s.clusterNames(ctx)
	if err != nil {
		return nil, nil, err
	}
	pod, owner, nodeErr := s.findNode(ctx, name)
	for _, existing := range clusters {
		if existing != name {
			continue
		}
		if nodeErr == nil {
			return nil, nil, usageErrorf("%s is a cluster and a node of cluster %s; write %[3]s%[1]s or %[4]s%[1]s", name, owner.Name, clusterPrefix, nodePrefix)
		}
		cluster, err := s.findCluster(ctx, name)
		return cluster, nil, err
	}
	if nodeErr != nil && len(clusters) > 0 {
		return nil, nil, fmt.Errorf("%w; its clusters are: %s", nodeErr, strings.Join(clusters, ", "))
	}
	return owner, pod, nodeErr
}

func (r *runner) restartCluster(ctx context.Context, s *Session, cluster *posthornv1.BrokerCluster, options restartOptions) error {
	before, err := s.podsOf(ctx, cluster)
	if err != nil {
		return err
	}
	changed := cluster.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, names.AnnotationRestartedAt, time.Now().UTC().Format(time.RFC3339Nano))
	if err := s.Client.Patch(ctx, changed, client.MergeFrom(cluster)); err != nil {
		return s.explain(err, "setting the annotation "+names.AnnotationRestartedAt+" on the BrokerCluster "+cluster.Name, right{"patch", "brokerclusters.posthorn.io", cluster.Name})
	}
	_, _ = fmt.Fprintf(r.Out, "the operator restarts the %d nodes of cluster %s one by one\n", len(before), cluster.Name)
	return r.finishRestart(ctx, s, cluster, before, options)
}

func (r *runner) restartNode(ctx context.Context, s *Session, cluster *posthornv1.BrokerCluster, pod *corev1.Pod, options restartOptions) error {
	changed := pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, names.AnnotationRestart, "true")
	if err := s.Client.Patch(ctx, changed, client.MergeFrom(pod)); err != nil {
		return s.explain(err, "setting the annotation "+names.AnnotationRestart+" on the pod "+pod.Name, right{"patch", "pods", pod.Name})
	}
	_, _ = fmt.Fprintf(r.Out, "the operator restarts node %s of cluster %s\n", pod.Name, cluster.Name)
	return r.finishRestart(ctx, s, cluster, []corev1.Pod{*pod}, options)
}

// finishRestart waits for the new pods, or says how to follow the restart.
func (r *runner) finishRestart(ctx context.Context, s *Session, cluster *posthornv1.BrokerCluster, before []corev1.Pod, options restartOptions) error {
	follow := fmt.Sprintf("kubectl posthorn status %s --namespace %s", cluster.Name, s.Namespace)
	if !options.wait {
		_, err := fmt.Fprintln(r.Out, "follow it with:", follow)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, options.timeout)
	defer cancel()
	last := ""
	err := s.awaiting(ctx, func() (bool, error) {
		done, progress, err := s.isRestarted(ctx, cluster.Name, before)
		if err == nil && progress != last {
			last = progress
			_, _ = fmt.Fprintln(r.Err, progress)
		}
		return done, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("cluster %s: the restart is not complete after %s: %s; it continues, follow it with: %s", cluster.Name, options.timeout, last, follow)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(r.Out, "cluster %s: restarted %d nodes\n", cluster.Name, len(before))
	return err
}

// isRestarted reports whether every pod has been replaced and the cluster is Ready, and the progress in words.
func (s *Session) isRestarted(ctx context.Context, name string, before []corev1.Pod) (bool, string, error) {
	cluster, err := s.findCluster(ctx, name)
	if err != nil {
		return false, "", err
	}
	pods, err := s.podsOf(ctx, cluster)
	if err != nil {
		return false, "", err
	}
	replaced := 0
	for i := range before {
		for j := range pods {
			if pods[j].Name == before[i].Name && pods[j].UID != before[i].UID && isReady(&pods[j]) {
				replaced++
			}
		}
	}
	progress := fmt.Sprintf("%d of %d nodes are restarted", replaced, len(before))
	for _, wait := range waitsOf(cluster) {
		progress += fmt.Sprintf("; %s %s", wait.Reason, wait.For)
	}
	isDone := replaced == len(before) && meta.IsStatusConditionTrue(cluster.Status.Conditions, posthornv1.ConditionReady)
	return isDone, progress, nil
}
