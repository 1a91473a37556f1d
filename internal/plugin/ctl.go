// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/exec"
)

func (r *runner) ctlCommand() *cobra.Command {
	chosen := ""
	command := &cobra.Command{
		Use:   "ctl [CLUSTER] -- OPERATION [ARGUMENT...]",
		Short: "Run posthorn ctl in the pod of a ready node",
		Long: `Runs posthorn ctl in the pod of a ready node, or of the node of --node, with the credentials of the default user. The exit
code is that of posthorn ctl.

The password goes through the standard input of the operation, because arguments appear in the audit log of the API server.
An operation that reads its standard input therefore needs its input as an argument, or credentials of your own (--user
and --password, or --password-file, after the dashes).`,
		Example: `  kubectl posthorn ctl c -- list_queues --vhost orders
  kubectl posthorn ctl c --node c-1 -- status
  kubectl posthorn ctl c -- --help`,
		Args: func(command *cobra.Command, args []string) error {
			before := command.ArgsLenAtDash()
			switch {
			case before < 0:
				return usageErrorf("ctl needs the operation after two dashes, for example: kubectl posthorn ctl c -- list_queues")
			case before > 1:
				return usageErrorf("ctl takes one cluster before the dashes, and not %s", strings.Join(args[:before], " "))
			case len(args) == before:
				return usageErrorf("ctl needs an operation after the dashes; kubectl posthorn ctl CLUSTER -- --help lists them")
			}
			return nil
		},
	}
	command.Flags().StringVar(&chosen, "node", "", "node in whose pod the operation runs (default: a ready one)")
	command.RunE = func(c *cobra.Command, args []string) error {
		before := c.ArgsLenAtDash()
		return r.withSession(func(ctx context.Context, s *Session, _ []string) error {
			return r.control(ctx, s, optional(args[:before]), chosen, args[before:])
		})(c, args)
	}
	return command
}

// control runs an operation of posthorn ctl.
func (r *runner) control(ctx context.Context, s *Session, name, chosen string, operation []string) error {
	cluster, err := s.findCluster(ctx, name)
	if err != nil {
		return err
	}
	if chosen != "" {
		pod, owner, err := s.findNode(ctx, chosen)
		if err != nil {
			return err
		}
		if owner.Name != cluster.Name {
			return usageErrorf("node %s belongs to cluster %s, and not to %s", chosen, owner.Name, cluster.Name)
		}
		chosen = pod.Name
	} else {
		pod, err := s.readyPod(ctx, cluster)
		if err != nil {
			return err
		}
		chosen = pod.Name
	}
	command, streams := []string{"/posthorn", "ctl"}, r.Streams
	if !hasCredentials(operation) {
		secret, err := s.credentialsSecret(ctx, cluster)
		if err != nil {
			return err
		}
		command = append(command, "--user", string(secret.Data[usernameKey]), "--password-file", "/dev/stdin")
		streams.In = strings.NewReader(string(secret.Data[passwordKey]))
	}
	err = s.Pods.Execute(ctx, s.Namespace, chosen, append(command, operation...), streams)
	var ended exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ended) && ended.Exited():
		// The operation has printed its error.
		return &exitError{code: ended.ExitStatus()}
	}
	return s.explain(err, "running posthorn ctl in pod "+chosen, right{"create", "pods/exec", chosen})
}

// hasCredentials reports whether an operation brings its own credentials, or needs none.
func hasCredentials(operation []string) bool {
	for _, argument := range operation {
		name, _, _ := strings.Cut(argument, "=")
		switch name {
		case "--user", "--password", "--password-file", "--help", "-h":
			return true
		}
	}
	return false
}
