// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (r *runner) pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause [CLUSTER]",
		Short: "Stop the operator from changing a cluster",
		Long: `Sets spec.paused: the operator changes nothing of the cluster until resume, and continues to report its state. The nodes
continue to serve clients.`,
		Example: `  kubectl posthorn pause c`,
		Args:    atMostOneCluster,
		RunE:    r.setPaused(true, "paused", "the operator changes nothing until: kubectl posthorn resume"),
	}
}

func (r *runner) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "resume [CLUSTER]",
		Short:   "Let the operator change a paused cluster again",
		Long:    `Unsets spec.paused: the operator applies the changes of the spec that were made during the pause.`,
		Example: `  kubectl posthorn resume c`,
		Args:    atMostOneCluster,
		RunE:    r.setPaused(false, "resumed", "follow it with: kubectl posthorn status"),
	}
}

// setPaused returns the function of pause and of resume.
func (r *runner) setPaused(paused bool, done, next string) func(*cobra.Command, []string) error {
	return r.withSession(func(ctx context.Context, s *Session, args []string) error {
		cluster, err := s.findCluster(ctx, optional(args))
		if err != nil {
			return err
		}
		if cluster.Spec.Paused == paused {
			state := map[bool]string{true: "paused already", false: "not paused"}[paused]
			_, err = fmt.Fprintf(r.Out, "cluster %s is %s\n", cluster.Name, state)
			return err
		}
		changed := cluster.DeepCopy()
		changed.Spec.Paused = paused
		if err := s.Client.Patch(ctx, changed, client.MergeFrom(cluster)); err != nil {
			return s.explain(err, "changing spec.paused of the BrokerCluster "+cluster.Name, right{"patch", "brokerclusters.posthorn.io", cluster.Name})
		}
		_, err = fmt.Fprintf(r.Out, "cluster %s is %s; %s %[1]s --namespace %[4]s\n", cluster.Name, done, next, s.Namespace)
		return err
	})
}
